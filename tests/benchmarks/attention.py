"""Attention with a learned bias, forward and backward: ours against dense PyTorch, and against attention with no bias.

Sides: ``native`` and ``plain``, the two forms of ``workers.ops.biased_attention``; ``dense``, the bias gathered from
the table and given to PyTorch, in whichever of several ways is fastest here; ``floor``, PyTorch's fused attention with
no bias at all, which is less than we compute. Float32, one thread; two threads and other sizes are in the details.

Memory is the peak of resident bytes over Q, K, V, the index and the output's gradient, in a process of its own.
"""

import multiprocessing
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tests.benchmarks.baselines.dense_attention import by_hand, embedded_bias, fused, selected_bias
from tests.benchmarks.frame import Outcome, alternate, main, medians
from workers.ops.attention_kernels import PLAIN, AttentionKernel, native_kernel
from workers.ops.biased_attention import LocalExchange, biased_attention
from workers.ops.native import kernel_form
from workers.ops.row_layout import whole
from workers.training.memory import PeakMemory

ROUNDS = 5
DETAIL_ROUNDS = 3
SPEEDUP_LIMIT, FLOOR_LIMIT, MEMORY_LIMIT, FALLBACK_LIMIT = 8.0, 0.65, 0.01, 2.0


@dataclass(frozen=True)
class Size:
    """One process has all rows."""

    num_rows: int = 4096
    num_heads: int = 8
    head_size: int = 16
    num_buckets: int = 16


class Problem:
    """The same numbers for all sides, each with the layout that it likes best."""

    def __init__(self, size: Size) -> None:
        torch.manual_seed(0)
        self.size = size
        self.rows = [torch.randn(size.num_rows, size.num_heads, size.head_size) for _ in range(4)]  # q, k, v, grad_out
        self.table = torch.randn(size.num_heads, size.num_buckets).requires_grad_()
        self.buckets = torch.randint(size.num_buckets, (size.num_rows, size.num_rows), dtype=torch.uint8)
        for leaf in self.rows[:3]:
            leaf.requires_grad_()

    @cached_property
    def by_head(self) -> list[Tensor]:
        """q, k, v, grad_out [1, H, n, d_h]."""
        copies = [x.detach().transpose(0, 1).contiguous().unsqueeze(0) for x in self.rows]
        return [copy.requires_grad_(index < 3) for index, copy in enumerate(copies)]

    @cached_property
    def index(self) -> Tensor:
        """The buckets as PyTorch's lookups want them, int32 [n * n]; made before any clock starts."""
        return self.buckets.flatten().int()

    def ours(self, kernel: AttentionKernel) -> None:
        q, k, v, grad_out = self.rows
        out = biased_attention(
            q,
            k=k,
            v=v,
            table=self.table,
            buckets=(self.buckets,),
            layout=whole((self.size.num_rows,)),
            exchange=LocalExchange(),
            kernel=kernel,
        )
        torch.autograd.grad(out, (q, k, v, self.table), grad_out)

    def floor(self) -> None:
        q, k, v, grad_out = self.by_head
        torch.autograd.grad(scaled_dot_product_attention(q, k, v), (q, k, v), grad_out)

    def dense_selected(self) -> None:
        self._dense(self._bias(selected_bias), fused)

    def dense_embedded(self) -> None:
        self._dense(self._bias(embedded_bias).contiguous(), fused)

    def dense_selected_by_hand(self) -> None:
        self._dense(self._bias(selected_bias), by_hand)

    def dense_embedded_by_hand(self) -> None:
        self._dense(self._bias(embedded_bias), by_hand)

    def _dense(self, bias: Tensor, attend: Callable[..., Tensor]) -> None:
        q, k, v, grad_out = self.by_head
        torch.autograd.grad(attend(q, k, v, bias), (q, k, v, self.table), grad_out)

    def _bias(self, gather: Callable[..., Tensor]) -> Tensor:
        return gather(self.table, self.index, num_rows=self.size.num_rows)


