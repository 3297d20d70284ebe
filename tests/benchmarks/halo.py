"""Bytes that each of 4 ranks sends for attention on edges: halo against ring and Ulysses, METIS against random order.

Each side runs the same step, one layer of edge attention forward and backward on hidden rows, on Tolokers, Physics and
WordNet3. The exchanges count what they send. Ring: keys and values of all rows come by, each rank keeps those that its
edges start from. Ulysses: every rank holds all edges and attends with a fourth of the heads. All sides must give the
same output. ``halo_over_ring`` and ``metis_over_random`` are the second smallest of the three, so two sets are as good.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from planner.cost.communication import (
    halo_elements,
    ring_backward_elements,
    ring_forward_elements,
    ulysses_elements,
)
from planner.plan import Partition
from tests.benchmarks.frame import Outcome, main
from tests.conftest import find_data_root
from tests.kit.gloo_pool import GlooPool
from workers.comm.axis import Axis
from workers.comm.halo import HaloExchange
from workers.comm.ring import RingExchange
from workers.comm.ulysses import HeadShards
from workers.comm.wire import Wire
from workers.data.datasets import load_dataset
from workers.data.graph import Graph
from workers.data.partition import NodeCut, NodeCuts
from workers.data.paths import DataPaths
from workers.data.shard_edges import shard_edges
from workers.ops.edge_attention import edge_attention
from workers.ops.row_edges import RowEdges
from workers.ops.row_layout import RowLayout
from workers.spec import DatasetSpec

SETS = ("Tolokers", "Physics", "WordNet3")
NUM_RANKS, HIDDEN, HEADS = 4, 32, 4
FORMULA_LIMIT, RING_LIMIT, RANDOM_LIMIT = 0.02, 0.6, 0.5
SAME_OUTPUT = 1e-6  # float32, summed over all elements of the output
METIS, RANDOM = (Partition(order=order, balance="edges") for order in ("metis", "random"))
SIDES = {"halo, metis": METIS, "halo, random": RANDOM, "ring": Partition(), "ulysses": Partition()}


@dataclass(frozen=True)
class Counted:
    """What one rank has sent, and how long its step took. ``checksum`` is of its rows of the output."""

    forward_bytes: int
    backward_bytes: int
    seconds: float
    checksum: float


Step = Callable[[Tensor, Tensor, Tensor], Tensor]


def measure() -> Outcome:
    """Bytes per rank of every exchange, counted on the wire, beside what the formulas promise."""
    details: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="gmb") as cache, GlooPool(NUM_RANKS) as pool:
        paths = DataPaths(root=find_data_root(), cache=Path(cache))
        for name in SETS:
            graph = load_dataset(DatasetSpec(name=name), paths=paths).graphs[0]
            details[name] = {side: run_side(pool, side, name, paths, graph) for side in SIDES}
            for side, found in details[name].items():
                print(f"{name}, {side}: {found}", flush=True)
            sums = [found["checksum"] for found in details[name].values()]
            assert max(sums) <= min(sums) * (1 + SAME_OUTPUT), f"the sides do not compute the same: {details[name]}"
    sent = {name: {side: found["forward_bytes"] for side, found in sides.items()} for name, sides in details.items()}
    figures = {
        "formula_error_max": max(found["formula_error"] for sides in details.values() for found in sides.values()),
        "halo_over_ring": sorted(sides["halo, metis"] / sides["ring"] for sides in sent.values())[1],
        "metis_over_random": sorted(sides["halo, metis"] / sides["halo, random"] for sides in sent.values())[1],
    }
    limits = {"formula_error_max": FORMULA_LIMIT, "halo_over_ring": RING_LIMIT, "metis_over_random": RANDOM_LIMIT}
    return Outcome(figures, {name: figures[name] <= limit for name, limit in limits.items()}, {"sides": details})


def run_side(pool: GlooPool, side: str, name: str, paths: DataPaths, graph: Graph) -> dict[str, float]:
    """One side on one data set: means over the ranks, and the larger error of the two formulas."""
    counted: list[Counted] = pool.run(step_of_rank, side, name, paths, timeout_s=600)
    forward = statistics.mean(rank.forward_bytes for rank in counted)
    backward = statistics.mean(rank.backward_bytes for rank in counted)
    promised = promised_bytes(side, graph)
    return {
        "forward_bytes": forward,
        "backward_bytes": backward,
        "largest_forward_bytes": max(rank.forward_bytes for rank in counted),
        "formula_error": max(
            abs(found / formula - 1) for found, formula in zip((forward, backward), promised, strict=True)
        ),
        "seconds": max(rank.seconds for rank in counted),
        "checksum": sum(rank.checksum for rank in counted),
    }


def promised_bytes(side: str, graph: Graph) -> tuple[float, float]:
    """Forward and backward bytes of the mean rank, by the formulas; the halo is counted anew from the edges."""
    sizes = {"num_nodes": graph.num_nodes, "hidden_size": HIDDEN, "cp_degree": NUM_RANKS}
    if side == "ring":
        forward, backward = ring_forward_elements(**sizes), ring_backward_elements(**sizes)
    elif side == "ulysses":
        forward = backward = ulysses_elements(**sizes)
    else:
        cut = NodeCuts([graph], partition=SIDES[side], num_parts=NUM_RANKS).cut(0, NUM_RANKS)
        forward = backward = halo_elements(halo_rows=count_halo(graph, cut), hidden_size=HIDDEN) / NUM_RANKS
    return 4 * forward, 4 * backward


def count_halo(graph: Graph, cut: NodeCut) -> int:
    """Pairs of a shard and a node outside it that an edge into the shard starts from."""
    shard = torch.empty(graph.num_nodes, dtype=torch.int64)
    for index in range(NUM_RANKS):
        shard[torch.from_numpy(cut.nodes(index))] = index
    targets = torch.repeat_interleave(torch.arange(graph.num_nodes), torch.from_numpy(graph.indptr).diff())
    sources = torch.from_numpy(graph.indices).long()
    across = shard[sources] != shard[targets]
    return len(torch.unique(shard[targets[across]] * graph.num_nodes + sources[across]))


def step_of_rank(rank: int, world_size: int, side: str, name: str, paths: DataPaths) -> Counted:
    """One rank's part of one step: project, attend along edges, and back."""
    axis = Axis(ranks=tuple(range(world_size)), index=rank, group=dist.group.WORLD)
    graph = load_dataset(DatasetSpec(name=name), paths=paths).graphs[0]
    cut = NodeCuts([graph], partition=SIDES[side], num_parts=world_size).cut(0, world_size)
    layout = RowLayout(sizes=tuple((size,) for size in cut.sizes), shard=rank)
    wire, attend = _sides(side, graph=graph, cut=cut, layout=layout, axis=axis)
    torch.manual_seed(0)
    weights = torch.randn(3, HIDDEN, HIDDEN).div_(HIDDEN**0.5).requires_grad_()
    h = torch.randn(graph.num_nodes, HIDDEN)[torch.from_numpy(cut.nodes(rank))].requires_grad_()
    axis.barrier()
    started = time.perf_counter()
    q, k, v = (torch.einsum("nd,cde->cne", h, weights)).unflatten(2, (HEADS, -1)).unbind(0)
    out = attend(q, k, v)
    forward = wire.bytes_sent
    out.square().mean().backward()
    axis.barrier()
    return Counted(
        forward_bytes=forward,
        backward_bytes=wire.bytes_sent - forward,
        seconds=time.perf_counter() - started,
        checksum=float(out.detach().double().square().sum()),
    )


