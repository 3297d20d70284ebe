// Random numbers by counter, as workers/mqgnn/counter_rng.py has them, bit for bit.
#pragma once

#include <cstdint>
#include <cstring>

namespace graphmill::sampling {

inline uint64_t mix64(uint64_t value) {
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
    return value ^ (value >> 31);
}

inline uint64_t number_at(uint64_t key, uint64_t position) { return mix64(key + (position + 1) * 0x9E3779B97F4A7C15); }

// A number below `bound`, at most 2^32.
inline uint64_t draw_below(uint64_t key, uint64_t position, uint64_t bound) {
    return ((number_at(key, position) >> 32) * bound) >> 32;
}

// An exponentially distributed number in units of log 2, by operations that round alike everywhere: see the numba form.
inline double exponential(uint64_t bits) {
    double share = double((bits >> 11) | 1);  // below 2^53, exact
    uint64_t pattern;
    std::memcpy(&pattern, &share, sizeof pattern);
    int64_t exponent = int64_t(pattern >> 52) - 1022;
    pattern = (pattern & 0x000FFFFFFFFFFFFF) | 0x3FE0000000000000;
    double mantissa;
    std::memcpy(&mantissa, &pattern, sizeof mantissa);
    double y = (1.0 - mantissa) / (1.0 + mantissa);
    double square = y * y;
    double series = 1.0 / 17.0;
    for (double divisor : {15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0}) series = series * square + 1.0 / divisor;
    return double(53 - exponent) + 2.8853900817779268 * (y * series);
}

// Below exponential(bits) by far more than roundings, and cheap: -log u >= 1 - u.
inline double less_than_exponential(uint64_t bits) { return 1.4426 * (1.0 - double((bits >> 11) | 1) * 0x1p-53); }

}  // namespace graphmill::sampling
