// Forward: a chunk of rows against all keys, with a running maximum and total per row (Milakov and Gimelshein,
// arXiv 1805.02867), tile by tile: scores, weights, weighted values.
#pragma once

#include "dropout.h"
#include "exp2.h"
#include "packing.h"
#include "scores.h"

namespace graphmill::GRAPHMILL_ISA {

template <class T>
struct ForwardScratch {
    static constexpr int64_t tile_rows = 24;
    static constexpr int64_t block_keys = 3 * TILE_KEYS;

    int64_t size, length, rows;  // `length` is that of 2 * size numbers in whole vectors, `rows` the longest chunk
    T* q;                        // [heads, rows, size]
    T* out;                      // [heads, rows, length]: sums over even and odd keys
    T* top;                      // [heads, rows]
    T* total;                    // [heads, rows, WIDTH]: sums of every WIDTH-th weight
    T* k;                        // [heads, block_keys / TILE_KEYS, size, TILE_KEYS]
    T* v;                        // [heads, block_keys / 2, length]
    T* tables;                   // [heads, MAX_BUCKETS]
    T* weights;                  // [tile_rows, block_keys]
    T* decay;                    // [tile_rows]
    uint8_t* buckets;            // [tile_rows, block_keys]
    int32_t* column_bits;        // [block_keys]
    int64_t used_bytes;

