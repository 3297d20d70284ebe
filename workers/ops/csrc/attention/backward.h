// Backward: a chunk of keys against all rows. Scores and weights are computed anew from the saved log-sum-exp, tile by
// tile (Dao et al., FlashAttention, NeurIPS 2022, section 3.1).
#pragma once

#include "dropout.h"
#include "exp2.h"
#include "packing.h"
#include "scores.h"
#include "table_grad.h"

namespace graphmill::GRAPHMILL_ISA {

template <class T>
struct BackwardScratch {
    static constexpr int64_t tile_rows = 24;
    static constexpr int64_t block_rows = 4 * tile_rows;

    int64_t size, length, tiles;  // `length` is that of 2 * size numbers in whole vectors
    T *k, *v;                     // [tiles, heads, size, TILE_KEYS]
    T* pairs;                     // [tiles, heads, TILE_KEYS / 2, length]
    T *grad_k, *grad_v;           // [tiles, heads, size, TILE_KEYS]
    T *q, *grad_out;              // [heads, block_rows, size]
    T* grad_q;                    // [heads, block_rows, length]: sums over even and odd keys
    T *minus_lse, *minus_delta;   // [heads, block_rows]
    T* tables;                    // [heads, MAX_BUCKETS]
    T* weights;                   // [tile_rows, TILE_KEYS]
    T* grad_scores;               // [heads, block_rows, TILE_KEYS]
    T* sums;                      // [COPIES, MAX_BUCKETS, heads]
    uint8_t* buckets;             // [block_rows, chunk]
    int32_t* column_bits;         // [tiles, TILE_KEYS]
    int64_t used_bytes;

    BackwardScratch(const Call& call, const Cut& cut, void* memory)
        : size(call.head_size), length(padded<T>(2 * size)), tiles(cut.chunk / TILE_KEYS) {
        Arena arena(memory);
        k = arena.take<T>(tiles * tile_numbers());
        v = arena.take<T>(tiles * tile_numbers());
        pairs = arena.take<T>(tiles * tile_pairs());
        grad_k = arena.take<T>(tiles * tile_numbers());
        grad_v = arena.take<T>(tiles * tile_numbers());
        q = arena.take<T>(GROUP_HEADS * block_rows * size);
        grad_out = arena.take<T>(GROUP_HEADS * block_rows * size);
        grad_q = arena.take<T>(GROUP_HEADS * block_rows * length);
        minus_lse = arena.take<T>(GROUP_HEADS * block_rows);
        minus_delta = arena.take<T>(GROUP_HEADS * block_rows);
        tables = arena.take<T>(GROUP_HEADS * MAX_BUCKETS);
        weights = arena.take<T>(tile_rows * TILE_KEYS);
        grad_scores = arena.take<T>(GROUP_HEADS * block_rows * TILE_KEYS);
        sums = arena.take<T>(COPIES * MAX_BUCKETS * GROUP_HEADS);
        buckets = arena.take<uint8_t>(block_rows * cut.chunk);
        column_bits = arena.take<int32_t>(tiles * TILE_KEYS);
        used_bytes = arena.used_bytes();
    }

