"""Replicas that die, come back, are shut out or come too late: as threads, whose communicators are real.

A thread cannot be killed: one that dies lets all go that it holds, and says nothing more, as a process does.
"""

import gc
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
import torch.distributed as dist

from planner.sync import SyncRule
from workers.errors import RankUnresponsiveError
from workers.mqgnn.racom.board import say_gone
from workers.mqgnn.racom.exchange import Racom
from workers.mqgnn.racom.membership import Roster, RunHasEndedError

RULE = SyncRule(name="racom", staleness=4, drift=0.3, first_period=5, base_period=5)
AGREED_EVERY = 20
UNTIL = 300
Course = Callable[["Replica"], None]


@dataclass
class Replica:
    """One that trains, or a thread that fails with ``error``."""

    rank: int
    store: dist.Store
    rule: SyncRule = RULE
    size: int = 3
    silence_s: float = 2.0
    error: BaseException | None = None
    began_at: int | None = None
    steps: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)  # with the members after each
    figures: dict[str, float] = field(default_factory=dict)
    drift: float = 0.0
    told: list[str] = field(default_factory=list)
    weights: torch.Tensor = field(default_factory=lambda: torch.empty(0))

    def start(self, course: Course) -> "Replica":
        self.thread = threading.Thread(target=self._run, args=(course,), daemon=True)
        self.thread.start()
        return self

    def join(self) -> "Replica":
        self.thread.join(60)
        assert not self.thread.is_alive(), f"replica {self.rank} hangs"
        return self

    def open(self) -> None:
        self.model = torch.nn.Linear(20, 5)
        with torch.no_grad():
            self.model.weight.copy_(torch.linspace(-1, 1, 100).view(5, 20))
            self.model.bias.zero_()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.noise = torch.Generator().manual_seed(self.rank)
        roster = Roster(self.store.clone(), rank=self.rank, size=self.size, max_silence_s=self.silence_s)
        self.exchange = Racom(self.model, optimizer=self.optimizer, rule=self.rule, roster=roster)
        self.began_at = self.exchange.began_at

    def train(self, until: int, *, spike_at: int | None = None) -> None:
        """Take the steps up to ``until``, agreeing now and then."""
        for step in range(self.exchange.clock + 1, until + 1):
            self.exchange.zero()
            x = torch.randn(16, 20, generator=self.noise)
            self.exchange.divisor(num_seeds=16, num_seeds_all=16 * self.size)
            loss = ((self.model(x) - x[:, :5]) ** 2).mean() * (1e6 if step == spike_at else 1)
            loss.backward()
            self.exchange.combine(loss.detach())
            self.exchange.update(self.optimizer)
            self.figures = self.exchange.figures()
            self.drift = max(self.drift, self.figures["drift_over_bound"])
            self.steps.append((step, self.exchange.members.ranks))
            time.sleep(0.002)  # or all would be over before anybody has come back
            if step % AGREED_EVERY == 0:
                self.exchange.agree()
                self.told.append(self.exchange.told(f"scores/{step}", lambda: f"by {self.rank}"))
        self.weights = self.model.weight.detach().clone()

    def die(self) -> None:
        self.exchange._board.close()
        self.exchange = None
        gc.collect()

    def end(self) -> None:
        self.exchange.told("done", lambda: {"done": 1.0})
        self.exchange.close()

    def _run(self, course: Course) -> None:
        try:
            self.open()
            course(self)
        except BaseException as error:
            self.error = error


@pytest.fixture
def store() -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def to_the_end(replica: Replica, *, until: int) -> None:
    replica.train(until)
    replica.end()


def dies_at(replica: Replica, *, step: int) -> None:
    replica.train(step)
    replica.die()


def start_all(
    store: dist.Store, *, dying: int, at: int, until: int, rule: SyncRule = RULE, silence_s: float = 2.0
) -> list[Replica]:
    def course(replica: Replica) -> None:
        if replica.rank == dying:
            dies_at(replica, step=at)
        else:
            to_the_end(replica, until=until)

    return [Replica(rank, store, rule, silence_s=silence_s).start(course) for rank in range(3)]


