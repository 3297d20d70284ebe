// The C interface of sums over sampled blocks and of what follows them. All return 0, or -1 if memory is lacking.
#include "../library.h"
#include "calls.h"
#include "edges.h"

using namespace graphmill;

namespace {

// By number of the instruction set.
const AggregateKernel* const kernels[] = {
#if defined(__x86_64__)
    avx512::aggregate_kernels,
    avx2::aggregate_kernels,
#else
    nullptr,
    nullptr,
#endif
    generic::aggregate_kernels,
};

template <class Call>
int64_t run(bool (*AggregateKernel::*function)(const Call&), const Call* call) {
    return (kernels[call->instruction_set][call->is_double].*function)(*call) ? 0 : -1;
}

}  // namespace

GRAPHMILL_EXPORT int64_t graphmill_sums(const Sums* call) { return run(&AggregateKernel::sums, call); }

GRAPHMILL_EXPORT int64_t graphmill_product(const Product* call) { return run(&AggregateKernel::product, call); }

GRAPHMILL_EXPORT int64_t graphmill_outer_product(const OuterProduct* call) {
    return run(&AggregateKernel::outer_product, call);
}

GRAPHMILL_EXPORT int64_t graphmill_heads(const Heads* call) { return run(&AggregateKernel::attend, call); }

GRAPHMILL_EXPORT int64_t graphmill_heads_backward(const Heads* call) {
    int64_t fault = run(&AggregateKernel::attend_backward, call);
    if (fault || !call->grad_x.data) return fault;
    return run(&AggregateKernel::attend_backward_to_sources, call);
}

#define FOR_INDEX(I, suffix)                                                                                           \
    GRAPHMILL_EXPORT int64_t graphmill_sort_by_source_##suffix(const int32_t* indptr, const I* sources,                \
                                                               int64_t num_targets, int64_t num_sources,               \
                                                               int32_t* begins, int32_t* targets, int32_t* edges) {    \
        sort_by_source(indptr, sources, num_targets, num_sources, begins, targets, edges);                             \
        return 0;                                                                                                      \
    }                                                                                                                  \
    GRAPHMILL_EXPORT int64_t graphmill_expand_##suffix(                                                                \
        const SparseRows* rows, const int32_t* indptr, const I* sources, const float* factors, const I* own_rows,      \
        const float* own_factors, int64_t own_offset, int64_t num_targets, int32_t* begins, int32_t* columns,          \
        float* values) {                                                                                               \
        return expand(*rows, indptr, sources, factors, own_rows, own_factors, own_offset, num_targets, begins,         \
                      columns, values);                                                                                \
    }

FOR_INDEX(int32_t, 32)
FOR_INDEX(int64_t, 64)
