"""The plan: everything a rank needs to know to train, decided once, before any rank starts.

A worker that holds (plan, rank) decides nothing outside the bounds and rules named here, so the cost model prices
exactly what runs, golden files pin it, and a plan can be written by hand.
"""

import hashlib
import json
from collections.abc import Iterable
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from planner.caching import NO_CACHE, CacheRule, FeaturePlace
from planner.errors import PlanInvalidError
from planner.frozen import Frozen
from planner.sampling import SamplingRule
from planner.sync import SyncRule

Exchange = Literal["none", "ring", "ulysses", "ulysses_ring", "halo", "reduce"]
NodeOrder = Literal["natural", "metis", "greedy", "random"]
Balance = Literal["rows", "edges"]
ActionKind = Literal["F", "B", "I", "W"]


class Action(NamedTuple):
    """One entry of a rank's list: what stage ``stage`` does for ``micro_batch``.

    F is the forward pass, B the whole backward pass. I and W together are B in two parts: I takes the gradient back to
    the input of the stage, which the stage before waits for; W makes the weight gradients that I left, which nobody
    waits for.
    """

    stage: int
    kind: ActionKind
    micro_batch: int


class Stage(Frozen):
    """A run of units on ``dp_degree * cp_degree`` ranks; the cp axis is the fastest in ``ranks``.

    ``exchange`` says how the rows of the cp ranks meet. Runs of ``ulysses_degree`` cp ranks share heads, the others'
    keys come by in a ring: all of them in ``ulysses``, none in ``ring``, some in ``ulysses_ring``.

    Several stages may name the same ``ranks``: these then serve all of them, each with degrees of its own.
    """

    units: tuple[str, ...]
    ranks: tuple[int, ...]
    dp_degree: int = Field(ge=1)
    cp_degree: int = Field(ge=1)
    exchange: Exchange
    ulysses_degree: int = Field(default=1, ge=1)

    @property
    def cp_groups(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each replica, which share its rows and act together."""
        width = self.cp_degree
        return tuple(self.ranks[start : start + width] for start in range(0, len(self.ranks), width))


class Partition(Frozen):
    """Which node goes to which cp rank: ``order`` of the nodes, cut into shards of equal work.

    Work is counted in ``rows`` (dense attention) or in ``edges``. ``fingerprint`` is that of the cut, from
    ``describe_partition`` where every shard follows from the graphs' sizes alone, else from ``describe_cuts``; empty
    in a plan that is to be held against no data.
    """

    order: NodeOrder = "natural"
    balance: Balance = "rows"
    fingerprint: str = ""

    @property
    def follows_from_sizes(self) -> bool:
        """Whether the sizes of the graphs say all about the cut."""
        return self.order == "natural" and self.balance == "rows"


def describe_partition(graph_sizes: Iterable[int], *, cp_degree: int) -> Partition:
    """How graphs of these nodes (in any order) are cut over ``cp_degree`` ranks: planner and runtime must agree."""
    cut = json.dumps({"order": "natural", "cp_degree": cp_degree, "graph_sizes": sorted(graph_sizes)})
    return Partition(order="natural", fingerprint=hashlib.sha256(cut.encode()).hexdigest()[:32])


def describe_cuts(digest: str, *, order: NodeOrder, balance: Balance) -> Partition:
    """A cut that depends on the edges of the graphs; ``digest`` is of the actual order and sizes of the shards."""
    return Partition(order=order, balance=balance, fingerprint=digest)


class Prediction(Frozen):
    """What the cost model expects: seconds per optimiser step, and peak bytes per rank over the bare process."""

    step_time_s: float
    memory_bytes: tuple[int, ...]
    terms_s: dict[str, float] = Field(default_factory=dict)


class RunnerUp(Frozen):
    """A candidate that was not chosen, in words, and what it lacks against the one that was."""

    choice: str
    step_time_s: float
    memory_bytes: int
    lacks: str


class MegaGraphPlan(Frozen):
    """How a graph transformer trains: stages of units, degrees, exchange, micro-batches, and actions per rank.

    The graphs of an optimiser step are dealt to ``num_micro_batches`` micro-batches, which pass through the stages, and
    in each stage to its replicas; a micro-batch may be empty in a short step. One large graph is one micro-batch.

    ``sharded`` units are cut over the ranks of their stage, or over runs of ``shard_degree`` of them.
    """

    kind: Literal["megagraph"] = "megagraph"
    world_size: int = Field(ge=1)
    stages: tuple[Stage, ...]
    num_micro_batches: int = Field(default=1, ge=1)
    actions: tuple[tuple[Action, ...], ...]
    recompute: tuple[str, ...] = ()
    sharded: tuple[str, ...] = ()
    shard_degree: int | None = Field(default=None, ge=1)
    bias: Literal["rebuild", "per_stage"] = "rebuild"
    partition: Partition = Partition()
    num_threads: int = Field(default=1, ge=1)
    report_every_steps: int = Field(default=1, ge=1)
    predicted: Prediction | None = None
    reasons: tuple[str, ...] = ()
    runners_up: tuple[RunnerUp, ...] = ()

    @property
    def largest_cp_degree(self) -> int:
        """The number of shards that the order of the nodes is made for; stages of fewer cut the same order."""
        return max(stage.cp_degree for stage in self.stages)

    @model_validator(mode="after")
    def _check(self) -> "MegaGraphPlan":
        check_stages(self)
        return self


class QueueBudget(Frozen):
    """Bounds of one queue between two neighbouring stages of the MQ-GNN pipeline."""

    name: str
    max_items: int = Field(ge=1)
    max_bytes: int = Field(ge=1)


class MQGNNPlan(Frozen):
    """How a sampled GNN trains: replicas, what overlaps, threads, and the bounds of every queue.

    ``batch_size`` counts the seeds of one optimiser step over all replicas. ``num_threads`` are the intra-op threads
    of a replica's compute stage; a plan that is not ``pipelined`` runs the stages one after the other. ``features``
    says where feature rows are, ``cache`` what is kept beside them, every budget in bytes. Where ``sampling`` is
    remote, ``num_sampling_workers`` are the mini-batches that a replica has asked for at a time.
    """

    kind: Literal["mqgnn"] = "mqgnn"
    world_size: int = Field(ge=1)
    batch_size: int = Field(ge=1)
    fanouts: tuple[int, ...]
    pipelined: bool = True
    num_sampling_workers: int = Field(default=1, ge=1)
    num_threads: int = Field(default=1, ge=1)
    queues: tuple[QueueBudget, ...] = ()
    sync: SyncRule = SyncRule()
    sampling: SamplingRule = SamplingRule()
    features: FeaturePlace = "local"
    cache: CacheRule = NO_CACHE
    report_every_steps: int = Field(default=1, ge=1)
    predicted: Prediction | None = None
    reasons: tuple[str, ...] = ()
    runners_up: tuple[RunnerUp, ...] = ()

    @model_validator(mode="after")
    def _names_all_bytes(self) -> "MQGNNPlan":
        if not self.cache.is_settled:
            raise PlanInvalidError("a plan names the bytes of its caches; found a cache whose budget is left open")
        return self

    @model_validator(mode="after")
    def _asks_ahead(self) -> "MQGNNPlan":
        if self.sampling.is_remote and not self.pipelined:
            raise PlanInvalidError(
                "remote sampling makes mini-batches while others are computed with; found a plan that is not pipelined:"
                " set pipelined, or sampling to local"
            )
        return self


Plan = Annotated[MegaGraphPlan | MQGNNPlan, Field(discriminator="kind")]
_ADAPTER: TypeAdapter[MegaGraphPlan | MQGNNPlan] = TypeAdapter(Plan)


def parse_plan(document: object) -> MegaGraphPlan | MQGNNPlan:
    """A plan from JSON (text or bytes) or from the values of one: the one way to read a plan, written by hand or not.

    Raises ``PlanInvalidError`` with the law that it breaks, or with every fault of its fields.
    """
    try:
        if isinstance(document, str | bytes):
            return _ADAPTER.validate_json(document)
        return _ADAPTER.validate_python(document)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        broken = [fault.get("ctx", {}).get("error") for fault in faults]
        law = next((cause for cause in broken if isinstance(cause, PlanInvalidError)), None)
        if law is not None:
            raise law from None
        named = "; ".join(f"/{'/'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults)
        raise PlanInvalidError(f"this is no plan: {named}") from None


def steps_per_report(step_time_s: float) -> int:
    """``report_every_steps`` for about one report a second: a report is a barrier over all ranks."""
    return max(1, round(1.0 / step_time_s)) if step_time_s > 0 else 1


def check_stages(plan: MegaGraphPlan) -> None:
    """Hold a plan to its laws. Raises ``PlanInvalidError`` that prints all the numbers of the first broken one."""
    widths = [stage.dp_degree * stage.cp_degree for stage in plan.stages]
    groups = sorted({stage.ranks for stage in plan.stages})
    if sorted(rank for group in groups for rank in group) != list(range(plan.world_size)):
        raise PlanInvalidError(
            f"the stage groups must hold each of the ranks 0 to {plan.world_size - 1} once; found {groups}"
        )
    for index, (stage, width) in enumerate(zip(plan.stages, widths, strict=True)):
        if len(stage.ranks) != width:
            raise PlanInvalidError(
                f"stage {index}: dp_degree {stage.dp_degree} x cp_degree {stage.cp_degree} = {width} ranks,"
                f" but it lists {len(stage.ranks)}: {stage.ranks}"
            )
        if stage.cp_degree > 1 and stage.exchange == "none":
            raise PlanInvalidError(f"stage {index}: cp_degree {stage.cp_degree} needs an exchange, found 'none'")
        _check_ulysses(stage, index=index)
        check_sharding(plan, index=index)
    if len(plan.actions) != plan.world_size:
        raise PlanInvalidError(f"one action list per rank: {plan.world_size} ranks, {len(plan.actions)} lists")


def check_heads(stage: Stage, *, num_heads: int) -> None:
    """Hold a stage against the heads of its attention. Raises ``PlanInvalidError`` that names the legal degrees."""
    if num_heads % stage.ulysses_degree:
        cp = stage.cp_degree
        legal = [degree for degree in range(1, cp + 1) if cp % degree == 0 and num_heads % degree == 0]
        raise PlanInvalidError(
            f"{num_heads} heads cannot be shared by ulysses_degree {stage.ulysses_degree}: of cp_degree {cp}, the legal"
            f" degrees are {legal}; or take a number of heads that {stage.ulysses_degree} divides"
        )


def _check_ulysses(stage: Stage, *, index: int) -> None:
    """ulysses_degree x ring = cp_degree, and the exchange says which of the two are there."""
    width, cp = stage.ulysses_degree, stage.cp_degree
    between = [degree for degree in range(2, cp) if cp % degree == 0]
    legal = {"ulysses": [cp], "ulysses_ring": between}.get(stage.exchange, [1])
    if width not in legal:
        raise PlanInvalidError(
            f"stage {index}: exchange {stage.exchange!r} over cp_degree {cp} takes a ulysses_degree out of {legal}"
            f" (times the degree of the ring it makes cp_degree); found {width}"
        )


def check_sharding(plan: MegaGraphPlan, *, index: int) -> None:
    """Hold the sharded units of a stage to their laws. Raises ``PlanInvalidError``."""
    stage = plan.stages[index]
    sharded = sorted(set(stage.units) & set(plan.sharded))
    if not sharded:
        return
    if plan.shard_degree is not None and len(stage.ranks) % plan.shard_degree:
        raise PlanInvalidError(
            f"stage {index}: shard_degree {plan.shard_degree} does not divide its {len(stage.ranks)} ranks, over which"
            f" {sharded} are sharded"
        )
    if any(action.kind == "I" and action.stage == index for actions in plan.actions for action in actions):
        raise PlanInvalidError(
            f"stage {index} puts weight gradients off (I, W), but {sharded} are sharded, which sum theirs as they come:"
            " choose a schedule with B, or keep these units whole"
        )
