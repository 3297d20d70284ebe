// Scores of a few rows and some vectors of keys, in registers.
#pragma once

#include "bias.h"
#include "products.h"

namespace graphmill::GRAPHMILL_ISA {

// For c < size: sum[r][i] += rows[r][c] * keys[c][i].
template <class T, int J, int I>
INLINE void add_product(Vector<T> (&sum)[J][I], const T* rows, const T* keys, int64_t size, int64_t c) {
    Vector<T> key[I];
    UNROLL
    for (int i = 0; i < I; ++i) key[i] = pinned(load(keys + c * TILE_KEYS + i * WIDTH<T>));
    UNROLL
    for (int r = 0; r < J; ++r) {
        Vector<T> number = pinned(broadcast(rows[r * size + c]));
        UNROLL
        for (int i = 0; i < I; ++i) sum[r][i] += key[i] * number;
    }
}

template <class T, int J, int I>
INLINE void add_products(Vector<T> (&sum)[J][I], const T* rows, const T* keys, int64_t size) {
    for (int64_t c = 0; c < size; ++c) add_product<T>(sum, rows, keys, size, c);
}

// Zero, or another value, in columns first <= j < last of a tile.
template <class T>
inline void fill_columns(T* tile, int64_t pitch, int64_t num_rows, int64_t first, int64_t last, T value) {
    for (int64_t i = 0; i < num_rows; ++i) fill(tile + i * pitch + first, last - first, value);
}

template <class T>
constexpr int64_t padded(int64_t count) {
    return (count + WIDTH<T> - 1) / WIDTH<T> * WIDTH<T>;
}

}  // namespace graphmill::GRAPHMILL_ISA
