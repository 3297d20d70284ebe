// Products of tall matrices with small ones, and of two tall ones across their rows (the gradient of the small one).
//
// A tile of TILE_ROWS x two vectors of sums stays in registers while it runs over the inner dimension: one panel of the
// right matrix, packed two vectors wide, stays in the first cache, rows of the left one are read where they are. Where the
// number of vectors is odd, one panel has three (or, where registers are few, one).
#pragma once

#include <memory>
#include <new>

#include "rows.h"

namespace graphmill::GRAPHMILL_ISA {

#if GRAPHMILL_VECTOR_BYTES == 64
constexpr int TILE_ROWS = 8;
constexpr int MOST_VECTORS = 3;
#else
constexpr int TILE_ROWS = 6;
constexpr int MOST_VECTORS = 2;
#endif
constexpr int64_t PRODUCT_ROWS = 192;  // rows of one unit
constexpr int64_t BLOCK_ROWS = 48;     // of them meet one panel after the other together: a multiple of both tile heights
constexpr int64_t OUTER_ROWS = 128;    // rows packed at a time
constexpr int64_t OUTER_TILES = 24;   // tiles of the left matrix that share the packed columns of the right one
constexpr int64_t OUTER_COLUMNS = OUTER_TILES * TILE_ROWS;
constexpr int64_t OUTER_GROUP_ROWS = 512;
constexpr int64_t OUTER_GROUPS = 16;
constexpr int64_t OUTER_BYTES = int64_t(1) << 26;  // of all groups' partial sums

template <class T, int vectors>
struct Tile {
    Vector<T> sum[TILE_ROWS][vectors];
};

// Vectors that hold so many columns.
template <class T>
constexpr int64_t vectors_of(int64_t columns) {
    return (columns + WIDTH<T> - 1) / WIDTH<T>;
}

// As many panels as ``over_panels`` goes through, or one less.
template <class T>
constexpr int64_t panels_of(int64_t columns) {
    int64_t vectors = vectors_of<T>(columns);
    return vectors > 2 ? vectors / 2 : 1;
}

// Calls body<vectors>(first column) for the panels of so many columns.
template <class T, class Body>
INLINE void over_panels(int64_t columns, Body body) {
    int64_t vectors = vectors_of<T>(columns), first = 0;
    if constexpr (MOST_VECTORS == 3) {
        if (vectors % 2 && vectors > 1) {
            body.template operator()<3>(0);
            first = 3;
        }
    }
    auto panel = [&]<int V>(int64_t vector) INLINE_LAMBDA { body.template operator()<V>(vector * WIDTH<T>); };
    in_runs<2, 1>(vectors, panel, first);
}

// sum[r] = sum over k of rows[r][k * step] * panel[k]
template <class T, int V>
INLINE void multiply(Tile<T, V>& tile, const T* const (&rows)[TILE_ROWS], int64_t step, const T* panel, int64_t inner) {
    Vector<T> sum[TILE_ROWS][V] = {};
    int64_t offset = 0;
    for (int64_t k = 0; k < inner; ++k, panel += V * WIDTH<T>, offset += step) {
        Vector<T> column[V];
        UNROLL
        for (int i = 0; i < V; ++i) column[i] = pinned(load(panel + i * WIDTH<T>));
        UNROLL
        for (int r = 0; r < TILE_ROWS; ++r) {
            Vector<T> number = pinned(broadcast(rows[r][offset]));
            UNROLL
            for (int i = 0; i < V; ++i) sum[r][i] += number * column[i];
        }
    }
    UNROLL
    for (int r = 0; r < TILE_ROWS; ++r) {
        UNROLL
        for (int i = 0; i < V; ++i) tile.sum[r][i] = sum[r][i];
    }
}

template <class T>
const T* batch_of(const Matrix& matrix, int64_t batch) {
    return static_cast<const T*>(matrix.data) + batch * matrix.batch_stride;
}

// The left matrix: row by number, and what the gate makes of it.
template <class T>
struct LeftRows {
    const Matrix &matrix, &gate;
    RowNumbers numbers;

    const T* row(int64_t batch, int64_t m) const {
        return batch_of<T>(matrix, batch) + (numbers.data ? numbers[m] : m) * matrix.row_stride;
    }
    const T* gate_row(int64_t batch, int64_t m) const {
        return gate.data ? batch_of<T>(gate, batch) + m * gate.row_stride : nullptr;
    }
};

// Rows that lie anywhere are fetched while others are multiplied, some with every tile: all at once they would only wait
// for each other.
template <class T>
class RowsAhead {
   public:
    RowsAhead(const LeftRows<T>& left, int64_t batch, int64_t columns) : left_(left), batch_(batch), columns_(columns) {}

