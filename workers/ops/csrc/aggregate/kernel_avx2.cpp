#if defined(__x86_64__)
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#pragma GCC target("avx2,fma")
#define GRAPHMILL_ISA avx2
#define GRAPHMILL_VECTOR_BYTES 32
#include "kernels.h"
#endif
