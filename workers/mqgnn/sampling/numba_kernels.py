"""The samplers' inner loops without a compiler, as numba; ``native_kernels`` has the same functions as C++.

Both forms, and the plain reference in the tests, give the same results bit for bit: choices compare integers, or
doubles that came from single correctly rounded operations in a fixed order (no logarithm of a library, no fused
multiply-add). Arguments are the same, array for array (``workers.mqgnn.sampling.memory`` allocates them):

    nodes [rows]         those to expand, dtype of ``indices``
    trees [rows or 0]    which stream and limit each row has; empty: the first
    streams [trees]      uint64, keys of random streams
    limits [trees or 0]  int64, latest time of an edge; empty: no limit
    offsets [rows + 1]   out, int64: where each row's edges start
    positions [edges]    out, places of the chosen edges in the CSC arrays
    table [nodes]        int64, (generation << 32) + number; an entry of another generation says nothing
"""

import math

import numpy as np
from numba import njit

from workers.mqgnn.counter_rng import GOLDEN, draw_below, mix64

UNIFORM, WEIGHTED, LABOR = 0, 1, 2  # rules of choosing among a node's neighbours
DUPLICATE, OUT_OF_RANGE = 1, 2  # faults of a seed

_ONE, _TWO = np.uint64(1), np.uint64(2)
_WORD_BITS, _IN_WORD = np.uint64(6), np.uint64(63)
_TOP_HALF = np.uint64(32)
_BITS_OF_SHARE = np.uint64(11)
_SHARE_UNIT = 2.0**-53
_TO_LOG2 = 2.0 / math.log(2.0)


@njit(nogil=True, cache=True)
def count(nodes, indptr, fanout, with_replacement):
    """An upper bound on the edges of ``nodes``: each has at most ``fanout`` (negative: all of its neighbours)."""
    total = 0
    for row in range(len(nodes)):
        degree = indptr[nodes[row] + 1] - indptr[nodes[row]]
        if fanout < 0 or (degree < fanout and not (with_replacement and degree)):
            total += degree
        else:
            total += fanout
    return total


@njit(nogil=True, cache=True)
def draw(
    nodes,
    trees,
    streams,
    limits,
    indptr,
    indices,
    weights,
    times,
    fanout,
    rule,
    with_replacement,
    eligible,
    numbers,
    taken,
    offsets,
    positions,
):
    """Choose in-edges of every node by ``rule``. Returns how many; ``taken`` is all zero before and after.

    An edge is eligible unless its weight is 0 (under the weighted rule) or its time is past the limit. Scratch, each
    as long as the largest degree: ``eligible`` int64, ``numbers`` float64, ``taken`` uint64 of one bit per neighbour.
    """
    filtered = rule == WEIGHTED or len(limits) > 0
    offsets[0] = 0
    total = 0
    for row in range(len(nodes)):
        node = nodes[row]
        tree = trees[row] if len(trees) else 0
        start, size = indptr[node], indptr[node + 1] - indptr[node]
        if filtered:
            size = _list_eligible(start, size, weights, times, limits, tree, rule, eligible)
        first = total
        if fanout < 0 or (size <= fanout and not with_replacement):
            for i in range(size):
                positions[total] = i
                total += 1
        elif rule == LABOR:
            total = _draw_labor(streams[tree], start, size, indices, fanout, filtered, eligible, positions, total)
        elif size and fanout:
            node_key = mix64(streams[tree] ^ np.uint64(node))
            chosen = positions[first : first + fanout]
            if rule == UNIFORM and with_replacement:
                for i in range(fanout):
                    chosen[i] = np.int64(draw_below(node_key, np.uint64(i), np.uint64(size)))
            elif rule == UNIFORM:
                _draw_distinct(node_key, size, taken, chosen)
            elif with_replacement:
                _draw_by_share(node_key, start, size, weights, eligible, numbers, chosen)
            else:
                _race_of_edges(node_key, start, size, weights, eligible, numbers, chosen)
            total += fanout
        for i in range(first, total):
            positions[i] = start + (eligible[positions[i]] if filtered else positions[i])
        offsets[row + 1] = total
    return total


@njit(nogil=True, cache=True)
def _list_eligible(start, degree, weights, times, limits, tree, rule, eligible):
    """Put the places of the eligible edges of a node, from 0, into ``eligible``. Returns how many."""
    size = 0
    for i in range(degree):
        if rule == WEIGHTED and not weights[start + i] > 0:
            continue
        if len(limits) and times[start + i] > limits[tree]:
            continue
        eligible[size] = i
        size += 1
    return size


@njit(nogil=True, cache=True)
def _draw_distinct(key, size, taken, chosen):
    """Floyd's selection: a draw below size−k+i+1; if taken, that upper end itself, never yet taken."""
    for i in range(len(chosen)):
        upper = np.uint64(size - len(chosen) + i)
        pick = draw_below(key, np.uint64(i), upper + _ONE)
        if taken[pick >> _WORD_BITS] >> (pick & _IN_WORD) & _ONE:
            pick = upper
        taken[pick >> _WORD_BITS] |= _ONE << (pick & _IN_WORD)
        chosen[i] = np.int64(pick)
    for i in range(len(chosen)):
        taken[np.uint64(chosen[i]) >> _WORD_BITS] = np.uint64(0)


