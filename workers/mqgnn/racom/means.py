"""The means that a replica gives to and takes in, one after the other, and the generations that begin with one.

A synchronisation has a number and is one collective: means of weights and moments, weighted by the seeds since the last
one. Each member gives what it has when it comes by, and takes the mean in when it is there
(``workers.mqgnn.racom.weights``). Only one is ever under way, so all members start them in one order. There are three
kinds, decided by the first who asks:

    average   as above
    step      a step that is too large to be taken alone: weights and gradients of all, then the same update by all
    final     the mean that all wait for where they must hold equal weights (evaluation, checkpoint, end)

Where another generation of members is due (``workers.mqgnn.racom.membership``), what was on its way is left, and the
generation begins with a mean of what its members hold, in which who is new or has come back counts nothing and so
begins from their reference.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from planner.sync import SyncRule
from workers.mqgnn.racom.board import Board
from workers.mqgnn.racom.flight import Flight, Landed
from workers.mqgnn.racom.leeway import Leeway
from workers.mqgnn.racom.membership import Entry, Membership, eldest
from workers.mqgnn.racom.meters import RacomMeters
from workers.mqgnn.racom.pace import Pace, Since
from workers.mqgnn.racom.pushes import Pushes
from workers.mqgnn.racom.weights import ReplicaWeights

AVERAGE, STEP, FINAL = "average", "step", "final"
_LOOK_S = 0.1  # chosen: how long a mean is waited for before others are looked at, should one of them be gone


@dataclass
class _Underway:
    """A mean on its way: what this replica gave, of which steps, and how many steps ago."""

    flight: Flight
    snapshot: list[Tensor]
    since: Since
    num_steps: int = 0


class Means:
    """Those of ``weights`` over ``members``. What a mean takes along is dropped from ``pushes``.

    ``clock`` counts this replica's steps, ``version`` the means that it has taken in, ``joined`` those that it gave to;
    ``agreed`` is the newest clock at which all held the same, and said so; ``since`` is what it has done since it gave.
    """

    def __init__(
        self,
        weights: ReplicaWeights,
        *,
        rule: SyncRule,
        board: Board,
        members: Membership,
        pushes: Pushes | None,
        meters: RacomMeters,
    ) -> None:
        self.weights, self.members = weights, members
        self._board, self._pushes, self._meters = board, pushes, meters
        self.version = self.clock = self.agreed = self.joined = self.bytes_sent = 0
        self.underway: _Underway | None = None
        self.since, self.has_moved = Since(), False
        self.leeway = Leeway(weights, drift=rule.drift)
        self.pace = Pace(rule)
        self.is_new = True  # it has nothing that others should keep

    def go_on(self, *, clock: int, version: int) -> None:
        """From the weights that are there now, which all hold, after ``clock`` steps."""
        self.clock = self.agreed = clock
        self.version = self.joined = version
        self.weights.agree()
        self.leeway.begin()

    @property
    def given(self) -> list[Tensor] | None:
        """What was given to the mean that is on its way, if one is."""
        return None if self.underway is None else self.underway.snapshot

    def is_due(self) -> bool:
        """Whether the period is over, so that a mean should be asked for."""
        if self.underway is not None or not self.since.num_seeds:
            return False
        return self.since.num_steps >= self.pace.period(learning_rate=self.weights.learning_rate())

    def saw_step(self, num_seeds: int) -> None:
        """The weights have moved by a step of this replica's own."""
        self.has_moved = True
        self.since.num_seeds += num_seeds
        if self.underway is not None:
            self.underway.num_steps += 1
        self._saw_drift()

    def count_step(self) -> None:
        """A step is over, whoever took it."""
        self.clock += 1
        self.since.num_steps += 1
        self._board.post(clock=self.clock)

    def join_and_settle(self, kind: str) -> None:
        """Give to a mean of ``kind`` and wait for it; the last one, come in this generation, is what all agree on."""
        number, generation = self.joined + 1, self.members.generation
        self.join(kind, num_seeds=0)
        self.settle()
        if kind == FINAL and (self.version, self.members.generation) == (number, generation):
            self.agreed = self.clock

    def attend(self, *, num_seeds: int, lets_in: bool = False) -> bool:
        """Take in a mean that has come, and give to one that is asked for; True when that took the step, too."""
        if self.underway is not None and self.underway.flight.has_landed():
            self.settle()
        if self.members.is_over(lets_in=lets_in):
            self.regroup(lets_in=lets_in)
        kind = self.asked_for()
        if kind is None or kind == FINAL:  # the last is joined where all wait for it
            return False
        return self.join(kind, num_seeds=num_seeds)

    def regroup(self, *, pending: Sequence[Flight] = (), lets_in: bool = False) -> None:
        """Into the newest generation, which begins with a mean of what its members hold.

        ``pending`` are flights of the present one that may never land. Newcomers are let in between steps alone: they
        begin with the next step, and would be missing where all meet after the last one.
        """
        left = [*pending, *self.drop()]
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
                    weight=0 if self.is_new else max(1, self.since.num_seeds),
                    axis=self.members.means,
                )
                self.bytes_sent += flight.bytes_sent
                landed, left = self._wait_for(flight), [flight]
                if landed is not None:
                    break
        self._begin_with(landed, entries=entries, known=known)

    def _begin_with(self, landed: Landed, *, entries: tuple[Entry, ...], known: Entry) -> None:
        """All members hold the same now, and go on from where each of them is."""
        if self.is_new:
            self.clock = min(entry.clock for entry in entries if not entry.is_new)
        self.weights.take_in(landed.means, snapshot=None, num_steps=0)
        self.weights.count_steps(self.clock)
        self.pace.load_state_dict(known.pace)
        self.agreed = max(entry.agreed for entry in entries)
        self.version = self.joined = known.joined + 1
        self.since, self.has_moved, self.is_new = Since(), False, False
        self.leeway.begin()
        self._board.post(clock=self.clock, wants=self.joined, kind="", num_pushed=0)

    def _entry(self) -> Entry:
        return Entry(
            rank=self._board.place,
            is_new=self.is_new,
            clock=self.clock,
            agreed=self.agreed,
            joined=self.joined,
            pace=self.pace.state_dict(),
        )

    def drop(self) -> list[Flight]:
        """Leave the mean that is on its way, which may never land; what was given to it is this replica's again."""
        underway, self.underway = self.underway, None
        if underway is None:
            return []
        self.since = underway.since + self.since
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

    def asked_for(self) -> str | None:
        """The kind of the next synchronisation, if somebody has given to it."""
        return next((line.kind for line in self.members.lines() if line.wants > self.joined), None)

    def ask(self, kind: str) -> str:
        """Have the next synchronisation be of ``kind``; what it is, since another may have asked before."""
        return self._board.decide(f"sync/{self.joined + 1}", kind)

    def join(self, kind: str, *, num_seeds: int) -> bool:
        """Give to the next synchronisation. True when this replica's gradient, of ``num_seeds`` seeds, was applied."""
        generation = self.members.generation
        with self._meters.waiting():
            self.settle()  # all have given to the one before, so it is about to come
        if self.members.generation != generation:
            return False  # it began with a mean
        self.joined += 1
        self._board.post(wants=self.joined, kind=kind)
        if kind == STEP:
            with self._meters.waiting():
                return self._step_together(num_seeds) and num_seeds > 0
        snapshot = [tensor.clone() for tensor in self.weights.everything]
        since = self.since
        self.underway = _Underway(self._give(), snapshot=snapshot, since=since)
        self.leeway.give()
        return False

    def _give(self) -> Flight:
        since, self.since = self.since, Since()
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

    def settle(self) -> None:
        """Wait for the mean that is on its way and take it in; or for a new generation, if this one is over."""
        if self.underway is None:
            if self.members.is_over():
                self.regroup()
            return
        landed = self._wait_for(self.underway.flight)
        if landed is None:
            self.regroup()
            return
        underway, self.underway = self.underway, None
        if landed.weight:  # else nobody has moved
            self.weights.take_in(
                landed.means, snapshot=underway.snapshot if underway.num_steps else None, num_steps=underway.num_steps
            )
            self.has_moved = underway.num_steps > 0
        self.leeway.look()
        self._saw_drift()
        self._conclude(landed)

    def _conclude(self, landed: Landed) -> None:
        """A new version holds."""
        self.version = self.joined
        loss_sum, loss_seeds = landed.sums
        self.pace.hear(loss_sum=loss_sum, loss_seeds=loss_seeds, drift_over_bound=max(landed.numbers))

    def _step_together(self, num_seeds: int) -> bool:
        """The mean of all weights, then one update by the mean of all gradients: the same bits everywhere.

        False when a new generation has come between.
        """
        since = self.since
        given = self._give()
        rate = self.weights.learning_rate()
        gradients = Flight(
            self.weights.gradients, weight=num_seeds, axis=self.members.means, sums=(rate * num_seeds,), own=self.clock
        )
        self.bytes_sent += gradients.bytes_sent
        landed, summed = self._wait_for(given), self._wait_for(gradients)
        if landed is None or summed is None:
            self.since = since
            self.regroup(pending=(given, gradients))
            return False
        if landed.weight:
            self.weights.take_in(landed.means, snapshot=None, num_steps=0)
        torch._foreach_copy_(self.weights.gradients, summed.means)
        self.weights.count_steps(int(max(summed.numbers)))
        self.weights.step_at(summed.sums[0] / summed.weight)
        self.weights.count_steps(self.clock + (num_seeds > 0))
        self.weights.agree()
        self.has_moved = False
        self.leeway.begin()
        self._conclude(landed)
        return True

    def _saw_drift(self) -> None:
        drifted = self.leeway.drifted
        self.since.drift_over_bound = max(self.since.drift_over_bound, drifted)
        self._meters.saw_drift(drifted)
