"""Dropout whose mask is a function of *which* number is dropped, not of when or where it is drawn.

The mask of element (node, column) at one site of the model in one step is a hash of (draw, site, node, column). So the
same run on one, two or four ranks drops the same numbers, recomputation needs no saved generator, and a resumed run
goes on as if it had never stopped.
"""

import torch
from torch import Tensor, nn

# Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014: SplitMix64
_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as int64
_MIX64 = (-4658895280553007687, -7723592293110705685)  # 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
# Appleby, MurmurHash3, finaliser of 32 bits
MIX32 = (-2048144789, -1028477387)  # 0x85EBCA6B, 0xC2B2AE35
_MASK64 = (1 << 64) - 1


class CounterDropout(nn.Module):
    """Zero a share ``p`` of the elements and scale the rest by 1 / (1 - p); the identity in evaluation mode.

    ``site`` tells the places of one model apart. Calls take x [n, C], the global node ids of its rows int64 [n], and
    ``draw``, the number of this drawing (see ``draw_of``).
    """

    def __init__(self, p: float, *, site: int) -> None:
        super().__init__()
        self.p = p
        self.site = site

    def forward(self, x: Tensor, *, node_ids: Tensor, draw: int) -> Tensor:
        """``x`` with dropped elements, same shape."""
        return drop(x, p=self.p, site=self.site, node_ids=node_ids, draw=draw) if self.training else x

    def extra_repr(self) -> str:
        """For printing the model."""
        return f"p={self.p}, site={self.site}"


def drop(x: Tensor, *, p: float, site: int, node_ids: Tensor, draw: int) -> Tensor:
    """``CounterDropout`` in training as a function: for modules that hold a dropout of another class."""
    if p == 0:
        return x
    keep = keep_mask(node_ids, num_columns=x.shape[1], p=p, key=key_of(draw, site))
    return (x * keep).mul_(1 / (1 - p))  # autograd keeps the mask as one byte per element


def draw_of(seed: int, step: int) -> int:
    """The 63-bit number of the drawing that belongs to optimiser step ``step`` of a run with ``seed``."""
    return key_of(step, seed) >> 1


def key_of(draw: int, site: int) -> int:
    """The 64-bit number that tells one site's mask in one drawing from all others."""
    return _mix_int(draw ^ _mix_int(site))


def keep_mask(node_ids: Tensor, *, num_columns: int, p: float, key: int) -> Tensor:
    """Bool [n, num_columns], True with probability 1 - p, a pure function of (node id, column, p, key)."""
    columns = column_bits(torch.arange(num_columns, device=node_ids.device))
    return is_kept(row_bits(node_ids, key=key).unsqueeze(1), columns, threshold=threshold_of(p))


def row_bits(ids: Tensor, *, key: int) -> Tensor:
    """int32, one for each of ``ids`` int64: what a row brings to the hash of its elements."""
    return _mix64(ids + _signed(key, 64)).int()  # the low halves of 64 well mixed bits


def column_bits(ids: Tensor) -> Tensor:
    """int32, one for each of ``ids`` int64: what a column brings."""
    return _mix64(ids).int()


def is_kept(rows: Tensor, columns: Tensor, *, threshold: int) -> Tensor:
    """Bool, where ``row_bits`` meet ``column_bits``; the two are broadcast against each other."""
    bits = rows + columns  # int32, wraps around
    for shift, factor in zip((16, 13), MIX32, strict=True):
        bits.bitwise_xor_(bits >> shift).mul_(factor)
    return bits >= threshold


def threshold_of(p: float) -> int:
    """The lowest of the 2**32 hashes, as int32, that are kept where a share ``p`` is dropped."""
    return min(round(p * 2**32), 2**32 - 1) - 2**31


def _mix64(x: Tensor) -> Tensor:
    """SplitMix64's output function on int64, elementwise; products wrap around, shifts are made logical by a mask."""
    x = (x + 1) * _GOLDEN
    for shift, factor in zip((30, 27), _MIX64, strict=True):
        x = (x ^ (x >> shift & (1 << 64 - shift) - 1)) * factor
    return x ^ (x >> 31 & (1 << 33) - 1)


def _mix_int(x: int) -> int:
    """The same function on one Python integer, 0 to 2**64 - 1."""
    x = (x + 1) * _GOLDEN & _MASK64
    for shift, factor in zip((30, 27), _MIX64, strict=True):
        x = (x ^ x >> shift) * factor & _MASK64
    return x ^ x >> 31


def _signed(x: int, bits: int) -> int:
    return x - (1 << bits) if x >> bits - 1 else x