    // From here on `tiles` tiles are multiplied, and then rows `first` to `end` are needed.
    void plan(int64_t first, int64_t end, int64_t tiles) {
        next_ = first;
        end_ = left_.numbers.data ? end : first;
        with_each_ = (end - first + tiles - 1) / tiles;
    }

    inline void fetch_some() {
        for (int64_t left = with_each_; left > 0 && next_ < end_; --left) fetch_row(left_.row(batch_, next_++), columns_);
    }

   private:
    const LeftRows<T>& left_;
    int64_t batch_, columns_, next_ = 0, end_ = 0, with_each_ = 0;
};

// Numbers whose gate is above zero, and zeros for the others.
template <class T>
INLINE void keep_open(T* to, const T* from, const T* gate, int64_t count) {
    int64_t n = 0;
    Vector<T> zero{};
    for (; n + WIDTH<T> <= count; n += WIDTH<T>) store(to + n, load(gate + n) > zero ? load(from + n) : zero);
    for (; n < count; ++n) to[n] = gate[n] > 0 ? from[n] : T(0);
}

// [panels][inner][vectors of the panel], zeros past the last column.
template <class T>
void pack_panels(T* packed, const Product& call, int64_t batch) {
    const T* b = batch_of<T>(call.b, batch);
    over_panels<T>(call.num_columns, [&]<int V>(int64_t first) {
        int64_t count = call.num_columns - first < V * WIDTH<T> ? call.num_columns - first : V * WIDTH<T>;
        for (int64_t k = 0; k < call.num_inner; ++k, packed += V * WIDTH<T>) {
            const T* from = b + k * call.b.row_stride + first * call.b_column_stride;
            for (int64_t n = 0; n < count; ++n) packed[n] = from[n * call.b_column_stride];
            for (int64_t n = count; n < V * WIDTH<T>; ++n) packed[n] = 0;
        }
    });
}

template <class T, int V>
INLINE void finish(const Tile<T, V>& tile, const Product& call, T* c, const T* bias, int64_t rows, int64_t first) {
    int64_t count = call.num_columns - first < V * WIDTH<T> ? call.num_columns - first : V * WIDTH<T>;
    alignas(64) T numbers[V * WIDTH<T>] = {};
    if (bias) {
        for (int64_t n = 0; n < count; ++n) numbers[n] = bias[first + n];
    }
    Vector<T> added[V], zero{};
    UNROLL
    for (int i = 0; i < V; ++i) added[i] = load(numbers + i * WIDTH<T>);
    UNROLL
    for (int r = 0; r < TILE_ROWS; ++r) {
        if (r >= rows) break;
        T* to = c + r * call.c.row_stride + first;
        T* place = count == V * WIDTH<T> ? to : numbers;
        UNROLL
        for (int i = 0; i < V; ++i) {
            Vector<T> result = tile.sum[r][i] + added[i];
            store(place + i * WIDTH<T>, call.relu ? larger(zero, result) : result);
        }
        if (place == numbers) {
            for (int64_t n = 0; n < count; ++n) to[n] = numbers[n];
        }
    }
}

template <class T>
bool product(const Product& call) {
    int64_t packed_size = vectors_of<T>(call.num_columns) * WIDTH<T> * call.num_inner;
    std::unique_ptr<T[]> packed(new (std::nothrow) T[call.num_batches * packed_size + 1]);
    if (!packed) return false;
    for (int64_t batch = 0; batch < call.num_batches; ++batch) pack_panels(packed.get() + batch * packed_size, call, batch);

    LeftRows<T> left{call.a, call.gate, {call.a_rows, call.wide_rows != 0}};
    int64_t chunks = (call.num_rows + PRODUCT_ROWS - 1) / PRODUCT_ROWS, num_panels = panels_of<T>(call.num_columns);
    int64_t scratch = call.gate.data ? PRODUCT_ROWS * call.num_inner * int64_t(sizeof(T)) : 0;
    return in_parallel(chunks * call.num_batches, call.num_threads, scratch, [&](int64_t unit, void* memory) {
        // One row of all batches lies together.
        int64_t batch = unit % call.num_batches, first = unit / call.num_batches * PRODUCT_ROWS;
        int64_t count = call.num_rows - first < PRODUCT_ROWS ? call.num_rows - first : PRODUCT_ROWS;
        const T* rows[PRODUCT_ROWS + TILE_ROWS];
        for (int64_t m = 0; m < count; ++m) {
            rows[m] = left.row(batch, first + m);
            if (const T* gate = left.gate_row(batch, first + m)) {
                T* open = static_cast<T*>(memory) + m * call.num_inner;
                keep_open(open, rows[m], gate, call.num_inner);
                rows[m] = open;
            }
        }
        for (int64_t m = count; m < count + TILE_ROWS; ++m) rows[m] = rows[count - 1];  // computed, never stored
        T* c = static_cast<T*>(call.c.data) + batch * call.c.batch_stride + first * call.c.row_stride;
        const T* bias = call.bias ? static_cast<const T*>(call.bias) + batch * call.num_columns : nullptr;
        const T* panels = packed.get() + batch * packed_size;
        RowsAhead<T> ahead(left, batch, call.num_inner);
        for (int64_t begin = 0; begin < count; begin += BLOCK_ROWS) {
            int64_t end = begin + BLOCK_ROWS < count ? begin + BLOCK_ROWS : count;
            int64_t next_end = end + BLOCK_ROWS < count ? end + BLOCK_ROWS : count;
            ahead.plan(first + end, first + next_end, num_panels * ((end - begin + TILE_ROWS - 1) / TILE_ROWS));
            over_panels<T>(call.num_columns, [&]<int V>(int64_t column) {
                for (int64_t m = begin; m < end; m += TILE_ROWS) {
                    const T* tile_rows[TILE_ROWS];
                    UNROLL
                    for (int r = 0; r < TILE_ROWS; ++r) tile_rows[r] = rows[m + r];
                    Tile<T, V> tile;
                    multiply(tile, tile_rows, 1, panels + column * call.num_inner, call.num_inner);
                    finish(tile, call, c + m * call.c.row_stride, bias, end - m, column);
                    ahead.fetch_some();
                }
            });
        }
    });
}

// One part of the rows' share of some columns of the left matrix against all of the right one.
template <class T>
struct OuterPart {
    const OuterProduct& call;
    LeftRows<T> g, a;
    int64_t batch, first_outer, num_outer;  // of columns of g
    T *packed_g, *packed_a;                  // scratch
    T *sums, *column_sums;                   // [num_outer of the call, row_length], [num_outer of the call]
    int64_t row_length;

