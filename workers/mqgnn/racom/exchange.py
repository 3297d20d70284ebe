"""RaCoM: replicas step by themselves, within a lead, a drift and a period, and agree on weights beside the training.

    backward ─▶ join what is asked for ─▶ ask, if the period is over ─▶ step, if the drift allows ─▶ wait for others

Who wants all to agree (``workers.mqgnn.racom.means``) says so on the board; each replica joins between backward and
update, gives what it has then, and goes on stepping until the mean is there. Whoever waits, for a mean, for the slowest
or for a meeting, joins what others ask for meanwhile, so nobody waits for one who waits. With the reference r of its
version a replica holds ‖w − r‖ ≤ δ‖r‖ after every step of its own.

A replica may die: wherever one waits, and before every update, it looks whether another generation of members is due.
"""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from planner.sync import SyncRule
from workers.comm.axis import Axis
from workers.mqgnn.exchange import OwnSteps
from workers.mqgnn.racom import rules
from workers.mqgnn.racom.board import Board
from workers.mqgnn.racom.dealing import Dealing
from workers.mqgnn.racom.means import AVERAGE, FINAL, STEP, Means
from workers.mqgnn.racom.membership import Membership, Roster
from workers.mqgnn.racom.meters import RacomMeters
from workers.mqgnn.racom.pushes import Pushes
from workers.mqgnn.racom.weights import ReplicaWeights

# Chosen: the newest step counts half, so that one slow step moves few seeds and a slow replica soon many.
_NEWEST_RATE = 0.5


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
        self._rate = 0.0
        self._begun: float | None = None
        self._board = Board(roster.store, place=roster.rank, size=roster.size)
        self.members = Membership(
            self._board, roster=roster, device=self.weights.parameters[0].device, with_pushes=rule.push
        )
        self._means = Means(
            self.weights,
            rule=rule,
            board=self._board,
            members=self.members,
            pushes=self._pushes,
            meters=self._meters,
        )
        self.shares = Dealing(self._board, members=lambda: self.members.ranks)
        try:
            self._means.regroup()
        except BaseException:
            self._board.close()
            raise
        self.began_at = None if self._means.is_new else self.clock

    @property
    def clock(self) -> int:
        """Steps that this replica has taken."""
        return self._means.clock

    @property
    def version(self) -> int:
        """Means that it has taken in."""
        return self._means.version

    @property
    def bytes_sent(self) -> int:
        """Those of means and of pushes."""
        return self._means.bytes_sent + (self._pushes.bytes_sent if self._pushes else 0)

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
            self._means.since.add_loss(own, num_seeds=self._num_seeds)
            self._board.post(loss=own, seeds_per_s=self._rate)
        told = [own if line.loss is None else line.loss for line in self._board.lines()]  # of who is gone, its last
        shares = self.shares(self.clock)
        return torch.tensor(told, dtype=torch.float64) * torch.tensor(shares) / sum(shares)

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the step, alone within the bounds or together with all others beyond them."""
        assert optimizer is self._optimizer, "a mean holds the moments of the optimiser that it was built with"
        self._means.is_new = False
        is_taken = self._means.attend(num_seeds=self._num_seeds, lets_in=True)
        if not is_taken and self._means.is_due():
            is_taken = self._means.join(self._means.ask(AVERAGE), num_seeds=self._num_seeds)
        if not is_taken and self._num_seeds:
            self._push_and_mix()
            self._step()
        self._means.count_step()
        self._meters.saw_lead(self.clock - min(self._clocks()))
        with self._meters.waiting():
            while rules.must_wait(self.clock, self._clocks(), staleness=self._rule.staleness):
                self._means.attend(num_seeds=0)
                self._board.wait()
        self._begun = time.perf_counter()

    def meet(self) -> None:
        """Wait until all members have taken as many steps."""
        with self._meters.waiting():
            while min(self._clocks()) < self.clock:
                self._means.attend(num_seeds=0)
                self._board.wait()
        self._begun = None  # what comes now is no work on a step

    def agree(self) -> None:
        """Wait for all members, then hold the weights and moments that all hold. Collective."""
        with self._meters.waiting():
            while self._means.agreed < self.clock:
                self._means.settle()
                kind = self._means.asked_for() or (self._means.ask(FINAL) if min(self._clocks()) >= self.clock else "")
                if not kind or (kind == FINAL and not self._is_drained()):
                    self._board.wait()
                else:
                    self._means.join_and_settle(kind)
        self.weights.count_steps(self.clock)
        self._begun = None

    def told(self, key: str, make: Callable[[], Any]) -> Any:
        """What the senior member makes of ``key``, in JSON types; the others wait, and take its place if it dies."""
        while (said := self._board.decided(f"told/{key}")) is None:
            if self.members.is_over():
                self._means.regroup()
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
            "sync_period": float(self._means.pace.period(learning_rate=self.weights.learning_rate())),
            "bytes_sent": float(self.bytes_sent),
        }
        return values | (self._pushes.figures() if self._pushes else {})

    def state_dict(self) -> dict[str, Any]:
        """The version, what the period follows from, and the rates of all replicas."""
        return {
            **self._means.pace.state_dict(),
            "version": self.version,
            "seeds_per_s": [line.seeds_per_s for line in self._board.lines()],
        }

    def load_state_dict(self, state: Mapping[str, Any], *, step: int) -> None:
        """Go on after ``step`` from the weights that are there now; rates hold for as many replicas as before."""
        self._means.go_on(clock=step, version=state.get("version", 0))
        self._means.pace.load_state_dict(state)
        rates = state.get("seeds_per_s", [])
        if len(rates) == self._board.size:
            self._rate = rates[self._place]
        self._board.post(clock=step, wants=self._means.joined, seeds_per_s=self._rate)

    def close(self) -> None:
        """Leave the others, and stop reading the board."""
        self.members.leave(pending=[work for flight in self._means.drop() for work in flight.works])
        self._board.close()

    def _push_and_mix(self) -> None:
        if self._pushes is None:
            return
        try:
            arrived = self._pushes.fetch(self.members.lines())
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
        lines = self.members.lines()
        try:
            self._pushes.fetch(lines)
            return self._pushes.is_drained(lines)
        except RuntimeError:
            self.members.failed()
            return False

    def _step(self) -> None:
        """The optimiser's step, if it stays within the drift; else after a mean, and if that is not enough, by all."""
        leeway = self._means.leeway
        is_kept = leeway.may_be_left()
        while True:
            if is_kept:
                self.weights.keep()
            self._optimizer.step()
            if leeway.holds(self._means.given):
                break
            if not is_kept:
                leeway.shorten(self._means.given)
                self._meters.shortened()
                break
            self.weights.restore()
            if self._means.given is None and self._means.join(
                self._means.ask(AVERAGE if self._means.has_moved else STEP), num_seeds=self._num_seeds
            ):
                return
            with self._meters.waiting():
                self._means.settle()
        self._means.saw_step(self._num_seeds)

    def _clocks(self) -> list[int]:
        return [line.clock for line in self.members.lines()]
