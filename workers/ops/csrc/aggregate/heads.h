// Attention along edges with scores that are sums of two parts (GAT; Veličković et al., ICLR 2018, section 2.1), on raw
// rows: a head's part of a source is x . (Wᵀ a), so rows meet the head's weights W only after they are summed up.
//
// A target's rows stay in the first cache from scores to sums.
#pragma once

#include <memory>
#include <new>

#include "../attention/exp2.h"
#include "rows.h"

namespace graphmill::GRAPHMILL_ISA {

constexpr int64_t HEAD_TARGETS = 32;       // of one unit, forward
constexpr int64_t HEAD_GRAD_TARGETS = 256;  // backward: each unit has a sum of its own for the vectors' gradients
constexpr int64_t HEAD_SOURCES = 64;
constexpr double LOG2_E = 1.4426950408889634;

template <class T, int distance = WIDTH<T> / 2>
INLINE T sum_of_lanes(Vector<T> x) {
    if constexpr (distance == 0) {
        return x[0];
    } else {
        return sum_of_lanes<T, distance / 2>(x + rotated<T, distance>(x));
    }
}

// Length of a row that is spread out for dots: whole vectors, then one that ends with the row, whose repeated numbers
// are zero. Rows shorter than a vector stay as they are.
template <class T>
constexpr int64_t spread_length(int64_t columns) {
    return columns < WIDTH<T> ? columns : (columns + WIDTH<T> - 1) / WIDTH<T> * WIDTH<T>;
}

template <class T>
inline void spread(T* to, const T* row, int64_t columns) {
    int64_t whole = columns < WIDTH<T> ? columns : columns / WIDTH<T> * WIDTH<T>;
    for (int64_t c = 0; c < whole; ++c) to[c] = row[c];
    if (whole == columns) return;
    int64_t rest = columns - whole;
    for (int64_t lane = 0; lane < WIDTH<T>; ++lane) {
        to[whole + lane] = lane < WIDTH<T> - rest ? T(0) : row[columns - WIDTH<T> + lane];
    }
}

// Adds `vectors`, spread out, back to rows.
template <class T>
inline void add_spread(T* to, const T* from, int64_t columns) {
    int64_t whole = columns < WIDTH<T> ? columns : columns / WIDTH<T> * WIDTH<T>;
    for (int64_t c = 0; c < whole; ++c) to[c] += from[c];
    if (whole == columns) return;
    for (int64_t c = whole; c < columns; ++c) to[c] += from[whole + WIDTH<T> - (columns - c)];
}

// dots[h] = row . vectors[h], vectors spread out.
template <class T>
inline void dots_by_head(T* dots, const T* row, const T* vectors, int64_t heads, int64_t columns) {
    int64_t length = spread_length<T>(columns);
    if (columns < WIDTH<T>) {
        for (int64_t h = 0; h < heads; ++h) {
            T sum = 0;
            for (int64_t c = 0; c < columns; ++c) sum += row[c] * vectors[h * length + c];
            dots[h] = sum;
        }
        return;
    }
    in_runs<4, 2, 1>(heads, [&]<int J>(int64_t first) INLINE_LAMBDA {
        Vector<T> sum[J] = {};
        for (int64_t c = 0; c < length; c += WIDTH<T>) {
            Vector<T> numbers = load(row + (c + WIDTH<T> <= columns ? c : columns - WIDTH<T>));
            UNROLL
            for (int j = 0; j < J; ++j) sum[j] += numbers * load(vectors + (first + j) * length + c);
        }
        UNROLL
        for (int j = 0; j < J; ++j) dots[first + j] = sum_of_lanes<T>(sum[j]);
    });
}

// A number, or a vector of them.
template <class Part, class T>
INLINE Part part_at(const T* from) {
    if constexpr (sizeof(Part) == sizeof(T)) {
        return *from;
    } else {
        return load(from);
    }
}

template <class Part, class T>
INLINE void put_part(T* to, Part part) {
    if constexpr (sizeof(Part) == sizeof(T)) {
        *to = part;
    } else {
        store(to, part);
    }
}

template <class T>
struct Attention {
    const Heads& call;
    RowNumbers sources, own_rows;
    const T *x, *grad_out;
    T *out, *weights, *slopes, *grad_scores, *target_sums;
    int64_t heads, columns;

