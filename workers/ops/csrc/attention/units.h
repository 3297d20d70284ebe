// How a call is cut into units of work, and how threads take them.
//
// The cut depends on the shapes alone, never on the number of threads, and every sum runs over it in one order: so
// results are equal bit for bit for any number of threads.
//
// Nothing here is inline: the kernels are compiled for newer processors than the rest of the library, and a function
// compiled in both would be linked once only, perhaps in the form that this processor cannot run.
#pragma once

#include <atomic>
#include <cstdint>

#include "call.h"

namespace graphmill {

// Keys of one tile: every array that is transposed, so that a vector holds one number of many keys, has this pitch.
constexpr int64_t TILE_KEYS = 64;
// Heads worked on together: they share the buckets, and sums by bucket run over vectors of 8 heads.
constexpr int64_t GROUP_HEADS = 8;

// A unit is one chunk of rows (forward) or of keys (backward) for one group of heads, against all keys or rows.
struct Cut {
    int64_t groups;
    int64_t chunks;
    int64_t chunk;  // length
};

struct Unit {
    int64_t number;
    int64_t first_head, heads;
    int64_t first, count;  // rows or keys
    bool is_first;         // chunk of its group
};

Cut cut_of(const Call& call, int64_t count);
Unit unit_of(const Call& call, const Cut& cut, int64_t count, int64_t number);

// What the units of one call share.
struct Shared {
    const Call& call;
    Cut cut;
    std::atomic<int64_t>* progress;  // [units]: how many blocks of keys the unit has added to the shared sums
    double* table_sums;              // [units, MAX_BUCKETS, GROUP_HEADS], backward only
    std::atomic<int64_t> largest_bucket{0};
};

// Blocks until the unit has added so many blocks. Units are taken in order, so one that is waited for always runs.
void wait_for_progress(const Shared& shared, int64_t unit, int64_t num_blocks);

// Raises largest_bucket.
void note_bucket(Shared& shared, int64_t bucket);

using Work = void (*)(Shared& shared, int64_t unit, void* scratch);

// Calls `work` once for every unit, on at most so many threads, each with so many bytes of its own.
// False if memory is lacking; nothing has been computed then.
bool run_units(Shared& shared, Work work, int64_t num_threads, int64_t scratch_bytes);

// The kernels of one instruction set for one number type.
struct Kernel {
    int64_t (*forward_scratch_bytes)(const Call& call, const Cut& cut);
    Work forward;
    int64_t (*backward_scratch_bytes)(const Call& call, const Cut& cut);
    Work backward;
};

namespace avx512 {
extern const Kernel kernels[2];  // float, double
}
namespace avx2 {
extern const Kernel kernels[2];
}
namespace generic {
extern const Kernel kernels[2];
}

}  // namespace graphmill
