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

inline void fetch(const void* from, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(from) + at, 0, 2);
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

// Asks for rows that pack_heads will read soon: a processor guesses addresses within a page, not across pages.
template <class T>
inline void fetch_heads(const Rows& rows, int64_t first, int64_t count, const Unit& unit, int64_t size) {
    for (int64_t i = first; i < first + count; ++i) {
        for (int64_t h = 0; h < unit.heads; ++h) {
            fetch(static_cast<const T*>(rows.data) + i * rows.row_stride + (unit.first_head + h) * rows.head_stride,
                  size * sizeof(T));
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

typedef uint8_t Bytes __attribute__((vector_size(16), may_alias));
typedef uint8_t Loose __attribute__((vector_size(16), aligned(1), may_alias));

// Bytes of a 16 x 16 square, transposed: four rounds, each of which moves one bit of the row's number behind the bits of
// the column's.
inline void transpose_square(uint8_t* to, int64_t to_pitch, const uint8_t* from, int64_t from_pitch) {
    constexpr Bytes low{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
    constexpr Bytes high{8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    Bytes x[16], y[16];
    GRAPHMILL_UNROLL
    for (int i = 0; i < 16; ++i) x[i] = *reinterpret_cast<const Bytes*>(from + i * from_pitch);
    GRAPHMILL_UNROLL
    for (int round = 0; round < 4; ++round) {
        GRAPHMILL_UNROLL
        for (int i = 0; i < 8; ++i) {
            y[2 * i] = __builtin_shuffle(x[i], x[i + 8], low);
            y[2 * i + 1] = __builtin_shuffle(x[i], x[i + 8], high);
        }
        GRAPHMILL_UNROLL
        for (int i = 0; i < 16; ++i) x[i] = y[i];
    }
    GRAPHMILL_UNROLL
    for (int i = 0; i < 16; ++i) *reinterpret_cast<Bytes*>(to + i * to_pitch) = x[i];
}

// to[j][i] = buckets[i][j] for i < rows, j < keys, and 0 up to TILE_ROWS; keys are padded to a multiple of 16. Returns the
// largest bucket. `staged` has room for TILE_ROWS rows of staged_pitch bytes: the caller's rows may lie a power of two
// apart, where a cache holds few of them at a time.
inline int64_t pack_buckets(uint8_t* to, uint8_t* staged, int64_t staged_pitch, const uint8_t* buckets, int64_t stride,
                            int64_t rows, int64_t keys) {
    Bytes largest = {};
    int64_t whole = keys / 16 * 16;
    for (int64_t i = 0; i < rows; ++i) {
        const uint8_t* from = buckets + i * stride;
        uint8_t* row = staged + i * staged_pitch;
        for (int64_t j = 0; j < whole; j += 16) {
            Bytes x = *reinterpret_cast<const Loose*>(from + j);
            *reinterpret_cast<Bytes*>(row + j) = x;
            largest = larger(largest, x);
        }
        if (whole < keys) {
            Bytes x = {};
            __builtin_memcpy(&x, from + whole, keys - whole);
            *reinterpret_cast<Bytes*>(row + whole) = x;
            largest = larger(largest, x);
        }
    }
    __builtin_memset(staged + rows * staged_pitch, 0, (TILE_ROWS - rows) * staged_pitch);
    for (int64_t j = 0; j < keys; j += 16) {
        for (int64_t i = 0; i < TILE_ROWS; i += 16) {
            transpose_square(to + j * TILE_ROWS + i, TILE_ROWS, staged + i * staged_pitch + j, staged_pitch);
        }
    }
    uint8_t most = 0;
    for (int i = 0; i < 16; ++i) most = largest[i] > most ? largest[i] : most;
    return most;
}

// While head h of tile t works on one block of keys: asks for a share of what comes next, the buckets of the next tile and
// the next block's keys.
template <class T>
inline void fetch_ahead(const Call& call, const Unit& unit, int64_t block, int64_t block_keys, int64_t t, int64_t h,
                        bool backward) {
    bool last = t + 1 == unit.tiles;
    int64_t tile = unit.first_row + (last ? 0 : t + 1) * TILE_ROWS;
    int64_t key = last ? block + block_keys : block;
    if (key < call.num_keys) {
        int64_t keys = smaller(block_keys, call.num_keys - key);
        int64_t end = unit.first_row + unit.rows;
        for (int64_t i = tile + h; i < tile + TILE_ROWS && i < end; i += unit.heads) {
            fetch(call.buckets + i * call.buckets_stride + key, keys);
        }
    }
    int64_t parts = unit.tiles * unit.heads, part = t * unit.heads + h;
    int64_t next = block + block_keys;
    int64_t keys = smaller(block_keys, call.num_keys - next);
    if (keys <= 0) return;
    int64_t from = next + keys * part / parts, count = next + keys * (part + 1) / parts - from;
    fetch_heads<T>(call.k, from, count, unit, call.head_size);
    fetch_heads<T>(call.v, from, count, unit, call.head_size);
    if (backward) {
        fetch_heads<T>(call.grad_k, from - block_keys, count, unit, call.head_size);
        fetch_heads<T>(call.grad_v, from - block_keys, count, unit, call.head_size);
    }
}

}  // namespace graphmill::GRAPHMILL_ISA