    ForwardScratch(const Call& call, const Cut& cut, void* memory)
        : size(call.head_size), length(padded<T>(2 * size)), rows(cut.chunk) {
        Arena arena(memory);
        q = arena.take<T>(GROUP_HEADS * rows * size);
        out = arena.take<T>(GROUP_HEADS * rows * length);
        top = arena.take<T>(GROUP_HEADS * rows);
        total = arena.take<T>(GROUP_HEADS * rows * WIDTH<T>);
        k = arena.take<T>(GROUP_HEADS * block_keys * size);
        v = arena.take<T>(GROUP_HEADS * block_keys / 2 * length);
        tables = arena.take<T>(GROUP_HEADS * MAX_BUCKETS);
        weights = arena.take<T>(tile_rows * block_keys);
        decay = arena.take<T>(padded<T>(tile_rows));
        buckets = arena.take<uint8_t>(tile_rows * block_keys);
        column_bits = arena.take<int32_t>(block_keys);
        used_bytes = arena.used_bytes();
    }
};

// Some rows of one head against some keys.
template <class T>
struct ForwardTile {
    const T* q;
    T *out, *top, *total;
    const T *k, *v;
    int64_t rows, keys;
    const int32_t* row_bits;
};

// Scores of the tile, without the maximum taken off; those of padding are minus infinity.
template <class T, class Bias>
inline void score(const ForwardTile<T>& tile, const ForwardScratch<T>& at, const T* table) {
    constexpr int64_t pitch = ForwardScratch<T>::block_keys;
    Bias bias(table);
    for (int64_t first = 0; first < tile.keys; first += TILE_KEYS) {
        const T* keys = tile.k + first * at.size;
        int64_t vectors = padded<T>(smaller(TILE_KEYS, tile.keys - first)) / WIDTH<T>;
        in_runs<VECTORS, 1>(vectors, [&]<int I>(int64_t i) INLINE_LAMBDA {
            int64_t column = first + i * WIDTH<T>;
            in_runs<SUMS / VECTORS, 1>(tile.rows, [&]<int J>(int64_t row) INLINE_LAMBDA {
                Vector<T> sum[J][I];
                UNROLL
                for (int r = 0; r < J; ++r) {
                    UNROLL
                    for (int v = 0; v < I; ++v) sum[r][v] = bias(at.buckets + (row + r) * pitch + column + v * WIDTH<T>);
                }
                add_products<T>(sum, tile.q + row * at.size, keys + i * WIDTH<T>, at.size);
                UNROLL
                for (int r = 0; r < J; ++r) {
                    UNROLL
                    for (int v = 0; v < I; ++v) store(at.weights + (row + r) * pitch + column + v * WIDTH<T>, sum[r][v]);
                }
            });
        });
    }
    fill_columns(at.weights, pitch, tile.rows, tile.keys, padded<T>(tile.keys), T(-__builtin_inf()));
}

// Raises the rows' maxima to those of the tile; `decay` is what earlier sums shrink by.
template <class T>
inline void raise_tops(const ForwardTile<T>& tile, const ForwardScratch<T>& at) {
    constexpr int64_t pitch = ForwardScratch<T>::block_keys;
    for (int64_t row = 0; row < tile.rows; ++row) {
        const T* scores = at.weights + row * pitch;
        Vector<T> top = load(scores);
        for (int64_t j = WIDTH<T>; j < tile.keys; j += WIDTH<T>) top = larger(top, load(scores + j));
        T highest = largest_lane<T>(top);
        highest = tile.top[row] > highest ? tile.top[row] : highest;
        at.decay[row] = tile.top[row] - highest;
        tile.top[row] = highest;
    }
    for (int64_t row = 0; row < tile.rows; row += WIDTH<T>) store(at.decay + row, exp2(load(at.decay + row)));
}

template <class T, bool has_dropout>
inline void weigh(const ForwardTile<T>& tile, const ForwardScratch<T>& at, int32_t threshold) {
    constexpr int64_t pitch = ForwardScratch<T>::block_keys;
    for (int64_t row = 0; row < tile.rows; ++row) {
        T* weights = at.weights + row * pitch;
        Vector<T> top = broadcast(tile.top[row]), sum = {};
        for (int64_t j = 0; j < tile.keys; j += WIDTH<T>) {
            Vector<T> weight = exp2(load(weights + j) - top);
            sum += weight;
            if constexpr (has_dropout) weight = kept<T>(weight, tile.row_bits[row], at.column_bits + j, threshold);
            store(weights + j, weight);
        }
        T* total = tile.total + row * WIDTH<T>;
        store(total, load(total) * at.decay[row] + sum);
    }
}

template <class T, class Bias>
inline void attend(const ForwardTile<T>& tile, const ForwardScratch<T>& at, const T* table, int32_t threshold) {
    constexpr int64_t pitch = ForwardScratch<T>::block_keys;
    score<T, Bias>(tile, at, table);
    raise_tops(tile, at);
    if (tile.row_bits) {
        weigh<T, true>(tile, at, threshold);
    } else {
        weigh<T, false>(tile, at, threshold);
    }
    add_over_keys<T, pitch>(tile.out, at.decay, at.weights, tile.v, tile.rows, (tile.keys + 1) / 2, at.length / WIDTH<T>);
}

template <class T>
inline void pack_keys(const Call& call, const Unit& unit, const ForwardScratch<T>& at, int64_t first, int64_t keys) {
    constexpr int64_t block_keys = ForwardScratch<T>::block_keys;
    for (int64_t j = 0; j < keys; j += TILE_KEYS) {
        pack_transposed<T>(at.k + j * at.size, block_keys * at.size, call.k, first + j, smaller(TILE_KEYS, keys - j), unit,
                           at.size);
    }
    pack_pairs<T>(at.v, block_keys / 2 * at.length, call.v, first, keys, unit, at.size, at.length);
    if (call.row_bits) {
        for (int64_t j = 0; j < keys; ++j) at.column_bits[j] = call.column_bits[first + j];
    }
}

template <class T>
inline void finish(const Call& call, const Unit& unit, const ForwardScratch<T>& at) {
    for (int64_t i = 0; i < unit.count; ++i) {
        for (int64_t h = 0; h < unit.heads; ++h) {
            int64_t row = h * at.rows + i;
            T total = 0;
            for (int lane = 0; lane < WIDTH<T>; ++lane) total += at.total[row * WIDTH<T> + lane];
            T share = total == 0 ? T(0) : T(call.keep_scale) / total;  // 0: there was no key
            unpack_pair_sums<T, false>(row_of<T>(call.out, unit.first + i, unit.first_head + h), at.out + row * at.length,
                                       at.size, share);
            *row_of<T>(call.log_sum_exp, unit.first + i, unit.first_head + h) =
                T((at.top[row] + __builtin_log2(total)) / LOG2_E);
        }
    }
}

template <class T>
void forward(Shared& shared, int64_t number, void* memory) {
    using Scratch = ForwardScratch<T>;
    const Call& call = shared.call;
    Unit unit = unit_of(call, shared.cut, call.num_rows, number);
    Scratch at(call, shared.cut, memory);
    pack_rows<T>(at.q, at.rows * at.size, call.q, unit.first, unit.count, unit, at.size, T(call.scale * LOG2_E));
    pack_tables(at.tables, call, unit);
    fill(at.out, GROUP_HEADS * at.rows * at.length, T(0));
    fill(at.top, GROUP_HEADS * at.rows, T(-__builtin_inf()));
    fill(at.total, GROUP_HEADS * at.rows * WIDTH<T>, T(0));
    int64_t largest = 0;
    for (int64_t block = 0; block < call.num_keys; block += Scratch::block_keys) {
        int64_t keys = smaller(Scratch::block_keys, call.num_keys - block);
        pack_keys(call, unit, at, block, keys);
        for (int64_t i = 0; i < unit.count; i += Scratch::tile_rows) {
            int64_t rows = smaller(Scratch::tile_rows, unit.count - i);
            int64_t seen = pack_buckets(at.buckets, Scratch::block_keys, {call, unit.first + i, rows, block, keys});
            largest = seen > largest ? seen : largest;
            for (int64_t h = 0; h < unit.heads; ++h) {
                int64_t row = h * at.rows + i;
                ForwardTile<T> tile{
                    .q = at.q + row * at.size,
                    .out = at.out + row * at.length,
                    .top = at.top + row,
                    .total = at.total + row * WIDTH<T>,
                    .k = at.k + h * Scratch::block_keys * at.size,
                    .v = at.v + h * Scratch::block_keys / 2 * at.length,
                    .rows = rows,
                    .keys = keys,
                    .row_bits = call.row_bits ? call.row_bits + (unit.first_head + h) * call.num_rows + unit.first + i : nullptr,
                };
                with_bias<T>(call.num_buckets, [&]<class Bias>() {
                    attend<T, Bias>(tile, at, at.tables + h * MAX_BUCKETS, int32_t(call.threshold));
                });
            }
        }
    }
    finish(call, unit, at);
    note_bucket(shared, largest);
}

}  // namespace graphmill::GRAPHMILL_ISA
