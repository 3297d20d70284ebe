// The C interface. Loaded with ctypes; knows neither Python's nor torch's headers, so one build serves all their
// releases.
#include <memory>

#include "units.h"

using namespace graphmill;

namespace {

struct InstructionSet {
    const char* name;
    bool (*runs_here)();
    const Kernel* kernels;
};

// Best first.
const InstructionSet instruction_sets[] = {
#if defined(__x86_64__)
    {"avx512",
     [] {
         return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
     },
     avx512::kernels},
    {"avx2", [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }, avx2::kernels},
#endif
    {"generic", [] { return true; }, generic::kernels},
};

const Kernel& kernel_of(const Call& call) { return instruction_sets[call.instruction_set].kernels[call.is_double]; }

}  // namespace

#define GRAPHMILL_EXPORT extern "C" __attribute__((visibility("default")))

// The number of this interface, and the size of the call it expects.
GRAPHMILL_EXPORT int64_t graphmill_attention_abi() { return ABI_NUMBER << 32 | sizeof(Call); }

// The name of an instruction set, best first, or null past the last; `runs_here` says whether this processor has it.
GRAPHMILL_EXPORT const char* graphmill_attention_instruction_set(int64_t index, int64_t* runs_here) {
    if (index >= int64_t(std::size(instruction_sets))) return nullptr;
    *runs_here = instruction_sets[index].runs_here();
    return instruction_sets[index].name;
}

// Returns the largest bucket met (one past the table's end is never looked up), or -1 if memory is lacking.
GRAPHMILL_EXPORT int64_t graphmill_attend(const Call* call) {
    const Kernel& kernel = kernel_of(*call);
    Shared shared{.call = *call, .cut = cut_of(*call), .progress = nullptr, .table_sums = nullptr};
    int64_t bytes = kernel.forward_scratch_bytes(*call, shared.cut);
    if (!run_units(shared, kernel.forward, call->num_threads, bytes)) return -1;
    return shared.largest_bucket;
}

// Returns 0, or -1 if memory is lacking.
GRAPHMILL_EXPORT int64_t graphmill_attend_backward(const Call* call) {
    const Kernel& kernel = kernel_of(*call);
    Cut cut = cut_of(*call);
    int64_t units = cut.groups * cut.chunks;
    std::unique_ptr<std::atomic<int64_t>[]> progress(new (std::nothrow) std::atomic<int64_t>[units]());
    std::unique_ptr<double[]> table_sums(new (std::nothrow) double[units * MAX_BUCKETS * GROUP_HEADS]);
    if (!progress || !table_sums) return -1;
    Shared shared{.call = *call, .cut = cut, .progress = progress.get(), .table_sums = table_sums.get()};
    int64_t bytes = kernel.backward_scratch_bytes(*call, cut);
    if (!run_units(shared, kernel.backward, call->num_threads, bytes)) return -1;
    for (int64_t head = 0; head < call->num_heads; ++head) {
        int64_t first = head / GROUP_HEADS * cut.chunks;
        for (int64_t b = 0; b < call->num_buckets; ++b) {
            double sum = 0;
            for (int64_t chunk = 0; chunk < cut.chunks; ++chunk) {
                sum += table_sums[((first + chunk) * MAX_BUCKETS + b) * GROUP_HEADS + head % GROUP_HEADS];
            }
            call->grad_table[head * call->num_buckets + b] = sum;
        }
    }
    return 0;
}
