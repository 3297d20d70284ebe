"""Pipeline schedules as action lists, and the proof that lists can run to their end.

A schedule is written per stage and given to every rank of the stage. ``check_actions`` plays the lists of a plan with
queues in place of links: it is used when a plan is made and once more before it runs, because a plan may also be
written by hand.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence

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


def actions_by_rank(stages: Sequence[Stage], actions: StageActions) -> tuple[tuple[Action, ...], ...]:
    """Give every rank the list of its stage; a rank serves one stage."""
    owner = {rank: index for index, stage in enumerate(stages) for rank in stage.ranks}
    return tuple(actions[owner[rank]] for rank in range(len(owner)))


def check_actions(plan: MegaGraphPlan) -> None:
    """Prove that every rank's list runs to its end.

    Laws: a rank runs F and B exactly once per micro-batch for each of its stages, B after F; what a stage sends
    arrives in the order in which its neighbour takes it (links are first in, first out); the ranks of one cp group run
    the same action together. Raises ``PlanInvalidError`` that says who waits on whom.
    """
    stages_of: defaultdict[int, list[int]] = defaultdict(list)
    for index, stage in enumerate(plan.stages):
        for rank in stage.ranks:
            stages_of[rank].append(index)
    for rank, actions in enumerate(plan.actions):
        _check_complete(rank, actions, stages=stages_of[rank], num_micro_batches=plan.num_micro_batches)
    for _ in play_actions(plan):
        pass


def _check_complete(rank: int, actions: Sequence[Action], *, stages: Sequence[int], num_micro_batches: int) -> None:
    kinds: tuple[ActionKind, ...] = ("F", "B")
    wanted = {Action(stage, kind, m) for stage in stages for kind in kinds for m in range(num_micro_batches)}
    counts = Counter(actions)
    if extra := sorted(set(counts) - wanted):
        raise PlanInvalidError(
            f"rank {rank} serves stages {list(stages)} and {num_micro_batches} micro-batches; it cannot run"
            f" {describe_action(extra[0])}"
        )
    if missing := sorted(wanted - set(counts)):
        raise PlanInvalidError(f"rank {rank} never runs {describe_action(missing[0])}")
    if repeated := sorted(action for action, count in counts.items() if count > 1):
        raise PlanInvalidError(f"rank {rank} runs {describe_action(repeated[0])} {counts[repeated[0]]} times")
    place = {action: position for position, action in enumerate(actions)}
    for action in actions:
        forward = action._replace(kind="F")
        if place[forward] > place[action]:
            raise PlanInvalidError(f"rank {rank} runs {describe_action(action)} before {describe_action(forward)}")


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
        self._done: defaultdict[Action, set[int]] = defaultdict(set)
        self._arrived: dict[tuple[int, int, str], deque[int]] = {
            (rank, index, kind): deque()
            for index, stage in enumerate(plan.stages)
            for rank in stage.ranks
            for kind in ("F", "B")
        }

    def advance(self, rank: int) -> tuple[Action, tuple[int, ...]] | None:
        """Run the next action of ``rank`` with its whole cp group; None when one of them cannot or all is done."""
        action = self._head(rank)
        if action is None or self._blocked(rank) is not None:
            return None
        group = self._groups[action.stage, rank]
        for peer in group:
            if self._receives(action):
                self._arrived[peer, action.stage, action.kind].popleft()
            self._next[peer] += 1
            self._done[action].add(peer)
        self._hand_on(action)
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

    def _hand_on(self, action: Action) -> None:
        target = action.stage + (1 if action.kind == "F" else -1)
        whole = len(self._done[action]) == len(self._plan.stages[action.stage].ranks)
        if whole and 0 <= target < len(self._plan.stages):
            for receiver in self._plan.stages[target].ranks:
                self._arrived[receiver, target, action.kind].append(action.micro_batch)

    def _receives(self, action: Action) -> bool:
        return action.stage > 0 if action.kind == "F" else action.stage < len(self._plan.stages) - 1

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
            if self._receives(action):
                reason = self._link_blocks(peer, action)
                if reason is not None:
                    return reason if peer == rank else f"waits for rank {peer} of its cp group, which {reason}"
        return None

    def _link_blocks(self, rank: int, action: Action) -> str | None:
        source = action.stage + (-1 if action.kind == "F" else 1)
        arrived = self._arrived[rank, action.stage, action.kind]
        if not arrived:
            late = sorted(set(self._plan.stages[source].ranks) - self._done[action._replace(stage=source)])
            return f"waits at {describe_action(action)} for stage {source} (ranks {late})"
        if arrived[0] != action.micro_batch:
            return f"waits at {describe_action(action)}, but stage {source} sends micro-batch {arrived[0]} first"
        return None
