"""MQ-GNN: overlap or threads, sampling workers, and the first bounds of the queues, from measured stage rates.

A step of a replica is sample → prepare → (transfer) → compute → exchange. One after the other they take the sum; in a
pipeline the slowest one sets the pace, but never faster than the replica's cores can do the work of all of them. So
where the cores are few, intra-op threads for the compute stage may beat overlap: both are candidates. Where
other processes sample and prepare (``elsewhere``), replicas ask them ahead and keep all cores for the rest.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from planner.caching import CACHE_MEMORY_FRACTION, CacheRule
from planner.cost import memory
from planner.cost.step_time import ELEMENT_BYTES
from planner.errors import ProfileMismatchError
from planner.plan import MQGNNPlan, QueueBudget
from planner.profiles import Profile, SampledShape, StageSample
from planner.sampling import SamplingRule
from planner.sync import SyncRule

# Chosen: queues hold a tenth of what a rank may take, so that they never decide whether a job fits.
QUEUE_MEMORY_FRACTION = 0.10
# Chosen: for the queues of a rank whose memory is not known.
UNKNOWN_QUEUE_BYTES = 256 * 2**20
# Chosen: batches differ in size; a queue of n items may hold this much more than n mean batches.
_BATCH_SIZE_SPREAD = 1.5
# Chosen: overlap costs thread switches that no probe of single stages sees; less gain than this is no gain.
_OVERLAP_COST = 0.05
_MAX_SAMPLING_WORKERS = 4
# Chosen: an actor works on one mini-batch while the next one waits there, so that no answer's way keeps it idle.
_ASKED_PER_ACTOR = 2

LOCAL = SamplingRule()


@dataclass(frozen=True)
class ExchangeTime:
    """Seconds per step that a replica waits for others, and that messages take beside its steps."""

    waited_s: float = 0.0
    beside_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Both."""
        return self.waited_s + self.beside_s


@dataclass(frozen=True)
class StageRates:
    """The measured stages of a replica. ``compute`` by number of threads; absent stages are None.

    ``evaluate`` is there where a model does not tell what an evaluation holds.
    Where other processes do what ``sample`` and ``prepare`` do, ``elsewhere`` is both as one stage at their pace.
    """

    sample: StageSample
    prepare: StageSample
    compute: Mapping[int, StageSample]
    transfer: StageSample | None = None
    exchange: StageSample | None = None
    evaluate: StageSample | None = None
    elsewhere: StageSample | None = None
    compute_on_cpu: bool = True

    @property
    def feeding(self) -> tuple[StageSample, ...]:
        """The stages in front of compute; each fills a queue of its name."""
        made = (self.sample, self.prepare) if self.elsewhere is None else (self.elsewhere,)
        return made if self.transfer is None else (*made, self.transfer)

    def made_by(self, rule: SamplingRule, *, num_ranks: int) -> "StageRates":
        """These rates where ``rule`` says who samples for ``num_ranks`` replicas.

        Actors are taken to be as fast as the measured ranks; what the way of a mini-batch takes is not known.
        """
        if not rule.is_remote:
            return self
        share = num_ranks / rule.num_actors
        both = self.prepare.model_copy(
            update={
                "stage": "remote",
                "seconds": share * (self.sample.seconds + self.prepare.seconds),
                "p95_s": share * (self.sample.p95_s + self.prepare.p95_s),
                "peak_bytes": 0,
            }
        )
        return replace(self, elsewhere=both)

    def exchange_s(self, sync: SyncRule) -> ExchangeTime:
        """What a step of a replica spends on others by the rule ``sync``, from the measured sum E of all gradients.

        In every step E is waited for; ``local_sgd`` waits as long for a mean of weights, once in H steps. Of ``racom``
        the mean has weights and two moments, so 3 E/H, and with pushes a gradient is on its way at any time, E; both
        travel beside the steps. As if a message took in proportion to its bytes: latency counts too often, never too
        little.
        """
        if self.exchange is None:
            return ExchangeTime()
        once_s, period = self.exchange.seconds, sync.steps_between_means
        if sync.every_step:
            return ExchangeTime(waited_s=once_s)
        if sync.name == "local_sgd":
            return ExchangeTime(waited_s=once_s / period)
        return ExchangeTime(beside_s=memory.MEAN_TENSORS * once_s / period + (once_s if sync.push else 0.0))