@njit(nogil=True, cache=True)
def _draw_labor(stream, start, size, indices, fanout, filtered, eligible, positions, total):
    """Every edge whose source's own random number, the same for all targets, is below fanout / size."""
    bound = np.uint64(fanout) << _TOP_HALF
    for i in range(size):
        place = eligible[i] if filtered else i
        if (mix64(stream ^ np.uint64(indices[start + place])) >> _TOP_HALF) * np.uint64(size) < bound:
            positions[total] = i
            total += 1
    return total


@njit(nogil=True, cache=True)
def draw_preferring(
    nodes, stream, indptr, indices, preferred, factor, fanout, places, taken, offsets, positions, weights
):
    """Choose in-edges of every node, those from ``preferred`` sources ``factor`` times as likely. Returns how many.

    Of a node with more than ``fanout`` edges, h from preferred sources and c from others, e = fanout · c / (factor · h
    + c) of the latter are drawn in expectation, but at least fanout − h: ⌊e⌋ or one more, all alike, and for the rest
    preferred ones, all alike. Out: ``weights`` float32 [edges], one over the chance of an edge to be drawn: c / e or
    h / (fanout − e). Scratch as in ``draw``: ``places`` int64, as long as the largest degree.
    """
    offsets[0] = 0
    total = 0
    for row in range(len(nodes)):
        start, size = indptr[nodes[row]], indptr[nodes[row] + 1] - indptr[nodes[row]]
        if fanout < 0 or size <= fanout:
            for i in range(size):
                positions[total + i] = start + i
                weights[total + i] = 1.0
            total += size
            offsets[row + 1] = total
            continue
        num_hot, num_cold = 0, 0
        for i in range(size):
            if preferred[indices[start + i]]:
                places[num_hot] = i
                num_hot += 1
            else:
                num_cold += 1
                places[size - num_cold] = i
        expected = np.float64(fanout * num_cold) / (factor * np.float64(num_hot) + np.float64(num_cold))
        expected = max(expected, np.float64(fanout - num_hot))
        key = mix64(stream ^ np.uint64(nodes[row]))
        from_cold = np.int64(expected)
        share = np.float64(mix64(key + GOLDEN) >> _BITS_OF_SHARE) * _SHARE_UNIT
        if share < expected - np.float64(from_cold):
            from_cold += 1
        from_hot = fanout - from_cold
        _draw_distinct(mix64(key ^ _ONE), num_hot, taken, positions[total : total + from_hot])
        _draw_distinct(mix64(key ^ _TWO), num_cold, taken, positions[total + from_hot : total + fanout])
        for i in range(total, total + from_hot):
            positions[i] = start + places[positions[i]]
            weights[i] = np.float64(num_hot) / (np.float64(fanout) - expected)
        for i in range(total + from_hot, total + fanout):
            positions[i] = start + places[size - 1 - positions[i]]
            weights[i] = np.float64(num_cold) / expected
        total += fanout
        offsets[row + 1] = total
    return total


@njit(nogil=True, cache=True)
def _draw_by_share(key, start, size, weights, eligible, sums, chosen):
    """Independent draws, each edge as likely as its share of the weight: a search in running sums."""
    total = 0.0
    for i in range(size):
        total += weights[start + eligible[i]]
        sums[i] = total
    for i in range(len(chosen)):
        bits = mix64(key + np.uint64(i + 1) * GOLDEN) >> _BITS_OF_SHARE
        target = np.float64(bits) * _SHARE_UNIT * total
        low, high = 0, size - 1
        while low < high:
            middle = (low + high) // 2
            if sums[middle] > target:
                high = middle
            else:
                low = middle + 1
        chosen[i] = low


@njit(nogil=True, cache=True)
def _race_of_edges(key, start, size, weights, eligible, finish, chosen):
    """The first ``len(chosen)`` edges of a race at speeds ``weights``, in order of arrival."""
    count = 0
    for i in range(size):
        place = eligible[i]
        time = exponential(mix64(key + np.uint64(place + 1) * GOLDEN)) / weights[start + place]
        count = _arrive(finish, chosen, count, time, i)
    _sort(finish, chosen, count)


@njit(nogil=True, cache=True)
def race(nodes, speeds, stream, finish, chosen):
    """The places of the first ``len(chosen)`` ``nodes`` of a race at ``speeds`` float64, in order of arrival.

    Nodes of speed 0 do not take part. Returns how many arrived. ``finish`` is scratch, float64 [len(chosen)].
    """
    count = 0
    for i in range(len(nodes)):
        if speeds[i] > 0 and len(chosen):
            time = exponential(mix64(stream ^ np.uint64(nodes[i]))) / speeds[i]
            count = _arrive(finish, chosen, count, time, i)
    _sort(finish, chosen, count)
    return count