@pytest.mark.parametrize(("dying", "push"), [(0, False), (2, True)])
def test_who_dies_leaves_the_others_training_and_comes_back_from_their_reference(store, dying, push):
    rule = RULE.model_copy(update={"push": push})
    started = start_all(store, dying=dying, at=30, until=UNTIL, rule=rule)
    died = started[dying].join()
    survivors = [replica for replica in started if replica is not died]
    while not all(replica.steps and len(replica.steps[-1][1]) == 2 for replica in survivors):
        time.sleep(0.01)
    back = Replica(dying, store, rule).start(lambda replica: to_the_end(replica, until=UNTIL)).join()
    for replica in survivors:
        replica.join()
    assert died.error is back.error is survivors[0].error is survivors[1].error is None
    others = tuple(replica.rank for replica in survivors)
    for replica in survivors:
        assert [step for step, _ in replica.steps] == list(range(1, UNTIL + 1)), (
            "a survivor began anew, or left steps out"
        )
        assert {members for _, members in replica.steps} == {(0, 1, 2), others, (*others, dying)}
        assert replica.figures["generation"] == 3
    assert back.began_at is not None
    assert back.began_at > 30
    assert [step for step, _ in back.steps] == list(range(back.began_at + 1, UNTIL + 1))
    assert max(replica.drift for replica in (died, back, *survivors)) <= 1 + 1e-5
    assert all(torch.equal(back.weights, replica.weights) for replica in survivors)  # the last step ends in agreement
    assert survivors[0].told[-len(back.told) :] == survivors[1].told[-len(back.told) :] == back.told
    assert survivors[0].told[-1] == f"by {others[0]}"  # the senior one: who came back is the youngest


def test_who_is_said_to_be_gone_is_not_waited_for(store):
    replicas = start_all(store, dying=1, at=30, until=60, silence_s=1000.0)
    assert replicas[1].join().error is None
    say_gone(store, place=1)
    for replica in (replicas[0], replicas[2]):
        assert replica.join().error is None
        assert replica.steps[-1] == (60, (0, 2))


def test_when_the_senior_dies_over_what_all_wait_for_the_next_one_makes_it(store):
    def dies_while_it_makes(replica: Replica) -> None:
        replica.train(10)
        replica.exchange.agree()
        replica.exchange.members.is_over()
        replica.die()

    def waits(replica: Replica) -> None:
        replica.train(10)
        replica.exchange.agree()
        replica.told.append(replica.exchange.told("what", lambda: replica.rank))
        replica.exchange.close()

    replicas = [Replica(rank, store).start(waits if rank else dies_while_it_makes) for rank in range(3)]
    assert [replica.join().error for replica in replicas] == [None] * 3
    assert [replica.told for replica in replicas] == [[], [1], [1]]


def test_who_was_silent_for_too_long_is_told_so_and_does_not_go_on_with_old_weights(store):
    def falls_silent(replica: Replica) -> None:
        replica.train(10)
        with replica.exchange._board._changed:  # as a process that is stopped: nothing is read or posted
            while len(replicas[0].steps) < 60:
                time.sleep(0.01)
        replica.train(20)

    replicas = [
        Replica(rank, store).start(falls_silent if rank == 1 else lambda replica: to_the_end(replica, until=60))
        for rank in range(3)
    ]
    assert replicas[0].join().error is replicas[2].join().error is None
    error = replicas[1].join().error
    assert isinstance(error, RankUnresponsiveError)
    assert "heard nothing of replica 1 for longer than 2 s and went on without it" in str(error)


def test_who_comes_when_all_steps_have_been_taken_gets_the_last_values(store):
    for replica in start_all(store, dying=1, at=30, until=40):
        assert replica.join().error is None
    late = Replica(1, store).start(lambda replica: replica.train(40)).join()
    assert isinstance(late.error, RunHasEndedError)
    assert late.error.values == {"done": 1.0}


def test_a_step_that_nobody_foresaw_is_shortened_to_the_bounds(store):
    rule = RULE.model_copy(update={"first_period": 64, "base_period": 64, "drift": 0.9})

    def meets_a_spike(replica: Replica) -> None:
        replica.train(12)
        replica.train(13, spike_at=13)
        replica.told.append(f"{replica.figures['steps_shortened']:g}")
        replica.train(40)

    spiked = Replica(0, store, rule, size=2).start(meets_a_spike)
    replicas = [spiked, Replica(1, store, rule, size=2).start(lambda replica: replica.train(40))]
    assert [replica.join().error for replica in replicas] == [None, None]
    assert replicas[0].told[0] == "1"
    assert 0.99 < replicas[0].drift <= 1 + 1e-5
    assert torch.isfinite(replicas[0].weights).all()
