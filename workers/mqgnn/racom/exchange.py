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
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from planner.sync import SyncRule
from workers.comm.axis import Axis
from workers.mqgnn.exchange import OwnSteps
from workers.mqgnn.racom import rules
from workers.mqgnn.racom.board import Board
from workers.mqgnn.racom.dealing import Dealing
from workers.mqgnn.racom.flight import Flight, Landed
from workers.mqgnn.racom.meters import RacomMeters
from workers.mqgnn.racom.pace import Pace, Since
from workers.mqgnn.racom.pushes import Pushes
from workers.mqgnn.racom.weights import ReplicaWeights, distance

AVERAGE, STEP, FINAL = "average", "step", "final"
# Chosen: the newest step counts half, so that one slow step moves few seeds and a slow replica soon many.
_NEWEST_RATE = 0.5


@dataclass
class _Underway:
    """A mean on its way: what this replica gave, and how many steps ago."""

    flight: Flight
    snapshot: list[Tensor]
    num_steps: int = 0


class Racom(OwnSteps):
    """The rule of one replica. ``optimizer`` trains ``model``; its moments are part of every mean.

    ``means`` and ``pushes`` are lines of all replicas with groups of their own, made for this exchange and closed by
    the caller; the board lies in the store of the first.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        optimizer: torch.optim.Optimizer,
        rule: SyncRule,
        means: Axis,
        pushes: Axis,
    ) -> None:
        assert means.group is not None, "a replica alone agrees with itself"
        super().__init__(model)
        self._rule, self._means, self._place = rule, means, means.index
        self._optimizer = optimizer
        self.weights = ReplicaWeights(model, optimizer=optimizer)
        self._pushes = Pushes(self.weights.gradients, axis=pushes) if rule.push else None
        self._board = Board(means.group.get_group_store(), place=means.index, size=means.size)
        self.shares = Dealing(self._board)
        self._meters = RacomMeters()
        self.version = self.clock = 0
        self._joined = 0  # the newest synchronisation that this replica gave to
        self._underway: _Underway | None = None
        self._since, self._has_moved = Since(), False
        self._pace = Pace(rule)
        self._rate = 0.0
        self._begun: float | None = None

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
        told = [own if line.loss is None else line.loss for line in self._board.lines()]
        shares = self.shares(self.clock)
        return torch.tensor(told, dtype=torch.float64) * torch.tensor(shares) / sum(shares)

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the step, alone within the bounds or together with all others beyond them."""
        assert optimizer is self._optimizer, "a mean holds the moments of the optimiser that it was built with"
        is_taken = self._attend(num_seeds=self._num_seeds)
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
        """Wait until all replicas have taken as many steps."""
        with self._meters.waiting():
            while min(self._clocks()) < self.clock:
                self._attend(num_seeds=0)
                self._board.wait()
        self._begun = None  # what comes now is no work on a step

    def agree(self) -> None:
        """Wait for all, then hold the weights and moments that all hold. Collective."""
        with self._meters.waiting():
            kind = ""
            while kind != FINAL:
                self._land(wait=True)
                kind = self._asked_for() or (self._ask(FINAL) if min(self._clocks()) >= self.clock else "")
                if not kind or (kind == FINAL and not self._is_drained()):
                    kind = ""
                    self._board.wait()
                    continue
                self._join(kind, num_seeds=0)
            self._land(wait=True)
        self.weights.count_steps(self.clock)
        self._begun = None

    def figures(self) -> dict[str, float]:
        """Drift, clocks, ages, bytes and period; see ``docs/api.md``."""
        clocks = self._clocks()
        values = self._meters.take() | {
            "clock_lead": float(self.clock - min(clocks)),
            "seeds_per_s": self._rate,
            "sync_version": float(self.version),
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
        self.clock = step
        self.version = self._joined = state.get("version", 0)
        self._pace.load_state_dict(state)
        rates = state.get("seeds_per_s", [])
        if len(rates) == len(self._clocks()):
            self._rate = rates[self._place]
        self.weights.agree()
        self._board.post(clock=step, seeds_per_s=self._rate)

    def close(self) -> None:
        """Stop reading the board."""
        self._board.close()

    def _attend(self, *, num_seeds: int) -> bool:
        """Take in a mean that has come, and give to one that is asked for; True when that took the step, too."""
        self._land(wait=False)
        kind = self._asked_for()
        if kind is None or kind == FINAL:  # the last is joined where all wait for it
            return False
        return self._join(kind, num_seeds=num_seeds)

    def _asked_for(self) -> str | None:
        """The kind of the next synchronisation, if somebody has given to it."""
        return next((line.kind for line in self._board.lines() if line.wants > self._joined), None)

    def _ask(self, kind: str) -> str:
        """Have the next synchronisation be of ``kind``; what it is, since another may have asked before."""
        return self._board.decide(f"sync/{self._joined + 1}", kind)

    def _join(self, kind: str, *, num_seeds: int) -> bool:
        """Give to the next synchronisation. True when this replica's gradient, of ``num_seeds`` seeds, was applied."""
        with self._meters.waiting():
            self._land(wait=True)  # all have given to the one before, so it is about to come
        self._joined += 1
        self._board.post(wants=self._joined, kind=kind)
        if kind == STEP:
            with self._meters.waiting():
                self._step_together(num_seeds)
            return num_seeds > 0
        snapshot = [tensor.clone() for tensor in self.weights.everything]
        self._underway = _Underway(self._give(), snapshot=snapshot)
        return False

    def _give(self) -> Flight:
        since, self._since = self._since, Since()
        if self._pushes is not None:
            self._pushes.forget()
        flight = Flight(
            self.weights.everything,
            weight=since.num_seeds,
            axis=self._means,
            sums=(since.loss_sum, since.loss_seeds),
            own=since.drift_over_bound,
        )
        self.bytes_sent += flight.bytes_sent
        return flight

    def _land(self, *, wait: bool) -> None:
        """Take in the mean that is on its way, if it has come or is waited for."""
        underway = self._underway
        if underway is None or not (wait or underway.flight.has_landed()):
            return
        landed = underway.flight.wait()
        self._underway = None
        if landed.weight:  # else nobody has moved
            self.weights.take_in(
                landed.means, snapshot=underway.snapshot if underway.num_steps else None, num_steps=underway.num_steps
            )
            self._has_moved = underway.num_steps > 0
            self._measure_drift()
        self._conclude(landed)

    def _conclude(self, landed: Landed) -> None:
        """A new version holds."""
        self.version = self._joined
        loss_sum, loss_seeds = landed.sums
        self._pace.hear(loss_sum=loss_sum, loss_seeds=loss_seeds, drift_over_bound=max(landed.numbers))

    def _step_together(self, num_seeds: int) -> None:
        """The mean of all weights, then one update by the mean of all gradients: the same bits everywhere."""
        given = self._give()
        rate = self.weights.learning_rate()
        gradients = Flight(
            self.weights.gradients, weight=num_seeds, axis=self._means, sums=(rate * num_seeds,), own=self.clock
        )
        self.bytes_sent += gradients.bytes_sent
        landed, summed = given.wait(), gradients.wait()
        if landed.weight:
            self.weights.take_in(landed.means, snapshot=None, num_steps=0)
        torch._foreach_copy_(self.weights.gradients, summed.means)
        self.weights.count_steps(int(max(summed.numbers)))
        self.weights.step_at(summed.sums[0] / summed.weight)
        self.weights.count_steps(self.clock + (num_seeds > 0))
        self.weights.agree()
        self._has_moved = False
        self._conclude(landed)

    def _is_due(self) -> bool:
        if self._underway is not None or not self._since.num_seeds:
            return False
        return self._since.num_steps >= self._pace.period(learning_rate=self.weights.learning_rate())

    def _push_and_mix(self) -> None:
        if self._pushes is None:
            return
        arrived = self._pushes.fetch(self._board.lines())
        self._pushes.add(self._num_seeds)
        if self._pushes.start(clock=self.clock, version=self.version):
            self._board.post(num_pushed=self._pushes.num_pushed)
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
        lines = self._board.lines()
        self._pushes.fetch(lines)
        return self._pushes.is_drained(lines)

    def _step(self) -> None:
        """The optimiser's step, if it stays within the drift; else after a mean, and if that is not enough, by all."""
        while True:
            self.weights.keep()
            self._optimizer.step()
            if self._is_within():
                break
            self.weights.restore()
            if self._underway is None and self._join(
                self._ask(AVERAGE if self._has_moved else STEP), num_seeds=self._num_seeds
            ):
                return
            with self._meters.waiting():
                self._land(wait=True)
        self._has_moved = True
        self._since.num_seeds += self._num_seeds
        if self._underway is not None:
            self._underway.num_steps += 1
        self._measure_drift()

    def _is_within(self) -> bool:
        """Whether the weights lie within the drift of the reference, and will of the one that is on its way."""
        norm, drift = self.weights.reference_norm, self._rule.drift
        if not rules.may_move(self.weights.distance(), reference_norm=norm, drift=drift):
            return False
        if self._underway is None:
            return True
        moved = distance(self.weights.parameters, self._underway.snapshot)
        return rules.may_move(moved, reference_norm=norm, drift=rules.flight_drift(drift))

    def _measure_drift(self) -> None:
        bound = self._rule.drift * self.weights.reference_norm
        part = self.weights.distance() / bound if bound else 0.0
        self._since.drift_over_bound = max(self._since.drift_over_bound, part)
        self._meters.saw_drift(part)

    def _count_step(self) -> None:
        self.clock += 1
        self._since.num_steps += 1
        self._board.post(clock=self.clock)
        self._meters.saw_lead(self.clock - min(self._clocks()))

    def _clocks(self) -> list[int]:
        return [line.clock for line in self._board.lines()]