@njit(nogil=True, cache=True)
def exponential(bits):
    """An exponentially distributed number from 64 random bits, in units of log 2, > 0.

    −log₂ u of the odd 53-bit integer over 2⁵³ that the top 52 bits name. u = m·2^(e−53) with ½ ≤ m < 1, and
    −log m = 2 artanh y, y = (1 − m) / (1 + m) ≤ ⅓, as nine terms of its series: off by at most 2e-10 of itself.
    """
    mantissa, exponent = math.frexp(np.float64((bits >> np.uint64(11)) | _ONE))
    y = (1.0 - mantissa) / (1.0 + mantissa)
    square = y * y
    series = 1.0 / 17.0
    for divisor in (15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0):
        series = series * square + 1.0 / divisor
    return np.float64(53 - exponent) + _TO_LOG2 * (y * series)


@njit(nogil=True, cache=True)
def _arrive(finish, chosen, count, time, runner):
    """Keep the ``len(chosen)`` smallest (time, runner) as a heap, the largest on top. Returns its new size."""
    if count < len(chosen):
        hole = count
        while hole:
            parent = (hole - 1) // 2
            if not _before(finish[parent], chosen[parent], time, runner):
                break
            finish[hole], chosen[hole] = finish[parent], chosen[parent]
            hole = parent
        finish[hole], chosen[hole] = time, runner
        return count + 1
    if _before(time, runner, finish[0], chosen[0]):
        _sink(finish, chosen, count, time, runner)
    return count


@njit(nogil=True, cache=True)
def _sort(finish, chosen, count):
    """Turn the heap into ascending order."""
    for last in range(count - 1, 0, -1):
        time, runner = finish[last], chosen[last]
        finish[last], chosen[last] = finish[0], chosen[0]
        _sink(finish, chosen, last, time, runner)


@njit(nogil=True, cache=True)
def _sink(finish, chosen, count, time, runner):
    """Put (time, runner) in place of the top of a heap of ``count``."""
    hole = 0
    while 2 * hole + 1 < count:
        child = 2 * hole + 1
        if child + 1 < count and _before(finish[child], chosen[child], finish[child + 1], chosen[child + 1]):
            child += 1
        if not _before(time, runner, finish[child], chosen[child]):
            break
        finish[hole], chosen[hole] = finish[child], chosen[child]
        hole = child
    finish[hole], chosen[hole] = time, runner


@njit(nogil=True, inline="always")
def _before(time, runner, other_time, other_runner):
    return time < other_time or (time == other_time and runner < other_runner)


@njit(nogil=True, cache=True)
def enter(nodes, table, generation):
    """Number ``nodes`` int64 from 0 in ``table``. Returns (fault, position), (0, 0) when all is well."""
    for position in range(len(nodes)):
        node = nodes[position]
        if node < 0 or node >= len(table):
            return OUT_OF_RANGE, position
        if table[node] >> 32 == generation:
            return DUPLICATE, position
        table[node] = (generation << 32) + position
    return 0, 0


@njit(nogil=True, cache=True)
def relabel(positions, indices, table, generation, num_known, local, fresh):
    """Give local numbers to the sources of the edges, new ones from ``num_known`` in order of first sight.

    Out: ``local`` int32 [edges], ``fresh`` [edges + 1] the new nodes. Returns how many are new.
    """
    num_fresh = 0
    for i in range(len(positions)):
        node = indices[positions[i]]
        entry = table[node]
        if entry >> 32 != generation:
            entry = (generation << 32) + num_known + num_fresh
            table[node] = entry
            fresh[num_fresh] = node
            num_fresh += 1
        local[i] = np.int32(entry & 0xFFFFFFFF)
    return num_fresh


@njit(nogil=True, cache=True)
def find_columns(nodes, indptr, indices, table, generation, found, sums):
    """The distinct sources of all edges into ``nodes``, in order of first sight, each with Σ 1 / (degree + 1).

    The sum runs over those of ``nodes`` that hear from it. Out: ``found`` and ``sums`` float64. Returns how many.
    """
    count = 0
    for row in range(len(nodes)):
        start, end = indptr[nodes[row]], indptr[nodes[row] + 1]
        share = 1.0 / np.float64(end - start + 1)
        for position in range(start, end):
            node = indices[position]
            entry = table[node]
            if entry >> 32 == generation:
                sums[entry & 0xFFFFFFFF] += share
            else:
                table[node] = (generation << 32) + count
                found[count], sums[count] = node, share
                count += 1
    return count


@njit(nogil=True, cache=True)
def keep(nodes, indptr, indices, table, generation, offsets, positions):
    """All edges into ``nodes`` whose source is in ``table``. Returns how many."""
    total = 0
    offsets[0] = 0
    for row in range(len(nodes)):
        for position in range(indptr[nodes[row]], indptr[nodes[row] + 1]):
            if table[indices[position]] >> 32 == generation:
                positions[total] = position
                total += 1
        offsets[row + 1] = total
    return total
