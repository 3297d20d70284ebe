// Which attention weights are kept. The mix is the one of workers/ops/attention_dropout.py, bit for bit: it makes the
// mask a function of (key, head, row id, column id), whatever tile, thread or rank computes it.
#pragma once

#include "simd.h"

namespace graphmill::GRAPHMILL_ISA {

struct Dropout {
    const int32_t* row_bits;     // of the rows of one tile, one head
    const int32_t* column_bits;  // of the keys of one tile
    int32_t threshold;
};

// One round of MurmurHash3's finaliser, with an arithmetic shift; the product wraps around.
template <int shift, uint32_t factor, class Words, class Unsigned>
inline Words mixed(Words x) {
    return reinterpret_cast<Words>(reinterpret_cast<Unsigned>(x ^ (x >> shift)) * factor);
}

// x where the pair of key j and row first + lane is kept, else 0.
template <class T>
inline Vector<T> kept(Vector<T> x, const Dropout& dropout, int64_t j, int64_t first) {
    using Words = typename Lanes<T>::Words;
    using Unsigned = typename Lanes<T>::Unsigned;
    auto rows = *reinterpret_cast<const Unsigned*>(dropout.row_bits + first);
    Words bits = reinterpret_cast<Words>(rows + uint32_t(dropout.column_bits[j]));
    bits = mixed<13, 0xC2B2AE35, Words, Unsigned>(mixed<16, 0x85EBCA6B, Words, Unsigned>(bits));
    auto keep = __builtin_convertvector(bits >= dropout.threshold, Indices<T>);
    return keep != 0 ? x : Vector<T>{};
}

}  // namespace graphmill::GRAPHMILL_ISA
