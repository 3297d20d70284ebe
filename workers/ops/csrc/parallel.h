// Units of work, taken in order by the calling thread's OpenMP team: that of torch, whose libgomp is the one that is loaded.
// Threads of our own would share the cores with that team, which goes on spinning for milliseconds after torch's own work.
//
// Not inline: kernels are compiled for newer processors than the rest of the library, and a function compiled in both
// would be linked once only, perhaps in the form that this processor cannot run.
#pragma once

#include <cstdint>

namespace graphmill {

using UnitWork = void (*)(void* context, int64_t unit, void* scratch);

// Calls `work` once for every unit, on at most so many threads, each with so many bytes of its own (aligned to a page).
// Numbers below the smallest normal one count as zero meanwhile. False if memory is lacking; nothing has run then.
bool run_parallel(int64_t num_units, int64_t num_threads, int64_t scratch_bytes, UnitWork work, void* context);

}  // namespace graphmill
