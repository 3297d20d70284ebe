// Choosing among the in-edges of nodes. Rules, arguments and results are those of workers/mqgnn/sampling/numba_kernels.py.
#pragma once

#include "race.h"
#include "random.h"

namespace graphmill::sampling {

enum Rule : int64_t { UNIFORM = 0, WEIGHTED = 1, LABOR = 2 };

// Mirrored by workers/mqgnn/sampling/native_kernels.py. `I` is int32_t or int64_t.
template <class I>
struct Draw {
    const I* nodes;
    int64_t num_nodes;
    const int32_t* trees;  // null: the first stream for all
    const uint64_t* streams;
    const int64_t* limits;  // null: no limit
    const int64_t* indptr;
    const I* indices;
    const float* weights;
    const int64_t* times;
    int64_t fanout;
    int64_t rule;
    int64_t with_replacement;
    int64_t* eligible;
    double* numbers;
    uint64_t* taken;
    int64_t* offsets;
    I* positions;
};

constexpr int64_t AHEAD = 8;  // rows whose place is fetched before it is needed

// Floyd's selection of `fanout` of `size`. What is taken is kept in a register, or looked up among few, or in bits.
template <class I>
inline void draw_distinct(uint64_t key, int64_t size, int64_t fanout, uint64_t* taken, I* chosen) {
    if (size <= 64) {
        uint64_t bits = 0;
        for (int64_t i = 0; i < fanout; ++i) {
            uint64_t upper = size - fanout + i, pick = draw_below(key, i, upper + 1);
            if (bits >> pick & 1) pick = upper;
            bits |= uint64_t(1) << pick;
            chosen[i] = I(pick);
        }
    } else if (fanout <= 24) {
        for (int64_t i = 0; i < fanout; ++i) {
            uint64_t upper = size - fanout + i, pick = draw_below(key, i, upper + 1);
            bool seen = false;
            for (int64_t j = 0; j < i; ++j) seen |= chosen[j] == I(pick);
            chosen[i] = I(seen ? upper : pick);
        }
    } else {
        for (int64_t i = 0; i < fanout; ++i) {
            uint64_t upper = size - fanout + i, pick = draw_below(key, i, upper + 1);
            if (taken[pick >> 6] >> (pick & 63) & 1) pick = upper;
            taken[pick >> 6] |= uint64_t(1) << (pick & 63);
            chosen[i] = I(pick);
        }
        for (int64_t i = 0; i < fanout; ++i) taken[uint64_t(chosen[i]) >> 6] = 0;
    }
}

template <class I>
inline int64_t list_eligible(const Draw<I>& draw, int64_t tree, int64_t start, int64_t degree) {
    int64_t size = 0;
    for (int64_t i = 0; i < degree; ++i) {
        if (draw.rule == WEIGHTED && !(draw.weights[start + i] > 0)) continue;
        if (draw.limits && draw.times[start + i] > draw.limits[tree]) continue;
        draw.eligible[size++] = i;
    }
    return size;
}

template <class I>
inline void draw_by_share(const Draw<I>& draw, uint64_t key, int64_t start, int64_t size, I* chosen) {
    double total = 0;
    for (int64_t i = 0; i < size; ++i) draw.numbers[i] = total += draw.weights[start + draw.eligible[i]];
    for (int64_t i = 0; i < draw.fanout; ++i) {
        double target = double(number_at(key, i) >> 11) * 0x1p-53 * total;
        const double* end = std::upper_bound(draw.numbers, draw.numbers + size - 1, target);
        chosen[i] = I(end - draw.numbers);
    }
}

template <class I>
inline void race_of_edges(const Draw<I>& draw, uint64_t key, int64_t start, int64_t size, Race& race, I* chosen) {
    race.start(draw.fanout);
    for (int64_t i = 0; i < size; ++i) {
        int64_t place = draw.eligible[i];
        race.arrive(exponential(number_at(key, place)) / draw.weights[start + place], i);
    }
    race.finish(chosen);
}

// Writes offsets and positions; returns the number of edges.
template <class I>
int64_t draw_edges(const Draw<I>& draw) {
    bool filtered = draw.rule == WEIGHTED || draw.limits;
    int64_t fanout = draw.fanout, total = 0;
    Race race;
    draw.offsets[0] = 0;
    for (int64_t row = 0; row < draw.num_nodes; ++row) {
        if (row + AHEAD < draw.num_nodes) __builtin_prefetch(draw.indptr + draw.nodes[row + AHEAD]);
        I node = draw.nodes[row];
        int64_t tree = draw.trees ? draw.trees[row] : 0;
        int64_t start = draw.indptr[node], size = draw.indptr[node + 1] - start;
        if (filtered) size = list_eligible(draw, tree, start, size);
        I* chosen = draw.positions + total;
        int64_t count = 0;
        if (fanout < 0 || (size <= fanout && !draw.with_replacement)) {
            for (; count < size; ++count) chosen[count] = I(count);
        } else if (draw.rule == LABOR) {
            uint64_t bound = uint64_t(fanout) << 32;
            for (int64_t i = 0; i < size; ++i) {
                uint64_t source = draw.indices[start + (filtered ? draw.eligible[i] : i)];
                if ((mix64(draw.streams[tree] ^ source) >> 32) * uint64_t(size) < bound) chosen[count++] = I(i);
            }
        } else if (size && fanout) {
            uint64_t key = mix64(draw.streams[tree] ^ uint64_t(node));
            count = fanout;
            if (draw.rule == UNIFORM && draw.with_replacement) {
                for (int64_t i = 0; i < fanout; ++i) chosen[i] = I(draw_below(key, i, size));
            } else if (draw.rule == UNIFORM) {
                draw_distinct(key, size, fanout, draw.taken, chosen);
            } else if (draw.with_replacement) {
                draw_by_share(draw, key, start, size, chosen);
            } else {
                race_of_edges(draw, key, start, size, race, chosen);
            }
        }
        for (int64_t i = 0; i < count; ++i) {
            chosen[i] = I(start + (filtered ? draw.eligible[chosen[i]] : int64_t(chosen[i])));
            __builtin_prefetch(draw.indices + chosen[i]);
        }
        draw.offsets[row + 1] = total += count;
    }
    return total;
}

}  // namespace graphmill::sampling