    explicit Attention(const Heads& call)
        : call(call),
          sources{call.sources, call.wide_sources != 0},
          own_rows{call.own_rows, call.wide_sources != 0},
          x(static_cast<const T*>(call.x.data)),
          grad_out(static_cast<const T*>(call.grad_out)),
          out(static_cast<T*>(call.out)),
          weights(static_cast<T*>(call.weights)),
          slopes(static_cast<T*>(call.slopes)),
          grad_scores(static_cast<T*>(call.grad_scores)),
          target_sums(static_cast<T*>(call.target_sums)),
          heads(call.num_heads),
          columns(call.num_columns) {}

    int64_t begin(int64_t target) const { return call.indptr[target] + (call.with_self ? target : 0); }
    int64_t end(int64_t target) const { return call.indptr[target + 1] + (call.with_self ? target + 1 : 0); }
    const T* own_row(int64_t target) const { return x + (own_rows.data ? own_rows[target] : target) * call.x.row_stride; }

    // The row that an entry of a target reads.
    const T* row(int64_t target, int64_t entry) const {
        int64_t edge = entry - (call.with_self ? target : 0);
        return edge == call.indptr[target + 1] ? own_row(target) : x + sources[edge] * call.x.row_stride;
    }

    void fetch(int64_t target) const {
        for (int64_t e = begin(target); e < end(target) && e < begin(target) + 32; ++e) fetch_row(row(target, e), columns);
    }

    // sums[h] = or += sum over entries of numbers[e][h] * row of e; `pitch` apart. Added sums are spread out.
    template <bool added>
    void sum_by_head(T* sums, int64_t pitch, const T* numbers, int64_t target) const {
        int64_t first_entry = begin(target), last_entry = end(target);
        if (columns < WIDTH<T>) {
            for (int64_t h = 0; h < heads; ++h) {
                for (int64_t c = 0; c < columns; ++c) {
                    T sum = added ? sums[h * pitch + c] : T(0);
                    for (int64_t e = first_entry; e < last_entry; ++e) sum += numbers[e * heads + h] * row(target, e)[c];
                    sums[h * pitch + c] = sum;
                }
            }
            return;
        }
        auto strip = [&]<int C>(int64_t first, int64_t place) INLINE_LAMBDA {
            in_runs<4, 2, 1>(heads, [&]<int J>(int64_t head) INLINE_LAMBDA {
                Vector<T> sum[J][C] = {};
                for (int64_t e = first_entry; e < last_entry; ++e) {
                    const T* from = row(target, e) + first;
                    Vector<T> part[C];
                    UNROLL
                    for (int i = 0; i < C; ++i) part[i] = pinned(load(from + i * WIDTH<T>));
                    UNROLL
                    for (int j = 0; j < J; ++j) {
                        Vector<T> number = pinned(broadcast(numbers[e * heads + head + j]));
                        UNROLL
                        for (int i = 0; i < C; ++i) sum[j][i] += number * part[i];
                    }
                }
                UNROLL
                for (int j = 0; j < J; ++j) {
                    UNROLL
                    for (int i = 0; i < C; ++i) {
                        T* to = sums + (head + j) * pitch + place + i * WIDTH<T>;
                        store(to, added ? load(to) + sum[j][i] : sum[j][i]);
                    }
                }
            });
        };
        in_runs<2, 1>(columns / WIDTH<T>, [&]<int C>(int64_t vector) INLINE_LAMBDA {
            strip.template operator()<C>(vector * WIDTH<T>, vector * WIDTH<T>);
        });
        if (columns % WIDTH<T>) {
            int64_t first = columns - WIDTH<T>;
            strip.template operator()<1>(first, added ? columns / WIDTH<T> * WIDTH<T> : first);
        }
    }

    void exponentiate(T* numbers, int64_t count) const {
        alignas(64) T some[WIDTH<T>] = {};
        for (int64_t i = 0; i < count; i += WIDTH<T>) {
            int64_t here = count - i < WIDTH<T> ? count - i : WIDTH<T>;
            for (int64_t lane = 0; lane < here; ++lane) some[lane] = numbers[i + lane];
            store(some, exp2(load(some) * T(LOG2_E)));
            for (int64_t lane = 0; lane < here; ++lane) numbers[i + lane] = some[lane];
        }
    }

