// Vectors of GRAPHMILL_VECTOR_BYTES bytes in GCC's portable notation. Included by the kernel_*.cpp files, each of which
// is compiled for one instruction set; where the target has it, a * b + c becomes one instruction.
#pragma once

#include <cstdint>
#include <utility>

#if GRAPHMILL_VECTOR_BYTES > 16
#include <immintrin.h>
#endif

// Unroll a loop of constant count completely: only then do arrays of vectors live in registers.
#define UNROLL _Pragma("GCC unroll 64")
#define INLINE __attribute__((always_inline)) inline
#define INLINE_LAMBDA __attribute__((always_inline))

namespace graphmill::GRAPHMILL_ISA {

template <class T>
struct Lanes;

template <>
struct Lanes<float> {
    typedef float Vector __attribute__((vector_size(GRAPHMILL_VECTOR_BYTES)));
    typedef float Loose __attribute__((vector_size(GRAPHMILL_VECTOR_BYTES), aligned(4), may_alias));
    using Index = int32_t;
    typedef int32_t Indices __attribute__((vector_size(GRAPHMILL_VECTOR_BYTES), may_alias));
    typedef int32_t Words __attribute__((vector_size(GRAPHMILL_VECTOR_BYTES), aligned(4), may_alias));
    typedef uint32_t Unsigned __attribute__((vector_size(GRAPHMILL_VECTOR_BYTES), aligned(4), may_alias));
};

template <>
struct Lanes<double> {
    typedef double Vector __attribute__((vector_size(GRAPHMILL_VECTOR_BYTES)));
    typedef double Loose __attribute__((vector_size(GRAPHMILL_VECTOR_BYTES), aligned(8), may_alias));
    using Index = int64_t;
    typedef int64_t Indices __attribute__((vector_size(GRAPHMILL_VECTOR_BYTES), may_alias));
    typedef int32_t Words __attribute__((vector_size(GRAPHMILL_VECTOR_BYTES / 2), aligned(4), may_alias));
    typedef uint32_t Unsigned __attribute__((vector_size(GRAPHMILL_VECTOR_BYTES / 2), aligned(4), may_alias));
};

template <class T>
using Vector = typename Lanes<T>::Vector;
template <class T>
using Index = typename Lanes<T>::Index;  // an integer as wide as T
template <class T>
using Indices = typename Lanes<T>::Indices;
template <class T>
constexpr int WIDTH = GRAPHMILL_VECTOR_BYTES / sizeof(T);

template <class T>
inline Vector<T> load(const T* from) {
    return *reinterpret_cast<const typename Lanes<T>::Loose*>(from);
}

template <class T>
inline void store(T* to, Vector<T> x) {
    *reinterpret_cast<typename Lanes<T>::Loose*>(to) = x;
}

template <class T>
inline Vector<T> broadcast(T x) {
    return x - Vector<T>{};
}

// Calls body<run>(first) for runs that cover `count`: as many of the longest as there are, then shorter ones, down to 1.
template <int run, int... shorter, class Body>
INLINE void in_runs(int64_t count, Body body, int64_t first = 0) {
    for (; count - first >= run; first += run) body.template operator()<run>(first);
    if constexpr (run > 1) {
        if (first < count) in_runs<shorter...>(count, body, first);
    }
}

// Keep x in a register. GCC would fold the load into every instruction that uses x, and a loop of multiply-adds would
// then wait for loads.
template <class V>
inline V pinned(V x) {
#if defined(__x86_64__)
    asm("" : "+v"(x));
#endif
    return x;
}

// A NaN in b stays.
template <class V>
inline V larger(V a, V b) {
    return a > b ? a : b;
}

template <class T, int distance, int... lane>
inline Vector<T> rotated_lanes(Vector<T> x, std::integer_sequence<int, lane...>) {
    return __builtin_shuffle(x, Indices<T>{((lane + distance) % WIDTH<T>)...});
}

template <class T, int distance>
inline Vector<T> rotated(Vector<T> x) {
    return rotated_lanes<T, distance>(x, std::make_integer_sequence<int, WIDTH<T>>{});
}

// WIDTH bytes, each widened to a lane. (The masked forms, with all lanes on: GCC warns about its own unmasked ones.)
template <class T>
inline Indices<T> widened(const uint8_t* bytes) {
#if GRAPHMILL_VECTOR_BYTES == 64
    if constexpr (sizeof(T) == 4) {
        return reinterpret_cast<Indices<T>>(_mm512_maskz_cvtepu8_epi32(-1, _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes))));
    } else {
        return reinterpret_cast<Indices<T>>(_mm512_maskz_cvtepu8_epi64(-1, _mm_loadu_si64(bytes)));
    }
#elif GRAPHMILL_VECTOR_BYTES == 32
    if constexpr (sizeof(T) == 4) {
        return reinterpret_cast<Indices<T>>(_mm256_cvtepu8_epi32(_mm_loadu_si64(bytes)));
    } else {
        return reinterpret_cast<Indices<T>>(_mm256_cvtepu8_epi64(_mm_loadu_si32(bytes)));
    }
#else
    Indices<T> wide{};
    UNROLL
    for (int lane = 0; lane < WIDTH<T>; ++lane) wide[lane] = bytes[lane];
    return wide;
#endif
}

// The lanes of two vectors by turns, a0 b0 a1 b1 ...: the first half of that, then (half = 1) the second.
template <class T, int half, int... lane>
inline Vector<T> zip_lanes(Vector<T> a, Vector<T> b, std::integer_sequence<int, lane...>) {
    return __builtin_shuffle(a, b, Indices<T>{(lane % 2 * WIDTH<T> + lane / 2 + half * WIDTH<T> / 2)...});
}

template <class T, int half>
inline Vector<T> zip(Vector<T> a, Vector<T> b) {
    return zip_lanes<T, half>(a, b, std::make_integer_sequence<int, WIDTH<T>>{});
}

template <class T, int odd, int... lane>
inline Vector<T> unzip_lanes(Vector<T> low, Vector<T> high, std::integer_sequence<int, lane...>) {
    return __builtin_shuffle(low, high, Indices<T>{(2 * lane + odd)...});
}

// The even lanes of two vectors, or (odd = 1) the odd ones: the inverse of zip.
template <class T, int odd>
inline Vector<T> unzip(Vector<T> low, Vector<T> high) {
    return unzip_lanes<T, odd>(low, high, std::make_integer_sequence<int, WIDTH<T>>{});
}

// The largest lane.
template <class T, int distance = WIDTH<T> / 2>
inline T largest_lane(Vector<T> x) {
    if constexpr (distance == 0) {
        return x[0];
    } else {
        return largest_lane<T, distance / 2>(larger(x, rotated<T, distance>(x)));
    }
}

// x0 x1 x0 x1 ... of two neighbouring numbers in memory.
inline Vector<float> broadcast_pair(const float* from) {
    typedef double Carrier __attribute__((aligned(4), may_alias));
    return reinterpret_cast<Vector<float>>(broadcast<double>(*reinterpret_cast<const Carrier*>(from)));
}

inline Vector<double> broadcast_pair(const double* from) {
    return zip<double, 0>(broadcast(from[0]), broadcast(from[1]));
}

}  // namespace graphmill::GRAPHMILL_ISA
