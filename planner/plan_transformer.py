"""The plan of a graph transformer: fit the profile, price every candidate by playing its schedule, take the best."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from planner import explain
from planner.cluster import RankRoom
from planner.cost.communication import exchange_of, ring_backward_elements, ring_forward_elements
from planner.cost.memory import with_margin
from planner.cost.shard_load import find_shard_load
from planner.cost.step_time import ELEMENT_BYTES, PlanCosts, estimate_costs
from planner.fitting import FittedProfile, fit_profile
from planner.plan import MegaGraphPlan, Prediction, steps_per_report
from planner.profiles import Profile, TransformerShape
from planner.schedule import check_actions
from planner.search import Choice, Price, find_best, list_runners_up
from planner.simulate import Simulation, simulate
from planner.space import Candidate, build_plan, list_candidates


@dataclass(frozen=True)
class _Outlook:
    """The plan of a candidate and how it played."""

    plan: MegaGraphPlan
    costs: PlanCosts
    simulation: Simulation

    @property
    def price(self) -> Price:
        return Price(step_time_s=self.simulation.step_time_s, memory_bytes=max(self.memory_bytes))

    @property
    def memory_bytes(self) -> tuple[int, ...]:
        return tuple(with_margin(size) for size in self.simulation.memory_bytes)


def plan_transformer(shape: TransformerShape, *, profile: Profile, room: RankRoom, num_ranks: int) -> Choice:
    """The fastest plan of ``num_ranks`` ranks that fits into ``room``. Raises ``NoPlanFitsError``."""
    fitted = fit_profile(profile)
    threads = _legal_threads(fitted, room)
    space = list_candidates(shape, num_ranks=num_ranks, thread_counts=threads)

    def price_plan(candidate: Candidate) -> tuple[MegaGraphPlan, PlanCosts]:
        plan = build_plan(candidate, shape=shape)
        return plan, estimate_costs(plan, shape=shape, fitted=fitted)

    def look(candidate: Candidate) -> _Outlook:
        plan, costs = price_plan(candidate)
        return _Outlook(plan=plan, costs=costs, simulation=simulate(plan, costs))

    def memory_bound_bytes(candidate: Candidate) -> int:
        return with_margin(max(stage.static_bytes for stage in price_plan(candidate)[1].stages))

    found = find_best(
        space.candidates,
        price=lambda candidate: look(candidate).price,
        memory_bound_bytes=memory_bound_bytes,
        limit_bytes=room.memory_bytes,
        describe=Candidate.describe,
    )
    chosen, best = found.best.candidate, look(found.best.candidate)
    check_actions(best.plan)
    reasons = (
        *space.reasons,
        explain.explain_choice(
            chosen.describe(), num_candidates=len(space.candidates), num_fitting=found.num_fitting(room.memory_bytes)
        ),
        explain.explain_memory(room.memory_bytes),
        explain.explain_threads(chosen.num_threads, num_cores=room.num_cores, tried=threads),
        _recompute_reason(chosen, look),
        *_ring_reason(shape, chosen.cp_degree),
        *_halo_reason(shape, chosen.cp_degree),
        *best.costs.guesses,
    )
    complete = best.plan.model_copy(
        update={
            "predicted": Prediction(
                step_time_s=best.simulation.step_time_s,
                memory_bytes=best.memory_bytes,
                terms_s=best.simulation.terms_s,
            ),
            "reasons": reasons,
            "runners_up": list_runners_up(found, limit_bytes=room.memory_bytes, describe=Candidate.describe),
            "report_every_steps": steps_per_report(best.simulation.step_time_s),
        }
    )
    return Choice(plan=complete, words=chosen.describe())


def _legal_threads(fitted: FittedProfile, room: RankRoom) -> tuple[int, ...]:
    """The measured thread counts that the cores of a rank can run; at least the smallest one."""
    most = max(1, int(room.num_cores))
    counts = fitted.thread_counts
    return tuple(count for count in counts if count <= most) or counts[:1]


def _recompute_reason(chosen: Candidate, look: Callable[[Candidate], _Outlook]) -> str:
    """What the other answer to recomputing would cost, all else equal."""
    kept = look(replace(chosen, recompute=False)).price
    recomputed = look(replace(chosen, recompute=True)).price
    return explain.explain_recompute(
        kept=(kept.step_time_s, kept.memory_bytes),
        recomputed=(recomputed.step_time_s, recomputed.memory_bytes),
        recompute=chosen.recompute,
    )


def _ring_reason(shape: TransformerShape, cp_degree: int) -> tuple[str, ...]:
    if cp_degree == 1 or exchange_of(shape) != "ring":
        return ()
    sizes = {"num_nodes": max(shape.graph_sizes), "hidden_size": shape.hidden_size, "cp_degree": cp_degree}
    element_bytes = ELEMENT_BYTES[shape.dtype]
    return (
        explain.explain_ring(
            forward_bytes=element_bytes * ring_forward_elements(**sizes),
            backward_bytes=element_bytes * ring_backward_elements(**sizes),
            cp_degree=cp_degree,
        ),
    )


def _halo_reason(shape: TransformerShape, cp_degree: int) -> tuple[str, ...]:
    if cp_degree == 1 or shape.traffic is None or not shape.traffic.halos:
        return ()
    halo_rows = find_shard_load(shape, cp_degree=cp_degree).halo_rows
    forward_bytes = halo_rows * sum(shape.traffic.halos) * ELEMENT_BYTES[shape.dtype]
    return (explain.explain_halo(forward_bytes=forward_bytes, halo_rows=halo_rows, cp_degree=cp_degree),)
