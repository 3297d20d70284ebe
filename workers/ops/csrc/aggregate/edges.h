// Edges in other orders: by source, and with every source in the place of what its sparse row holds.
#pragma once

#include <cstdint>

namespace graphmill {

// Edges into targets, sorted by source; those of a source in the order of their targets. begins [num_sources + 1].
template <class I>
void sort_by_source(const int32_t* indptr, const I* sources, int64_t num_targets, int64_t num_sources, int32_t* begins,
                    int32_t* targets, int32_t* edges) {
    for (int64_t s = 0; s <= num_sources; ++s) begins[s] = 0;
    for (int64_t e = 0; e < indptr[num_targets]; ++e) ++begins[sources[e] + 1];
    for (int64_t s = 0; s < num_sources; ++s) begins[s + 1] += begins[s];
    for (int64_t t = 0; t < num_targets; ++t) {
        for (int32_t e = indptr[t]; e < indptr[t + 1]; ++e) {
            int32_t place = begins[sources[e]]++;
            targets[place] = int32_t(t);
            edges[place] = e;
        }
    }
    for (int64_t s = num_sources; s > 0; --s) begins[s] = begins[s - 1];
    begins[0] = 0;
}

// Mirrored by workers/ops/native_aggregation.py.
struct SparseRows {
    const int64_t* begins;
    const int32_t* columns;
    const float* values;
};

// Target by target, the numbers of its sources' rows times the edge's factor, then those of its own row times its own,
// whose columns begin at own_offset. Without arrays to write to: only the number of entries, or -1 past int32.
template <class I>
int64_t expand(const SparseRows& rows, const int32_t* indptr, const I* sources, const float* factors, const I* own_rows,
               const float* own_factors, int64_t own_offset, int64_t num_targets, int32_t* begins, int32_t* columns,
               float* values) {
    int64_t total = 0;
    auto append = [&](int64_t row, float factor, int64_t offset) {
        int64_t first = rows.begins[row], last = rows.begins[row + 1];
        if (columns) {
            for (int64_t i = first; i < last; ++i) {
                columns[total + i - first] = int32_t(rows.columns[i] + offset);
                values[total + i - first] = rows.values[i] * factor;
            }
        }
        total += last - first;
    };
    if (begins) begins[0] = 0;
    for (int64_t t = 0; t < num_targets; ++t) {
        for (int64_t e = indptr[t]; e < indptr[t + 1]; ++e) append(sources[e], factors[e], 0);
        if (own_factors) append(own_rows ? own_rows[t] : t, own_factors[t], own_offset);
        if (total > INT32_MAX) return -1;
        if (begins) begins[t + 1] = int32_t(total);
    }
    return total;
}

}  // namespace graphmill
