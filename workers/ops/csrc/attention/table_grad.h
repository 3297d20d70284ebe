// Sums of score gradients by bucket, for all heads of a group at once.
//
// Eight vectors, one for each head, are transposed so that the eight heads of one pair lie side by side; adding them to
// their bucket is then one vector addition, whatever the number of buckets. Four copies of the sums take turns, so that
// neighbouring pairs of one bucket need not wait for each other.
#pragma once

#include "simd.h"
#include "units.h"

namespace graphmill::GRAPHMILL_ISA {

constexpr int COPIES = 4;

template <class T>
struct OfHeads;
template <>
struct OfHeads<float> {
    typedef float Vector __attribute__((vector_size(4 * GROUP_HEADS), may_alias));
};
template <>
struct OfHeads<double> {
    typedef double Vector __attribute__((vector_size(8 * GROUP_HEADS), may_alias));
};

// sums[buckets[i][j]][j % COPIES][h] += grad[h][i][j]; one head's gradients are `head_pitch` apart.
template <class T>
inline void add_by_bucket(T* sums, const T* grad, int64_t head_pitch, const uint8_t* buckets, int64_t pitch,
                          int64_t rows, int64_t vectors) {
    using Heads = typename OfHeads<T>::Vector;
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t i = 0; i < vectors; ++i) {
            int64_t at = row * TILE_KEYS + i * WIDTH<T>;
            const uint8_t* bucket = buckets + row * pitch + i * WIDTH<T>;
            Vector<T> x[GROUP_HEADS];
            UNROLL
            for (int h = 0; h < GROUP_HEADS; ++h) x[h] = load(grad + h * head_pitch + at);
            // Each round moves one bit of the head's number behind the bits of the lane's number.
            UNROLL
            for (int round = 1; round < GROUP_HEADS; round *= 2) {
                Vector<T> y[GROUP_HEADS];
                UNROLL
                for (int h = 0; h < GROUP_HEADS / 2; ++h) {
                    y[2 * h] = zip<T, 0>(x[h], x[h + GROUP_HEADS / 2]);
                    y[2 * h + 1] = zip<T, 1>(x[h], x[h + GROUP_HEADS / 2]);
                }
                UNROLL
                for (int h = 0; h < GROUP_HEADS; ++h) x[h] = y[h];
            }
            alignas(64) T by_pair[WIDTH<T> * GROUP_HEADS];
            UNROLL
            for (int h = 0; h < GROUP_HEADS; ++h) store(by_pair + h * WIDTH<T>, x[h]);
            UNROLL
            for (int lane = 0; lane < WIDTH<T>; ++lane) {
                T* sum = sums + (bucket[lane] * COPIES + lane % COPIES) * GROUP_HEADS;
                *reinterpret_cast<Heads*>(sum) += *reinterpret_cast<Heads*>(by_pair + lane * GROUP_HEADS);
            }
        }
    }
}

// Moves the sums into `total` [num_buckets, heads], in double, and clears them.
template <class T>
inline void flush_sums(double* total, T* sums, int64_t num_buckets) {
    for (int64_t b = 0; b < num_buckets; ++b, total += GROUP_HEADS, sums += COPIES * GROUP_HEADS) {
        for (int h = 0; h < GROUP_HEADS; ++h) {
            for (int copy = 0; copy < COPIES; ++copy) total[h] += sums[copy * GROUP_HEADS + h];
        }
        fill(sums, COPIES * GROUP_HEADS, T(0));
    }
}

}  // namespace graphmill::GRAPHMILL_ISA
