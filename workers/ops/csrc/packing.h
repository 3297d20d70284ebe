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

// to[i] = rows[i].
template <class T>
inline void pack_rows(T* to, HeadRows<T> rows, int64_t size) {
    for (int64_t i = 0; i < rows.count; ++i) {
        for (int64_t c = 0; c < size; ++c) to[i * size + c] = rows.data[i * rows.stride + c];
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
// sizeof(T) keys are read at a time.
template <class T>
inline int64_t pack_buckets(Index<T>* to, const uint8_t* buckets, int64_t stride, int64_t rows, int64_t keys) {
    constexpr int64_t at_once = sizeof(T);
    alignas(64) Index<T> words[TILE_ROWS] = {};
    Index<T> largest = 0;
    for (int64_t j = 0; j < keys; j += at_once) {
        int64_t count = keys - j < at_once ? keys - j : at_once;
        for (int64_t i = 0; i < rows; ++i) {
            if (count < at_once) words[i] = 0;
            __builtin_memcpy(&words[i], buckets + i * stride + j, count == at_once ? at_once : count);
        }
        for (int64_t b = 0; b < count; ++b) {
            for (int64_t i = 0; i < TILE_ROWS; ++i) {
                Index<T> bucket = words[i] >> (8 * b) & 255;
                to[(j + b) * TILE_ROWS + i] = bucket;
                largest = largest > bucket ? largest : bucket;
            }
        }
    }
    return largest;
}

}  // namespace graphmill::GRAPHMILL_ISA
