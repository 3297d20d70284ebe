// What the whole library has in common: how functions are exported, and what tells a stale library from a fresh one.
#pragma once

#include <cstdint>

#define GRAPHMILL_EXPORT extern "C" __attribute__((visibility("default")))

namespace graphmill {

// Rises whenever an exported function, or a structure that one takes, changes. Mirrored by workers/ops/native.py, which
// leaves a library of another number alone.
constexpr int64_t ABI_NUMBER = 5;

}  // namespace graphmill
