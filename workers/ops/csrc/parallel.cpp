#include "parallel.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace graphmill {

namespace {

// Arithmetic on numbers below the smallest normal one is a hundred times slower, and the tails of a softmax are full of
// them.
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

bool run_parallel(int64_t num_units, int64_t num_threads, int64_t scratch_bytes, UnitWork work, void* context) {
    if (num_units <= 0) return true;
    num_threads = std::clamp<int64_t>(num_threads, 1, num_units);
    scratch_bytes = (std::max<int64_t>(scratch_bytes, 1) + 4095) / 4096 * 4096;
    std::unique_ptr<char, Free> scratch(static_cast<char*>(std::aligned_alloc(4096, scratch_bytes * num_threads)));
    if (!scratch) return false;

    std::atomic<int64_t> next{0};
    auto take_units = [&](int64_t thread) {
        FlushSubnormals flush;
        for (int64_t unit; (unit = next.fetch_add(1)) < num_units;) {
            work(context, unit, scratch.get() + thread * scratch_bytes);
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
