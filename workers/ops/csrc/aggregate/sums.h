// Weighted sums of rows, straight from the matrix they are in: no row is copied first.
#pragma once

#include "rows.h"

namespace graphmill::GRAPHMILL_ISA {

constexpr int64_t SUM_TARGETS = 64;      // targets of one unit
constexpr int64_t SUM_TARGETS_AHEAD = 2;  // whose rows are fetched before they are needed
constexpr int64_t SUM_EDGES_AHEAD = 32;   // of each of them, at most

template <class T>
struct SumsOfRows {
    const Sums& call;
    RowNumbers sources, own_rows;
    const T *weights, *source_scale, *target_scale, *own_scale, *x, *own_x;
    T *out, *own_out;

    explicit SumsOfRows(const Sums& call)
        : call(call),
          sources{call.sources, call.wide_sources != 0},
          own_rows{call.own_rows, call.wide_sources != 0},
          weights(static_cast<const T*>(call.weights)),
          source_scale(static_cast<const T*>(call.source_scale)),
          target_scale(static_cast<const T*>(call.target_scale)),
          own_scale(static_cast<const T*>(call.own_scale)),
          x(static_cast<const T*>(call.x.data)),
          own_x(static_cast<const T*>(call.own_x.data)),
          out(static_cast<T*>(call.out.data)),
          own_out(static_cast<T*>(call.own_out.data)) {}

    const T* own_row(int64_t target) const {
        if (!own_x || target >= call.num_own) return nullptr;
        return own_x + (own_rows.data ? own_rows[target] : target) * call.own_x.row_stride;
    }

    inline T coefficient(int64_t edge, int64_t source) const {
        T c = weights ? weights[edge] : T(1);
        return source_scale ? c * source_scale[source] : c;
    }

    void fetch(int64_t target) const {
        int64_t end = call.indptr[target + 1];
        if (end - call.indptr[target] > SUM_EDGES_AHEAD) end = call.indptr[target] + SUM_EDGES_AHEAD;
        for (int64_t e = call.indptr[target]; e < end; ++e) {
            fetch_row(x + sources[e] * call.x.row_stride, call.num_columns);
        }
        if (const T* own = own_row(target)) fetch_row(own, call.num_columns);
    }

    template <bool weighted>
    void one(int64_t target) const {
        int64_t begin = call.indptr[target], end = call.indptr[target + 1], columns = call.num_columns;
        const T* own = own_row(target);
        const T* added = own_out ? nullptr : own;
        T scale = target_scale ? target_scale[target] : T(1), own_factor = own_scale ? own_scale[target] : T(1);
        T* to = out + target * call.out.row_stride;
        if (columns < WIDTH<T>) {
            for (int64_t c = 0; c < columns; ++c) {
                T sum = 0;
                for (int64_t e = begin; e < end; ++e) {
                    int64_t source = sources[e];
                    sum += coefficient(e, source) * x[source * call.x.row_stride + c];
                }
                to[c] = sum * scale + (added ? own_factor * added[c] : T(0));
            }
        } else {
            over_columns<T, 8, 4, 2, 1>(columns, [&]<int C>(int64_t first) INLINE_LAMBDA {
                Vector<T> sum[C] = {};
                for (int64_t e = begin; e < end; ++e) {
                    int64_t source = sources[e];
                    const T* from = x + source * call.x.row_stride + first;
                    if constexpr (weighted) {
                        Vector<T> c = broadcast(coefficient(e, source));
                        UNROLL
                        for (int i = 0; i < C; ++i) sum[i] += c * load(from + i * WIDTH<T>);
                    } else {
                        UNROLL
                        for (int i = 0; i < C; ++i) sum[i] += load(from + i * WIDTH<T>);
                    }
                }
                UNROLL
                for (int i = 0; i < C; ++i) {
                    Vector<T> result = sum[i] * scale;
                    if (added) result += load(added + first + i * WIDTH<T>) * own_factor;
                    store(to + first + i * WIDTH<T>, result);
                }
            });
        }
        if (own_out && own) {
            T* beside = own_out + target * call.own_out.row_stride;
            for (int64_t c = 0; c < columns; ++c) beside[c] = own[c];
        }
    }

    void unit(int64_t number) const {
        int64_t first = number * SUM_TARGETS, end = first + SUM_TARGETS;
        if (end > call.num_targets) end = call.num_targets;
        bool weighted = weights || source_scale;
        for (int64_t target = first; target < end; ++target) {
            if (target + SUM_TARGETS_AHEAD < end) fetch(target + SUM_TARGETS_AHEAD);
            weighted ? one<true>(target) : one<false>(target);
        }
    }
};

template <class T>
bool sums(const Sums& call) {
    SumsOfRows<T> work(call);
    int64_t num_units = (call.num_targets + SUM_TARGETS - 1) / SUM_TARGETS;
    return in_parallel(num_units, call.num_threads, 0, [&](int64_t unit, void*) { work.unit(unit); });
}

}  // namespace graphmill::GRAPHMILL_ISA
