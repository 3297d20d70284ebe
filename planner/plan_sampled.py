"""The plan of a sampled GNN: overlap or threads, workers and queues, priced from the measured rates of the stages."""

from dataclasses import dataclass

from planner import explain, queues
from planner.cluster import RankRoom
from planner.plan import MQGNNPlan, Prediction, QueueBudget, steps_per_report
from planner.profiles import Profile, SampledShape
from planner.queues import QueueCandidate
from planner.search import Found, Price, find_best, list_runners_up

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
    memory_bytes: int

    @property
    def price(self) -> Price:
        return Price(step_time_s=self.step_time_s, memory_bytes=self.memory_bytes)


def plan_sampled(shape: SampledShape, *, profile: Profile, room: RankRoom, num_ranks: int) -> MQGNNPlan:
    """The fastest way to run ``num_ranks`` replicas that fits into ``room``. Raises ``NoPlanFitsError``."""
    sizes = batch_sizes_to_probe(shape, num_ranks=num_ranks)
    full, rates = (queues.read_rates(profile, batch_size=size) for size in (sizes[0], sizes[-1]))
    candidates = queues.list_queue_candidates(rates, num_cores=room.num_cores)
    budget_bytes = queues.queue_budget_bytes(room.memory_bytes)

    def look(candidate: QueueCandidate) -> _Outlook:
        step_time_s = queues.estimate_sampled_step_s(candidate, rates=rates, num_cores=room.num_cores)
        bounds = queues.size_queues(candidate, rates=full, step_time_s=step_time_s, budget_bytes=budget_bytes)
        memory_bytes = queues.estimate_sampled_memory_bytes(
            candidate, shape=shape, rates=full, queues=bounds, profile=profile
        )
        return _Outlook(step_time_s=step_time_s, queues=bounds, memory_bytes=memory_bytes)

    found = find_best(
        candidates,
        price=lambda candidate: look(candidate).price,
        memory_bound_bytes=lambda candidate: look(candidate).memory_bytes,
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
        explain.explain_overlap(
            serial_s=_fastest_s(found, pipelined=False),
            pipelined_s=_fastest_s(found, pipelined=True),
            pipelined=chosen.pipelined,
        ),
    )
    plan = queues.build_sampled_plan(chosen, shape=shape, num_ranks=num_ranks, queues=best.queues)
    return plan.model_copy(
        update={
            "predicted": Prediction(
                step_time_s=best.step_time_s,
                memory_bytes=(best.memory_bytes,) * num_ranks,
                terms_s=queues.sampled_terms_s(chosen, rates=rates),
            ),
            "reasons": reasons,
            "runners_up": list_runners_up(found, limit_bytes=room.memory_bytes, describe=QueueCandidate.describe),
            "report_every_steps": steps_per_report(best.step_time_s),
        }
    )


def _fastest_s(found: Found[QueueCandidate], *, pipelined: bool) -> float | None:
    """The least step time among the priced candidates of one kind; None when none was priced."""
    times = [entry.price.step_time_s for entry in (found.best, *found.others) if entry.candidate.pipelined == pipelined]
    return min(times, default=None)
