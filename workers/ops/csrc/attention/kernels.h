#include "backward.h"
#include "forward.h"

namespace graphmill::GRAPHMILL_ISA {

template <class T>
constexpr Kernel kernel{
    .forward_scratch_bytes = [](const Call& call, const Cut& cut) { return ForwardScratch<T>(call, cut, nullptr).used_bytes; },
    .forward = forward<T>,
    .backward_scratch_bytes = [](const Call& call, const Cut& cut) { return BackwardScratch<T>(call, cut, nullptr).used_bytes; },
    .backward = backward<T>,
};

const Kernel kernels[2] = {kernel<float>, kernel<double>};

}  // namespace graphmill::GRAPHMILL_ISA
