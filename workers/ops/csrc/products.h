// The two sums over a tile that are matrix products, with all their partial sums in registers.
#pragma once

#include "simd.h"
#include "units.h"

namespace graphmill::GRAPHMILL_ISA {

// Vectors of rows worked on at a time, and sums that fit into the registers beside what they are made of.
#if GRAPHMILL_VECTOR_BYTES == 64
constexpr int VECTORS = 4;
constexpr int SUMS = 24;
#else
constexpr int VECTORS = 2;
constexpr int SUMS = 12;
#endif

// Calls body<run>(first) for runs that cover `count`: as many of the longest as there are, then shorter ones, down to 1.
template <int run, int... shorter, class Body>
__attribute__((always_inline)) inline void in_runs(int64_t count, Body body, int64_t first = 0) {
    for (; count - first >= run; first += run) body.template operator()<run>(first);
    if constexpr (run > 1) {
        if (first < count) in_runs<shorter...>(count, body, first);
    }
}

// Calls body(c) for c < size, four at a time: a processor mispredicts the end of a short loop less often.
template <class Body>
__attribute__((always_inline)) inline void over_size(int64_t size, Body body) {
    int64_t c = 0;
    for (; c + 4 <= size; c += 4) {
        GRAPHMILL_UNROLL
        for (int part = 0; part < 4; ++part) body(c + part);
    }
    for (; c < size; ++c) body(c);
}

// sums[c][i] = decay[i] * sums[c][i] + sum over j of keys[j][c] * tile[j][i], for I vectors of rows i.
template <class T, int I, bool has_decay>
inline void add_over_keys(T* sums, const T* decay, const T* keys, const T* tile, int64_t num_keys, int64_t size) {
    in_runs<4, 1>(size, [&]<int C>(int64_t c) __attribute__((always_inline)) {
        Vector<T> sum[C][I] = {};
        for (int64_t j = 0; j < num_keys; ++j) {
            Vector<T> weights[I];
            GRAPHMILL_UNROLL
            for (int i = 0; i < I; ++i) weights[i] = pinned(load(tile + j * TILE_ROWS + i * WIDTH<T>));
            GRAPHMILL_UNROLL
            for (int r = 0; r < C; ++r) {
                Vector<T> key = pinned(broadcast(keys[j * size + c + r]));
                GRAPHMILL_UNROLL
                for (int i = 0; i < I; ++i) sum[r][i] += weights[i] * key;
            }
        }
        GRAPHMILL_UNROLL
        for (int r = 0; r < C; ++r) {
            GRAPHMILL_UNROLL
            for (int i = 0; i < I; ++i) {
                T* to = sums + (c + r) * TILE_ROWS + i * WIDTH<T>;
                if constexpr (has_decay) {
                    store(to, load(to) * load(decay + i * WIDTH<T>) + sum[r][i]);
                } else {
                    store(to, load(to) + sum[r][i]);
                }
            }
        }
    });
}

// sums[j][2c] += sum over i of pairs[j][i][0] * rows[i][2c], and likewise with 1: two products at once.
// A row of `sums` and `rows` is `vectors` vectors long.
template <class T>
inline void add_over_rows(T* sums, const T* pairs, const T* rows, int64_t num_keys, int64_t num_rows, int64_t vectors) {
    int64_t pitch = vectors * WIDTH<T>;
    in_runs<2, 1>(vectors, [&]<int C>(int64_t c) __attribute__((always_inline)) {
        in_runs<SUMS / C, 4, 1>(num_keys, [&]<int J>(int64_t j) __attribute__((always_inline)) {
            Vector<T> sum[J][C];
            T* to = sums + j * pitch + c * WIDTH<T>;
            GRAPHMILL_UNROLL
            for (int r = 0; r < J; ++r) {
                GRAPHMILL_UNROLL
                for (int i = 0; i < C; ++i) sum[r][i] = load(to + r * pitch + i * WIDTH<T>);
            }
            const T* pair_of = pairs + j * TILE_ROWS * 2;
            const T* numbers_of = rows + c * WIDTH<T>;
            for (int64_t row = 0; row < num_rows; ++row, pair_of += 2, numbers_of += pitch) {
                asm("" : "+r"(pair_of));  // else GCC keeps a register for each of the J offsets, and runs out of them
                Vector<T> numbers[C];
                GRAPHMILL_UNROLL
                for (int i = 0; i < C; ++i) numbers[i] = pinned(load(numbers_of + i * WIDTH<T>));
                GRAPHMILL_UNROLL
                for (int r = 0; r < J; ++r) {
                    Vector<T> pair = pinned(broadcast_pair(pair_of + r * TILE_ROWS * 2));
                    GRAPHMILL_UNROLL
                    for (int i = 0; i < C; ++i) sum[r][i] += numbers[i] * pair;
                }
            }
            GRAPHMILL_UNROLL
            for (int r = 0; r < J; ++r) {
                GRAPHMILL_UNROLL
                for (int i = 0; i < C; ++i) store(to + r * pitch + i * WIDTH<T>, sum[r][i]);
            }
        });
    });
}

}  // namespace graphmill::GRAPHMILL_ISA
