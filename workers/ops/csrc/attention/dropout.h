// Which attention weights are kept. The mix is the one of workers/ops/attention_dropout.py, bit for bit: it makes the
// mask a function of (key, head, row id, column id), whatever tile, thread or rank computes it.
#pragma once

#include "simd.h"

namespace graphmill::GRAPHMILL_ISA {

// One round of MurmurHash3's finaliser, with an arithmetic shift; the product wraps around.
template <int shift, uint32_t factor, class Words, class Unsigned>
inline Words mixed(Words x) {
    return reinterpret_cast<Words>(reinterpret_cast<Unsigned>(x ^ (x >> shift)) * factor);
}

// x where the pair of a row and a key is kept, else 0.
template <class T>
inline Vector<T> kept(Vector<T> x, int32_t row_bits, const int32_t* column_bits, int32_t threshold) {
    using Words = typename Lanes<T>::Words;
    using Unsigned = typename Lanes<T>::Unsigned;
    auto sum = *reinterpret_cast<const Unsigned*>(column_bits) + uint32_t(row_bits);
    Words bits = reinterpret_cast<Words>(sum);
    bits = mixed<13, 0xC2B2AE35, Words, Unsigned>(mixed<16, 0x85EBCA6B, Words, Unsigned>(bits));
    auto keep = __builtin_convertvector(bits >= threshold, Indices<T>);
    return keep != 0 ? x : Vector<T>{};
}

}  // namespace graphmill::GRAPHMILL_ISA