    int64_t tile_numbers() const { return GROUP_HEADS * size * TILE_KEYS; }
    int64_t tile_pairs() const { return GROUP_HEADS * TILE_KEYS / 2 * length; }
};

// Some rows of one head against the keys of one tile.
template <class T>
struct BackwardTile {
    const T *q, *grad_out, *minus_lse, *minus_delta;
    const T *k, *v;
    const T* table;
    const uint8_t* buckets;
    int64_t buckets_pitch;
    T *weights, *grad_scores;
    int64_t size, rows, keys;
    const int32_t *row_bits, *column_bits;
    int32_t threshold;
};

// Weights (those that are kept) and score gradients; zero where the tile is padded.
template <class T, class Bias, bool has_dropout>
inline void score_back(const BackwardTile<T>& tile) {
    constexpr int W = WIDTH<T>;
    in_runs<VECTORS, 1>(padded<T>(tile.keys) / W, [&]<int I>(int64_t vector) INLINE_LAMBDA {
        int64_t column = vector * W;
        in_runs<SUMS / VECTORS / 2, 1>(tile.rows, [&]<int J>(int64_t row) INLINE_LAMBDA {
            Vector<T> score[J][I], grad[J][I];
            UNROLL
            for (int r = 0; r < J; ++r) {
                Bias bias(tile.table, tile.minus_lse[row + r]);
                UNROLL
                for (int i = 0; i < I; ++i) {
                    score[r][i] = bias(tile.buckets + (row + r) * tile.buckets_pitch + column + i * W);
                    grad[r][i] = has_dropout ? Vector<T>{} : broadcast(tile.minus_delta[row + r]);
                }
            }
            for (int64_t c = 0; c < tile.size; ++c) {
                add_product<T>(score, tile.q + row * tile.size, tile.k + column, tile.size, c);
                add_product<T>(grad, tile.grad_out + row * tile.size, tile.v + column, tile.size, c);
            }
            UNROLL
            for (int r = 0; r < J; ++r) {
                UNROLL
                for (int i = 0; i < I; ++i) {
                    int64_t at = (row + r) * TILE_KEYS + column + i * W;
                    Vector<T> weight = exp2(score[r][i]), used = weight;
                    if constexpr (has_dropout) {
                        const int32_t* columns = tile.column_bits + column + i * W;
                        used = kept<T>(weight, tile.row_bits[row + r], columns, tile.threshold);
                        grad[r][i] = kept<T>(grad[r][i], tile.row_bits[row + r], columns, tile.threshold) + tile.minus_delta[row + r];
                    }
                    store(tile.weights + at, used);
                    store(tile.grad_scores + at, weight * grad[r][i]);
                }
            }
        });
    });
    fill_columns(tile.weights, TILE_KEYS, tile.rows, tile.keys, padded<T>(tile.keys), T(0));
    fill_columns(tile.grad_scores, TILE_KEYS, tile.rows, tile.keys, padded<T>(tile.keys), T(0));
}

template <class T>
inline void pack_rows_back(const Call& call, const Unit& unit, const BackwardScratch<T>& at, int64_t first, int64_t rows) {
    constexpr int64_t block_rows = BackwardScratch<T>::block_rows;
    pack_rows<T>(at.q, block_rows * at.size, call.q, first, rows, unit, at.size, T(call.scale * LOG2_E));
    pack_rows<T>(at.grad_out, block_rows * at.size, call.grad_out, first, rows, unit, at.size, T(call.keep_scale));
    pack_rows<T>(at.minus_lse, block_rows, call.log_sum_exp, first, rows, unit, 1, T(-LOG2_E));
    pack_rows<T>(at.minus_delta, block_rows, call.delta, first, rows, unit, 1, T(-1));
    fill(at.grad_q, GROUP_HEADS * block_rows * at.length, T(0));
}

// Adds one block's dq to the caller's.
template <class T>
inline void add_grad_q(const Call& call, const Unit& unit, const BackwardScratch<T>& at, int64_t first, int64_t rows) {
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t h = 0; h < unit.heads; ++h) {
            T* to = row_of<T>(call.grad_q, first + i, unit.first_head + h);
            const T* sums = at.grad_q + (h * BackwardScratch<T>::block_rows + i) * at.length;
            unpack_pair_sums<T, true>(to, sums, at.size, T(call.scale));
        }
    }
}

template <class T, class Bias>
inline void back_tile(const Call& call, const Unit& unit, const BackwardScratch<T>& at, int64_t t, int64_t h, int64_t first,
                      int64_t rows, int64_t keys) {
    using Scratch = BackwardScratch<T>;
    int64_t key = (t * GROUP_HEADS + h) * TILE_KEYS;
    for (int64_t i = 0; i < rows; i += Scratch::tile_rows) {
        int64_t row = h * Scratch::block_rows + i;
        BackwardTile<T> tile{
            .q = at.q + row * at.size,
            .grad_out = at.grad_out + row * at.size,
            .minus_lse = at.minus_lse + row,
            .minus_delta = at.minus_delta + row,
            .k = at.k + key * at.size,
            .v = at.v + key * at.size,
            .table = at.tables + h * MAX_BUCKETS,
            .buckets = at.buckets + i * at.tiles * TILE_KEYS + t * TILE_KEYS,
            .buckets_pitch = at.tiles * TILE_KEYS,
            .weights = at.weights,
            .grad_scores = at.grad_scores + row * TILE_KEYS,
            .size = at.size,
            .rows = smaller(Scratch::tile_rows, rows - i),
            .keys = keys,
            .row_bits = call.row_bits ? call.row_bits + (unit.first_head + h) * call.num_rows + first + i : nullptr,
            .column_bits = at.column_bits + t * TILE_KEYS,
            .threshold = int32_t(call.threshold),
        };
        if (tile.row_bits) {
            score_back<T, Bias, true>(tile);
        } else {
            score_back<T, Bias, false>(tile);
        }
        add_over_keys<T, TILE_KEYS>(at.grad_q + row * at.length, nullptr, tile.grad_scores,
                                    at.pairs + (t * GROUP_HEADS + h) * TILE_KEYS / 2 * at.length, tile.rows, (keys + 1) / 2,
                                    at.length / WIDTH<T>);
        in_runs<VECTORS, 1>(padded<T>(keys) / WIDTH<T>, [&]<int I>(int64_t vector) INLINE_LAMBDA {
            int64_t column = vector * WIDTH<T>;
            add_over_rows<T, I>(at.grad_v + key * at.size + column, tile.weights + column, tile.grad_out, tile.rows, at.size);
            add_over_rows<T, I>(at.grad_k + key * at.size + column, tile.grad_scores + column, tile.q, tile.rows, at.size);
        });
    }
}