    // [tiles][OUTER_ROWS][TILE_ROWS], zeros past the last column.
    void pack_g(int64_t first, int64_t count) {
        T numbers[OUTER_COLUMNS] = {}, totals[OUTER_COLUMNS] = {};
        for (int64_t m = 0; m < count; ++m) {
            const T* from = g.row(batch, first + m) + first_outer;
            const T* gate = g.gate_row(batch, first + m);
            if (gate) {
                keep_open(numbers, from, gate + first_outer, num_outer);
            } else {
                __builtin_memcpy(numbers, from, num_outer * sizeof(T));
            }
            for (int64_t n = 0; n < OUTER_COLUMNS; n += WIDTH<T>) store(totals + n, load(totals + n) + load(numbers + n));
            for (int64_t tile = 0; tile * TILE_ROWS < num_outer; ++tile) {
                __builtin_memcpy(packed_g + (tile * OUTER_ROWS + m) * TILE_ROWS, numbers + tile * TILE_ROWS,
                                 TILE_ROWS * sizeof(T));
            }
        }
        for (int64_t n = 0; n < num_outer; ++n) column_sums[first_outer + n] += totals[n];
    }

    template <int V>
    void pack_a(int64_t first, int64_t count, int64_t column) {
        int64_t width = call.num_columns - column < V * WIDTH<T> ? call.num_columns - column : V * WIDTH<T>;
        T* to = packed_a;
        for (int64_t m = 0; m < count; ++m, to += V * WIDTH<T>) {
            const T* from = a.row(batch, first + m) + column;
            if (width == V * WIDTH<T>) {
                UNROLL
                for (int i = 0; i < V; ++i) store(to + i * WIDTH<T>, load(from + i * WIDTH<T>));
            } else {
                for (int64_t k = 0; k < V * WIDTH<T>; ++k) to[k] = k < width ? from[k] : T(0);
            }
        }
    }

