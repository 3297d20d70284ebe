#include "parallel.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>

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
#pragma omp parallel num_threads(static_cast<int>(num_threads))
    {
        FlushSubnormals flush;
        char* own = scratch.get() + omp_get_thread_num() * scratch_bytes;
        for (int64_t unit; (unit = next.fetch_add(1)) < num_units;) work(context, unit, own);
    }
    return true;
}

}  // namespace graphmill
