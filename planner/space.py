"""The legal candidates of a transformer job, and the plan that each of them stands for.

A candidate is dp × cp (their product is the number of ranks) × micro-batches × recompute × threads per rank. What is
illegal is left out with a sentence that says why, so that a plan can tell its reader what was not even considered.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.cost.communication import exchange_of
from planner.errors import NoPlanFitsError
from planner.plan import MegaGraphPlan, Stage, describe_partition
from planner.profiles import TransformerShape
from planner.schedule import actions_by_rank, one_f_one_b_actions

_UNPRICED = "rows of {model} meet in ways that the planner cannot price between shards of {what}"


@dataclass(frozen=True)
class Candidate:
    """One way to run a transformer job. Two candidates with equal numbers are the same."""

    dp_degree: int
    cp_degree: int
    num_micro_batches: int
    recompute: bool
    num_threads: int

    def describe(self) -> str:
        """Its choices in words, as reasons and error messages print them."""
        batches = "1 micro-batch" if self.num_micro_batches == 1 else f"{self.num_micro_batches} micro-batches"
        activations = "activations recomputed" if self.recompute else "activations kept"
        threads = "1 thread" if self.num_threads == 1 else f"{self.num_threads} threads"
        return f"dp {self.dp_degree} x cp {self.cp_degree}, {batches}, {activations}, {threads} per rank"


@dataclass(frozen=True)
class Space:
    """All legal candidates, and a sentence for each rule that left some out."""

    candidates: tuple[Candidate, ...]
    reasons: tuple[str, ...]


def list_candidates(shape: TransformerShape, *, num_ranks: int, thread_counts: Sequence[int]) -> Space:
    """All legal candidates for ``num_ranks`` ranks.

    dp is at most the number of graphs per optimiser step (a replica without a graph would idle in every step), cp at
    most the nodes of the smallest graph (a rank without a row has nothing to do), and 1 where the exchange that the
    model needs has no price (``exchange_of``). A replica's graphs make 1, 2, 4, … micro-batches, at most one per graph:
    fewer are faster, more take less memory. Raises ``NoPlanFitsError`` when no
    product of dp and cp makes ``num_ranks``.
    """
    most_replicas, smallest = _most_replicas(shape), min(shape.graph_sizes)
    legal = legal_degrees(shape, num_ranks=num_ranks)
    if not legal and exchange_of(shape) is None:
        raise NoPlanFitsError(
            f"{num_ranks} ranks cannot be used: {_why_whole(shape)}, and at most {most_replicas}"
            f" replicas have a graph in every step; ask for num_workers {most_replicas}, or set min_workers 1",
            num_ranks=num_ranks,
            most_replicas=most_replicas,
            most_shards=1,
        )
    if not legal:
        raise NoPlanFitsError(
            f"{num_ranks} ranks cannot be used: at most {most_replicas} replicas have a graph in every step and a graph"
            f" of {smallest} nodes can be cut into at most {smallest} shards; ask for at most"
            f" {most_replicas * smallest} ranks, in a number that such degrees multiply to",
            num_ranks=num_ranks,
            most_replicas=most_replicas,
            most_shards=smallest,
        )
    candidates = tuple(
        Candidate(dp_degree=dp, cp_degree=cp, num_micro_batches=count, recompute=recompute, num_threads=threads)
        for dp, cp in legal
        for count in _micro_batch_counts(-(-most_replicas // dp))
        for recompute in (False, True)
        for threads in sorted(thread_counts)
    )
    return Space(candidates=candidates, reasons=_reasons(shape, num_ranks, legal))


def legal_degrees(shape: TransformerShape, *, num_ranks: int) -> list[tuple[int, int]]:
    """All (dp, cp) that use ``num_ranks`` ranks, the fewest replicas first."""
    replicas = range(1, min(num_ranks, _most_replicas(shape)) + 1)
    pairs = [(dp, num_ranks // dp) for dp in replicas if num_ranks % dp == 0]
    most_shards = 1 if exchange_of(shape) is None else min(shape.graph_sizes)
    return [(dp, cp) for dp, cp in pairs if cp <= most_shards]


def _why_whole(shape: TransformerShape) -> str:
    what = "a graph" if shape.traffic is None else "many graphs"
    return _UNPRICED.format(model=shape.model, what=what)


def _most_replicas(shape: TransformerShape) -> int:
    return min(len(shape.graph_sizes), shape.graphs_per_step)


def build_plan(candidate: Candidate, *, shape: TransformerShape) -> MegaGraphPlan:
    """The complete plan of a candidate: one stage on all ranks."""
    num_ranks = candidate.dp_degree * candidate.cp_degree
    blocks = tuple(unit for unit in shape.units if unit.startswith("block."))
    num_micro_batches = candidate.num_micro_batches
    stage = Stage(
        units=shape.units,
        ranks=tuple(range(num_ranks)),
        dp_degree=candidate.dp_degree,
        cp_degree=candidate.cp_degree,
        exchange=exchange_of(shape) or "none" if candidate.cp_degree > 1 else "none",
    )
    return MegaGraphPlan(
        world_size=num_ranks,
        stages=(stage,),
        num_micro_batches=num_micro_batches,
        actions=actions_by_rank((stage,), one_f_one_b_actions(num_stages=1, num_micro_batches=num_micro_batches)),
        recompute=blocks if candidate.recompute else (),
        partition=describe_partition((*shape.graph_sizes, *shape.other_graph_sizes), cp_degree=candidate.cp_degree),
        num_threads=candidate.num_threads,
    )


def _micro_batch_counts(num_graphs: int) -> tuple[int, ...]:
    """Powers of two below ``num_graphs``, and ``num_graphs`` itself."""
    return (*(2**power for power in range(num_graphs.bit_length()) if 2**power < num_graphs), num_graphs)


def _reasons(shape: TransformerShape, num_ranks: int, legal: Sequence[tuple[int, int]]) -> tuple[str, ...]:
    reasons = []
    if exchange_of(shape) is None:
        reasons.append(f"Every graph stays whole (cp 1): {_why_whole(shape)}.")
        return tuple(reasons)
    if len(shape.graph_sizes) == 1 and num_ranks > 1:
        reasons.append(
            "There is one graph, and data parallelism deals out whole graphs: dp is 1, and all"
            f" {num_ranks} ranks share the rows of the graph (cp {num_ranks})."
        )
    elif (most := max(dp for dp, _ in legal)) < num_ranks:
        reasons.append(
            f"A step has {shape.graphs_per_step} graphs, so dp is at most {most}: more replicas would idle in it."
        )
    largest = max(cp for _, cp in legal)
    if largest < num_ranks:
        reasons.append(
            f"The smallest graph has {min(shape.graph_sizes)} nodes, so its rows go to at most {largest} ranks."
        )
    return tuple(reasons)
