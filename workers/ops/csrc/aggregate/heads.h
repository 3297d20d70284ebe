// Attention along edges with scores that are sums of two parts (GAT; Veličković et al., ICLR 2018, section 2.1), on raw
// rows: a head's part of a source is x . (Wᵀ a), so rows meet the head's weights W only after they are summed up.
//
// The rows of a few targets stay in the first cache from scores to sums.
#pragma once

#include <memory>
#include <new>

#include "../attention/exp2.h"
#include "dots.h"

namespace graphmill::GRAPHMILL_ISA {

constexpr int64_t HEAD_TARGETS = 128;       // of one unit, forward
constexpr int64_t HEAD_GRAD_TARGETS = 256;  // backward: each unit has a sum of its own for the vectors' gradients
constexpr int64_t HEAD_SOURCES = 64;
constexpr int64_t HEAD_GROUP = 8;  // targets whose rows are met together
constexpr int HEAD_STRIP = GRAPHMILL_VECTOR_BYTES == 64 ? 4 : 2;  // vectors of a row that are summed at once
constexpr double LOG2_E = 1.4426950408889634;
template <class T>
constexpr T LOWEST = -T(__builtin_inf());

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

    int64_t most_entries(int64_t targets) const {
        int64_t most = 0;
        for (int64_t first = 0; first < call.num_targets; first += targets) {
            int64_t last = first + targets < call.num_targets ? first + targets : call.num_targets;
            int64_t entries = end(last - 1) - begin(first);
            if (entries > most) most = entries;
        }
        return most;
    }

    void list_rows(const T** rows, int64_t target) const {
        for (int64_t e = begin(target); e < end(target); ++e) *rows++ = row(target, e);
    }

