// Choosing among the in-edges of nodes with a preference for some sources. Rule, arguments and results are those of
// workers/mqgnn/sampling/numba_kernels.py.
#pragma once

#include <algorithm>

#include "draw.h"

namespace graphmill::sampling {

// Mirrored by workers/mqgnn/sampling/native_kernels.py. `I` is int32_t or int64_t.
template <class I>
struct PreferringDraw {
    const I* nodes;
    int64_t num_nodes;
    uint64_t stream;
    const int64_t* indptr;
    const I* indices;
    const uint8_t* preferred;
    double factor;
    int64_t fanout;
    int64_t* places;
    uint64_t* taken;
    int64_t* offsets;
    I* positions;
    float* weights;
};

// Writes offsets, positions and weights; returns the number of edges.
template <class I>
int64_t draw_preferring(const PreferringDraw<I>& draw) {
    int64_t fanout = draw.fanout, total = 0;
    draw.offsets[0] = 0;
    for (int64_t row = 0; row < draw.num_nodes; ++row) {
        if (row + AHEAD < draw.num_nodes) __builtin_prefetch(draw.indptr + draw.nodes[row + AHEAD]);
        int64_t start = draw.indptr[draw.nodes[row]], size = draw.indptr[draw.nodes[row] + 1] - start;
        I* chosen = draw.positions + total;
        float* weights = draw.weights + total;
        if (fanout < 0 || size <= fanout) {
            for (int64_t i = 0; i < size; ++i) chosen[i] = I(start + i), weights[i] = 1;
            draw.offsets[row + 1] = total += size;
            continue;
        }
        int64_t num_hot = 0, num_cold = 0;
        for (int64_t i = 0; i < size; ++i) {
            if (draw.preferred[draw.indices[start + i]]) draw.places[num_hot++] = i;
            else draw.places[size - ++num_cold] = i;
        }
        double expected = double(fanout * num_cold) / (draw.factor * double(num_hot) + double(num_cold));
        expected = std::max(expected, double(fanout - num_hot));
        uint64_t key = mix64(draw.stream ^ uint64_t(draw.nodes[row]));
        int64_t from_cold = int64_t(expected);
        from_cold += double(number_at(key, 0) >> 11) * 0x1p-53 < expected - double(from_cold);
        int64_t from_hot = fanout - from_cold;
        draw_distinct(mix64(key ^ 1), num_hot, from_hot, draw.taken, chosen);
        draw_distinct(mix64(key ^ 2), num_cold, from_cold, draw.taken, chosen + from_hot);
        for (int64_t i = 0; i < from_hot; ++i) {
            chosen[i] = I(start + draw.places[chosen[i]]);
            weights[i] = float(double(num_hot) / (double(fanout) - expected));
        }
        for (int64_t i = from_hot; i < fanout; ++i) {
            chosen[i] = I(start + draw.places[size - 1 - chosen[i]]);
            weights[i] = float(double(num_cold) / expected);
        }
        draw.offsets[row + 1] = total += fanout;
    }
    return total;
}

}  // namespace graphmill::sampling
