"""Random numbers by counter: a number is a pure function of a key and a position, never of what was drawn before.

So a draw for (seed, epoch, batch, node) is the same on every thread, worker and replica, and after a resume. The mixing
function is the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014); a stream adds multiples of its odd constant
to the key (a Weyl sequence). The numba and the numpy forms give the same bits. ``workers.ops.counter_dropout`` has the
tensor form (signed integers, wrapping shifts): ops know no numba, and this module no torch.
"""

from enum import IntEnum

import numpy as np
from numba import njit

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_30, _SHIFT_27, _SHIFT_31, _SHIFT_32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)


@njit(nogil=True, inline="always")
def mix64(value):
    """Scramble one uint64 into a uint64 (a bijection; every input bit reaches every output bit)."""
    value = (value ^ (value >> _SHIFT_30)) * _MULTIPLIER_1
    value = (value ^ (value >> _SHIFT_27)) * _MULTIPLIER_2
    return value ^ (value >> _SHIFT_31)


@njit(nogil=True, inline="always")
def draw_below(key, position, bound):
    """The ``position``-th number of stream ``key`` in 0…bound−1; all three are uint64, ``bound`` ≤ 2³².

    The top 32 bits are scaled by a multiplication (Lemire, 2019, without the rejection step): no value's probability
    is off by more than bound/2³² of itself.
    """
    return ((mix64(key + (position + np.uint64(1)) * GOLDEN) >> _SHIFT_32) * bound) >> _SHIFT_32


def mix64_array(values: np.ndarray) -> np.ndarray:
    """``mix64`` of every element of a uint64 array."""
    values = (values ^ (values >> _SHIFT_30)) * _MULTIPLIER_1
    values = (values ^ (values >> _SHIFT_27)) * _MULTIPLIER_2
    return values ^ (values >> _SHIFT_31)


class Stream(IntEnum):
    """What a run draws random numbers for; the first part of a key, so that streams of one seed stay apart."""

    SEED_ORDER = 0  # then seed, epoch
    SAMPLING = 1  # then seed, epoch, batch
    DROPOUT = 2  # then seed, epoch, batch
    FALSE_LINKS = 3  # then seed, epoch, batch; seed alone where links are scored


def stream_key(*parts: int) -> np.uint64:
    """One key for a tuple of non-negative integers, e.g. (stream, seed, epoch); the order of the parts matters."""
    key = np.zeros(1, dtype=np.uint64)
    for part in parts:
        key = mix64_array((key ^ np.uint64(part)) + GOLDEN)
    return key[0]