template <class T>
void backward(Shared& shared, int64_t number, void* memory) {
    using Scratch = BackwardScratch<T>;
    const Call& call = shared.call;
    Unit unit = unit_of(call, shared.cut, call.num_keys, number);
    Scratch at(call, shared.cut, memory);
    int64_t tiles = (unit.count + TILE_KEYS - 1) / TILE_KEYS;
    for (int64_t t = 0; t < tiles; ++t) {
        int64_t first = unit.first + t * TILE_KEYS, keys = smaller(TILE_KEYS, unit.count - t * TILE_KEYS);
        pack_transposed<T>(at.k + t * at.tile_numbers(), at.size * TILE_KEYS, call.k, first, keys, unit, at.size);
        pack_transposed<T>(at.v + t * at.tile_numbers(), at.size * TILE_KEYS, call.v, first, keys, unit, at.size);
        pack_pairs<T>(at.pairs + t * at.tile_pairs(), TILE_KEYS / 2 * at.length, call.k, first, keys, unit, at.size, at.length);
    }
    fill(at.grad_k, at.tiles * at.tile_numbers(), T(0));
    fill(at.grad_v, at.tiles * at.tile_numbers(), T(0));
    if (call.row_bits) {
        for (int64_t j = 0; j < unit.count; ++j) at.column_bits[j] = call.column_bits[unit.first + j];
    }
    pack_tables(at.tables, call, unit);
    fill(at.grad_scores, GROUP_HEADS * Scratch::block_rows * TILE_KEYS, T(0));
    fill(at.sums, COPIES * MAX_BUCKETS * GROUP_HEADS, T(0));
    double* table_sums = shared.table_sums + number * MAX_BUCKETS * GROUP_HEADS;
    fill(table_sums, MAX_BUCKETS * GROUP_HEADS, 0.0);
    int64_t blocks_done = 0, largest = 0;
    for (int64_t block = 0; block < call.num_rows; block += Scratch::block_rows) {
        int64_t rows = smaller(Scratch::block_rows, call.num_rows - block);
        pack_rows_back(call, unit, at, block, rows);
        int64_t seen = pack_buckets(at.buckets, at.tiles * TILE_KEYS, {call, block, rows, unit.first, unit.count});
        largest = seen > largest ? seen : largest;
        for (int64_t t = 0; t < tiles; ++t) {
            int64_t keys = smaller(TILE_KEYS, unit.count - t * TILE_KEYS);
            with_bias<T>(call.num_buckets, [&]<class Bias>() {
                for (int64_t h = 0; h < unit.heads; ++h) {
                    back_tile<T, Bias>(call, unit, at, t, h, block, rows, keys);
                }
            });
            add_by_bucket<T>(at.sums, at.grad_scores, Scratch::block_rows * TILE_KEYS, at.buckets + t * TILE_KEYS, at.tiles * TILE_KEYS, rows, padded<T>(keys) / WIDTH<T>);
            flush_sums(table_sums, at.sums, call.num_buckets);
        }
        if (!unit.is_first) wait_for_progress(shared, unit.number - 1, blocks_done + 1);
        add_grad_q(call, unit, at, block, rows);
        shared.progress[unit.number].store(++blocks_done, std::memory_order_release);
    }
    for (int64_t t = 0; t < tiles; ++t) {
        int64_t first = unit.first + t * TILE_KEYS, keys = smaller(TILE_KEYS, unit.count - t * TILE_KEYS);
        unpack_transposed<T>(call.grad_k, at.grad_k + t * at.tile_numbers(), at.size * TILE_KEYS, first, keys, unit, at.size, T(1 / LOG2_E));
        unpack_transposed<T>(call.grad_v, at.grad_v + t * at.tile_numbers(), at.size * TILE_KEYS, first, keys, unit, at.size, T(1));
    }
    note_bucket(shared, largest);
}

}  // namespace graphmill::GRAPHMILL_ISA
