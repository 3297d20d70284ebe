// Local numbers of nodes by a table of (generation << 32) + number, and what else runs over whole columns.
#pragma once

#include <algorithm>
#include <cstdint>

namespace graphmill::sampling {

constexpr int64_t NUMBER = 0xFFFFFFFF;

template <class I>
int64_t count_edges(const I* nodes, int64_t num_nodes, const int64_t* indptr, int64_t fanout, bool with_replacement) {
    int64_t total = 0;
    for (int64_t row = 0; row < num_nodes; ++row) {
        int64_t degree = indptr[nodes[row] + 1] - indptr[nodes[row]];
        bool all = fanout < 0 || (degree < fanout && !(with_replacement && degree));
        total += all ? degree : fanout;
    }
    return total;
}

// Runs of edges are looked up at once: the reads of a run do not wait for each other.
template <class I>
int64_t relabel(const I* positions, int64_t num_edges, const I* indices, int64_t* table, int64_t generation,
                int64_t num_known, int32_t* local, I* fresh) {
    constexpr int64_t RUN = 64;
    I run[RUN];
    int64_t num_fresh = 0;
    for (int64_t first = 0; first < num_edges; first += RUN) {
        int64_t count = std::min(RUN, num_edges - first);
        for (int64_t i = 0; i < count; ++i) {
            run[i] = indices[positions[first + i]];
            __builtin_prefetch(table + run[i], 1);
        }
        for (int64_t i = 0; i < count; ++i) {
            int64_t entry = table[run[i]];
            bool is_new = entry >> 32 != generation;
            // Without a jump, which nothing could predict: known nodes write their old entry, and past the last new one.
            entry = is_new ? (generation << 32) + num_known + num_fresh : entry;
            table[run[i]] = entry;
            fresh[num_fresh] = run[i];
            num_fresh += is_new;
            local[first + i] = int32_t(entry & NUMBER);
        }
    }
    return num_fresh;
}

template <class I>
int64_t find_columns(const I* nodes, int64_t num_nodes, const int64_t* indptr, const I* indices, int64_t* table,
                     int64_t generation, I* found, double* sums) {
    int64_t count = 0;
    for (int64_t row = 0; row < num_nodes; ++row) {
        int64_t start = indptr[nodes[row]], end = indptr[nodes[row] + 1];
        double share = 1.0 / double(end - start + 1);
        for (int64_t position = start; position < end; ++position) {
            I node = indices[position];
            int64_t entry = table[node];
            if (entry >> 32 == generation) {
                sums[entry & NUMBER] += share;
            } else {
                table[node] = (generation << 32) + count;
                found[count] = node;
                sums[count++] = share;
            }
        }
    }
    return count;
}

template <class I>
int64_t keep(const I* nodes, int64_t num_nodes, const int64_t* indptr, const I* indices, const int64_t* table,
             int64_t generation, int64_t* offsets, I* positions) {
    int64_t total = 0;
    offsets[0] = 0;
    for (int64_t row = 0; row < num_nodes; ++row) {
        for (int64_t position = indptr[nodes[row]]; position < indptr[nodes[row] + 1]; ++position) {
            if (table[indices[position]] >> 32 == generation) positions[total++] = I(position);
        }
        offsets[row + 1] = total;
    }
    return total;
}

}  // namespace graphmill::sampling
