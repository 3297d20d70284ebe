#include "units.h"

#include <algorithm>
#include <thread>

#include "../parallel.h"

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

bool run_units(Shared& shared, Work work, int64_t num_threads, int64_t scratch_bytes) {
    struct Context {
        Shared& shared;
        Work work;
    } context{shared, work};
    auto call = [](void* context, int64_t unit, void* scratch) {
        auto& [shared, work] = *static_cast<Context*>(context);
        work(shared, unit, scratch);
    };
    return run_parallel(shared.cut.groups * shared.cut.chunks, num_threads, scratch_bytes, call, &context);
}

}  // namespace graphmill
