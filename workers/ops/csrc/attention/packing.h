// Moves numbers between the caller's memory and the tiles'.
//
// In the caller's memory the heads of one row are neighbours, so they are the inner loop; in the tiles each head has its
// own array, `pitch` numbers after the one before.
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
inline T* row_of(const Rows& rows, int64_t i, int64_t head) {
    return static_cast<T*>(rows.data) + i * rows.row_stride + head * rows.head_stride;
}

// to[i][c] = scale * rows[first + i][c].
template <class T>
inline void pack_rows(T* to, int64_t pitch, const Rows& rows, int64_t first, int64_t count, const Unit& unit, int64_t size,
                      T scale) {
    for (int64_t i = 0; i < count; ++i) {
        for (int64_t h = 0; h < unit.heads; ++h) {
            const T* from = row_of<T>(rows, first + i, unit.first_head + h);
            T* row = to + h * pitch + i * size;
            int64_t c = 0;
            for (; c + WIDTH<T> <= size; c += WIDTH<T>) store(row + c, load(from + c) * scale);
            for (; c < size; ++c) row[c] = from[c] * scale;
        }
    }
}

// A square of WIDTH rows, transposed, by rounds that each move one bit of the row's number behind those of the column's.
template <class T>
inline void transpose(Vector<T> (&x)[WIDTH<T>]) {
    constexpr int half = WIDTH<T> / 2;
    UNROLL
    for (int round = 1; round < WIDTH<T>; round *= 2) {
        Vector<T> y[WIDTH<T>];
        UNROLL
        for (int i = 0; i < half; ++i) {
            y[2 * i] = zip<T, 0>(x[i], x[i + half]);
            y[2 * i + 1] = zip<T, 1>(x[i], x[i + half]);
        }
        UNROLL
        for (int i = 0; i < WIDTH<T>; ++i) x[i] = y[i];
    }
}

// to[c][j] = keys[first + j][c] for j < count <= TILE_KEYS, and zero up to TILE_KEYS.
template <class T>
inline void pack_transposed(T* to, int64_t pitch, const Rows& keys, int64_t first, int64_t count, const Unit& unit,
                            int64_t size) {
    constexpr int W = WIDTH<T>;
    for (int64_t j = 0; j < TILE_KEYS; j += W) {
        int64_t rest = count - j;
        for (int64_t h = 0; h < unit.heads; ++h) {
            T* tile = to + h * pitch + j;
            int64_t c = 0;
            for (; c + W <= size && rest >= W; c += W) {
                Vector<T> square[W];
                UNROLL
                for (int i = 0; i < W; ++i) square[i] = load(row_of<T>(keys, first + j + i, unit.first_head + h) + c);
                transpose<T>(square);
                UNROLL
                for (int i = 0; i < W; ++i) store(tile + (c + i) * TILE_KEYS, square[i]);
            }
            for (; c < size; ++c) {
                for (int64_t i = 0; i < W; ++i) {
                    T* at = tile + c * TILE_KEYS + i;
                    *at = i < rest ? row_of<T>(keys, first + j + i, unit.first_head + h)[c] : T(0);
                }
            }
        }
    }
}

// keys[first + j][c] = scale * from[c][j], the inverse.
template <class T>
inline void unpack_transposed(const Rows& keys, const T* from, int64_t pitch, int64_t first, int64_t count,
                              const Unit& unit, int64_t size, T scale) {
    for (int64_t j = 0; j < count; ++j) {
        for (int64_t h = 0; h < unit.heads; ++h) {
            T* to = row_of<T>(keys, first + j, unit.first_head + h);
            for (int64_t c = 0; c < size; ++c) to[c] = from[h * pitch + c * TILE_KEYS + j] * scale;
        }
    }
}

// Pairs of keys as `add_over_keys` wants them: to[j][2c + odd] = keys[first + 2j + odd][c], zero where there is no key,
// and up to `length`.
template <class T>
inline void pack_pairs(T* to, int64_t pitch, const Rows& keys, int64_t first, int64_t count, const Unit& unit, int64_t size,
                       int64_t length) {
    for (int64_t j = 0; j < count; j += 2) {
        bool both = j + 1 < count;
        for (int64_t h = 0; h < unit.heads; ++h) {
            const T* even = row_of<T>(keys, first + j, unit.first_head + h);
            const T* odd = row_of<T>(keys, first + j + both, unit.first_head + h);
            T* pair = to + h * pitch + j / 2 * length;
            int64_t c = 0;
            for (; both && c + WIDTH<T> <= size; c += WIDTH<T>) {
                store(pair + 2 * c, zip<T, 0>(load(even + c), load(odd + c)));
                store(pair + 2 * c + WIDTH<T>, zip<T, 1>(load(even + c), load(odd + c)));
            }
            for (; c < size; ++c) {
                pair[2 * c] = even[c];
                pair[2 * c + 1] = both ? odd[c] : T(0);
            }
            fill(pair + 2 * size, length - 2 * size, T(0));
        }
    }
}