DENSE = ("dense_selected", "dense_embedded", "dense_selected_by_hand", "dense_embedded_by_hand")


def measure() -> Outcome:
    """Ours, dense and the floor in turn, medians of five; then other sizes, medians of three."""
    first, size = Problem(Size()), Size()
    dense_s = {name: min(_seconds(getattr(first, name), num_threads=1) for _ in range(2)) for name in DENSE}
    dense = min(dense_s, key=dense_s.__getitem__)
    figures_s = _compare(first, dense=dense, num_threads=1, rounds=ROUNDS)
    peak_bytes = {side: _peak_in_a_new_process(side) for side in ("native", "plain", dense, "floor")}
    figures = {
        "speedup_vs_dense": figures_s["dense"] / figures_s["native"],
        "time_vs_floor": figures_s["native"] / figures_s["floor"],
        "memory_vs_dense": peak_bytes["native"] / peak_bytes[dense],
        "fallback_speedup": figures_s["dense"] / figures_s["plain"],
    }
    verdicts = {
        "speedup_vs_dense": figures["speedup_vs_dense"] >= SPEEDUP_LIMIT,
        "time_vs_floor": figures["time_vs_floor"] <= FLOOR_LIMIT,
        "memory_vs_dense": figures["memory_vs_dense"] <= MEMORY_LIMIT,
        "fallback_speedup": figures["fallback_speedup"] >= FALLBACK_LIMIT,
    }
    details: dict[str, Any] = {"form": kernel_form(), "seconds": figures_s, "peak_bytes": peak_bytes, "dense": dense_s}
    details["two threads"] = _compare(first, dense=dense, num_threads=2, rounds=DETAIL_ROUNDS)
    del first
    others = [replace(size, head_size=d) for d in (8, 32, 64)] + [replace(size, num_rows=n) for n in (300, 2048, 8192)]
    for other in others:
        label = f"d_h {other.head_size}, N {other.num_rows}"
        details[label] = _compare(Problem(other), dense=dense, num_threads=1, rounds=DETAIL_ROUNDS)
    return Outcome(figures, verdicts, details)


def _sides(problem: Problem, *, dense: str) -> Mapping[str, Callable[[], None]]:
    return {
        "native": lambda: problem.ours(native_kernel()),
        "plain": lambda: problem.ours(PLAIN),
        "dense": getattr(problem, dense),
        "floor": problem.floor,
    }


def _compare(problem: Problem, *, dense: str, num_threads: int, rounds: int) -> dict[str, float]:
    """Median seconds by side, after one run of each that does not count."""
    sides = _sides(problem, dense=dense)
    for side in sides.values():
        _seconds(side, num_threads=num_threads)
    clocks = {
        name: lambda side=side: _seconds(side, num_threads=num_threads)  # type: ignore[misc]
        for name, side in sides.items()
    }
    return medians(alternate(clocks, rounds=rounds))


def _seconds(side: Callable[[], None], *, num_threads: int) -> float:
    torch.set_num_threads(num_threads)
    started = time.perf_counter()
    side()
    return time.perf_counter() - started


def _peak_in_a_new_process(side: str) -> int:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_bytes, (side,))


def _peak_bytes(side: str) -> int:
    """Over what is there once everything has been used in small: libraries, first allocations."""
    torch.set_num_threads(1)
    meter = PeakMemory()
    for problem in (Problem(Size(num_rows=64)), Problem(Size())):
        run = getattr(problem, side) if hasattr(problem, side) else _sides(problem, dense=DENSE[0])[side]
        if side not in ("native", "plain"):
            assert problem.by_head[0].numel()
        if side in DENSE:
            assert problem.index.numel()
        meter.start()
        run()
    return meter.peak_bytes()


if __name__ == "__main__":
    sys.exit(main("attention", measure))
