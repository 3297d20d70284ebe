"""Pipeline schedules as action lists, and the proof that lists can run to their end.

A schedule is written per group of ranks (a group serves one stage, or several where stages are interleaved) and given
to every rank of the group. ``check_actions`` plays the lists of a plan with queues in place of links: it is used when a
plan is made and once more before it runs, because a plan may also be written by hand.

S stages, M micro-batches. With equal stages of F, B = I + W seconds the ranks wait, per step,

    gpipe, one_f_one_b    (S - 1)(F + B)
    interleaved           (P - 1)(F + B)     of P groups; F and B of one of their V stages, 1/V of the group's work
    zero_bubble           (S - 1)(F + I - W)
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Literal

from planner.errors import PlanInvalidError
from planner.plan import Action, ActionKind, MegaGraphPlan, Stage

StageActions = tuple[tuple[Action, ...], ...]


def gpipe_actions(*, num_stages: int, num_micro_batches: int) -> StageActions:
    """All forwards, then all backwards (GPipe, Huang et al., NeurIPS 2019, section 2.3). One list per stage."""
    micro_batches = range(num_micro_batches)
    return tuple(
        tuple(Action(stage, "F", m) for m in micro_batches) + tuple(Action(stage, "B", m) for m in micro_batches)
        for stage in range(num_stages)
    )


def one_f_one_b_actions(*, num_stages: int, num_micro_batches: int) -> StageActions:
    """One forward, one backward in turn, after a warm-up of forwards. One list per stage.

    PipeDream-Flush (Narayanan et al., ICML 2021, section 2.2): stage s of S warms up with S − s − 1 forwards and holds
    at most S − s micro-batches.
    """
    lists = []
    for stage in range(num_stages):
        warm_up = min(num_stages - stage - 1, num_micro_batches)
        actions = [Action(stage, "F", m) for m in range(warm_up)]
        for m in range(num_micro_batches):
            if warm_up + m < num_micro_batches:
                actions.append(Action(stage, "F", warm_up + m))
            actions.append(Action(stage, "B", m))
        lists.append(tuple(actions))
    return tuple(lists)


def interleaved_actions(*, num_groups: int, stages_per_group: int, num_micro_batches: int) -> StageActions:
    """1F1B with several stages per group: stage v * P + p is stage v of group p. One list per group.

    Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters", SC 2021, section 2.2. A group
    takes P micro-batches through one of its stages, then through the next. The paper wants M to be a multiple of P; any
    other M is played as the next multiple with the surplus micro-batches struck out, which no other one waits for.
    """
    rounds = -(-num_micro_batches // num_groups)
    total = rounds * num_groups * stages_per_group
    lists = []
    for group in range(num_groups):
        forward = [
            Action(chunk * num_groups + group, "F", first * num_groups + m)
            for first in range(rounds)
            for chunk in range(stages_per_group)
            for m in range(num_groups)
        ]
        first_and_last = (stages_per_group - 1) * num_groups + 2 * group  # backward takes the stages in reverse
        backward = [Action(first_and_last - action.stage, "B", action.micro_batch) for action in forward]
        following = num_groups - group - 1
        warm_up = min(total, 2 * following + (stages_per_group - 1) * num_groups if stages_per_group > 1 else following)
        actions = forward[:warm_up]
        for position in range(total):
            actions += forward[warm_up + position : warm_up + position + 1]
            actions.append(backward[position])
        lists.append(tuple(action for action in actions if action.micro_batch < num_micro_batches))
    return tuple(lists)


def zero_bubble_actions(*, num_stages: int, num_micro_batches: int) -> StageActions:
    """1F1B whose weight gradients fill the waits at the end. One list per stage.

    ZB-H1 (Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 2): stage s puts W off by s micro-batches,
    so every stage holds S of them, as many as the first one does in 1F1B.
    """
    lists = []
    for stage, plain in enumerate(one_f_one_b_actions(num_stages=num_stages, num_micro_batches=num_micro_batches)):
        actions = []
        for action in plain:
            actions.append(action if action.kind == "F" else action._replace(kind="I"))
            if action.kind == "B" and action.micro_batch >= stage:
                actions.append(Action(stage, "W", action.micro_batch - stage))
        late = range(max(0, num_micro_batches - stage), num_micro_batches)
        lists.append((*actions, *(Action(stage, "W", m) for m in late)))
    return tuple(lists)


def actions_by_rank(stages: Sequence[Stage], actions: StageActions) -> tuple[tuple[Action, ...], ...]:
    """Give every rank the list of its group; groups come in the order in which ``stages`` first name them."""
    groups = tuple(dict.fromkeys(stage.ranks for stage in stages))
    owner = {rank: index for index, ranks in enumerate(groups) for rank in ranks}
    return tuple(actions[owner[rank]] for rank in range(len(owner)))


def check_actions(plan: MegaGraphPlan) -> None:
    """Prove that every rank's list runs to its end.

    Laws: a rank runs F, then either B or I and W, exactly once per micro-batch for each of its stages; what a stage
    sends arrives in the order in which its neighbour takes it (links are first in, first out); the ranks of one cp
    group run the same action together, and so do all ranks of a stage with sharded units. Raises ``PlanInvalidError``
    that says who waits on whom.
    """
    stages_of: defaultdict[int, list[int]] = defaultdict(list)
    for index, stage in enumerate(plan.stages):
        for rank in stage.ranks:
            stages_of[rank].append(index)
    for rank, actions in enumerate(plan.actions):
        _check_complete(rank, actions, stages=stages_of[rank], num_micro_batches=plan.num_micro_batches)
    for index, stage in enumerate(plan.stages):
        if sharded := sorted(set(stage.units) & set(plan.sharded)):
            check_in_step(plan, stage=index, why=f"gather and sum {sharded}, which are sharded,")
    for _ in play_actions(plan):
        pass


def check_in_step(plan: MegaGraphPlan, *, stage: int, why: str) -> None:
    """Hold the ranks of ``stage`` to one list: they ``why`` together, so each waits for all. ``PlanInvalidError``."""
    first, *others = plan.stages[stage].ranks
    for other in others:
        lists = plan.actions[first], plan.actions[other]
        if lists[0] != lists[1]:
            one, two = next((pair for pair in zip(*lists, strict=False) if pair[0] != pair[1]), (None, None))
            where = f": {describe_action(one)} and {describe_action(two)}" if one and two else " in their lengths"
            raise PlanInvalidError(
                f"the ranks of stage {stage} {why} together, so all of them run the same list; those of ranks {first}"
                f" and {other} differ{where}"
            )


def _check_complete(rank: int, actions: Sequence[Action], *, stages: Sequence[int], num_micro_batches: int) -> None:
    pairs = [(stage, m) for stage in stages for m in range(num_micro_batches)]
    split = {(action.stage, action.micro_batch) for action in actions if action.kind in ("I", "W")}
    orders: dict[tuple[int, int], tuple[ActionKind, ...]]
    orders = {pair: ("F", "I", "W") if pair in split else ("F", "B") for pair in pairs}
    wanted = {Action(stage, kind, m) for (stage, m), kinds in orders.items() for kind in kinds}
    counts = Counter(actions)
    if extra := sorted(set(counts) - wanted):
        also = " beside I and W" if (extra[0].stage, extra[0].micro_batch) in split and extra[0].kind == "B" else ""
        raise PlanInvalidError(
            f"rank {rank} serves stages {list(stages)} and {num_micro_batches} micro-batches; it cannot run"
            f" {describe_action(extra[0])}{also}"
        )
    if missing := sorted(wanted - set(counts)):
        raise PlanInvalidError(f"rank {rank} never runs {describe_action(missing[0])}")
    if repeated := sorted(action for action, count in counts.items() if count > 1):
        raise PlanInvalidError(f"rank {rank} runs {describe_action(repeated[0])} {counts[repeated[0]]} times")
    place = {action: position for position, action in enumerate(actions)}
    for action in actions:
        kinds = orders[action.stage, action.micro_batch]
        for kind in kinds[: kinds.index(action.kind)]:
            earlier = action._replace(kind=kind)
            if place[earlier] > place[action]:
                raise PlanInvalidError(f"rank {rank} runs {describe_action(action)} before {describe_action(earlier)}")


def describe_action(action: Action) -> str:
    """An action in words, as error messages print it."""
    return f"{action.kind} of micro-batch {action.micro_batch} on stage {action.stage}"


def play_actions(plan: MegaGraphPlan) -> Iterator[tuple[Action, tuple[int, ...]]]:
    """Run the lists with queues in place of links: (action, the cp group that runs it), in an order that works.

    Raises ``PlanInvalidError`` at the point where no rank can move although some have not ended.
    """
    play = _Play(plan)
    moved = True
    while moved:
        moved = False
        for rank in range(plan.world_size):
            while (step := play.advance(rank)) is not None:
                moved = True
                yield step
    play.check_ended()


Direction = Literal["forward", "backward"]
Handover = tuple[int, Direction, int]  # what a stage hands on: (the stage that makes it, which way, micro-batch)


def handed_over(action: Action, *, num_stages: int) -> Handover | None:
    """What ``action`` waits for: an output of the stage before, or a gradient of the stage after; None for neither."""
    if action.kind == "F" and action.stage > 0:
        return action.stage - 1, "forward", action.micro_batch
    if action.kind in ("B", "I") and action.stage < num_stages - 1:
        return action.stage + 1, "backward", action.micro_batch
    return None


def hands_over(action: Action) -> Handover | None:
    """What ``action`` makes for a neighbour; None for W, which makes nothing that travels."""
    if action.kind == "W":
        return None
    return action.stage, "forward" if action.kind == "F" else "backward", action.micro_batch


class _Play:
    """Where every rank is in its list, and what is on the links.

    A stage hands on a micro-batch when all its ranks have done it: a neighbour of another width may need rows of any.
    """

    def __init__(self, plan: MegaGraphPlan) -> None:
        self._plan = plan
        self._groups = {
            (index, rank): group
            for index, stage in enumerate(plan.stages)
            for group in stage.cp_groups
            for rank in group
        }
        self._next = [0] * plan.world_size
        self._done: defaultdict[Handover, set[int]] = defaultdict(set)
        # (receiver, stage that sends, which way) → micro-batches
        self._arrived: defaultdict[tuple[int, int, Direction], deque[int]] = defaultdict(deque)

    def advance(self, rank: int) -> tuple[Action, tuple[int, ...]] | None:
        """Run the next action of ``rank`` with its whole cp group; None when one of them cannot or all is done."""
        action = self._head(rank)
        if action is None or self._blocked(rank) is not None:
            return None
        group = self._groups[action.stage, rank]
        for peer in group:
            if (source := self._source(action)) is not None:
                self._arrived[peer, *source[:2]].popleft()
            self._next[peer] += 1
        self._hand_on(action, group)
        return action, group

    def check_ended(self) -> None:
        """Raise ``PlanInvalidError`` with one line per rank that is stuck."""
        ranks = range(self._plan.world_size)
        stuck = {str(rank): reason for rank in ranks if (reason := self._blocked(rank)) is not None}
        if stuck:
            lines = "; ".join(f"rank {rank} {reason}" for rank, reason in stuck.items())
            raise PlanInvalidError(f"the action lists never end: {lines}", waiting=stuck)

    def _head(self, rank: int) -> Action | None:
        actions = self._plan.actions[rank]
        return actions[self._next[rank]] if self._next[rank] < len(actions) else None

    def _hand_on(self, action: Action, group: tuple[int, ...]) -> None:
        made = hands_over(action)
        if made is None:
            return
        self._done[made].update(group)
        target = action.stage + (1 if made[1] == "forward" else -1)
        whole = len(self._done[made]) == len(self._plan.stages[action.stage].ranks)
        if whole and 0 <= target < len(self._plan.stages):
            for receiver in self._plan.stages[target].ranks:
                self._arrived[receiver, *made[:2]].append(action.micro_batch)

    def _source(self, action: Action) -> Handover | None:
        return handed_over(action, num_stages=len(self._plan.stages))

    def _blocked(self, rank: int) -> str | None:
        """Why the head of ``rank`` cannot run now; None when it can or when the list is at its end."""
        action = self._head(rank)
        if action is None:
            return None
        for peer in self._groups[action.stage, rank]:
            if self._head(peer) != action:
                other = self._head(peer)
                where = f"is at {describe_action(other)}" if other else "has ended"
                return f"waits at {describe_action(action)} for rank {peer} of its cp group, which {where}"
            if (reason := self._link_blocks(peer, action)) is not None:
                return reason if peer == rank else f"waits for rank {peer} of its cp group, which {reason}"
        return None

    def _link_blocks(self, rank: int, action: Action) -> str | None:
        source = self._source(action)
        if source is None:
            return None
        stage, direction, _ = source
        arrived = self._arrived[rank, stage, direction]
        if not arrived:
            late = sorted(set(self._plan.stages[stage].ranks) - self._done[source])
            return f"waits at {describe_action(action)} for stage {stage} (ranks {late})"
        if arrived[0] != action.micro_batch:
            return f"waits at {describe_action(action)}, but stage {stage} sends micro-batch {arrived[0]} first"
        return None
