// 2^x, lane by lane, for x that a softmax meets: finite and moderate, or far below zero.
//
// x = n + f with n = floor(x); 2^f is a minimax polynomial on [0, 1] that is exact at 0 (relative error 8.2e-8 for
// float, 3.2e-18 for double; found by Remez exchange). NaN stays NaN.
#pragma once

#include "simd.h"

namespace graphmill::GRAPHMILL_ISA {

inline Vector<float> exp2_fraction(Vector<float> f) {
    Vector<float> p = broadcast(0.00186713008191f);
    for (float coefficient : {0.00901703028444f, 0.055799913146f, 0.240164450136f, 0.693151311808f, 1.0f}) {
        p = p * f + coefficient;
    }
    return p;
}

inline Vector<double> exp2_fraction(Vector<double> f) {
    Vector<double> p = broadcast(6.263465273422590274e-10);
    for (double coefficient :
         {6.559529835517271218e-9, 1.025321230405209001e-7, 1.320836730822004935e-6, 1.525317505379524616e-5,
          1.540351230973394875e-4, 1.333355862956267594e-3, 9.618129099550895613e-3, 5.550410866560223872e-2,
          0.2402265069590633031, 0.6931471805599459284, 1.0}) {
        p = p * f + coefficient;
    }
    return p;
}

#if GRAPHMILL_VECTOR_BYTES == 64

inline Vector<float> exp2(Vector<float> x) {
    constexpr int below = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
    return _mm512_maskz_scalef_ps(-1, exp2_fraction(_mm512_maskz_reduce_ps(-1, x, below)), x);
}

inline Vector<double> exp2(Vector<double> x) {
    constexpr int below = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
    return _mm512_maskz_scalef_pd(-1, exp2_fraction(_mm512_maskz_reduce_pd(-1, x, below)), x);
}

#else

// Adding 1.5 * 2^(mantissa bits) leaves the nearest integer in the low bits of the sum; biased, they are an exponent.
// Below the smallest normal number the result is about that number (never zero).
template <class T, int mantissa_bits, int bias>
inline Vector<T> exp2_by_bits(Vector<T> x) {
    constexpr T rounder = T(3ll << (mantissa_bits - 1)) + bias;
    x = larger(broadcast(T(1 - bias)), x);
    Vector<T> shifted = (x - T(0.5)) + rounder;
    Vector<T> power = reinterpret_cast<Vector<T>>(reinterpret_cast<Indices<T>>(shifted) << mantissa_bits);
    return exp2_fraction(x - (shifted - rounder)) * power;
}

inline Vector<float> exp2(Vector<float> x) { return exp2_by_bits<float, 23, 127>(x); }

inline Vector<double> exp2(Vector<double> x) { return exp2_by_bits<double, 52, 1023>(x); }

#endif

}  // namespace graphmill::GRAPHMILL_ISA
