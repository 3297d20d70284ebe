#include "units.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace graphmill {

Cut cut_of(const Call& call, int64_t count) {
    int64_t groups = (call.num_heads + GROUP_HEADS - 1) / GROUP_HEADS;
    int64_t tiles = (count + TILE_KEYS - 1) / TILE_KEYS;
    // A longer chunk pays less for packing what it is set against, more chunks feed more threads.
    int64_t chunk_tiles = std::clamp<int64_t>(tiles * groups / 8, 2, 8);
    int64_t chunks = std::max<int64_t>(1, (tiles + chunk_tiles - 1) / chunk_tiles);
    return {groups, chunks, (tiles + chunks - 1) / chunks * TILE_KEYS};
}

Unit unit_of(const Call& call, const Cut& cut, int64_t count, int64_t number) {
    int64_t first_head = number / cut.chunks * GROUP_HEADS;
    int64_t first = number % cut.chunks * cut.chunk;
    return {
        .number = number,
        .first_head = first_head,
        .heads = std::min(GROUP_HEADS, call.num_heads - first_head),
        .first = first,
        .count = std::min(cut.chunk, count - first),
        .is_first = number % cut.chunks == 0,
    };
}

void wait_for_progress(const Shared& shared, int64_t unit, int64_t num_blocks) {
    while (shared.progress[unit].load(std::memory_order_acquire) < num_blocks) std::this_thread::yield();
}

void note_bucket(Shared& shared, int64_t bucket) {
    int64_t seen = shared.largest_bucket.load();
    while (seen < bucket && !shared.largest_bucket.compare_exchange_weak(seen, bucket)) {
    }
}

namespace {

// Numbers below the smallest normal one count as zero while the kernels run: the tails of a softmax are full of them,
// and arithmetic on them is a hundred times slower.
class FlushSubnormals {
   public:
#if defined(__SSE2__)
    FlushSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
    ~FlushSubnormals() { _mm_setcsr(before_); }

   private:
    unsigned before_;
#endif
};

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};

}  // namespace

bool run_units(Shared& shared, Work work, int64_t num_threads, int64_t scratch_bytes) {
    int64_t num_units = shared.cut.groups * shared.cut.chunks;
    num_threads = std::clamp<int64_t>(num_threads, 1, num_units);
    scratch_bytes = (scratch_bytes + 4095) / 4096 * 4096;
    std::unique_ptr<char, Free> scratch(static_cast<char*>(std::aligned_alloc(4096, scratch_bytes * num_threads)));
    if (!scratch) return false;

    std::atomic<int64_t> next{0};
    auto take_units = [&](int64_t thread) {
        FlushSubnormals flush;
        for (int64_t unit; (unit = next.fetch_add(1)) < num_units;) {
            work(shared, unit, scratch.get() + thread * scratch_bytes);
        }
    };
    std::vector<std::thread> threads;
    threads.reserve(num_threads);
    try {
        for (int64_t thread = 1; thread < num_threads; ++thread) threads.emplace_back(take_units, thread);
    } catch (const std::system_error&) {
        // No more threads to be had: those that run share the units.
    }
    take_units(0);
    for (auto& thread : threads) thread.join();
    return true;
}

}  // namespace graphmill
