// Sums and other folds across the lanes of vectors.
#pragma once

#include "../attention/simd.h"

namespace graphmill::GRAPHMILL_ISA {

// Within blocks of lanes, a block's one half of `low` and the same half of `high` side by side.
template <class T, int block, bool upper, int... lane>
INLINE Vector<T> halves_of(Vector<T> low, Vector<T> high, std::integer_sequence<int, lane...>) {
    constexpr int half = block / 2;
    return __builtin_shuffle(low, high,
                             Indices<T>{(lane / block * block + lane % half + (upper ? half : 0) +
                                         (lane % block < half ? 0 : WIDTH<T>))...});
}

// Lane i: the sum of all lanes of x[i].
template <class T, int count>
INLINE Vector<T> sums_of_lanes(const Vector<T> (&x)[count]) {
    if constexpr (count == 1) {
        return x[0];
    } else {
        auto lanes = std::make_integer_sequence<int, WIDTH<T>>{};
        Vector<T> sums[count / 2];
        UNROLL
        for (int i = 0; i < count / 2; ++i) {
            sums[i] = halves_of<T, count, false>(x[i], x[i + count / 2], lanes) +
                      halves_of<T, count, true>(x[i], x[i + count / 2], lanes);
        }
        return sums_of_lanes<T>(sums);
    }
}

// Every lane: what `join` makes of all lanes as far from it as a multiple of `distance`.
template <class T, int distance, class Join>
INLINE Vector<T> folded(Vector<T> x, Join join) {
    if constexpr (distance < WIDTH<T>) {
        return folded<T, 2 * distance>(join(x, rotated<T, distance>(x)), join);
    } else {
        return x;
    }
}

}  // namespace graphmill::GRAPHMILL_ISA
