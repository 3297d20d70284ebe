// The C interface of tiled biased attention.
#include "../library.h"

#include <memory>
#include <new>

#include "units.h"

using namespace graphmill;

namespace {

// By number of the instruction set.
const Kernel* const kernels[] = {
#if defined(__x86_64__)
    avx512::kernels,
    avx2::kernels,
#else
    nullptr,
    nullptr,
#endif
    generic::kernels,
};

const Kernel& kernel_of(const Call& call) { return kernels[call.instruction_set][call.is_double]; }

}  // namespace

// Both return the largest bucket that they met, or -1 if memory is lacking. A bucket past the table's end is harmless
// to memory and worth nothing else: the results are then for the bin.

GRAPHMILL_EXPORT int64_t graphmill_attend(const Call* call) {
    const Kernel& kernel = kernel_of(*call);
    Shared shared{.call = *call, .cut = cut_of(*call, call->num_rows), .progress = nullptr, .table_sums = nullptr};
    int64_t bytes = kernel.forward_scratch_bytes(*call, shared.cut);
    if (!run_units(shared, kernel.forward, call->num_threads, bytes)) return -1;
    return shared.largest_bucket;
}

GRAPHMILL_EXPORT int64_t graphmill_attend_backward(const Call* call) {
    const Kernel& kernel = kernel_of(*call);
    Cut cut = cut_of(*call, call->num_keys);
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
    return shared.largest_bucket;
}