    // Rows from `first` on; then come those up to `next_end`.
    void add_rows(int64_t first, int64_t count, int64_t next_end) {
        pack_g(first, count);
        RowsAhead<T> ahead(a, batch, call.num_columns);
        int64_t tiles = panels_of<T>(call.num_columns) * ((num_outer + TILE_ROWS - 1) / TILE_ROWS);
        ahead.plan(first + count, next_end, tiles);
        over_panels<T>(call.num_columns, [&]<int V>(int64_t column) {
            pack_a<V>(first, count, column);
            for (int64_t n = 0; n < num_outer; n += TILE_ROWS) {
                const T* rows[TILE_ROWS];
                UNROLL
                for (int r = 0; r < TILE_ROWS; ++r) rows[r] = packed_g + n * OUTER_ROWS + r;
                Tile<T, V> tile;
                multiply(tile, rows, TILE_ROWS, packed_a, count);
                UNROLL
                for (int r = 0; r < TILE_ROWS; ++r) {
                    if (n + r >= num_outer) break;
                    T* to = sums + (first_outer + n + r) * row_length + column;
                    UNROLL
                    for (int i = 0; i < V; ++i) store(to + i * WIDTH<T>, load(to + i * WIDTH<T>) + tile.sum[r][i]);
                }
                ahead.fetch_some();
            }
        });
    }
};

template <class T>
bool outer_product(const OuterProduct& call) {
    constexpr int64_t SLICE = OUTER_COLUMNS;
    int64_t row_length = vectors_of<T>(call.num_columns) * WIDTH<T>;
    int64_t size = call.num_outer * row_length, slices = (call.num_outer + SLICE - 1) / SLICE;
    // Chosen by shapes alone, so that sums come out the same on any number of threads.
    int64_t groups = call.num_rows / OUTER_GROUP_ROWS;
    int64_t affordable = OUTER_BYTES / (call.num_batches * size * int64_t(sizeof(T)) + 1);
    if (groups > affordable) groups = affordable;
    if (groups > OUTER_GROUPS) groups = OUTER_GROUPS;
    if (groups < 1) groups = 1;
    std::unique_ptr<T[]> sums(new (std::nothrow) T[groups * call.num_batches * size]());
    std::unique_ptr<T[]> column_sums(new (std::nothrow) T[groups * call.num_batches * call.num_outer]());
    if (!sums || !column_sums) return false;

    int64_t group_rows = ((call.num_rows + groups - 1) / groups + OUTER_ROWS - 1) / OUTER_ROWS * OUTER_ROWS;
    int64_t scratch = OUTER_ROWS * (SLICE + MOST_VECTORS * WIDTH<T>) * int64_t(sizeof(T));
    Matrix no_gate{};
    bool done = in_parallel(groups * call.num_batches * slices, call.num_threads, scratch, [&](int64_t unit, void* memory) {
        int64_t slice = unit % slices, batch = unit / slices % call.num_batches, group = unit / slices / call.num_batches;
        int64_t place = group * call.num_batches + batch;
        OuterPart<T> part{
            .call = call,
            .g = {call.g, call.gate, {nullptr, false}},
            .a = {call.a, no_gate, {call.a_rows, call.wide_rows != 0}},
            .batch = batch,
            .first_outer = slice * SLICE,
            .num_outer = call.num_outer - slice * SLICE < SLICE ? call.num_outer - slice * SLICE : SLICE,
            .packed_g = static_cast<T*>(memory),
            .packed_a = static_cast<T*>(memory) + OUTER_ROWS * SLICE,
            .sums = sums.get() + place * size,
            .column_sums = column_sums.get() + place * call.num_outer,
            .row_length = row_length,
        };
        int64_t end = (group + 1) * group_rows < call.num_rows ? (group + 1) * group_rows : call.num_rows;
        for (int64_t m = group * group_rows; m < end; m += OUTER_ROWS) {
            int64_t count = end - m < OUTER_ROWS ? end - m : OUTER_ROWS;
            part.add_rows(m, count, m + count + OUTER_ROWS < end ? m + count + OUTER_ROWS : end);
        }
    });
    if (!done) return false;
    T* c = static_cast<T*>(call.c);
    for (int64_t row = 0; row < call.num_batches * call.num_outer; ++row, c += call.num_columns) {
        for (int64_t k = 0; k < call.num_columns; ++k) c[k] = 0;
        T column_sum = 0;
        for (int64_t group = 0; group < groups; ++group) {
            int64_t place = group * call.num_batches * call.num_outer + row;
            for (int64_t k = 0; k < call.num_columns; ++k) c[k] += sums[place * row_length + k];
            column_sum += column_sums[place];
        }
        if (call.column_sums) static_cast<T*>(call.column_sums)[row] = column_sum;
    }
    return true;
}

}  // namespace graphmill::GRAPHMILL_ISA