@dataclass(frozen=True)
class QueueCandidate:
    """One way to run a replica."""

    pipelined: bool
    num_sampling_workers: int  # of remote actors: mini-batches asked for ahead
    num_threads: int
    num_actors: int = 0

    def describe(self) -> str:
        """Its choices in words, as reasons and error messages print them."""
        threads = "1 compute thread" if self.num_threads == 1 else f"{self.num_threads} compute threads"
        if self.num_actors:
            actors = "1 actor" if self.num_actors == 1 else f"{self.num_actors} actors"
            return (
                f"sampling by {actors}, {self.num_sampling_workers} mini-batches asked for ahead, {threads} per replica"
            )
        if not self.pipelined:
            return f"stages in a row, {threads} per replica"
        workers = (
            "1 sampling worker" if self.num_sampling_workers == 1 else f"{self.num_sampling_workers} sampling workers"
        )
        return f"stages overlapped, {workers}, {threads} per replica"


def read_rates(profile: Profile, *, batch_size: int) -> StageRates:
    """The stages measured at ``batch_size`` seeds per replica. Raises ``ProfileMismatchError`` when one is missing."""
    found = {(sample.stage, sample.num_threads): sample for sample in profile.stages if sample.batch_size == batch_size}
    by_name = {stage: sample for (stage, _), sample in found.items()}
    compute = {threads: sample for (stage, threads), sample in found.items() if stage == "compute"}
    wanted = {"sample", "prepare", "compute"} | ({"exchange"} if profile.key.num_ranks > 1 else set())
    if missing := sorted(wanted - set(by_name)):
        raise ProfileMismatchError(
            f"the profile has no sample of {missing} at {batch_size} seeds per replica; it has"
            f" {sorted({(sample.stage, sample.batch_size) for sample in profile.stages})}; measure it again"
        )
    return StageRates(
        sample=by_name["sample"],
        prepare=by_name["prepare"],
        transfer=by_name.get("transfer"),
        compute=compute,
        exchange=by_name.get("exchange"),
        evaluate=by_name.get("evaluate"),
        compute_on_cpu=profile.key.device_kind == "cpu",
    )


