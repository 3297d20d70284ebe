// Backward: one unit's rows against all keys. Scores and weights are computed anew from the saved log-sum-exp, tile by
// tile (Dao et al., FlashAttention, NeurIPS 2022, section 3.1).
#pragma once

#include "bias.h"
#include "dropout.h"
#include "exp2.h"
#include "packing.h"
#include "products.h"
#include "table_grad.h"

namespace graphmill::GRAPHMILL_ISA {

template <class T>
struct BackwardScratch {
    static constexpr int64_t tile_keys = 24;
    static constexpr int64_t block_keys = 4 * tile_keys;
    static constexpr int64_t staged_pitch = block_keys + 16;

    int64_t size, vectors;           // `vectors` hold the 2 * size numbers of one row of `rows` or `grad_kv`
    T *q, *grad_out, *grad_q;        // [tiles, heads, size, rows]
    T *minus_lse, *minus_delta;      // [tiles, heads, rows]
    T* rows;                         // [tiles, heads, rows, vectors]: grad_out and q by turns
    int32_t* row_bits;               // [tiles, heads, rows]
    T *k, *v;                        // [heads, block_keys, size]
    T* grad_kv;                      // [heads, block_keys, vectors]: dv and dk by turns
    T* table;                        // [heads, MAX_BUCKETS]
    uint8_t* buckets;        // [block_keys, rows]
    uint8_t* staged;         // [rows, staged_pitch]
    T* grad_scores;                  // [heads, block_keys, rows]
    T* pairs;                        // [tile_keys, rows, 2]: weight and score gradient
    T* sums;                         // [COPIES, MAX_BUCKETS, heads]
    int64_t used_bytes;

