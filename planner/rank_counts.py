"""How many ranks: which numbers a probe should try, and which of the plans made for them is the best.

A job may leave the number open between two bounds. Every number needs a profile of its own (ranks that share a machine
slow each other down, and sums take longer among more of them), so few are tried.
"""

from collections.abc import Sequence

from planner.explain import explain_rank_count
from planner.plan import MegaGraphPlan, MQGNNPlan, RunnerUp
from planner.profiles import JobShape, SampledShape
from planner.search import Choice
from planner.space import legal_degrees

# Chosen: a probe takes some ten seconds per number, and step times change little between numbers that are near.
MOST_COUNTS = 4


def rank_counts_to_probe(shape: JobShape, *, fewest: int, most: int) -> tuple[int, ...]:
    """The numbers of ranks to measure, ascending: all legal ones of a narrow range, else spread evenly in ratio.

    The least and the greatest legal number are always among them. Where none is legal, ``most`` stands for all, so that
    whoever plans for it hears why.
    """
    legal = [count for count in range(fewest, most + 1) if _is_legal(shape, count)]
    if len(legal) <= MOST_COUNTS:
        return tuple(legal) or (most,)
    low, high = legal[0], legal[-1]
    wanted = [low * (high / low) ** (step / (MOST_COUNTS - 1)) for step in range(MOST_COUNTS)]
    return tuple(sorted({min(legal, key=lambda count: abs(count - ideal)) for ideal in wanted}))


def best_of(choices: Sequence[Choice], *, too_large: Sequence[int], most_ranks: int) -> MegaGraphPlan | MQGNNPlan:
    """The plan with the least step time, of equals the one with fewest ranks; the others become its runners-up.

    ``too_large`` are the numbers of ranks for which nothing fits.
    """
    ordered = sorted(choices, key=lambda choice: (_step_time_s(choice.plan), choice.plan.world_size))
    best, others = ordered[0].plan, ordered[1:]
    if not others and not too_large:
        return best
    reason = explain_rank_count(best, others=[other.plan for other in others], too_large=too_large, asked=most_ranks)
    runners_up = (*(_runner_up(other, best) for other in others), *best.runners_up)
    return best.model_copy(update={"reasons": (reason, *best.reasons), "runners_up": runners_up})


def _is_legal(shape: JobShape, num_ranks: int) -> bool:
    """Whether every rank has something to do: a seed of every full step, or a graph or rows of one."""
    if isinstance(shape, SampledShape):
        return num_ranks <= min(shape.batch_size, shape.num_train)
    return bool(legal_degrees(shape, num_ranks=num_ranks))


def _step_time_s(plan: MegaGraphPlan | MQGNNPlan) -> float:
    assert plan.predicted is not None, "the planner predicts every plan that it makes"
    return plan.predicted.step_time_s


def _runner_up(other: Choice, best: MegaGraphPlan | MQGNNPlan) -> RunnerUp:
    plan = other.plan
    assert plan.predicted is not None, "the planner predicts every plan that it makes"
    slower = plan.predicted.step_time_s / _step_time_s(best) - 1
    ranks = "1 rank" if plan.world_size == 1 else f"{plan.world_size} ranks"
    return RunnerUp(
        choice=f"{ranks}: {other.words}",
        step_time_s=plan.predicted.step_time_s,
        memory_bytes=max(plan.predicted.memory_bytes),
        lacks=f"is {100 * slower:.0f} % slower" if slower >= 0.005 else "is as fast, and takes more ranks",
    )
