#include "heads.h"
#include "products.h"
#include "sums.h"

namespace graphmill::GRAPHMILL_ISA {

template <class T>
constexpr AggregateKernel aggregate_kernel{
    .sums = sums<T>,
    .product = product<T>,
    .outer_product = outer_product<T>,
    .attend = attend<T>,
    .attend_backward = attend_backward<T>,
    .attend_backward_to_sources = attend_backward_to_sources<T>,
};

const AggregateKernel aggregate_kernels[2] = {aggregate_kernel<float>, aggregate_kernel<double>};

}  // namespace graphmill::GRAPHMILL_ISA