    // sums[h] = or += sum over entries of numbers[e][h] * rows[e]; `pitch` apart. Added sums are spread out.
    template <bool added>
    void sum_by_head(T* sums, int64_t pitch, const T* numbers, const T* const* rows, int64_t count) const {
        if (columns < WIDTH<T>) {
            for (int64_t h = 0; h < heads; ++h) {
                for (int64_t c = 0; c < columns; ++c) {
                    T sum = added ? sums[h * pitch + c] : T(0);
                    for (int64_t e = 0; e < count; ++e) sum += numbers[e * heads + h] * rows[e][c];
                    sums[h * pitch + c] = sum;
                }
            }
            return;
        }
        auto strip = [&]<int C>(int64_t first, int64_t place) INLINE_LAMBDA {
            in_runs<4, 2, 1>(heads, [&]<int J>(int64_t head) INLINE_LAMBDA {
                Vector<T> sum[J][C] = {};
                for (int64_t e = 0; e < count; ++e) {
                    const T* from = rows[e] + first;
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
        in_runs<HEAD_STRIP, 2, 1>(columns / WIDTH<T>, [&]<int C>(int64_t vector) INLINE_LAMBDA {
            strip.template operator()<C>(vector * WIDTH<T>, vector * WIDTH<T>);
        });
        if (columns % WIDTH<T>) {
            int64_t first = columns - WIDTH<T>;
            strip.template operator()<1>(first, added ? columns / WIDTH<T> * WIDTH<T> : first);
        }
    }

    // One target's scores, without its own part, become weights; slopes are noted.
    void weigh(T* numbers, T* slope, int64_t count, const T* own_scores) const {
        by_period([&]<int H>() INLINE_LAMBDA { weigh_lanes<H>(numbers, slope, count * heads, own_scores); },
                  [&](int64_t h) INLINE_LAMBDA {
                      T largest = LOWEST<T>, total = 0;
                      for (int64_t i = h; i < count * heads; i += heads) {
                          T sum = numbers[i] + own_scores[h];
                          slope[i] = sum > 0 ? T(1) : T(call.negative_slope);
                          numbers[i] = sum * slope[i];
                          largest = numbers[i] > largest ? numbers[i] : largest;
                      }
                      for (int64_t i = h; i < count * heads; i += heads) {
                          numbers[i] = exp2(broadcast((numbers[i] - largest) * T(LOG2_E)))[0];
                          total += numbers[i];
                      }
                      for (int64_t i = h; i < count * heads; i += heads) numbers[i] /= total;
                  });
    }

    // H heads side by side divide a vector, so every lane belongs to one.
    template <int H>
    void weigh_lanes(T* numbers, T* slope, int64_t count, const T* own_scores) const {
        Vector<T> own = repeated<H>(own_scores), largest = broadcast(LOWEST<T>), total{};
        for (int64_t i = 0; i < count; i += WIDTH<T>) {
            Vector<T> sum = some(numbers + i, count - i, T(0)) + own;
            Vector<T> factor = sum > 0 ? broadcast(T(1)) : broadcast(T(call.negative_slope));
            put_some(slope + i, factor, count - i);
            put_some(numbers + i, sum * factor, count - i);
            largest = larger(largest, some(numbers + i, count - i, LOWEST<T>));
        }
        largest = folded<T, H>(largest, [&](Vector<T> a, Vector<T> b) INLINE_LAMBDA { return larger(a, b); });
        for (int64_t i = 0; i < count; i += WIDTH<T>) {
            Vector<T> weight = exp2((some(numbers + i, count - i, LOWEST<T>) - largest) * T(LOG2_E));
            total += weight;
            put_some(numbers + i, weight, count - i);
        }
        total = folded<T, H>(total, [&](Vector<T> a, Vector<T> b) INLINE_LAMBDA { return a + b; });
        for (int64_t i = 0; i < count; i += WIDTH<T>) {
            put_some(numbers + i, some(numbers + i, count - i, T(0)) / total, count - i);
        }
    }

    // Rows' gradients of one target become those of its scores before the leaky unit; `sums` [heads] over the target.
    void weigh_backward(T* numbers, const T* weight, const T* slope, int64_t count, T* sums) const {
        by_period([&]<int H>() INLINE_LAMBDA { weigh_lanes_backward<H>(numbers, weight, slope, count * heads, sums); },
                  [&](int64_t h) INLINE_LAMBDA {
                      T inner = 0, total = 0;
                      for (int64_t i = h; i < count * heads; i += heads) inner += weight[i] * numbers[i];
                      for (int64_t i = h; i < count * heads; i += heads) {
                          numbers[i] = weight[i] * (numbers[i] - inner) * slope[i];
                          total += numbers[i];
                      }
                      sums[h] = total;
                  });
    }

    template <int H>
    void weigh_lanes_backward(T* numbers, const T* weight, const T* slope, int64_t count, T* sums) const {
        auto add = [&](Vector<T> a, Vector<T> b) INLINE_LAMBDA { return a + b; };
        Vector<T> inner{}, total{};
        for (int64_t i = 0; i < count; i += WIDTH<T>) {
            inner += some(weight + i, count - i, T(0)) * some(numbers + i, count - i, T(0));
        }
        inner = folded<T, H>(inner, add);
        for (int64_t i = 0; i < count; i += WIDTH<T>) {
            Vector<T> score = some(weight + i, count - i, T(0)) * (some(numbers + i, count - i, T(0)) - inner) *
                              some(slope + i, count - i, T(0));
            total += score;
            put_some(numbers + i, score, count - i);
        }
        put_some(sums, folded<T, H>(total, add), H);
    }

    // Calls lanes<heads>() where so many heads divide a vector, else body(h) for each.
    template <class Lanes, class Body>
    INLINE void by_period(Lanes lanes, Body body) const {
        bool done = false;
        auto try_period = [&]<int H>() INLINE_LAMBDA {
            if constexpr (H <= WIDTH<T>) {
                if (heads == H) {
                    lanes.template operator()<H>();
                    done = true;
                }
            }
        };
        try_period.template operator()<1>();
        try_period.template operator()<2>();
        try_period.template operator()<4>();
        try_period.template operator()<8>();
        for (int64_t h = 0; h < heads && !done; ++h) body(h);
    }

    template <int H>
    static Vector<T> repeated(const T* numbers) {
        Vector<T> lanes;
        UNROLL
        for (int lane = 0; lane < WIDTH<T>; ++lane) lanes[lane] = numbers[lane % H];
        return lanes;
    }

    // Targets first to last - 1, and what follows up to `end_target` is fetched. `rows` and `own_scores` are scratch.
    void forward(int64_t first, int64_t last, int64_t end_target, const T* source_vectors, const T* target_vectors,
                 const T** rows, T* own_scores) const {
        const T* own[HEAD_GROUP];
        int64_t first_entry = begin(first);
        for (int64_t target = first; target < last; ++target) {
            own[target - first] = own_row(target);
            list_rows(rows + begin(target) - first_entry, target);
        }
        dots_by_head(own_scores, own, last - first, target_vectors, heads, columns);
        dots_by_head(weights + first_entry * heads, rows, end(last - 1) - first_entry, source_vectors, heads, columns);
        for (int64_t target = first; target < last; ++target) {
            if (target + HEAD_GROUP < end_target) fetch(target + HEAD_GROUP);
            int64_t entry = begin(target), count = end(target) - entry;
            weigh(weights + entry * heads, slopes + entry * heads, count, own_scores + (target - first) * heads);
            sum_by_head<false>(out + target * heads * columns, columns, weights + entry * heads,
                               rows + entry - first_entry, count);
        }
    }

    // `grads` [heads, spread length] and `rows` are scratch; `grad_vectors` [2, heads, spread length] is added to.
    void backward(int64_t target, T* grads, const T** rows, T* grad_vectors) const {
        int64_t entry = begin(target), count = end(target) - entry, length = spread_length<T>(columns);
        T* scores = grad_scores + entry * heads;
        list_rows(rows, target);
        for (int64_t h = 0; h < heads; ++h) spread(grads + h * length, grad_out + (target * heads + h) * columns, columns);
        dots_by_head(scores, rows, count, grads, heads, columns);
        T* sums = target_sums + target * heads;
        weigh_backward(scores, weights + entry * heads, slopes + entry * heads, count, sums);
        sum_by_head<true>(grad_vectors, length, scores, rows, count);
        const T* own = own_row(target);
        sum_by_head<true>(grad_vectors + heads * length, length, sums, &own, 1);
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
    int64_t rows_bytes = work.most_entries(HEAD_GROUP) * int64_t(sizeof(T*));
    int64_t scratch = rows_bytes + HEAD_GROUP * call.num_heads * int64_t(sizeof(T));
    return in_parallel(units, call.num_threads, scratch, [&](int64_t unit, void* memory) {
        int64_t begin = unit * HEAD_TARGETS;
        int64_t end = begin + HEAD_TARGETS < call.num_targets ? begin + HEAD_TARGETS : call.num_targets;
        for (int64_t target = begin; target < end && target < begin + HEAD_GROUP; ++target) work.fetch(target);
        for (int64_t first = begin; first < end; first += HEAD_GROUP) {
            int64_t last = first + HEAD_GROUP < end ? first + HEAD_GROUP : end;
            work.forward(first, last, end, vectors.get(), vectors.get() + size, static_cast<const T**>(memory),
                         reinterpret_cast<T*>(static_cast<char*>(memory) + rows_bytes));
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
    int64_t rows_bytes = work.most_entries(1) * int64_t(sizeof(T*));
    int64_t scratch = rows_bytes + size * int64_t(sizeof(T));
    bool done = in_parallel(units, call.num_threads, scratch, [&](int64_t unit, void* memory) {
        int64_t first = unit * HEAD_GRAD_TARGETS;
        int64_t last = first + HEAD_GRAD_TARGETS < call.num_targets ? first + HEAD_GRAD_TARGETS : call.num_targets;
        for (int64_t target = first; target < last; ++target) {
            if (target + 1 < last) work.fetch(target + 1);
            work.backward(target, reinterpret_cast<T*>(static_cast<char*>(memory) + rows_bytes),
                          static_cast<const T**>(memory), sums.get() + unit * 2 * size);
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
