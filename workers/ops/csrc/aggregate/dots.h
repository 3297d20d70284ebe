// Rows times the vectors of all heads: several rows and vectors at once, and their sums across lanes together.
#pragma once

#include "lanes.h"
#include "rows.h"

namespace graphmill::GRAPHMILL_ISA {

template <class T>
constexpr int HEADS_AT_ONCE = WIDTH<T> < 4 ? WIDTH<T> : 4;

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

// dots[i][h] = rows[i] . vectors[h], vectors spread out.
template <class T>
inline void dots_by_head(T* dots, const T* const* rows, int64_t count, const T* vectors, int64_t heads, int64_t columns) {
    int64_t length = spread_length<T>(columns);
    if (columns < WIDTH<T>) {
        for (int64_t i = 0; i < count; ++i) {
            for (int64_t h = 0; h < heads; ++h) {
                T sum = 0;
                for (int64_t c = 0; c < columns; ++c) sum += rows[i][c] * vectors[h * length + c];
                dots[i * heads + h] = sum;
            }
        }
        return;
    }
    in_runs<HEADS_AT_ONCE<T>, 2, 1>(heads, [&]<int J>(int64_t head) INLINE_LAMBDA {
        constexpr int R = WIDTH<T> / J;
        for (int64_t first = 0; first < count; first += R) {
            const T* from[R];
            UNROLL
            for (int r = 0; r < R; ++r) from[r] = rows[first + r < count ? first + r : count - 1];
            Vector<T> sum[R * J] = {};
            for (int64_t c = 0; c < length; c += WIDTH<T>) {
                int64_t place = c + WIDTH<T> <= columns ? c : columns - WIDTH<T>;
                Vector<T> vector[J];
                UNROLL
                for (int j = 0; j < J; ++j) vector[j] = pinned(load(vectors + (head + j) * length + c));
                UNROLL
                for (int r = 0; r < R; ++r) {
                    Vector<T> numbers = pinned(load(from[r] + place));
                    UNROLL
                    for (int j = 0; j < J; ++j) sum[r * J + j] += numbers * vector[j];
                }
            }
            alignas(64) T found[WIDTH<T>];
            store(found, sums_of_lanes<T>(sum));
            for (int r = 0; r < R && first + r < count; ++r) {
                for (int j = 0; j < J; ++j) dots[(first + r) * heads + head + j] = found[r * J + j];
            }
        }
    });
}

// The first `count` numbers, or a whole vector if there are more; paddings after them.
template <class T>
INLINE Vector<T> some(const T* from, int64_t count, T padding) {
    if (count >= WIDTH<T>) return load(from);
    alignas(64) T numbers[WIDTH<T>];
    for (int lane = 0; lane < WIDTH<T>; ++lane) numbers[lane] = lane < count ? from[lane] : padding;
    return load(numbers);
}

template <class T>
INLINE void put_some(T* to, Vector<T> numbers, int64_t count) {
    if (count >= WIDTH<T>) return store(to, numbers);
    for (int lane = 0; lane < count; ++lane) to[lane] = numbers[lane];
}

}  // namespace graphmill::GRAPHMILL_ISA
