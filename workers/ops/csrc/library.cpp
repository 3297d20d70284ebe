// One library with a C interface, loaded with ctypes. It knows neither Python's nor torch's headers, so one build serves
// all their releases.
#include "library.h"

namespace {

struct InstructionSet {
    const char* name;
    bool (*runs_here)();
};

// Best first. Kernels that come in several forms number them in this order.
const InstructionSet instruction_sets[] = {
#if defined(__x86_64__)
    {"avx512",
     [] {
         return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
     }},
    {"avx2", [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }},
#else
    {"avx512", [] { return false; }},
    {"avx2", [] { return false; }},
#endif
    {"generic", [] { return true; }},
};

}  // namespace

GRAPHMILL_EXPORT int64_t graphmill_abi() { return graphmill::ABI_NUMBER; }

// The name of an instruction set, or null past the last; `runs_here` says whether this processor has it.
GRAPHMILL_EXPORT const char* graphmill_instruction_set(int64_t number, int64_t* runs_here) {
    if (number >= int64_t(sizeof(instruction_sets) / sizeof(instruction_sets[0]))) return nullptr;
    *runs_here = instruction_sets[number].runs_here();
    return instruction_sets[number].name;
}
