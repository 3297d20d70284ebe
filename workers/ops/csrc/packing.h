// Moves rows between the caller's layout and the tiles: transposed, so that a vector holds one number of many rows, and
// padded up to TILE_ROWS.
#pragma once

#include "simd.h"
#include "units.h"

namespace graphmill::GRAPHMILL_ISA {

// Scratch memory dealt out in order. Over a null pointer it only counts.
class Arena {
   public:
    explicit Arena(void* start) : start_(reinterpret_cast<intptr_t>(start)) {}

    template <class T>
    T* take(int64_t count) {
        T* taken = reinterpret_cast<T*>(start_ + used_);
        used_ += (count * int64_t(sizeof(T)) + 63) / 64 * 64;
        return taken;
    }

    int64_t used_bytes() const { return used_; }

   private:
    intptr_t start_;
    int64_t used_ = 0;
};

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

template <class T>
inline void fill(T* to, int64_t count, T value) {
    for (int64_t i = 0; i < count; ++i) to[i] = value;
}

template <class T>
inline void copy(T* to, const T* from, int64_t count) {
    int64_t i = 0;
    for (; i + WIDTH<T> <= count; i += WIDTH<T>) store(to + i, load(from + i));
    for (; i < count; ++i) to[i] = from[i];
}

// Some rows of one head.
template <class T>
struct HeadRows {
    T* data;
    int64_t stride;
    int64_t count;

    HeadRows(const Rows& rows, int64_t first, int64_t count, int64_t head)
        : data(static_cast<T*>(rows.data) + first * rows.row_stride + head * rows.head_stride),
          stride(rows.row_stride),
          count(count) {}
};

// to[c][i] = scale * rows[i][c], zero up to TILE_ROWS.
template <class T>
inline void pack_transposed(T* to, HeadRows<T> rows, int64_t size, T scale) {
    for (int64_t i = 0; i < rows.count; ++i) {
        for (int64_t c = 0; c < size; ++c) to[c * TILE_ROWS + i] = rows.data[i * rows.stride + c] * scale;
    }
    for (int64_t i = rows.count; i < TILE_ROWS; ++i) {
        for (int64_t c = 0; c < size; ++c) to[c * TILE_ROWS + i] = 0;
    }
}

// rows[i][c] = scale[i] * from[c][i].
template <class T>
inline void unpack_transposed(HeadRows<T> rows, const T* from, int64_t size, const T* scale) {
    for (int64_t i = 0; i < rows.count; ++i) {
        for (int64_t c = 0; c < size; ++c) rows.data[i * rows.stride + c] = from[c * TILE_ROWS + i] * scale[i];
    }
}

// to[i] = scale * rows[i], `padding` up to TILE_ROWS.
template <class T>
inline void pack_scalars(T* to, HeadRows<T> rows, T scale, T padding) {
    for (int64_t i = 0; i < TILE_ROWS; ++i) to[i] = i < rows.count ? rows.data[i * rows.stride] * scale : padding;
}

// Rows first, first + 1, ... of a unit's heads; those of one head come to lie side by side, `pitch` numbers a head.
// Heads are the inner loop because they are neighbours in the caller's memory.
template <class T>
inline void pack_heads(T* to, int64_t pitch, const Rows& rows, int64_t first, int64_t count, const Unit& unit,
                       int64_t size) {
    for (int64_t i = 0; i < count; ++i) {
        for (int64_t h = 0; h < unit.heads; ++h) {
            const T* from = static_cast<const T*>(rows.data) + (first + i) * rows.row_stride +
                            (unit.first_head + h) * rows.head_stride;
            copy(to + h * pitch + i * size, from, size);
        }
    }
}

inline void pack_row_bits(int32_t* to, const Call& call, int64_t first, int64_t count, int64_t head) {
    for (int64_t i = 0; i < count; ++i) to[i] = call.row_bits[head * call.num_rows + first + i];
}

// The head's table times log2(e), zero up to MAX_BUCKETS.
template <class T>
inline void pack_table(T* to, const Call& call, int64_t head) {
    const T* table = static_cast<const T*>(call.table) + head * call.num_buckets;
    for (int64_t b = 0; b < MAX_BUCKETS; ++b) to[b] = b < call.num_buckets ? table[b] * T(LOG2_E) : T(0);
}

// to[j][i] = buckets[i][j], widened to the lanes of T, 0 up to TILE_ROWS. Returns the largest.
//
// Words of sizeof(T) neighbouring keys are transposed first, then split. `words` has room for `keys` x TILE_ROWS bytes.
template <class T>
inline int64_t pack_buckets(Index<T>* to, Index<T>* words, const uint8_t* buckets, int64_t stride, int64_t rows,
                            int64_t keys) {
    constexpr int64_t word = sizeof(T);
    int64_t whole = keys / word, rest = keys % word;
    for (int64_t i = 0; i < rows; ++i) {
        const uint8_t* from = buckets + i * stride;
        for (int64_t j = 0; j < whole; ++j) __builtin_memcpy(words + j * TILE_ROWS + i, from + j * word, word);
        if (rest) {
            Index<T> last = 0;
            __builtin_memcpy(&last, from + whole * word, rest);
            words[whole * TILE_ROWS + i] = last;
        }
    }
    for (int64_t j = 0; rows < TILE_ROWS && j * word < keys; ++j) {
        fill(words + j * TILE_ROWS + rows, TILE_ROWS - rows, Index<T>(0));
    }
    Indices<T> largest = {};
    for (int64_t j = 0; j < keys; ++j) {
        auto* from = reinterpret_cast<const Indices<T>*>(words + j / word * TILE_ROWS);
        auto* tile = reinterpret_cast<Indices<T>*>(to + j * TILE_ROWS);
        for (int64_t i = 0; i < TILE_ROWS / WIDTH<T>; ++i) {
            tile[i] = from[i] >> (8 * (j % word)) & 255;
            largest = tile[i] > largest ? tile[i] : largest;
        }
    }
    int64_t most = 0;
    for (int lane = 0; lane < WIDTH<T>; ++lane) most = largest[lane] > most ? largest[lane] : most;
    return most;
}

}  // namespace graphmill::GRAPHMILL_ISA