    BackwardScratch(const Call& call, const Cut& cut, void* memory)
        : size(call.head_size), vectors((2 * size + WIDTH<T> - 1) / WIDTH<T>) {
        Arena arena(memory);
        int64_t row_count = cut.chunk_rows * GROUP_HEADS;
        int64_t key_count = block_keys * GROUP_HEADS;
        q = arena.take<T>(row_count * size);
        grad_out = arena.take<T>(row_count * size);
        grad_q = arena.take<T>(row_count * size);
        minus_lse = arena.take<T>(row_count);
        minus_delta = arena.take<T>(row_count);
        rows = arena.take<T>(row_count * vectors * WIDTH<T>);
        row_bits = arena.take<int32_t>(row_count);
        k = arena.take<T>(key_count * size);
        v = arena.take<T>(key_count * size);
        grad_kv = arena.take<T>(key_count * vectors * WIDTH<T>);
        table = arena.take<T>(GROUP_HEADS * MAX_BUCKETS);
        buckets = arena.take<uint8_t>(block_keys * TILE_ROWS);
        staged = arena.take<uint8_t>(TILE_ROWS * staged_pitch);
        grad_scores = arena.take<T>(key_count * TILE_ROWS);
        pairs = arena.take<T>(tile_keys * TILE_ROWS * 2);
        sums = arena.take<T>(COPIES * MAX_BUCKETS * GROUP_HEADS);
        used_bytes = arena.used_bytes();
    }
};

template <class T>
struct BackwardTile {
    const T *q, *grad_out, *minus_lse, *minus_delta;
    const T *k, *v;
    const uint8_t* buckets;
    T *grad_scores, *pairs;
    int64_t size;
    int64_t keys;
    Dropout dropout;
};

// Weights and score gradients of J keys from j on and I vectors of rows.
template <class T, int J, int I, class Bias, bool has_dropout>
__attribute__((always_inline)) inline void score_back(const BackwardTile<T>& tile, const Bias& bias, int64_t j,
                                                      int64_t first_row) {
    constexpr int W = WIDTH<T>;
    Vector<T> score[J][I], grad[J][I];
    GRAPHMILL_UNROLL
    for (int r = 0; r < J; ++r) {
        GRAPHMILL_UNROLL
        for (int i = 0; i < I; ++i) {
            score[r][i] = bias(tile.buckets + (j + r) * TILE_ROWS + i * W) + load(tile.minus_lse + i * W);
            grad[r][i] = has_dropout ? Vector<T>{} : load(tile.minus_delta + i * W);
        }
    }
    over_size(tile.size, [&](int64_t c) __attribute__((always_inline)) {
        Vector<T> rows[I];
        GRAPHMILL_UNROLL
        for (int i = 0; i < I; ++i) rows[i] = pinned(load(tile.q + c * TILE_ROWS + i * W));
        GRAPHMILL_UNROLL
        for (int r = 0; r < J; ++r) {
            Vector<T> key = pinned(broadcast(tile.k[(j + r) * tile.size + c]));
            GRAPHMILL_UNROLL
            for (int i = 0; i < I; ++i) score[r][i] += rows[i] * key;
        }
        GRAPHMILL_UNROLL
        for (int i = 0; i < I; ++i) rows[i] = pinned(load(tile.grad_out + c * TILE_ROWS + i * W));
        GRAPHMILL_UNROLL
        for (int r = 0; r < J; ++r) {
            Vector<T> value = pinned(broadcast(tile.v[(j + r) * tile.size + c]));
            GRAPHMILL_UNROLL
            for (int i = 0; i < I; ++i) grad[r][i] += rows[i] * value;
        }
   });
    GRAPHMILL_UNROLL
    for (int r = 0; r < J; ++r) {
        GRAPHMILL_UNROLL
        for (int i = 0; i < I; ++i) {
            Vector<T> weight = exp2(score[r][i]), used = weight;
            if constexpr (has_dropout) {
                used = kept<T>(weight, tile.dropout, j + r, first_row + i * W);
                grad[r][i] = kept<T>(grad[r][i], tile.dropout, j + r, first_row + i * W) + load(tile.minus_delta + i * W);
            }
            Vector<T> grad_score = weight * grad[r][i];
            int64_t at = (j + r) * TILE_ROWS + i * W;
            store(tile.grad_scores + at, grad_score);
            store(tile.pairs + 2 * at, zip<T, 0>(used, grad_score));
            store(tile.pairs + 2 * at + W, zip<T, 1>(used, grad_score));
        }
    }
}

template <class T>
inline void pack_backward_rows(const Call& call, const Unit& unit, const BackwardScratch<T>& at) {
    for (int64_t t = 0; t < unit.tiles; ++t) {
        int64_t first = unit.first_row + t * TILE_ROWS;
        int64_t count = smaller(TILE_ROWS, unit.rows - t * TILE_ROWS);
        for (int64_t h = 0; h < unit.heads; ++h) {
            int64_t row = (t * GROUP_HEADS + h) * TILE_ROWS;
            int64_t head = unit.first_head + h;
            HeadRows<T> q{call.q, first, count, head}, grad_out{call.grad_out, first, count, head};
            pack_transposed<T>(at.q + row * at.size, q, at.size, T(call.scale * LOG2_E));
            pack_transposed<T>(at.grad_out + row * at.size, grad_out, at.size, T(call.keep_scale));
            fill(at.grad_q + row * at.size, TILE_ROWS * at.size, T(0));
            pack_scalars<T>(at.minus_lse + row, {call.log_sum_exp, first, count, head}, T(-LOG2_E), T(-__builtin_inf()));
            pack_scalars<T>(at.minus_delta + row, {call.delta, first, count, head}, T(-1), T(0));
            int64_t pitch = at.vectors * WIDTH<T>;
            T* to = at.rows + row * pitch;
            for (int64_t i = 0; i < count; ++i) {
                for (int64_t c = 0; c < at.size; ++c) {
                    to[i * pitch + 2 * c] = grad_out.data[i * grad_out.stride + c] * T(call.keep_scale);
                    to[i * pitch + 2 * c + 1] = q.data[i * q.stride + c] * T(call.scale);
                }
                fill(to + i * pitch + 2 * at.size, pitch - 2 * at.size, T(0));
            }
            if (call.row_bits) pack_row_bits(at.row_bits + row, call, first, count, head);
        }
    }
}

// Adds one block's dv and dk to the caller's; the first unit of a group of heads writes them.
template <class T>
inline void add_grad_kv(const Call& call, const Unit& unit, const BackwardScratch<T>& at, int64_t block, int64_t keys) {
    int64_t pitch = at.vectors * WIDTH<T>;
    for (int64_t j = 0; j < keys; ++j) {
        for (int64_t h = 0; h < unit.heads; ++h) {
            const T* from = at.grad_kv + (h * BackwardScratch<T>::block_keys + j) * pitch;
            T* v = HeadRows<T>(call.grad_v, block + j, 1, unit.first_head + h).data;
            T* k = HeadRows<T>(call.grad_k, block + j, 1, unit.first_head + h).data;
            int64_t c = 0;
            for (; c + WIDTH<T> <= at.size; c += WIDTH<T>) {
                Vector<T> low = load(from + 2 * c), high = load(from + 2 * c + WIDTH<T>);
                Vector<T> dv = unzip<T, 0>(low, high), dk = unzip<T, 1>(low, high);
                store(v + c, unit.is_first ? dv : load(v + c) + dv);
                store(k + c, unit.is_first ? dk : load(k + c) + dk);
            }
            for (; c < at.size; ++c) {
                v[c] = unit.is_first ? from[2 * c] : v[c] + from[2 * c];
                k[c] = unit.is_first ? from[2 * c + 1] : k[c] + from[2 * c + 1];
            }
        }
    }
}

template <class T, class Bias, bool has_dropout>
inline void back_unit(Shared& shared, const Unit& unit, const BackwardScratch<T>& at, double* table_sums) {
    using Scratch = BackwardScratch<T>;
    const Call& call = shared.call;
    int64_t pitch = at.vectors * WIDTH<T>;
    int64_t blocks_done = 0;
    for (int64_t h = 0; h < unit.heads; ++h) pack_table(at.table + h * MAX_BUCKETS, call, unit.first_head + h);
    for (int64_t block = 0; block < call.num_keys; block += Scratch::block_keys) {
        int64_t block_keys = smaller(Scratch::block_keys, call.num_keys - block);
        pack_heads<T>(at.k, Scratch::block_keys * at.size, call.k, block, block_keys, unit, at.size);
        pack_heads<T>(at.v, Scratch::block_keys * at.size, call.v, block, block_keys, unit, at.size);
        fill(at.grad_kv, GROUP_HEADS * Scratch::block_keys * pitch, T(0));
        for (int64_t t = 0; t < unit.tiles; ++t) {
            int64_t rows = smaller(TILE_ROWS, unit.rows - t * TILE_ROWS);
            int64_t row_vectors = (rows + WIDTH<T> - 1) / WIDTH<T>;
            const uint8_t* buckets = call.buckets + (unit.first_row + t * TILE_ROWS) * call.buckets_stride + block;
            pack_buckets(at.buckets, at.staged, Scratch::staged_pitch, buckets, call.buckets_stride, rows, block_keys);
            for (int64_t h = 0; h < unit.heads; ++h) {
                int64_t row = (t * GROUP_HEADS + h) * TILE_ROWS;
                fetch_ahead<T>(call, unit, block, Scratch::block_keys, t, h, true);
                Bias bias(at.table + h * MAX_BUCKETS);
                for (int64_t j = 0; j < block_keys; j += Scratch::tile_keys) {
                    int64_t keys = smaller(Scratch::tile_keys, block_keys - j);
                    int64_t key = h * Scratch::block_keys + j;
                    in_runs<VECTORS, 1>(row_vectors, [&]<int I>(int64_t i) __attribute__((always_inline)) {
                        int64_t lane = i * WIDTH<T>;
                        BackwardTile<T> tile{
                            .q = at.q + row * at.size + lane,
                            .grad_out = at.grad_out + row * at.size + lane,
                            .minus_lse = at.minus_lse + row + lane,
                            .minus_delta = at.minus_delta + row + lane,
                            .k = at.k + key * at.size,
                            .v = at.v + key * at.size,
                            .buckets = at.buckets + j * TILE_ROWS + lane,
                            .grad_scores = at.grad_scores + key * TILE_ROWS + lane,
                            .pairs = at.pairs + 2 * lane,
                            .size = at.size,
                            .keys = keys,
                            .dropout = {at.row_bits + row, call.column_bits + block + j, int32_t(call.threshold)},
                        };
                        in_runs<3, 1>(keys, [&]<int J>(int64_t first) __attribute__((always_inline)) {
                            score_back<T, J, I, Bias, has_dropout>(tile, bias, first, lane);
                        });
                    });
                    add_over_rows<T>(at.grad_kv + key * pitch, at.pairs, at.rows + row * pitch, keys, rows, at.vectors);
                }
                in_runs<VECTORS, 1>(row_vectors, [&]<int I>(int64_t i) __attribute__((always_inline)) {
                    int64_t lane = i * WIDTH<T>, key = h * Scratch::block_keys;
                    add_over_keys<T, I, false>(at.grad_q + row * at.size + lane, nullptr, at.k + key * at.size,
                                               at.grad_scores + key * TILE_ROWS + lane, block_keys, at.size);
                });
            }
            add_by_bucket<T>(at.sums, at.grad_scores, Scratch::block_keys * TILE_ROWS, at.buckets, block_keys,
                             row_vectors);
            flush_sums(table_sums, at.sums, call.num_buckets);
        }
        if (!unit.is_first) wait_for_progress(shared, unit.number - 1, blocks_done + 1);
        add_grad_kv<T>(call, unit, at, block, block_keys);
        shared.progress[unit.number].store(++blocks_done, std::memory_order_release);
    }
}

template <class T>
void backward(Shared& shared, int64_t number, void* memory) {
    const Call& call = shared.call;
    Unit unit = unit_of(call, shared.cut, number);
    BackwardScratch<T> at(call, shared.cut, memory);
    pack_backward_rows(call, unit, at);
    fill(at.grad_scores, GROUP_HEADS * BackwardScratch<T>::block_keys * TILE_ROWS, T(0));
    fill(at.sums, COPIES * MAX_BUCKETS * GROUP_HEADS, T(0));
    double* table_sums = shared.table_sums + number * MAX_BUCKETS * GROUP_HEADS;
    fill(table_sums, MAX_BUCKETS * GROUP_HEADS, 0.0);
    with_bias<T>(call.num_buckets, [&]<class Bias>() {
        if (call.row_bits) {
            back_unit<T, Bias, true>(shared, unit, at, table_sums);
        } else {
            back_unit<T, Bias, false>(shared, unit, at, table_sums);
        }
    });
    T scale[TILE_ROWS];
    fill(scale, TILE_ROWS, T(call.scale));
    for (int64_t t = 0; t < unit.tiles; ++t) {
        int64_t count = smaller(TILE_ROWS, unit.rows - t * TILE_ROWS);
        for (int64_t h = 0; h < unit.heads; ++h) {
            int64_t row = (t * GROUP_HEADS + h) * TILE_ROWS;
            unpack_transposed<T>({call.grad_q, unit.first_row + t * TILE_ROWS, count, unit.first_head + h},
                                 at.grad_q + row * at.size, at.size, scale);
        }
    }
}

}  // namespace graphmill::GRAPHMILL_ISA
