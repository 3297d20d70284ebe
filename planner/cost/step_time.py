"""A plan priced: what every action of every stage costs in time and memory, and what the update after them costs.

In: a plan, the shape of its job and the fitted profile. Out: ``PlanCosts``, which ``planner.simulate`` plays.
Time uses the mean micro-batch of an epoch, memory a bound on any.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from planner.cost import communication, compute, memory
from planner.cost.shard_load import find_shard_load
from planner.errors import PlanInvalidError
from planner.fitting import ROUGH_FIT, FittedProfile, UnitCurves, Work
from planner.plan import ActionKind, MegaGraphPlan, Stage
from planner.profiles import Traffic, TransformerShape

ELEMENT_BYTES = {"float32": 4, "float64": 8}
_LOSS_BYTES = 8  # one float64 per rank
Terms = Mapping[str, float]


@dataclass(frozen=True)
class StageCosts:
    """One stage, per micro-batch and rank; terms in seconds by name, memory in bytes.

    ``weights`` is the part of ``backward`` that W does where backward is split, by the same names; I does the rest.
    ``saved_bytes`` live from F to B or W of a micro-batch, ``workspace_bytes`` only during an action, ``static_bytes``
    always, ``after_bytes`` after the update when nothing is saved: an evaluation or a checkpoint. ``handover_s`` moves
    one micro-batch to a neighbouring stage, ``update`` follows the last action.
    """

    forward: Terms
    backward: Terms
    weights: Terms = field(default_factory=dict)
    update: Terms = field(default_factory=dict)
    handover_s: float = 0.0
    saved_bytes: float = 0.0
    workspace_bytes: float = 0.0
    static_bytes: float = 0.0
    after_bytes: float = 0.0

    def terms(self, kind: ActionKind) -> Terms:
        """What an action of ``kind`` takes."""
        if kind == "I":
            return {name: seconds - self.weights.get(name, 0.0) for name, seconds in self.backward.items()}
        return {"F": self.forward, "B": self.backward, "W": self.weights}[kind]


@dataclass(frozen=True)
class PlanCosts:
    """Costs of all stages of a plan. ``guesses`` are sentences about sizes that lie beyond what was measured."""

    stages: tuple[StageCosts, ...]
    guesses: tuple[str, ...] = ()


def estimate_costs(plan: MegaGraphPlan, *, shape: TransformerShape, fitted: FittedProfile) -> PlanCosts:
    """Price every stage of ``plan``.

    Raises ``ProfileMismatchError`` when the profile lacks a unit or a link, and ``PlanInvalidError`` for an exchange
    without a price: other ones than the planner chooses for this model, and shards of another order.
    """
    priced = ("none", communication.exchange_of(shape) or "none")
    foreign = sorted({stage.exchange for stage in plan.stages if stage.exchange not in priced})
    if foreign or not plan.partition.follows_from_sizes:
        raise PlanInvalidError(
            f"the cost model prices the exchanges {' and '.join(dict.fromkeys(priced))} of this model, over shards of"
            f" equal rows in natural order; the plan has {foreign or plan.partition.order!r}: run it as it is, without"
            " a prediction"
        )
    pricers = [_StagePricer(stage, plan=plan, shape=shape, fitted=fitted) for stage in plan.stages]
    return PlanCosts(
        stages=tuple(pricer.costs() for pricer in pricers),
        guesses=tuple(sorted({guess for pricer in pricers for guess in pricer.guesses()})),
    )


class _StagePricer:
    """Holds the symbols that all terms of one stage share."""

    def __init__(self, stage: Stage, *, plan: MegaGraphPlan, shape: TransformerShape, fitted: FittedProfile) -> None:
        self._stage, self._plan, self._shape, self._fitted = stage, plan, shape, fitted
        self._element_bytes = ELEMENT_BYTES[shape.dtype]
        self._mean = self._mean_work()
        self._load = find_shard_load(shape, cp_degree=stage.cp_degree)
        self._traffic = shape.traffic or Traffic()

    def costs(self) -> StageCosts:
        """All terms."""
        forward: defaultdict[str, float] = defaultdict(float)
        backward: defaultdict[str, float] = defaultdict(float)
        for name in self._stage.units:
            again = name in self._plan.recompute
            for term, forward_s, backward_s in self._unit_terms(name):
                forward[f"{term}_forward"] += forward_s
                backward[f"{term}_backward"] += backward_s
                if again:
                    backward["recompute"] += forward_s
        return StageCosts(
            forward=dict(forward),
            backward=dict(backward),
            update=self._update(),
            handover_s=self._handover_s(),
            saved_bytes=self._saved_bytes(),
            workspace_bytes=self._workspace_bytes(),
            static_bytes=self._static_bytes(),
            after_bytes=max(memory.checkpoint_bytes(self._fitted.parameter_bytes), self._evaluation_bytes()),
        )

    def guesses(self) -> list[str]:
        """Sentences on what the profile does not really know: sizes beyond its samples, samples that fit no curve."""
        curves = {kind: self._curves(kind) for kind in sorted({_kind(name) for name in self._stage.units})}
        beyond = [kind for kind, unit in curves.items() if not unit.forward_s.covers(self._mean)]
        errors = {kind: max(unit.forward_s.worst_error, unit.backward_s.worst_error) for kind, unit in curves.items()}
        errors |= {operation: self._fitted.link(operation).worst_error for operation in self._operations()}
        rough = [kind for kind, error in errors.items() if error > ROUGH_FIT]
        sentences = []
        if beyond:
            sentences.append(
                f"{self._mean.num_rows:.0f} rows and {self._mean.num_pairs:.0f} pairs per micro-batch lie beyond what"
                f" was measured of {', '.join(beyond)}: the time is a guess along the fitted curve."
            )
        if self._plan.world_size > 1 and self._fitted.parameter_bytes > self._fitted.link("all_reduce").largest_bytes:
            sentences.append(
                f"{self._fitted.parameter_bytes} bytes of gradients are more than any sum between ranks that was"
                " measured: its time is a guess along the fitted line."
            )
        if rough:
            sentences.append(
                f"The curves of {', '.join(rough)} miss their samples by up to {100 * max(errors.values()):.0f} %, as"
                " happens when the machine is busy during the probe: the times of those are rough."
            )
        return sentences

    def _operations(self) -> list[str]:
        """The links that the stage uses."""
        used = {"all_reduce": self._plan.world_size > 1, "p2p": self._stage.exchange in ("ring", "halo")}
        return [operation for operation, is_used in used.items() if is_used]

    def _unit_terms(self, name: str) -> Iterator[tuple[str, float, float]]:
        """(term, forward seconds, backward seconds) of a unit's computing, and of what a block tells other ranks."""
        kind, degree = _kind(name), self._stage.cp_degree
        curves, work = self._curves(kind), self._work_of(kind, self._mean)
        forward_s = compute.estimate_forward_s(curves, work)
        backward_s = compute.estimate_backward_s(curves, work)
        yield kind, forward_s, backward_s
        if kind != "block":
            return
        if self._traffic.halos and degree > 1:
            yield "halo", self._halos_s(), self._halos_s()
        if sums_s := self._sums_s():
            yield "sums", sums_s, sums_s
        if self._stage.exchange == "ring":
            link, shard_bytes = self._fitted.link("p2p"), self._shard_bytes(self._mean)
            hiding = 1 / degree if self._fitted.hides_transfers else 0.0
            yield (
                "ring",
                communication.estimate_ring_forward_s(
                    link, shard_bytes=shard_bytes, cp_degree=degree, hidden_s=hiding * forward_s
                ),
                communication.estimate_ring_backward_s(
                    link, shard_bytes=shard_bytes, cp_degree=degree, hidden_s=hiding * backward_s
                ),
            )

    def _halos_s(self) -> float:
        """The halos of a block's forward; its backward sends as many gradients home."""
        link, row_bytes = self._fitted.link("p2p"), self._load.halo_rows * self._element_bytes
        return sum(
            communication.estimate_halo_s(link, num_bytes=columns * row_bytes, cp_degree=self._stage.cp_degree)
            for columns in self._traffic.halos
        )

    def _sums_s(self) -> float:
        """The sums of a block's forward, over shards and over all ranks; its backward makes the same of gradients."""
        over_shards = self._traffic.sums if self._stage.cp_degree > 1 else ()
        over_ranks = self._traffic.batch_sums if self._plan.world_size > 1 else ()
        return sum(
            communication.estimate_all_reduce_s(
                self._fitted.link("all_reduce"), num_bytes=num_elements * self._element_bytes
            )
            for num_elements in (*over_shards, *over_ranks)
        )

    def _update(self) -> dict[str, float]:
        terms = {"optimizer": compute.estimate_optimizer_s(self._curves("optimizer"))}
        if self._plan.world_size > 1:
            link = self._fitted.link("all_reduce")
            losses_bytes = _LOSS_BYTES * self._plan.world_size
            terms["loss_all_reduce"] = communication.estimate_all_reduce_s(link, num_bytes=losses_bytes)
            terms["gradient_all_reduce"] = communication.estimate_all_reduce_s(
                link, num_bytes=self._fitted.parameter_bytes
            )
        return terms

    def _handover_s(self) -> float:
        if len(self._plan.stages) == 1:
            return 0.0
        return communication.estimate_handover_s(
            self._fitted.link("p2p"),
            num_rows=self._mean.num_rows,
            hidden_size=self._shape.row_width,
            element_bytes=self._element_bytes,
        )

    def _saved_bytes(self) -> float:
        work = self._largest_work()
        joined = memory.joined_input_bytes(
            work,
            num_features=self._num_inputs,
            element_bytes=self._element_bytes,
            graphs_per_step=self._shape.graphs_per_step,
        )
        return joined + sum(
            self._hidden_bytes(work)
            if name in self._plan.recompute
            else memory.saved_bytes(self._curves(_kind(name)), self._work_of(_kind(name), work))
            + self._halo_bytes(_kind(name), work)
            for name in self._stage.units
        )

    def _workspace_bytes(self) -> float:
        return self._most_bytes(self._largest_work(), recompute=self._plan.recompute)

    def _evaluation_bytes(self) -> float:
        """Every graph by itself, forward only: a unit's input, and what it holds while it works (at most its peak)."""
        largest = max(*self._shape.graph_sizes, *self._shape.other_graph_sizes, 0)
        work = compute.total_work((largest,), cp_degree=self._stage.cp_degree)
        return self._hidden_bytes(work) + self._most_bytes(work, recompute=self._stage.units)

    def _most_bytes(self, work: Work, *, recompute: tuple[str, ...]) -> float:
        """What the dearest unit needs beyond what it keeps; of those in ``recompute``, which keep nothing, all.

        Of a halo that is the rows as they arrive and the gradients of all.
        """
        most = 0.0
        for name in self._stage.units:
            kind, again = _kind(name), name in recompute
            workspace = memory.workspace_bytes(self._curves(kind), self._work_of(kind, work), recompute=again)
            most = max(most, workspace + (2 + again) * self._halo_bytes(kind, work))
        return most + memory.ring_buffer_bytes(
            self._shard_bytes(work), cp_degree=self._stage.cp_degree if self._stage.exchange == "ring" else 1
        )

    def _work_of(self, kind: str, work: Work) -> Work:
        """``work`` as a unit of ``kind`` meets it: edges matter to blocks."""
        return self._load.on(work) if kind == "block" else work

    def _halo_bytes(self, kind: str, work: Work) -> float:
        if kind != "block" or self._stage.cp_degree == 1:
            return 0.0
        return memory.halo_bytes(
            work,
            halo_rows=self._load.halo_rows,
            num_columns=sum(self._traffic.halos),
            element_bytes=self._element_bytes,
        )

    def _hidden_bytes(self, work: Work) -> float:
        return memory.hidden_bytes(work, hidden_size=self._shape.row_width, element_bytes=self._element_bytes)

    def _static_bytes(self) -> float:
        """What lies there from the first epoch on; a replica meets every graph sooner or later, and keeps it."""
        parameter_bytes = self._fitted.parameter_bytes
        met = compute.total_work(
            (*self._shape.graph_sizes, *self._shape.other_graph_sizes), cp_degree=self._stage.cp_degree
        )
        return (
            self._fitted.base_bytes
            + memory.model_state_bytes(parameter_bytes)
            + memory.gradient_bucket_bytes(parameter_bytes, num_ranks=self._plan.world_size)
            + memory.input_bytes(met, num_features=self._num_inputs, element_bytes=self._element_bytes)
            + memory.pair_index_bytes(met, pair_bytes=self._shape.pair_bytes)
            + memory.near_index_bytes(met, near_pairs=self._shape.near_pairs, cp_degree=self._stage.cp_degree)
            + memory.edge_bytes(self._shape.num_edges)
        )

    @property
    def _num_inputs(self) -> int:
        """Numbers that lie ready of every row."""
        return self._shape.num_features + self._shape.extra_columns

    def _mean_work(self) -> Work:
        """The mean micro-batch: an epoch's graphs, spread over its steps, replicas and micro-batches."""
        shape = self._shape
        steps = -(-len(shape.graph_sizes) // shape.graphs_per_step)
        share = len(shape.graph_sizes) / (steps * self._stage.dp_degree * self._plan.num_micro_batches)
        return compute.mean_work(shape.graph_sizes, num_graphs=share, cp_degree=self._stage.cp_degree)

    def _largest_work(self) -> Work:
        return compute.largest_work(
            self._shape.graph_sizes,
            graphs_per_step=self._shape.graphs_per_step,
            num_replicas=self._stage.dp_degree,
            num_micro_batches=self._plan.num_micro_batches,
            cp_degree=self._stage.cp_degree,
        )

    def _shard_bytes(self, work: Work) -> float:
        return memory.ring_shard_bytes(work, hidden_size=self._shape.hidden_size, element_bytes=self._element_bytes)

    def _curves(self, kind: str) -> UnitCurves:
        return self._fitted.unit(kind, self._plan.num_threads)


def _kind(unit: str) -> str:
    """``block.3`` → ``block``: all blocks of a model share their curves."""
    return unit.split(".")[0]
