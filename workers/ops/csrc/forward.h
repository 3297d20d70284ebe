// Forward: one unit's rows against all keys, with a running maximum and total per row (Milakov and Gimelshein,
// arXiv 1805.02867), tile by tile: scores, weights, weighted values.
#pragma once

#include "bias.h"
#include "dropout.h"
#include "exp2.h"
#include "packing.h"
#include "products.h"

namespace graphmill::GRAPHMILL_ISA {

template <class T>
struct ForwardScratch {
    static constexpr int64_t tile_keys = 48 * 4 / sizeof(T);  // a tile of weights fits into the first-level cache
    static constexpr int64_t block_keys = 192;
    static constexpr int64_t staged_pitch = block_keys + 16;

    int64_t size;
    T *q, *out;              // [tiles, heads, size, rows]
    T *top, *total, *decay;  // [tiles, heads, rows]
    int32_t* row_bits;       // [tiles, heads, rows]
    T *k, *v;                // [heads, block_keys, size]
    T* table;                // [heads, MAX_BUCKETS]
    uint8_t* buckets;        // [block_keys, rows]
    uint8_t* staged;         // [rows, staged_pitch]
    T* weights;              // [tile_keys, rows]
    int64_t used_bytes;

    ForwardScratch(const Call& call, const Cut& cut, void* memory) : size(call.head_size) {
        Arena arena(memory);
        int64_t row_count = cut.chunk_rows * GROUP_HEADS;
        q = arena.take<T>(row_count * size);
        out = arena.take<T>(row_count * size);
        top = arena.take<T>(row_count);
        total = arena.take<T>(row_count);
        decay = arena.take<T>(row_count);
        row_bits = arena.take<int32_t>(row_count);
        k = arena.take<T>(GROUP_HEADS * block_keys * size);
        v = arena.take<T>(GROUP_HEADS * block_keys * size);
        table = arena.take<T>(GROUP_HEADS * MAX_BUCKETS);
        buckets = arena.take<uint8_t>(block_keys * TILE_ROWS);
        staged = arena.take<uint8_t>(TILE_ROWS * staged_pitch);
        weights = arena.take<T>(tile_keys * TILE_ROWS);
        used_bytes = arena.used_bytes();
    }
};

// What the rows of one tile and head meet.
template <class T>
struct ForwardTile {
    T *q, *out, *top, *total, *decay;
    const T *k, *v;
    const uint8_t* buckets;
    T* weights;
    int64_t size;
    int64_t keys;
    Dropout dropout;
};

// Scores of J keys from j on and I vectors of rows; raises the rows' maximum.
template <class T, int J, int I, class Bias>
__attribute__((always_inline)) inline void score(const ForwardTile<T>& tile, const Bias& bias, int64_t j,
                                                 Vector<T> (&top)[I]) {
    Vector<T> sum[J][I];
    GRAPHMILL_UNROLL
    for (int r = 0; r < J; ++r) {
        GRAPHMILL_UNROLL
        for (int i = 0; i < I; ++i) sum[r][i] = bias(tile.buckets + (j + r) * TILE_ROWS + i * WIDTH<T>);
    }
    over_size(tile.size, [&](int64_t c) __attribute__((always_inline)) {
        Vector<T> q[I];
        GRAPHMILL_UNROLL
        for (int i = 0; i < I; ++i) q[i] = pinned(load(tile.q + c * TILE_ROWS + i * WIDTH<T>));
        GRAPHMILL_UNROLL
        for (int r = 0; r < J; ++r) {
            Vector<T> k = pinned(broadcast(tile.k[(j + r) * tile.size + c]));
            GRAPHMILL_UNROLL
            for (int i = 0; i < I; ++i) sum[r][i] += q[i] * k;
        }
   });
    GRAPHMILL_UNROLL
    for (int r = 0; r < J; ++r) {
        GRAPHMILL_UNROLL
        for (int i = 0; i < I; ++i) {
            store(tile.weights + (j + r) * TILE_ROWS + i * WIDTH<T>, sum[r][i]);
            top[i] = larger(top[i], sum[r][i]);
        }
    }
}

// I vectors of rows against the keys of one tile.
template <class T, int I, class Bias, bool has_dropout>
inline void attend(const ForwardTile<T>& tile, const Bias& bias, int64_t first_row) {
    Vector<T> top[I], total[I];
    GRAPHMILL_UNROLL
    for (int i = 0; i < I; ++i) top[i] = load(tile.top + i * WIDTH<T>);
    in_runs<6, 1>(tile.keys, [&]<int J>(int64_t j) __attribute__((always_inline)) { score<T, J, I>(tile, bias, j, top); });
    GRAPHMILL_UNROLL
    for (int i = 0; i < I; ++i) {
        store(tile.decay + i * WIDTH<T>, exp2(load(tile.top + i * WIDTH<T>) - top[i]));
        store(tile.top + i * WIDTH<T>, top[i]);
        total[i] = Vector<T>{};
    }
    for (int64_t j = 0; j < tile.keys; ++j) {
        GRAPHMILL_UNROLL
        for (int i = 0; i < I; ++i) {
            T* at = tile.weights + j * TILE_ROWS + i * WIDTH<T>;
            Vector<T> weight = exp2(load(at) - top[i]);
            total[i] += weight;
            if constexpr (has_dropout) weight = kept<T>(weight, tile.dropout, j, first_row + i * WIDTH<T>);
            store(at, weight);
        }
    }
    GRAPHMILL_UNROLL
    for (int i = 0; i < I; ++i) {
        T* at = tile.total + i * WIDTH<T>;
        store(at, load(at) * load(tile.decay + i * WIDTH<T>) + total[i]);
    }
    add_over_keys<T, I, true>(tile.out, tile.decay, tile.v, tile.weights, tile.keys, tile.size);
}

template <class T, class Bias, bool has_dropout>
inline void attend_tile(ForwardTile<T> tile, const T* table, int64_t rows) {
    Bias bias(table);
    in_runs<VECTORS, 1>((rows + WIDTH<T> - 1) / WIDTH<T>, [&]<int I>(int64_t i) __attribute__((always_inline)) {
        ForwardTile<T> part = tile;
        for (T** at : {&part.q, &part.out, &part.top, &part.total, &part.decay, &part.weights}) *at += i * WIDTH<T>;
        part.buckets += i * WIDTH<T>;
        attend<T, I, Bias, has_dropout>(part, bias, i * WIDTH<T>);
    });
}

template <class T>
inline void pack_forward_rows(const Call& call, const Unit& unit, const ForwardScratch<T>& at) {
    for (int64_t t = 0; t < unit.tiles; ++t) {
        int64_t first = unit.first_row + t * TILE_ROWS;
        int64_t rows = smaller(TILE_ROWS, unit.rows - t * TILE_ROWS);
        for (int64_t h = 0; h < unit.heads; ++h) {
            int64_t row = (t * GROUP_HEADS + h) * TILE_ROWS;
            int64_t head = unit.first_head + h;
            pack_transposed<T>(at.q + row * at.size, {call.q, first, rows, head}, at.size, T(call.scale * LOG2_E));
            fill(at.out + row * at.size, TILE_ROWS * at.size, T(0));
            fill(at.top + row, TILE_ROWS, T(-__builtin_inf()));
            fill(at.total + row, TILE_ROWS, T(0));
            if (call.row_bits) pack_row_bits(at.row_bits + row, call, first, rows, head);
        }
    }
}

template <class T>
inline void unpack_forward_rows(const Call& call, const Unit& unit, const ForwardScratch<T>& at) {
    for (int64_t t = 0; t < unit.tiles; ++t) {
        int64_t first = unit.first_row + t * TILE_ROWS;
        int64_t rows = smaller(TILE_ROWS, unit.rows - t * TILE_ROWS);
        for (int64_t h = 0; h < unit.heads; ++h) {
            int64_t row = (t * GROUP_HEADS + h) * TILE_ROWS;
            HeadRows<T> log_sum_exp{call.log_sum_exp, first, rows, unit.first_head + h};
            T* share = at.decay + row;
            for (int64_t i = 0; i < rows; ++i) {
                T total = at.total[row + i];
                share[i] = total == 0 ? T(0) : T(call.keep_scale) / total;  // no keys
                log_sum_exp.data[i * log_sum_exp.stride] = T((at.top[row + i] + __builtin_log2(total)) / LOG2_E);
            }
            unpack_transposed<T>({call.out, first, rows, unit.first_head + h}, at.out + row * at.size, at.size, share);
        }
    }
}

template <class T, class Bias, bool has_dropout>
inline void attend_unit(const Call& call, const Unit& unit, const ForwardScratch<T>& at, int64_t& largest) {
    using Scratch = ForwardScratch<T>;
    for (int64_t h = 0; h < unit.heads; ++h) pack_table(at.table + h * MAX_BUCKETS, call, unit.first_head + h);
    for (int64_t block = 0; block < call.num_keys; block += Scratch::block_keys) {
        int64_t block_keys = smaller(Scratch::block_keys, call.num_keys - block);
        pack_heads<T>(at.k, Scratch::block_keys * at.size, call.k, block, block_keys, unit, at.size);
        pack_heads<T>(at.v, Scratch::block_keys * at.size, call.v, block, block_keys, unit, at.size);
        for (int64_t t = 0; t < unit.tiles; ++t) {
            int64_t rows = smaller(TILE_ROWS, unit.rows - t * TILE_ROWS);
            const uint8_t* buckets = call.buckets + (unit.first_row + t * TILE_ROWS) * call.buckets_stride + block;
            int64_t seen = pack_buckets(at.buckets, at.staged, Scratch::staged_pitch, buckets, call.buckets_stride, rows, block_keys);
            largest = seen > largest ? seen : largest;
            for (int64_t h = 0; h < unit.heads; ++h) {
                fetch_ahead<T>(call, unit, block, Scratch::block_keys, t, h, false);
                int64_t row = (t * GROUP_HEADS + h) * TILE_ROWS;
                for (int64_t j = 0; j < block_keys; j += Scratch::tile_keys) {
                    int64_t key = (h * Scratch::block_keys + j) * at.size;
                    ForwardTile<T> tile{
                        .q = at.q + row * at.size,
                        .out = at.out + row * at.size,
                        .top = at.top + row,
                        .total = at.total + row,
                        .decay = at.decay + row,
                        .k = at.k + key,
                        .v = at.v + key,
                        .buckets = at.buckets + j * TILE_ROWS,
                        .weights = at.weights,
                        .size = at.size,
                        .keys = smaller(Scratch::tile_keys, block_keys - j),
                        .dropout = {at.row_bits + row, call.column_bits + block + j, int32_t(call.threshold)},
                    };
                    attend_tile<T, Bias, has_dropout>(tile, at.table + h * MAX_BUCKETS, rows);
                }
            }
        }
    }
}

template <class T>
void forward(Shared& shared, int64_t number, void* memory) {
    const Call& call = shared.call;
    Unit unit = unit_of(call, shared.cut, number);
    ForwardScratch<T> scratch(call, shared.cut, memory);
    int64_t largest = 0;
    pack_forward_rows(call, unit, scratch);
    with_bias<T>(call.num_buckets, [&]<class Bias>() {
        if (call.row_bits) {
            attend_unit<T, Bias, true>(call, unit, scratch, largest);
        } else {
            attend_unit<T, Bias, false>(call, unit, scratch, largest);
        }
    });
    unpack_forward_rows(call, unit, scratch);
    note_bucket(shared, largest);
}

}  // namespace graphmill::GRAPHMILL_ISA
