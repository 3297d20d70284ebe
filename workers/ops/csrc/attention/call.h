// One call of tiled biased attention, as it comes through the C interface.
//
//   scores[h, i, j] = scale * q[i, h] . k[j, h] + table[h, buckets[i, j]]
//
// The fields are mirrored, in this order, by `_Call` in workers/ops/native_attention.py: every number is 8 bytes wide,
// and ABI_NUMBER of library.h rises whenever a field changes.
#pragma once

#include <cstdint>

namespace graphmill {

constexpr int64_t MAX_BUCKETS = 256;
constexpr double LOG2_E = 1.4426950408889634074;  // scores are kept in units of log 2, so that exp is exp2

// The numbers of row i and head h start at data + i * row_stride + h * head_stride and lie side by side.
struct Rows {
    void* data;
    int64_t row_stride;
    int64_t head_stride;
};

struct Call {
    int64_t num_rows;
    int64_t num_keys;
    int64_t num_heads;
    int64_t head_size;
    int64_t num_buckets;
    int64_t is_double;        // else float
    int64_t instruction_set;  // number in the list of library.cpp
    int64_t num_threads;      // at most

    double scale;
    Rows q, k, v;

    // The bucket of every pair. Or, where near_indptr is not null, of the near pairs alone: row i has those at
    // near_indptr[i] to near_indptr[i + 1], by ascending column, key j being column first_column + j; all others are in
    // far_bucket.
    const uint8_t* buckets;  // [rows, keys], keys side by side
    int64_t buckets_stride;
    const int64_t* near_indptr;   // [rows + 1]
    const int32_t* near_columns;  // [pairs]
    const uint8_t* near_buckets;  // [pairs]
    int64_t first_column;
    int64_t far_bucket;
    const void* table;  // [heads, num_buckets]

    // Dropout of attention weights: row i and key j of head h are kept where the mix of row_bits[h, i] + column_bits[j]
    // is at least the threshold, and what is kept grows by keep_scale. No row bits: no dropout, keep_scale 1.
    const int32_t* row_bits;     // [heads, rows]
    const int32_t* column_bits;  // [keys]
    int64_t threshold;
    double keep_scale;

    // Forward writes out and log_sum_exp; backward reads log_sum_exp (over all keys, these or others) and delta.
    Rows out;
    Rows log_sum_exp;

    Rows grad_out;
    Rows delta;
    Rows grad_q;  // added to
    Rows grad_k, grad_v;
    double* grad_table;  // [heads, num_buckets]
};

}  // namespace graphmill
