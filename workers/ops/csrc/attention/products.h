// The two sums over a tile that are matrix products, with their partial sums in registers.
#pragma once

#include "simd.h"

namespace graphmill::GRAPHMILL_ISA {

// Vectors worked on side by side, and partial sums that fit into the registers beside what they are made of.
#if GRAPHMILL_VECTOR_BYTES == 64
constexpr int VECTORS = 4;
constexpr int SUMS = 24;
#else
constexpr int VECTORS = 2;
constexpr int SUMS = 12;
#endif

// sums[i][2c + odd] = decay[i] * sums[i][2c + odd] + sum over even, or odd, keys j of weights[i][j] * keys[j][c].
// Keys come in pairs: a row of `pairs` is k[j][0] k[j+1][0] k[j][1] k[j+1][1] ..., `vectors` vectors long, as is one of
// `sums`. No decay (null) means 1.
template <class T, int64_t pitch>
inline void add_over_keys(T* sums, const T* decay, const T* weights, const T* pairs, int64_t num_rows,
                          int64_t num_pairs, int64_t vectors) {
    int64_t length = vectors * WIDTH<T>;
    in_runs<2, 1>(vectors, [&]<int C>(int64_t c) INLINE_LAMBDA {
        in_runs<SUMS / C, 4, 1>(num_rows, [&]<int J>(int64_t row) INLINE_LAMBDA {
            Vector<T> sum[J][C] = {};
            const T* from = pairs + c * WIDTH<T>;
            const T* weight = weights + row * pitch;
            for (int64_t j = 0; j < num_pairs; ++j, from += length, weight += 2) {
                asm("" : "+r"(weight));  // else GCC keeps an offset for each row in a register, and runs out of them
                Vector<T> key[C];
                UNROLL
                for (int i = 0; i < C; ++i) key[i] = pinned(load(from + i * WIDTH<T>));
                UNROLL
                for (int r = 0; r < J; ++r) {
                    Vector<T> pair = pinned(broadcast_pair(weight + r * pitch));
                    UNROLL
                    for (int i = 0; i < C; ++i) sum[r][i] += key[i] * pair;
                }
            }
            UNROLL
            for (int r = 0; r < J; ++r) {
                Vector<T> keep = broadcast(decay ? decay[row + r] : T(1));
                UNROLL
                for (int i = 0; i < C; ++i) {
                    T* to = sums + (row + r) * length + (c + i) * WIDTH<T>;
                    store(to, load(to) * keep + sum[r][i]);
                }
            }
        });
    });
}

// sums[c][j] += sum over rows i of weights[i][j] * rows[i][c], for I vectors of keys j.
template <class T, int I>
inline void add_over_rows(T* sums, const T* weights, const T* rows, int64_t num_rows, int64_t size) {
    in_runs<4, 1>(size, [&]<int C>(int64_t c) INLINE_LAMBDA {
        Vector<T> sum[C][I] = {};
        for (int64_t row = 0; row < num_rows; ++row) {
            Vector<T> weight[I];
            UNROLL
            for (int i = 0; i < I; ++i) weight[i] = pinned(load(weights + row * TILE_KEYS + i * WIDTH<T>));
            UNROLL
            for (int r = 0; r < C; ++r) {
                Vector<T> number = pinned(broadcast(rows[row * size + c + r]));
                UNROLL
                for (int i = 0; i < I; ++i) sum[r][i] += weight[i] * number;
            }
        }
        UNROLL
        for (int r = 0; r < C; ++r) {
            UNROLL
            for (int i = 0; i < I; ++i) {
                T* to = sums + (c + r) * TILE_KEYS + i * WIDTH<T>;
                store(to, load(to) + sum[r][i]);
            }
        }
    });
}

}  // namespace graphmill::GRAPHMILL_ISA
