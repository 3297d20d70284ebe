// The bias of a vector of pairs, looked up by bucket in the table of one head.
#pragma once

#include "simd.h"
#include "units.h"

namespace graphmill::GRAPHMILL_ISA {

// The table in R registers: a lookup is a permutation. (A permutation takes an index modulo what it permutes.)
template <class T, int R>
struct BiasByPermutation {
    static_assert(R == 2 || R == 4);
    Vector<T> part[R];

    explicit BiasByPermutation(const T* table, T shift = 0) {
        UNROLL
        for (int r = 0; r < R; ++r) part[r] = load(table + r * WIDTH<T>) + shift;
    }

    Vector<T> operator()(const uint8_t* buckets) const {
        Indices<T> index = widened<T>(buckets);
        Vector<T> low = __builtin_shuffle(part[0], part[1], index);
        if constexpr (R == 2) return low;
        Vector<T> high = __builtin_shuffle(part[R - 2], part[R - 1], index);
        return (index & Index<T>(2 * WIDTH<T>)) != 0 ? high : low;
    }
};

template <class T>
struct BiasByIndex {
    const T* table;
    T shift;

    explicit BiasByIndex(const T* table, T shift = 0) : table(table), shift(shift) {}

    Vector<T> operator()(const uint8_t* buckets) const {
        Vector<T> bias{};
        UNROLL
        for (int lane = 0; lane < WIDTH<T>; ++lane) bias[lane] = table[buckets[lane]];
        return bias + shift;
    }
};

// Calls `body` with the fastest lookup for so many buckets, as a type. Tables are padded to MAX_BUCKETS.
template <class T, class Body>
inline void with_bias(int64_t num_buckets, Body body) {
    if constexpr (WIDTH<T> >= 8) {
        if (num_buckets <= 2 * WIDTH<T>) return body.template operator()<BiasByPermutation<T, 2>>();
        if (num_buckets <= 4 * WIDTH<T>) return body.template operator()<BiasByPermutation<T, 4>>();
    }
    body.template operator()<BiasByIndex<T>>();
}

}  // namespace graphmill::GRAPHMILL_ISA
