"""The plan of a sampled GNN: overlap or threads, workers and queues, priced from the measured rates of the stages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from planner import explain, queues
from planner.caching import CacheRule
from planner.cluster import RankRoom
from planner.errors import NoPlanFitsError
from planner.fitting import is_rough
from planner.plan import Prediction, QueueBudget, steps_per_report
from planner.profiles import Profile, SampledShape
from planner.queues import QueueCandidate, SampledMemory
from planner.search import Choice, Found, Price, find_best, list_runners_up

# Chosen: a last batch that shortens the mean step by less is within the noise of a probe.
_WORTH_MEASURING = 0.05


def batch_sizes_to_probe(shape: SampledShape, *, num_ranks: int) -> tuple[int, ...]:
    """Seeds of the fullest replica: in a full step (memory), then in the mean step of an epoch (time), if they differ.

    The last batch of an epoch takes what is left, which may be little.
    """
    full = -(-min(shape.batch_size, shape.num_train) // num_ranks)
    steps = -(-shape.num_train // shape.batch_size)
    mean = -(-shape.num_train // (steps * num_ranks))
    return (full,) if mean > (1 - _WORTH_MEASURING) * full else (full, mean)


@dataclass(frozen=True)
class _Outlook:
    """A candidate's step time, queues and memory."""

    step_time_s: float
    queues: tuple[QueueBudget, ...]
    cache: CacheRule
    memory: SampledMemory

    @property
    def price(self) -> Price:
        return Price(step_time_s=self.step_time_s, memory_bytes=self.memory.model_bytes)


def plan_sampled(shape: SampledShape, *, profile: Profile, room: RankRoom, num_ranks: int) -> Choice:
    """The fastest way to run ``num_ranks`` replicas that fits into ``room``. Raises ``NoPlanFitsError``."""
    sizes = batch_sizes_to_probe(shape, num_ranks=num_ranks)
    full, rates = (
        queues.read_rates(profile, batch_size=size).made_by(shape.sampling, num_ranks=num_ranks)
        for size in (sizes[0], sizes[-1])
    )
    limits = [size for size in (room.memory_bytes, room.host_memory_bytes) if size is not None]
    budget_bytes = queues.queue_budget_bytes(min(limits, default=None))
    host_limit = room.host_memory_bytes if profile.key.device_kind == "cuda" else room.memory_bytes

    def look(candidate: QueueCandidate) -> _Outlook:
        step_time_s = queues.estimate_sampled_step_s(candidate, rates=rates, num_cores=room.num_cores, sync=shape.sync)
        bounds = queues.size_queues(candidate, rates=full, step_time_s=step_time_s, budget_bytes=budget_bytes)
        needed = partial(
            queues.estimate_sampled_memory, candidate, shape=shape, rates=full, queues=bounds, profile=profile
        )
        free_bytes = queues.free_cache_bytes(needed().host_bytes, limit_bytes=host_limit)
        cache = shape.cache.settle(budget_bytes=free_bytes, features=shape.features)
        return _Outlook(step_time_s=step_time_s, queues=bounds, cache=cache, memory=needed(cache_bytes=cache.num_bytes))

    candidates = queues.list_queue_candidates(
        rates, num_cores=room.num_cores, sampling=shape.sampling, num_ranks=num_ranks
    )
    if profile.key.device_kind == "cuda":  # what lives in main memory has a limit of its own
        candidates = _fitting_main_memory(candidates, look=look, limit_bytes=room.host_memory_bytes)
    found = find_best(
        candidates,
        price=lambda candidate: look(candidate).price,
        memory_bound_bytes=lambda candidate: look(candidate).memory.model_bytes,
        limit_bytes=room.memory_bytes,
        describe=QueueCandidate.describe,
    )
    chosen, best = found.best.candidate, look(found.best.candidate)
    reasons = (
        explain.explain_choice(
            chosen.describe(), num_candidates=len(candidates), num_fitting=found.num_fitting(room.memory_bytes)
        ),
        explain.explain_memory(room.memory_bytes),
        explain.explain_threads(
            chosen.num_threads,
            num_cores=room.num_cores,
            tried=sorted({candidate.num_threads for candidate in candidates}),
        ),
        _overlap_reason(found, room)
        if rates.elsewhere is None
        else explain.explain_actors(shape.sampling, pace_s=rates.elsewhere.seconds),
        *explain.explain_caches(best.cache, features=shape.features),
        *((explain.NOISY_STAGES,) if is_rough(profile) else ()),
    )
    plan = queues.build_sampled_plan(chosen, shape=shape, num_ranks=num_ranks, queues=best.queues, cache=best.cache)
    complete = plan.model_copy(
        update={
            "predicted": Prediction(
                step_time_s=best.step_time_s,
                memory_bytes=(best.memory.model_bytes,) * num_ranks,
                terms_s=queues.sampled_terms_s(chosen, rates=rates, sync=shape.sync),
            ),
            "reasons": reasons,
            "runners_up": list_runners_up(found, limit_bytes=room.memory_bytes, describe=QueueCandidate.describe),
            "report_every_steps": steps_per_report(best.step_time_s),
        }
    )
    return Choice(plan=complete, words=chosen.describe())


def _fitting_main_memory(
    candidates: Sequence[QueueCandidate], *, look: Callable[[QueueCandidate], _Outlook], limit_bytes: int | None
) -> tuple[QueueCandidate, ...]:
    """Those of ``candidates`` that fit into ``limit_bytes`` (None: not known). Raises ``NoPlanFitsError`` for none."""
    needed = {candidate: look(candidate).memory.host_bytes for candidate in candidates}
    fitting = tuple(candidate for candidate in candidates if limit_bytes is None or needed[candidate] <= limit_bytes)
    if not fitting:
        nearest = min(candidates, key=needed.__getitem__)
        raise NoPlanFitsError(
            f"none of {len(candidates)} candidates fits into the {limit_bytes} bytes of main memory that a rank may"
            f" take. The nearest ({nearest.describe()}) needs {needed[nearest]} bytes beside what its GPU holds. Use"
            " fewer ranks per node, or nodes with more memory",
            limit_bytes=limit_bytes,
            nearest=nearest.describe(),
            needed_bytes=needed[nearest],
        )
    return fitting


def _overlap_reason(found: Found[QueueCandidate], room: RankRoom) -> str:
    entries = (found.best, *found.others)
    if not any(entry.candidate.pipelined for entry in entries):
        return explain.explain_no_overlap(room.num_cores)
    return explain.explain_overlap(
        serial_s=_fastest_s(found, pipelined=False),
        pipelined_s=_fastest_s(found, pipelined=True),
        pipelined=found.best.candidate.pipelined,
    )


def _fastest_s(found: Found[QueueCandidate], *, pipelined: bool) -> float | None:
    """The least step time among the priced candidates of one kind; None when none was priced."""
    times = [entry.price.step_time_s for entry in (found.best, *found.others) if entry.candidate.pipelined == pipelined]
    return min(times, default=None)