def list_queue_candidates(
    rates: StageRates, *, num_cores: float, sampling: SamplingRule = LOCAL, num_ranks: int = 1
) -> tuple[QueueCandidate, ...]:
    """All ways to run a replica on ``num_cores`` cores; serial ones come first and so win where overlap gains nothing.

    Threads of compute never exceed the cores, nor do sampling workers, nor, overlapped on CPUs, both together:
    intra-op threads wait for each other, so one that shares its core holds up all (measured: 1.5 to 2 times slower).
    Remote actors take no core of a replica; each of the ``num_ranks`` asks its part of them ahead.
    """
    most = max(1, int(num_cores))
    threads = [count for count in sorted(rates.compute) if count <= most] or [min(rates.compute)]
    if sampling.is_remote:
        ahead = _ASKED_PER_ACTOR * -(-sampling.num_actors // num_ranks)
        return tuple(
            QueueCandidate(
                pipelined=True, num_sampling_workers=ahead, num_threads=count, num_actors=sampling.num_actors
            )
            for count in threads
        )
    serial = [QueueCandidate(pipelined=False, num_sampling_workers=1, num_threads=count) for count in threads]
    pipelined = [
        QueueCandidate(pipelined=True, num_sampling_workers=workers, num_threads=count)
        for workers in range(1, min(most, _MAX_SAMPLING_WORKERS) + 1)
        for count in threads
        if not rates.compute_on_cpu or count + workers <= most
    ]
    return (*serial, *pipelined)


def estimate_sampled_step_s(
    candidate: QueueCandidate, *, rates: StageRates, num_cores: float, sync: SyncRule | None = None
) -> float:
    """Seconds per optimiser step of one replica that goes together with others by ``sync`` (``ddp`` by default).

    Serial: the sum of all stages. Pipelined: the slowest of sample/workers, the other stages and compute + exchange.
    But at least the work of all of them divided by the cores; rates of more replicas than cores were measured that way
    and count as one core each. An exchange counts as work, the time on the wire with it, so where replicas have one
    core each and messages travel beside the steps this is a bound. What is done elsewhere takes none of the cores.
    """
    here = rates.feeding if rates.elsewhere is None else rates.feeding[1:]
    feeding_s, exchange = sum(stage.seconds for stage in here), rates.exchange_s(sync or SyncRule())
    compute_s = rates.compute[candidate.num_threads].seconds
    update_s = compute_s + exchange.waited_s
    work_s = feeding_s
    if rates.compute_on_cpu:
        work_s += candidate.num_threads * compute_s + exchange.total_s
    work_s /= max(1.0, num_cores)
    if not candidate.pipelined:
        return max(feeding_s + update_s, work_s if exchange.beside_s else 0.0)
    first, workers = rates.feeding[0], candidate.num_sampling_workers if rates.elsewhere is None else 1
    slowest_s = max(
        first.seconds / workers,
        *(stage.seconds for stage in rates.feeding[1:]),
        update_s,
    )
    return max(slowest_s, work_s) * (1 + _OVERLAP_COST)


def queue_budget_bytes(limit_bytes: int | None) -> int:
    """Bytes for all queues of a rank that may take ``limit_bytes`` (None: not known)."""
    return UNKNOWN_QUEUE_BYTES if limit_bytes is None else int(QUEUE_MEMORY_FRACTION * limit_bytes)


def size_queues(
    candidate: QueueCandidate, *, rates: StageRates, step_time_s: float, budget_bytes: int
) -> tuple[QueueBudget, ...]:
    """One queue behind every feeding stage, none for a serial run.

    Items: clip(⌈consume rate · p95 produce time⌉ + 1, 1, budget / mean batch bytes), where the consume rate is the pace
    of the whole pipeline. What is asked for ahead has its place in the queue from the start, so that queue has as many,
    if they fit. The bounds of all queues add up to at most ``budget_bytes``.
    """
    if not candidate.pipelined:
        return ()
    share = max(1, budget_bytes // len(rates.feeding))
    fewest = {"remote": candidate.num_sampling_workers}
    return tuple(
        _size_queue(stage, consume_per_s=1.0 / step_time_s, budget_bytes=share, fewest=fewest.get(stage.stage, 1))
        for stage in rates.feeding
    )


@dataclass(frozen=True)
class SampledMemory:
    """Bytes of one rank with the margin: of the memory that its model lives in, and of main memory.

    For a replica that computes on CPUs both are all of it.
    """

    model_bytes: int
    host_bytes: int


def estimate_sampled_memory(
    candidate: QueueCandidate,
    *,
    shape: SampledShape,
    rates: StageRates,
    queues: Sequence[QueueBudget],
    profile: Profile,
    cache_bytes: int = 0,
) -> SampledMemory:
    """Memory of one rank over its bare process, ``cache_bytes`` of caches among it.

    Always there are the graph, the model's state, what lies in the queues and the mini-batch that the consumer holds.
    On top comes what the feeding stages hold while they work, and the largest of a compute step, an evaluation and a
    checkpoint: at once where stages overlap, else the feeding stages rest while the model is evaluated or written.
    What an evaluation or a checkpoint of a GPU takes on either side is not told apart: each sum holds all of it.
    """
    samplers = 0 if candidate.num_actors else candidate.num_sampling_workers
    graph = cache_bytes + memory.sampled_graph_bytes(
        graph_bytes=_resident_graph_bytes(shape, num_ranks=profile.key.num_ranks),
        num_nodes=shape.num_nodes,
        num_train=shape.num_train,
        num_samplers=samplers,
        sampler=shape.sampler,
    )
    state = (
        profile.base_bytes
        + memory.model_state_bytes(profile.parameter_bytes)
        + memory.gradient_bucket_bytes(profile.parameter_bytes, num_ranks=profile.key.num_ranks)
        + memory.sync_bytes(profile.parameter_bytes, rule=shape.sync, num_ranks=profile.key.num_ranks)
    )
    queued = {queue.name: queue.max_bytes for queue in queues}
    share = shape.sync.largest_share(num_ranks=profile.key.num_ranks)
    held = [
        max(queued[stage.stage], math.ceil(share * _large_item_bytes(stage))) if queued else 0
        for stage in rates.feeding
    ]
    in_hand = math.ceil(share * _large_item_bytes(rates.feeding[-1]))
    preparing = 0 if candidate.num_actors else rates.prepare.peak_bytes
    feeding = math.ceil(share * (samplers * rates.sample.peak_bytes + preparing))
    compute = math.ceil(share * rates.compute[candidate.num_threads].peak_bytes)
    evaluation = _evaluation_bytes(shape) if rates.evaluate is None else rates.evaluate.peak_bytes
    pause = max(evaluation, memory.checkpoint_bytes(profile.parameter_bytes))

    def highest(feeding: int, compute: int) -> int:
        return feeding + max(compute, pause) if candidate.pipelined else max(feeding + compute, pause)

    if rates.transfer is None:
        both = memory.with_margin(graph + state + sum(held) + in_hand + highest(feeding, compute))
        return SampledMemory(model_bytes=both, host_bytes=both)
    page_locked = math.ceil(share * _large_item_bytes(rates.transfer))
    copied = math.ceil(share * rates.transfer.peak_bytes)
    return SampledMemory(
        model_bytes=memory.with_margin(state + held[-1] + in_hand + highest(copied, compute)),
        host_bytes=memory.with_margin(graph + sum(held[:-1]) + page_locked + highest(feeding, 0)),
    )


def free_cache_bytes(needed_bytes: int, *, limit_bytes: int | None) -> int:
    """What caches may take beside a job that needs ``needed_bytes`` with the margin, out of ``limit_bytes``.

    ``CACHE_MEMORY_FRACTION`` of the job's own, as far as there is room: caches never decide whether a job fits.
    """
    wanted = CACHE_MEMORY_FRACTION * memory.without_margin(needed_bytes)
    room = wanted if limit_bytes is None else memory.without_margin(limit_bytes) - memory.without_margin(needed_bytes)
    return max(0, int(min(wanted, room)))


def _resident_graph_bytes(shape: SampledShape, *, num_ranks: int) -> int:
    """The graph as one rank holds it: of remote features the rows that it serves."""
    if shape.features == "local":
        return shape.graph_bytes
    return shape.graph_bytes - shape.feature_bytes + -(-shape.feature_bytes // num_ranks)


def _evaluation_bytes(shape: SampledShape) -> int:
    hidden = shape.hidden_size if shape.model != "appnp" else max(shape.hidden_size, 2 * shape.num_classes)
    return memory.layerwise_evaluation_bytes(
        model=shape.model,
        num_heads=shape.num_heads,
        num_nodes=shape.num_nodes,
        largest_degree=shape.largest_degree,
        widths=(shape.num_features, *[hidden] * (shape.num_layers - 1), shape.num_classes),
        element_bytes=ELEMENT_BYTES[shape.dtype],
    )


def _large_item_bytes(stage: StageSample) -> int:
    """A mini-batch well above the mean; an empty queue admits even one that is larger than its bound."""
    return math.ceil(_BATCH_SIZE_SPREAD * stage.num_bytes)


def build_sampled_plan(
    candidate: QueueCandidate, *, shape: SampledShape, num_ranks: int, queues: Sequence[QueueBudget], cache: CacheRule
) -> MQGNNPlan:
    """The complete plan of a candidate; ``cache`` is settled."""
    return MQGNNPlan(
        world_size=num_ranks,
        batch_size=shape.batch_size,
        fanouts=shape.fanouts,
        pipelined=candidate.pipelined,
        num_sampling_workers=candidate.num_sampling_workers,
        num_threads=candidate.num_threads,
        queues=tuple(queues),
        sync=shape.sync,
        sampling=shape.sampling,
        features=shape.features,
        cache=cache,
    )


def sampled_terms_s(candidate: QueueCandidate, *, rates: StageRates, sync: SyncRule) -> dict[str, float]:
    """Seconds per step of every stage by itself; what overlaps adds up to more than the step."""
    terms: dict[str, float] = {stage.stage: stage.seconds for stage in rates.feeding}
    terms["compute"] = rates.compute[candidate.num_threads].seconds
    if rates.exchange is not None:
        terms["exchange"] = rates.exchange_s(sync).total_s
    return terms


def queue_capacity(*, consume_per_s: float, p95_produce_s: float, mean_bytes: float, budget_bytes: int) -> int:
    """Items that a queue should hold: clip(⌈consume rate · p95 produce time⌉ + 1, 1, budget / mean batch bytes)."""
    wanted = math.ceil(consume_per_s * p95_produce_s) + 1
    return max(1, min(wanted, int(budget_bytes / max(1.0, mean_bytes))))


def _size_queue(stage: StageSample, *, consume_per_s: float, budget_bytes: int, fewest: int) -> QueueBudget:
    mean_bytes = max(1, stage.num_bytes)
    max_items = queue_capacity(
        consume_per_s=consume_per_s, p95_produce_s=stage.p95_s, mean_bytes=mean_bytes, budget_bytes=budget_bytes
    )
    max_items = max(max_items, min(fewest, budget_bytes // mean_bytes))
    max_bytes = min(budget_bytes, math.ceil(_BATCH_SIZE_SPREAD * max_items * mean_bytes))
    return QueueBudget(name=stage.stage, max_items=max_items, max_bytes=max_bytes)
