"""Plays the action lists of a plan against the costs of its stages: when every rank ends, and the most that it holds.

The order of play is ``planner.schedule.play_actions``; here it gets a clock. A rank waits for its cp group and for what
a neighbouring stage hands over; the update starts when the last rank of the stage is there.
"""

from collections import defaultdict
from dataclasses import dataclass

from planner.cost.step_time import PlanCosts, StageCosts, Terms
from planner.plan import Action, MegaGraphPlan
from planner.schedule import Handover, handed_over, hands_over, play_actions


@dataclass(frozen=True)
class Simulation:
    """One optimiser step as it was played.

    ``terms_s`` splits the time of the rank that works most; what is left to ``step_time_s`` is its waiting.
    ``memory_bytes`` are per rank, without any margin.
    """

    step_time_s: float
    memory_bytes: tuple[float, ...]
    terms_s: dict[str, float]


def simulate(plan: MegaGraphPlan, costs: PlanCosts) -> Simulation:
    """Play one optimiser step. Raises ``PlanInvalidError`` when the lists cannot run to their end."""
    meters = _Meters(plan, costs)
    for action, group in play_actions(plan):
        meters.run(action, group)
    for index in range(len(plan.stages)):
        meters.update(index)
    busy_s = tuple(sum(terms.values()) for terms in meters.terms_s)
    busiest = busy_s.index(max(busy_s))
    step_time_s = max(meters.clock_s)
    terms = dict(meters.terms_s[busiest])
    if step_time_s - busy_s[busiest] > 1e-9 * step_time_s:
        terms["waiting"] = step_time_s - busy_s[busiest]
    return Simulation(step_time_s=step_time_s, memory_bytes=tuple(meters.peak_bytes), terms_s=terms)


class _Meters:
    """Clock, live bytes, peak and terms of every rank."""

    def __init__(self, plan: MegaGraphPlan, costs: PlanCosts) -> None:
        self._plan = plan
        self._costs = costs
        self._ends_s: defaultdict[Handover, list[float]] = defaultdict(list)
        self._live_bytes = [0.0] * plan.world_size
        for stage, cost in zip(plan.stages, costs.stages, strict=True):
            for rank in stage.ranks:
                self._live_bytes[rank] = max(self._live_bytes[rank], cost.static_bytes)
        self.clock_s = [0.0] * plan.world_size
        self.peak_bytes = list(self._live_bytes)
        self.terms_s: list[defaultdict[str, float]] = [defaultdict(float) for _ in range(plan.world_size)]

    def run(self, action: Action, group: tuple[int, ...]) -> None:
        """The ranks of ``group`` run ``action`` together."""
        cost = self._costs.stages[action.stage]
        terms = cost.terms(action.kind)
        start_s = max(self._handed_over_s(action), *(self.clock_s[rank] for rank in group))
        end_s = start_s + sum(terms.values())
        if (made := hands_over(action)) is not None:
            self._ends_s[made].append(end_s)
        for rank in group:
            self._spend(rank, terms, end_s=end_s)
            self._hold(rank, action, cost)

    def update(self, index: int) -> None:
        """All ranks of a stage reduce their gradients and update together, then may write a checkpoint."""
        stage, cost = self._plan.stages[index], self._costs.stages[index]
        end_s = max(self.clock_s[rank] for rank in stage.ranks) + sum(cost.update.values())
        for rank in stage.ranks:
            self._spend(rank, cost.update, end_s=end_s)
            self.peak_bytes[rank] = max(self.peak_bytes[rank], self._live_bytes[rank] + cost.after_bytes)

    def _handed_over_s(self, action: Action) -> float:
        """When the neighbouring stage's result is here; 0 where none is needed."""
        source = handed_over(action, num_stages=len(self._plan.stages))
        if source is None:
            return 0.0
        return max(self._ends_s[source]) + self._costs.stages[source[0]].handover_s

    def _spend(self, rank: int, terms: Terms, *, end_s: float) -> None:
        self.clock_s[rank] = end_s
        for name, seconds in terms.items():
            self.terms_s[rank][name] += seconds

    def _hold(self, rank: int, action: Action, cost: StageCosts) -> None:
        """Count what is alive during the action, then what stays: W still needs all that F saved."""
        if action.kind == "F":
            self._live_bytes[rank] += cost.saved_bytes
        self.peak_bytes[rank] = max(self.peak_bytes[rank], self._live_bytes[rank] + cost.workspace_bytes)
        if action.kind in ("B", "W"):
            self._live_bytes[rank] -= cost.saved_bytes
