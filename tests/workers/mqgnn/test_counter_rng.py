import numpy as np
import pytest
from numba import njit

from tests.workers.mqgnn.sampling.reference import mix
from workers.mqgnn.counter_rng import Stream, draw_below, mix64, mix64_array, stream_key


@njit
def _mixed(value):
    return mix64(value)


@njit
def _drawn(key, size, bound):
    out = np.empty(size, dtype=np.uint64)
    for position in range(size):
        out[position] = draw_below(key, np.uint64(position), bound)
    return out


@pytest.mark.parametrize("value", [0, 1, 2**32 - 1, 2**63, 2**64 - 1])
def test_the_compiled_the_array_and_the_python_form_give_the_same_bits(value):
    assert int(_mixed(np.uint64(value))) == int(mix64_array(np.array([value], dtype=np.uint64))[0]) == mix(value)


def test_mixing_is_that_of_splitmix64():
    # first outputs of SplitMix64 from state 0 (published test values)
    states = (np.arange(1, 4, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
    assert [hex(int(value)) for value in mix64_array(states)] == [
        "0xe220a8397b1dcdaf",
        "0x6e789e6aa1b965f4",
        "0x6c45d188009454f",
    ]


@pytest.mark.parametrize("bound", [1, 7, 10])
def test_draws_are_uniform_below_the_bound(bound):
    size = 70_000
    counts = np.bincount(_drawn(stream_key(3), size, np.uint64(bound)).astype(np.int64), minlength=bound)
    assert len(counts) == bound
    chi_square = ((counts - size / bound) ** 2 / (size / bound)).sum()
    assert chi_square < bound - 1 + 6 * np.sqrt(2 * bound)  # six standard deviations


def test_every_part_of_a_key_and_their_order_matter():
    keys = {int(stream_key(*parts)) for parts in [(1, 2), (2, 1), (1, 2, 0), (1,), (0, 1, 2), (1, 3)]}
    assert len(keys) == 6


def test_streams_of_one_seed_stay_apart():
    assert len({int(stream_key(stream, 0, 1)) for stream in Stream}) == len(Stream)