// rows[first + i][c] = scale * (sums[i][2c] + sums[i][2c + 1]), or that added.
template <class T, bool add>
INLINE void unpack_pair_sums(T* to, const T* sums, int64_t size, T scale) {
    int64_t c = 0;
    for (; c + WIDTH<T> <= size; c += WIDTH<T>) {
        Vector<T> low = load(sums + 2 * c), high = load(sums + 2 * c + WIDTH<T>);
        Vector<T> sum = (unzip<T, 0>(low, high) + unzip<T, 1>(low, high)) * scale;
        store(to + c, add ? load(to + c) + sum : sum);
    }
    for (; c < size; ++c) {
        T sum = (sums[2 * c] + sums[2 * c + 1]) * scale;
        to[c] = add ? to[c] + sum : sum;
    }
}

// The heads' tables times log2(e), zero up to MAX_BUCKETS.
template <class T>
inline void pack_tables(T* to, const Call& call, const Unit& unit) {
    for (int64_t h = 0; h < unit.heads; ++h) {
        const T* table = static_cast<const T*>(call.table) + (unit.first_head + h) * call.num_buckets;
        for (int64_t b = 0; b < MAX_BUCKETS; ++b) {
            to[h * MAX_BUCKETS + b] = b < call.num_buckets ? table[b] * T(LOG2_E) : T(0);
        }
    }
}

// The buckets of some rows and keys.
struct BucketBlock {
    const Call& call;
    int64_t first_row, rows;
    int64_t first_key, keys;
};

// From a dense index.
inline int64_t copy_buckets(uint8_t* to, int64_t pitch, const BucketBlock& block) {
    typedef uint8_t Bytes __attribute__((vector_size(16), aligned(1), may_alias));
    const Call& call = block.call;
    Bytes largest = {};
    int64_t whole = block.keys / 16 * 16;
    for (int64_t i = 0; i < block.rows; ++i, to += pitch) {
        const uint8_t* from = call.buckets + (block.first_row + i) * call.buckets_stride + block.first_key;
        for (int64_t j = 0; j < whole; j += 16) {
            Bytes x = *reinterpret_cast<const Bytes*>(from + j);
            *reinterpret_cast<Bytes*>(to + j) = x;
            largest = larger(largest, x);
        }
        if (whole < pitch) {
            fill(to + whole, pitch - whole, uint8_t(0));
            for (int64_t j = whole; j < block.keys; ++j) {
                to[j] = from[j];
                largest[0] = largest[0] > from[j] ? largest[0] : from[j];
            }
        }
    }
    uint8_t most = 0;
    for (int lane = 0; lane < 16; ++lane) most = largest[lane] > most ? largest[lane] : most;
    return most;
}

// The first of [first, last), ascending, that is not below `bound`.
inline const int32_t* first_from(const int32_t* first, const int32_t* last, int64_t bound) {
    while (first < last) {
        const int32_t* middle = first + (last - first) / 2;
        if (*middle < bound) {
            first = middle + 1;
        } else {
            last = middle;
        }
    }
    return first;
}

// From near pairs: far, but for those.
inline int64_t scatter_buckets(uint8_t* to, int64_t pitch, const BucketBlock& block) {
    const Call& call = block.call;
    int64_t first_column = call.first_column + block.first_key;
    uint8_t far = uint8_t(call.far_bucket), most = 0;
    for (int64_t i = 0; i < block.rows; ++i, to += pitch) {
        fill(to, block.keys, far);
        fill(to + block.keys, pitch - block.keys, uint8_t(0));
        const int64_t* ends = call.near_indptr + block.first_row + i;
        const int32_t* last = call.near_columns + ends[1];
        const int32_t* column = first_from(call.near_columns + ends[0], last, first_column);
        const uint8_t* bucket = call.near_buckets + (column - call.near_columns);
        int64_t num_far = block.keys;
        for (; column < last && *column < first_column + block.keys; ++column, ++bucket, --num_far) {
            to[*column - first_column] = *bucket;
            most = *bucket > most ? *bucket : most;
        }
        if (num_far > 0 && far > most) most = far;
    }
    return most;
}

// to[i][j] = the bucket of row i and key j of the block, zero up to `pitch`, a multiple of 16. Returns the largest. All
// heads of a group read this copy: the caller's rows may lie a power of two apart, and a cache holds few of those at a time.
inline int64_t pack_buckets(uint8_t* to, int64_t pitch, const BucketBlock& block) {
    return block.call.near_indptr ? scatter_buckets(to, pitch, block) : copy_buckets(to, pitch, block);
}

}  // namespace graphmill::GRAPHMILL_ISA