    void forward(int64_t target, const T* source_vectors, const T* target_vectors, T* own_scores) const {
        int64_t first = begin(target), last = end(target);
        dots_by_head(own_scores, own_row(target), target_vectors, heads, columns);
        for (int64_t e = first; e < last; ++e) {
            T *score = weights + e * heads, *slope = slopes + e * heads;
            dots_by_head(score, row(target, e), source_vectors, heads, columns);
            for (int64_t h = 0; h < heads; ++h) {
                T sum = score[h] + own_scores[h];
                slope[h] = sum > 0 ? T(1) : T(call.negative_slope);
                score[h] = sum * slope[h];
            }
        }
        for (int64_t h = 0; h < heads && first < last; ++h) {
            T largest = weights[first * heads + h];
            for (int64_t e = first; e < last; ++e) largest = weights[e * heads + h] > largest ? weights[e * heads + h] : largest;
            for (int64_t e = first; e < last; ++e) weights[e * heads + h] -= largest;
        }
        exponentiate(weights + first * heads, (last - first) * heads);
        for (int64_t h = 0; h < heads; ++h) {
            T total = 0;
            for (int64_t e = first; e < last; ++e) total += weights[e * heads + h];
            for (int64_t e = first; e < last; ++e) weights[e * heads + h] /= total;
        }
        sum_by_head<false>(out + target * heads * columns, columns, weights, target);
    }

    // `grads` is scratch [heads, spread length]; `grad_vectors` [2, heads, spread length] is added to.
    void backward(int64_t target, T* grads, T* grad_vectors) const {
        int64_t first = begin(target), last = end(target), length = spread_length<T>(columns);
        for (int64_t h = 0; h < heads; ++h) spread(grads + h * length, grad_out + (target * heads + h) * columns, columns);
        for (int64_t e = first; e < last; ++e) dots_by_head(grad_scores + e * heads, row(target, e), grads, heads, columns);
        T* sums = target_sums + target * heads;
        for (int64_t h = 0; h < heads; ++h) {
            T inner = 0, total = 0;
            for (int64_t e = first; e < last; ++e) inner += weights[e * heads + h] * grad_scores[e * heads + h];
            for (int64_t e = first; e < last; ++e) {
                T& score = grad_scores[e * heads + h];
                score = weights[e * heads + h] * (score - inner) * slopes[e * heads + h];
                total += score;
            }
            sums[h] = total;
        }
        sum_by_head<true>(grad_vectors, length, grad_scores, target);
        for (int64_t h = 0; h < heads; ++h) {
            T* own = grad_vectors + (heads + h) * length;
            const T* from = own_row(target);
            int64_t whole = columns < WIDTH<T> ? columns : columns / WIDTH<T> * WIDTH<T>;
            for (int64_t c = 0; c < whole; ++c) own[c] += sums[h] * from[c];
            for (int64_t c = whole; c < length; ++c) own[c] += sums[h] * from[c - whole + columns - WIDTH<T>];
        }
    }

