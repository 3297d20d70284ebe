// The C interface of the samplers' inner loops: every function once for int32 and once for int64 node numbers.
#include "../library.h"

// A fused multiply-add would round other than the plain forms do.
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__FP_FAST_FMA)
#pragma GCC optimize("fp-contract=off")
#endif

#include "draw.h"
#include "numbering.h"
#include "preference.h"

using namespace graphmill::sampling;

// Returns the fault (0: none, 1: given twice, 2: out of range) times 2^32, plus the position.
GRAPHMILL_EXPORT int64_t graphmill_enter(const int64_t* nodes, int64_t num_nodes, int64_t* table, int64_t table_size,
                                         int64_t generation) {
    for (int64_t position = 0; position < num_nodes; ++position) {
        int64_t node = nodes[position];
        if (node < 0 || node >= table_size) return (int64_t(2) << 32) + position;
        if (table[node] >> 32 == generation) return (int64_t(1) << 32) + position;
        table[node] = (generation << 32) + position;
    }
    return 0;
}

#define FOR_INDEX(I, suffix)                                                                                          \
    GRAPHMILL_EXPORT int64_t graphmill_count_##suffix(const I* nodes, int64_t num_nodes, const int64_t* indptr,       \
                                                      int64_t fanout, int64_t with_replacement) {                     \
        return count_edges(nodes, num_nodes, indptr, fanout, with_replacement);                                       \
    }                                                                                                                 \
    GRAPHMILL_EXPORT int64_t graphmill_draw_##suffix(const Draw<I>* draw) { return draw_edges(*draw); }               \
    GRAPHMILL_EXPORT int64_t graphmill_draw_preferring_##suffix(const PreferringDraw<I>* draw) {                      \
        return draw_preferring(*draw);                                                                                \
    }                                                                                                                 \
    GRAPHMILL_EXPORT int64_t graphmill_relabel_##suffix(const I* positions, int64_t num_edges, const I* indices,      \
                                                        int64_t* table, int64_t generation, int64_t num_known,        \
                                                        int32_t* local, I* fresh) {                                   \
        return relabel(positions, num_edges, indices, table, generation, num_known, local, fresh);                    \
    }                                                                                                                 \
    GRAPHMILL_EXPORT int64_t graphmill_find_columns_##suffix(const I* nodes, int64_t num_nodes, const int64_t* indptr, \
                                                             const I* indices, int64_t* table, int64_t generation,    \
                                                             I* found, double* sums) {                                \
        return find_columns(nodes, num_nodes, indptr, indices, table, generation, found, sums);                       \
    }                                                                                                                 \
    GRAPHMILL_EXPORT int64_t graphmill_keep_##suffix(const I* nodes, int64_t num_nodes, const int64_t* indptr,        \
                                                     const I* indices, const int64_t* table, int64_t generation,      \
                                                     int64_t* offsets, I* positions) {                                \
        return keep(nodes, num_nodes, indptr, indices, table, generation, offsets, positions);                        \
    }                                                                                                                 \
    GRAPHMILL_EXPORT int64_t graphmill_race_##suffix(const I* nodes, int64_t num_nodes, const double* speeds,         \
                                                     uint64_t stream, int64_t places, int64_t* chosen) {              \
        Race race;                                                                                                    \
        race.start(places);                                                                                           \
        for (int64_t i = 0; i < num_nodes; ++i) {                                                                     \
            if (!(speeds[i] > 0)) continue;                                                                           \
            uint64_t bits = mix64(stream ^ uint64_t(nodes[i]));                                                       \
            if (race.is_late(less_than_exponential(bits), speeds[i])) continue;                                       \
            race.arrive(exponential(bits) / speeds[i], i);                                                            \
        }                                                                                                             \
        return race.finish(chosen);                                                                                   \
    }

FOR_INDEX(int32_t, 32)
FOR_INDEX(int64_t, 64)
