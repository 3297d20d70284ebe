// What a call tells the kernels. Mirrored by workers/ops/native_aggregation.py, field by field.
//
// Numbers are float or double (`is_double`), behind void pointers here. Row numbers are int32, or int64 where
// `wide_sources` says so. A null pointer leaves out what it stands for.
#pragma once

#include <cstdint>

namespace graphmill {

// A matrix of rows; strides count numbers.
struct Matrix {
    void* data;
    int64_t row_stride;
    int64_t batch_stride;
};

// out[t] = target_scale[t] * sum over edges e into t of weights[e] * source_scale[s] * x[s], s = sources[e]
//          + own_scale[t] * own_x[own row of t]; or, with own_out, that row goes there, unscaled.
// The own row of t < num_own is own_rows[t], or t.
struct Sums {
    int64_t is_double, instruction_set, num_threads, wide_sources;
    int64_t num_targets, num_columns, num_own;
    const int32_t* indptr;
    const void* sources;
    const void* own_rows;
    const void* weights;
    const void* source_scale;
    const void* target_scale;
    const void* own_scale;
    Matrix x, own_x, out, own_out;
};

// c[m][n] = sum over k of a[m][k] * b[k][n] + bias[n], or 0 where that is below and `relu` is set. Row m of a is
// a.data[a_rows[m]] where row numbers are given; its numbers count as 0 where `gate` is not above 0.
struct Product {
    int64_t is_double, instruction_set, num_threads, wide_rows;
    int64_t num_batches, num_rows, num_inner, num_columns;
    int64_t relu;
    const void* a_rows;
    Matrix a, gate;
    Matrix b;  // rows are k
    int64_t b_column_stride;
    const void* bias;
    Matrix c;
};

// c[n][k] = sum over m of g[m][n] * a[m][k], with the gate on g; column_sums[n] = sum over m of g[m][n].
// c is [num_batches, num_outer, num_columns], column_sums [num_batches, num_outer], side by side.
struct OuterProduct {
    int64_t is_double, instruction_set, num_threads, wide_rows;
    int64_t num_batches, num_rows, num_outer, num_columns;
    const void* a_rows;
    Matrix g, gate, a;
    void* c;
    void* column_sums;
};

// Attention of every target over its sources and, last, itself: entry i of target t is number indptr[t] + t + i.
//   score[e][h] = leaky(x[s] . source_vectors[h] + x[own row of t] . target_vectors[h]),  weights = softmax over entries
//   out[t][h] = sum over entries of weights[e][h] * x[s]
// `slopes` [entries, heads] are the derivatives of the leaky unit. Backward: from grad_out to grad_scores [entries, heads]
// (before the leaky unit), their sums over a target's entries, and grad_vectors [2, heads, columns]. Then grad_x, by
// the edges sorted by source: `by_source` [num_sources + 1], `edge_targets` and `edge_entries` [edges].
struct Heads {
    int64_t is_double, instruction_set, num_threads, wide_sources;
    int64_t num_targets, num_heads, num_columns, num_sources, with_self;
    double negative_slope;
    const int32_t* indptr;
    const void* sources;
    const void* own_rows;
    Matrix x;
    const void* source_vectors;
    const void* target_vectors;
    void* out;
    void* weights;
    void* slopes;
    const void* grad_out;
    void* grad_scores;
    void* target_sums;
    void* grad_vectors;
    const int32_t* by_source;
    const int32_t* edge_targets;
    const int32_t* edge_entries;
    Matrix grad_x;
};

// The kernels of one instruction set for one number type. All return false if memory is lacking.
struct AggregateKernel {
    bool (*sums)(const Sums& call);
    bool (*product)(const Product& call);
    bool (*outer_product)(const OuterProduct& call);
    bool (*attend)(const Heads& call);
    bool (*attend_backward)(const Heads& call);
    bool (*attend_backward_to_sources)(const Heads& call);
};

namespace avx512 {
extern const AggregateKernel aggregate_kernels[2];  // float, double
}
namespace avx2 {
extern const AggregateKernel aggregate_kernels[2];
}
namespace generic {
extern const AggregateKernel aggregate_kernels[2];
}

}  // namespace graphmill
