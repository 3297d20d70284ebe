#if defined(__x86_64__)
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")
#define GRAPHMILL_ISA avx512
#define GRAPHMILL_VECTOR_BYTES 64
#include "kernels.h"
#endif