    // `score_sums` is scratch [heads].
    void to_source(int64_t source, T* score_sums) const {
        T* to = static_cast<T*>(call.grad_x.data) + source * call.grad_x.row_stride;
        const T* source_vectors = static_cast<const T*>(call.source_vectors);
        const T* target_vectors = static_cast<const T*>(call.target_vectors);
        int64_t begin_edge = call.by_source[source], end_edge = call.by_source[source + 1];
        bool own = source < call.num_targets;
        int64_t own_entry = own && call.with_self ? end(source) - 1 : -1;
        auto entry_of = [&](int64_t i) INLINE_LAMBDA {
            return int64_t(call.edge_entries[i]) + (call.with_self ? call.edge_targets[i] : 0);
        };
        for (int64_t h = 0; h < heads; ++h) {
            T sum = own_entry < 0 ? T(0) : grad_scores[own_entry * heads + h];
            for (int64_t i = begin_edge; i < end_edge; ++i) sum += grad_scores[entry_of(i) * heads + h];
            score_sums[h] = sum;
        }
        auto strip = [&]<class Part, int C>(int64_t first) INLINE_LAMBDA {
            Part sum[C] = {};
            auto add = [&](const T* from, T factor) INLINE_LAMBDA {
                UNROLL
                for (int i = 0; i < C; ++i) sum[i] += part_at<Part>(from + i * WIDTH<T>) * factor;
            };
            for (int64_t h = 0; h < heads; ++h) {
                for (int64_t i = begin_edge; i < end_edge; ++i) {
                    add(grad_out + (call.edge_targets[i] * heads + h) * columns + first, weights[entry_of(i) * heads + h]);
                }
                if (own_entry >= 0) add(grad_out + (source * heads + h) * columns + first, weights[own_entry * heads + h]);
                add(source_vectors + h * columns + first, score_sums[h]);
                if (own) add(target_vectors + h * columns + first, target_sums[source * heads + h]);
            }
            UNROLL
            for (int i = 0; i < C; ++i) put_part(to + first + i * WIDTH<T>, sum[i]);
        };
        if (columns < WIDTH<T>) {
            for (int64_t c = 0; c < columns; ++c) strip.template operator()<T, 1>(c);
            return;
        }
        over_columns<T, 4, 2, 1>(columns, [&]<int C>(int64_t first) INLINE_LAMBDA {
            strip.template operator()<Vector<T>, C>(first);
        });
    }
};

template <class T>
bool attend(const Heads& call) {
    Attention<T> work(call);
    int64_t length = spread_length<T>(call.num_columns), size = call.num_heads * length;
    std::unique_ptr<T[]> vectors(new (std::nothrow) T[2 * size + 1]);
    if (!vectors) return false;
    for (int64_t h = 0; h < call.num_heads; ++h) {
        spread(vectors.get() + h * length, static_cast<const T*>(call.source_vectors) + h * call.num_columns, call.num_columns);
        spread(vectors.get() + size + h * length, static_cast<const T*>(call.target_vectors) + h * call.num_columns,
               call.num_columns);
    }
    int64_t units = (call.num_targets + HEAD_TARGETS - 1) / HEAD_TARGETS;
    int64_t scratch = call.num_heads * int64_t(sizeof(T));
    return in_parallel(units, call.num_threads, scratch, [&](int64_t unit, void* memory) {
        int64_t first = unit * HEAD_TARGETS;
        int64_t last = first + HEAD_TARGETS < call.num_targets ? first + HEAD_TARGETS : call.num_targets;
        for (int64_t target = first; target < last; ++target) {
            if (target + 1 < last) work.fetch(target + 1);
            work.forward(target, vectors.get(), vectors.get() + size, static_cast<T*>(memory));
        }
    });
}

template <class T>
bool attend_backward(const Heads& call) {
    Attention<T> work(call);
    int64_t length = spread_length<T>(call.num_columns), size = call.num_heads * length;
    int64_t units = (call.num_targets + HEAD_GRAD_TARGETS - 1) / HEAD_GRAD_TARGETS;
    std::unique_ptr<T[]> sums(new (std::nothrow) T[units * 2 * size + 1]());
    if (!sums) return false;
    bool done = in_parallel(units, call.num_threads, size * int64_t(sizeof(T)), [&](int64_t unit, void* memory) {
        int64_t first = unit * HEAD_GRAD_TARGETS;
        int64_t last = first + HEAD_GRAD_TARGETS < call.num_targets ? first + HEAD_GRAD_TARGETS : call.num_targets;
        for (int64_t target = first; target < last; ++target) {
            if (target + 1 < last) work.fetch(target + 1);
            work.backward(target, static_cast<T*>(memory), sums.get() + unit * 2 * size);
        }
    });
    if (!done) return false;
    T* to = static_cast<T*>(call.grad_vectors);
    for (int64_t row = 0; row < 2 * call.num_heads; ++row, to += call.num_columns) {
        for (int64_t c = 0; c < call.num_columns; ++c) to[c] = 0;
        for (int64_t unit = 0; unit < units; ++unit) {
            add_spread(to, sums.get() + unit * 2 * size + row * length, call.num_columns);
        }
    }
    return true;
}

template <class T>
bool attend_backward_to_sources(const Heads& call) {
    Attention<T> work(call);
    int64_t units = (call.num_sources + HEAD_SOURCES - 1) / HEAD_SOURCES;
    int64_t scratch = call.num_heads * int64_t(sizeof(T));
    return in_parallel(units, call.num_threads, scratch, [&](int64_t unit, void* memory) {
        int64_t first = unit * HEAD_SOURCES;
        int64_t last = first + HEAD_SOURCES < call.num_sources ? first + HEAD_SOURCES : call.num_sources;
        for (int64_t source = first; source < last; ++source) work.to_source(source, static_cast<T*>(memory));
    });
}

}  // namespace graphmill::GRAPHMILL_ISA