def _sides(side: str, *, graph: Graph, cut: NodeCut, layout: RowLayout, axis: Axis) -> tuple[Wire, Step]:
    """The wire of a side, and its attention from q, k, v of own rows to the output of own rows."""
    if side == "ulysses":
        heads = HeadShards(axis)
        every = shard_edges(graph, cut=NodeCut(cut.order, (graph.num_nodes,)), shard=0)

        def with_own_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            whole = heads.to_heads(torch.stack((q, k, v), dim=1), layout=layout)
            out = edge_attention(whole[:, 0], k=whole[:, 1], v=whole[:, 2], edges=every)
            return heads.to_rows(out.unsqueeze(1), layout=layout).squeeze(1)

        return heads.wire, with_own_heads
    edges = shard_edges(graph, cut=cut, shard=layout.shard)
    if side == "ring":
        ring = RingExchange(axis)

        def with_passing_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            kv = _PassingRows.apply(torch.stack((k, v), dim=1), _needed(graph, cut, layout), layout, ring)
            return edge_attention(q, k=kv[:, 0], v=kv[:, 1], edges=edges)

        return ring.wire, with_passing_rows
    neighbours = HaloExchange(axis)

    def with_halo(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        kv = neighbours.extend(torch.stack((k, v), dim=1), halo=edges.halo)
        return edge_attention(q, k=kv[:, 0], v=kv[:, 1], edges=edges)

    return neighbours.wire, with_halo


def _needed(graph: Graph, cut: NodeCut, layout: RowLayout) -> list[Tensor]:
    """Of every shard, the rows that own edges start from: what that shard would send as halo."""
    parts: list[RowEdges] = [shard_edges(graph, cut=cut, shard=shard) for shard in range(layout.num_shards)]
    halos = [part.halo for part in parts]
    assert all(halo is not None for halo in halos)
    return [halo.send[layout.shard] for halo in halos]


class _PassingRows(torch.autograd.Function):
    """Own rows, then the needed rows of every shard, picked from a ring; gradients travel along."""

    @staticmethod
    def forward(ctx, kv, needed, layout, ring):
        ctx.save_for_backward(kv)
        ctx.needed, ctx.layout, ctx.ring = needed, layout, ring
        picked = {}
        ring.visit(kv, layout=layout, visitor=lambda shard, block: picked.update({shard: block[needed[shard]]}))
        return torch.cat([kv, *(picked[shard] for shard in range(layout.num_shards))])

    @staticmethod
    def backward(ctx, grad):
        (kv,) = ctx.saved_tensors
        own, *parts = grad.split([len(kv), *map(len, ctx.needed)])

        def give_back(shard, block):
            total = torch.zeros_like(block)
            total[ctx.needed[shard]] = parts[shard]
            return total

        return own + ctx.ring.visit_and_sum(kv, layout=ctx.layout, visitor=give_back), None, None, None


if __name__ == "__main__":
    sys.exit(main("halo", measure))
