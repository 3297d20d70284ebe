"""RaCoM: replicas step by themselves, within a lead, a drift and a period, and agree on weights beside the training.

    backward ─▶ join what is asked for ─▶ ask, if the period is over ─▶ step, if the drift allows ─▶ wait for others

A synchronisation has a number and is one collective on a communicator of its own: means of weights and moments,
weighted by the seeds since the last one. Who wants it says so on the board; each replica joins between backward and
update, gives what it has then, and goes on stepping until the mean is there (``workers.mqgnn.racom.weights`` takes it
in). Only one is ever under way, so all replicas start them in one order. There are three kinds, decided by the first
who asks:

    average   as above
    step      a step that is too large to be taken alone: weights and gradients of all, then the same update by all
    final     the mean that all wait for where they must hold equal weights (evaluation, checkpoint, end)

Whoever waits, for a mean, for the slowest or for a meeting, joins what others ask for meanwhile, so nobody waits for
one who waits. With the reference r of its version a replica holds ‖w − r‖ ≤ δ‖r‖ after every step of its own.

A replica may die: wherever one waits, and before every update, it looks whether another generation of members is due
(``workers.mqgnn.racom.membership``). What was on its way is then left, and the generation begins with a mean of what
its members hold, in which who is new or has come back counts nothing and so begins from their reference.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from planner.sync import SyncRule
from workers.comm.axis import Axis
from workers.mqgnn.exchange import OwnSteps
from workers.mqgnn.racom import rules
from workers.mqgnn.racom.board import Board, Line
from workers.mqgnn.racom.dealing import Dealing
from workers.mqgnn.racom.flight import Flight, Landed
from workers.mqgnn.racom.leeway import Leeway
from workers.mqgnn.racom.membership import Entry, Membership, Roster, eldest
from workers.mqgnn.racom.meters import RacomMeters
from workers.mqgnn.racom.pace import Pace, Since
from workers.mqgnn.racom.pushes import Pushes
from workers.mqgnn.racom.weights import ReplicaWeights

AVERAGE, STEP, FINAL = "average", "step", "final"
# Chosen: the newest step counts half, so that one slow step moves few seeds and a slow replica soon many.
_NEWEST_RATE = 0.5
_LOOK_S = 0.1  # chosen: how long a mean is waited for before others are looked at, should one of them be gone


@dataclass
class _Underway:
    """A mean on its way: what this replica gave, of which steps, and how many steps ago."""

    flight: Flight
    snapshot: list[Tensor]
    since: Since
    num_steps: int = 0


class Racom(OwnSteps):
    """The rule of one replica, at its place of ``roster``. ``optimizer`` trains ``model``; moments are part of a mean.

    ``began_at`` is the clock at which this replica was let in by others that were under way, None where all began.
    """

    def __init__(self, model: nn.Module, *, optimizer: torch.optim.Optimizer, rule: SyncRule, roster: Roster) -> None:
        super().__init__(model)
        self._rule, self._place = rule, roster.rank
        self._optimizer = optimizer
        self.weights = ReplicaWeights(model, optimizer=optimizer)
        self._pushes = Pushes(self.weights.gradients, axis=Axis()) if rule.push else None
        self._meters = RacomMeters()
        self.version = self.clock = 0
        self._agreed = 0  # the newest clock at which all held the same, and said so
        self._joined = 0  # the newest synchronisation that this replica gave to
        self._underway: _Underway | None = None
        self._since, self._has_moved = Since(), False
        self._leeway = Leeway(self.weights, drift=rule.drift)
        self._pace = Pace(rule)
        self._rate = 0.0
        self._begun: float | None = None
        self._is_new = True  # it has nothing that others should keep
        self._board = Board(roster.store, place=roster.rank, size=roster.size)
        self.members = Membership(
            self._board, roster=roster, device=self.weights.parameters[0].device, with_pushes=rule.push
        )
        self.shares = Dealing(self._board, members=lambda: self.members.ranks)
        try:
            self._regroup()
        except BaseException:
            self._board.close()
            raise
        self.began_at = None if self._is_new else self.clock

    def zero(self) -> None:
        """Clear the gradients. The work on a step begins where the one before it ended, else here."""
        self._begun = self._begun or time.perf_counter()
        super().zero()

    def combine(self, loss: Tensor) -> Tensor:
        """The share of each replica in the mean loss over a step's seeds: others' as of what they told last.

        Of one that has told nothing yet, as if its seeds were like this replica's.
        """
        own = float(loss)
        if self._num_seeds and self._begun:
            rate = self._num_seeds / (time.perf_counter() - self._begun)
            self._rate = _NEWEST_RATE * rate + (1 - _NEWEST_RATE) * (self._rate or rate)
            self._since.loss_sum += own * self._num_seeds
            self._since.loss_seeds += self._num_seeds
            self._board.post(loss=own, seeds_per_s=self._rate)
        told = [own if line.loss is None else line.loss for line in self._board.lines()]  # of who is gone, its last
        shares = self.shares(self.clock)
        return torch.tensor(told, dtype=torch.float64) * torch.tensor(shares) / sum(shares)

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the step, alone within the bounds or together with all others beyond them."""
        assert optimizer is self._optimizer, "a mean holds the moments of the optimiser that it was built with"
        self._is_new = False
        is_taken = self._attend(num_seeds=self._num_seeds, lets_in=True)
        if not is_taken and self._is_due():
            is_taken = self._join(self._ask(AVERAGE), num_seeds=self._num_seeds)
        if not is_taken and self._num_seeds:
            self._push_and_mix()
            self._step()
        self._count_step()
        with self._meters.waiting():
            while rules.must_wait(self.clock, self._clocks(), staleness=self._rule.staleness):
                self._attend(num_seeds=0)
                self._board.wait()
        self._begun = time.perf_counter()

    def meet(self) -> None:
        """Wait until all members have taken as many steps."""
        with self._meters.waiting():
            while min(self._clocks()) < self.clock:
                self._attend(num_seeds=0)
                self._board.wait()
        self._begun = None  # what comes now is no work on a step

    def agree(self) -> None:
        """Wait for all members, then hold the weights and moments that all hold. Collective."""
        with self._meters.waiting():
            while self._agreed < self.clock:
                self._settle()
                kind = self._asked_for() or (self._ask(FINAL) if min(self._clocks()) >= self.clock else "")
                if not kind or (kind == FINAL and not self._is_drained()):
                    self._board.wait()
                    continue
                number, generation = self._joined + 1, self.members.generation
                self._join(kind, num_seeds=0)
                self._settle()
                if kind == FINAL and (self.version, self.members.generation) == (number, generation):
                    self._agreed = self.clock
        self.weights.count_steps(self.clock)
        self._begun = None

    def told(self, key: str, make: Callable[[], Any]) -> Any:
        """What the senior member makes of ``key``, in JSON types; the others wait, and take its place if it dies."""
        while (said := self._board.decided(f"told/{key}")) is None:
            if self.members.is_over():
                self._regroup()
            elif self.members.is_first:
                self._board.decide(f"told/{key}", json.dumps(make()))
            else:
                with self._meters.waiting():
                    self._board.wait()
        self._begun = None
        return json.loads(said)

    def figures(self) -> dict[str, float]:
        """Drift, clocks, ages, bytes and period; see ``docs/api.md``."""
        clocks = self._clocks()
        values = self._meters.take() | {
            "clock_lead": float(self.clock - min(clocks)),
            "seeds_per_s": self._rate,
            "sync_version": float(self.version),
            "generation": float(self.members.generation),
            "members": float(len(self.members.ranks)),
            "sync_period": float(self._pace.period(learning_rate=self.weights.learning_rate())),
            "bytes_sent": float(self.bytes_sent),
        }
        if self._pushes is None:
            return values
        values["bytes_sent"] += self._pushes.bytes_sent
        return values | self._pushes.figures()

    def state_dict(self) -> dict[str, Any]:
        """The version, what the period follows from, and the rates of all replicas."""
        return {
            **self._pace.state_dict(),
            "version": self.version,
            "seeds_per_s": [line.seeds_per_s for line in self._board.lines()],
        }

    def load_state_dict(self, state: Mapping[str, Any], *, step: int) -> None:
        """Go on after ``step`` from the weights that are there now; rates hold for as many replicas as before."""
        self.clock = self._agreed = step
        self.version = self._joined = state.get("version", 0)
        self._pace.load_state_dict(state)
        rates = state.get("seeds_per_s", [])
        if len(rates) == self._board.size:
            self._rate = rates[self._place]
        self.weights.agree()
        self._leeway.begin()
        self._board.post(clock=step, wants=self._joined, seeds_per_s=self._rate)

    def close(self) -> None:
        """Leave the others, and stop reading the board."""
        self.members.leave(pending=[work for flight in self._drop() for work in flight.works])
        self._board.close()

    def _attend(self, *, num_seeds: int, lets_in: bool = False) -> bool:
        """Take in a mean that has come, and give to one that is asked for; True when that took the step, too."""
        if self._underway is not None and self._underway.flight.has_landed():
            self._settle()
        if self.members.is_over(lets_in=lets_in):
            self._regroup(lets_in=lets_in)
        kind = self._asked_for()
        if kind is None or kind == FINAL:  # the last is joined where all wait for it
            return False
        return self._join(kind, num_seeds=num_seeds)

    def _regroup(self, *, pending: Sequence[Flight] = (), lets_in: bool = False) -> None:
        """Into the newest generation, which begins with a mean of what its members hold.

        ``pending`` are flights of the present one that may never land. Newcomers are let in between steps alone: they
        begin with the next step, and would be missing where all meet after the last one.
        """
        left = [*pending, *self._drop()]
        with self._meters.waiting():
            while True:
                works = [work for flight in left for work in flight.works]
                entries = self.members.move(self._entry(), pending=works, lets_in=lets_in)
                if self._pushes is not None:
                    self._pushes.go_over(self.members.pushes)
                known = eldest(entries)
                if known is None:
                    return  # all begin together
                flight = Flight(
                    self.weights.everything,
                    weight=0 if self._is_new else max(1, self._since.num_seeds),
                    axis=self.members.means,
                )
                self.bytes_sent += flight.bytes_sent
                landed, left = self._wait_for(flight), [flight]
                if landed is not None:
                    break
        self._begin_with(landed, entries=entries, known=known)

    def _begin_with(self, landed: Landed, *, entries: tuple[Entry, ...], known: Entry) -> None:
        """All members hold the same now, and go on from where each of them is."""
        if self._is_new:
            self.clock = min(entry.clock for entry in entries if not entry.is_new)
        self.weights.take_in(landed.means, snapshot=None, num_steps=0)
        self.weights.count_steps(self.clock)
        self._pace.load_state_dict(known.pace)
        self._agreed = max(entry.agreed for entry in entries)
        self.version = self._joined = known.joined + 1
        self._since, self._has_moved, self._is_new = Since(), False, False
        self._leeway.begin()
        self._board.post(clock=self.clock, wants=self._joined, kind="", num_pushed=0)

    def _entry(self) -> Entry:
        return Entry(
            rank=self._place,
            is_new=self._is_new,
            clock=self.clock,
            agreed=self._agreed,
            joined=self._joined,
            pace=self._pace.state_dict(),
        )

    def _drop(self) -> list[Flight]:
        """Leave the mean that is on its way, which may never land; what was given to it is this replica's again."""
        underway, self._underway = self._underway, None
        if underway is None:
            return []
        self._since = underway.since + self._since
        return [underway.flight]

    def _wait_for(self, flight: Flight) -> Landed | None:
        """What becomes of ``flight``; None when this generation is over before it has landed."""
        while not flight.has_landed(within_s=_LOOK_S):
            if self.members.is_over():
                return None
        try:
            return flight.wait()
        except RuntimeError:  # a member is gone; who it is shows by its silence
            self.members.failed()
            while not self.members.is_over():
                self._board.wait()
            return None

    def _asked_for(self) -> str | None:
        """The kind of the next synchronisation, if somebody has given to it."""
        return next((line.kind for line in self._lines() if line.wants > self._joined), None)

    def _ask(self, kind: str) -> str:
        """Have the next synchronisation be of ``kind``; what it is, since another may have asked before."""
        return self._board.decide(f"sync/{self._joined + 1}", kind)

    def _join(self, kind: str, *, num_seeds: int) -> bool:
        """Give to the next synchronisation. True when this replica's gradient, of ``num_seeds`` seeds, was applied."""
        generation = self.members.generation
        with self._meters.waiting():
            self._settle()  # all have given to the one before, so it is about to come
        if self.members.generation != generation:
            return False  # it began with a mean
        self._joined += 1
        self._board.post(wants=self._joined, kind=kind)
        if kind == STEP:
            with self._meters.waiting():
                return self._step_together(num_seeds) and num_seeds > 0
        snapshot = [tensor.clone() for tensor in self.weights.everything]
        since = self._since
        self._underway = _Underway(self._give(), snapshot=snapshot, since=since)
        self._leeway.give()
        return False

    def _give(self) -> Flight:
        since, self._since = self._since, Since()
        if self._pushes is not None:
            self._pushes.forget()
        flight = Flight(
            self.weights.everything,
            weight=since.num_seeds,
            axis=self.members.means,
            sums=(since.loss_sum, since.loss_seeds),
            own=since.drift_over_bound,
        )
        self.bytes_sent += flight.bytes_sent
        return flight

    def _settle(self) -> None:
        """Wait for the mean that is on its way and take it in; or for a new generation, if this one is over."""
        if self._underway is None:
            if self.members.is_over():
                self._regroup()
            return
        landed = self._wait_for(self._underway.flight)
        if landed is None:
            self._regroup()
            return
        underway, self._underway = self._underway, None
        if landed.weight:  # else nobody has moved
            self.weights.take_in(
                landed.means, snapshot=underway.snapshot if underway.num_steps else None, num_steps=underway.num_steps
            )
            self._has_moved = underway.num_steps > 0
        self._leeway.look()
        self._saw_drift()
        self._conclude(landed)

    def _conclude(self, landed: Landed) -> None:
        """A new version holds."""
        self.version = self._joined
        loss_sum, loss_seeds = landed.sums
        self._pace.hear(loss_sum=loss_sum, loss_seeds=loss_seeds, drift_over_bound=max(landed.numbers))

    def _step_together(self, num_seeds: int) -> bool:
        """The mean of all weights, then one update by the mean of all gradients: the same bits everywhere.

        False when a new generation has come between.
        """
        since = self._since
        given = self._give()
        rate = self.weights.learning_rate()
        gradients = Flight(
            self.weights.gradients, weight=num_seeds, axis=self.members.means, sums=(rate * num_seeds,), own=self.clock
        )
        self.bytes_sent += gradients.bytes_sent
        landed, summed = self._wait_for(given), self._wait_for(gradients)
        if landed is None or summed is None:
            self._since = since
            self._regroup(pending=(given, gradients))
            return False
        if landed.weight:
            self.weights.take_in(landed.means, snapshot=None, num_steps=0)
        torch._foreach_copy_(self.weights.gradients, summed.means)
        self.weights.count_steps(int(max(summed.numbers)))
        self.weights.step_at(summed.sums[0] / summed.weight)
        self.weights.count_steps(self.clock + (num_seeds > 0))
        self.weights.agree()
        self._has_moved = False
        self._leeway.begin()
        self._conclude(landed)
        return True

    def _is_due(self) -> bool:
        if self._underway is not None or not self._since.num_seeds:
            return False
        return self._since.num_steps >= self._pace.period(learning_rate=self.weights.learning_rate())

    def _push_and_mix(self) -> None:
        if self._pushes is None:
            return
        try:
            arrived = self._pushes.fetch(self._lines())
            self._pushes.add(self._num_seeds)
            if self._pushes.start(clock=self.clock, version=self.version):
                self._board.post(num_pushed=self._pushes.num_pushed)
        except RuntimeError:  # a member is gone; the next time that this replica attends it looks who
            self.members.failed()
            return
        self._pushes.mix(
            arrived,
            clock=self.clock,
            version=self.version,
            num_seeds=self._num_seeds,
            staleness=self._rule.staleness,
        )

    def _is_drained(self) -> bool:
        """Whether no push is under way from or to this replica; what arrives here is dropped."""
        if self._pushes is None:
            return True
        lines = self._lines()
        try:
            self._pushes.fetch(lines)
            return self._pushes.is_drained(lines)
        except RuntimeError:
            self.members.failed()
            return False

    def _step(self) -> None:
        """The optimiser's step, if it stays within the drift; else after a mean, and if that is not enough, by all."""
        is_kept = self._leeway.may_be_left()
        while True:
            if is_kept:
                self.weights.keep()
            self._optimizer.step()
            given = None if self._underway is None else self._underway.snapshot
            if self._leeway.holds(given):
                break
            if not is_kept:
                self._leeway.shorten(given)
                self._meters.shortened()
                break
            self.weights.restore()
            if self._underway is None and self._join(
                self._ask(AVERAGE if self._has_moved else STEP), num_seeds=self._num_seeds
            ):
                return
            with self._meters.waiting():
                self._settle()
        self._has_moved = True
        self._since.num_seeds += self._num_seeds
        if self._underway is not None:
            self._underway.num_steps += 1
        self._saw_drift()

    def _saw_drift(self) -> None:
        drifted = self._leeway.drifted
        self._since.drift_over_bound = max(self._since.drift_over_bound, drifted)
        self._meters.saw_drift(drifted)

    def _count_step(self) -> None:
        self.clock += 1
        self._since.num_steps += 1
        self._board.post(clock=self.clock)
        self._meters.saw_lead(self.clock - min(self._clocks()))

    def _clocks(self) -> list[int]:
        return [line.clock for line in self._lines()]

    def _lines(self) -> list[Line]:
        """What the members say, in their order."""
        lines = self._board.lines()
        return [lines[rank] for rank in self.members.ranks]
