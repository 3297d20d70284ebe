// Rows of any length as vectors: whole ones, then one more that ends with the row and repeats some of its numbers.
#pragma once

#include "../attention/simd.h"
#include "../parallel.h"
#include "calls.h"

namespace graphmill::GRAPHMILL_ISA {

// Calls body<count>(first column) for runs of vectors that cover `columns`, at least one vector long. The last run may
// begin before the one before it ends: for bodies that write, and do not add.
template <class T, int run, int... shorter, class Body>
INLINE void over_columns(int64_t columns, Body body) {
    in_runs<run, shorter...>(columns / WIDTH<T>, [&]<int C>(int64_t vector) INLINE_LAMBDA {
        body.template operator()<C>(vector * WIDTH<T>);
    });
    if (columns % WIDTH<T>) body.template operator()<1>(columns - WIDTH<T>);
}

// Row numbers of either width.
struct RowNumbers {
    const void* data;
    bool wide;
    inline int64_t operator[](int64_t i) const {
        return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
    }
};

// Runs `work(unit, scratch)` for every unit.
template <class Work>
inline bool in_parallel(int64_t num_units, int64_t num_threads, int64_t scratch_bytes, Work work) {
    auto call = [](void* context, int64_t unit, void* scratch) { (*static_cast<Work*>(context))(unit, scratch); };
    return run_parallel(num_units, num_threads, scratch_bytes, call, &work);
}

constexpr int64_t CACHE_LINE = 64;
constexpr int64_t FETCH_BYTES = 1024;  // of a row, ahead of its use; the processor fetches what follows by itself

template <class T>
inline void fetch_row(const T* row, int64_t columns) {
    const char* begin = reinterpret_cast<const char*>(row);
    int64_t bytes = columns * int64_t(sizeof(T));
    if (bytes > FETCH_BYTES) bytes = FETCH_BYTES;
    for (int64_t at = 0; at < bytes; at += CACHE_LINE) __builtin_prefetch(begin + at);
    __builtin_prefetch(begin + bytes - 1);
}

}  // namespace graphmill::GRAPHMILL_ISA
