"""Who goes together: generations of replicas, each with a number, its members and a communicator of its own.

A replica that dies breaks every collective that it was to take part in, and a communicator cannot be mended. So the
others decide on the board who belongs to the next generation, build a communicator for it, and leave the old one. In
the same way a replica that was let in late, or came back in the place of a dead one, becomes a member.

    somebody is silent, or asks to be let in ─▶ whoever sees it first decides on generation g + 1 ─▶ each member says
    what it brings (``Entry``) when it comes by ─▶ a communicator is built ─▶ all have moved

While a generation forms a member may die, or the communicator may fail: then generation g + 2 is decided on. Who is
taken for dead and is not finds itself outside and asks to be let in, like any newcomer. Members stand in order of
seniority; the first of them does what one does for all.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import torch
import torch.distributed as dist

from workers.comm.axis import Axis
from workers.comm.loose_groups import abandon, open_loose_axis
from workers.errors import RankUnresponsiveError
from workers.mqgnn.racom.board import Board, Line

# What the board decides when all steps have been taken: the values of the last report.
ENDED = "told/done"
# Chosen: where a collective has failed somebody is gone, and is taken for dead this much sooner.
_SUSPICION = 0.1
_LEAST_SILENCE_S = 1.0  # ten beats of the board


@dataclass(frozen=True)
class Roster:
    """The places of a run's replicas: this one has ``rank`` of ``size``. ``store`` outlives them, and began empty.

    Nothing heard of a replica for ``max_silence_s`` means that it is gone.
    """

    store: dist.Store
    rank: int
    size: int
    max_silence_s: float = 20.0


@dataclass(frozen=True)
class Entry:
    """What a replica brings into a generation: its step clock, the last step after which all agreed, its pace.

    ``joined`` is the newest synchronisation that it gave to; ``is_new``: it has nothing that others should keep.
    """

    rank: int
    is_new: bool = True
    clock: int = 0
    agreed: int = 0
    joined: int = 0
    pace: dict[str, float] = field(default_factory=dict)


class RunHasEndedError(Exception):
    """The others have taken all steps before this replica was let in; ``values`` are those of the last report."""

    def __init__(self, values: dict[str, float]) -> None:
        super().__init__("all steps have been taken")
        self.values = values


class Membership:
    """The generation of the replica at ``board.place``, none at first (0). ``device`` is where tensors are sent from.

    ``ranks`` are the members, seniors first; ``means`` and ``pushes`` their lines.
    """

    def __init__(self, board: Board, *, roster: Roster, device: torch.device, with_pushes: bool) -> None:
        self._board, self._roster, self._device = board, roster, device
        self._with_pushes = with_pushes
        self._life = board.own.life
        self._members: tuple[tuple[int, str], ...] = ()
        self._failed_at: float | None = None
        self.generation = 0
        self.means, self.pushes = Axis(), Axis()

    @property
    def ranks(self) -> tuple[int, ...]:
        """The members of this generation, seniors first."""
        return tuple(rank for rank, _ in self._members)

    @property
    def is_first(self) -> bool:
        """Whether this replica is the senior one."""
        return self._members[:1] == ((self._roster.rank, self._life),)

    def lines(self) -> list[Line]:
        """What the members say, in their order."""
        lines = self._board.lines()
        return [lines[rank] for rank in self.ranks]

    def failed(self) -> None:
        """A collective of this generation has failed, so somebody is gone."""
        self._failed_at = self._failed_at or time.monotonic()

    def is_over(self, *, lets_in: bool = False) -> bool:
        """Whether another generation is decided on, or must be: somebody is gone or, where it ``lets_in``, is new."""
        lines = self._board.lines()
        if any(line.generation > self.generation for line in lines):
            return True
        if self._failed_at is not None and time.monotonic() - self._failed_at > self._may_be_silent_s():
            return True
        return len(self._alive()) < len(self._members) or (lets_in and bool(self._newcomers()))

    def move(self, entry: Entry, *, pending: Sequence[dist.Work] = (), lets_in: bool = False) -> tuple[Entry, ...]:
        """Into the newest generation, with what its members bring, in their order. Waits for all of them.

        If it falls to this replica to decide on one, newcomers belong to it where it ``lets_in``. ``pending`` is what
        was begun on the lines of the present one and may never end.
        """
        self.leave(pending=pending)
        while True:
            number, members = self._newest(lets_in=lets_in)
            if (self._roster.rank, self._life) not in members:
                self._ask_in(members)
                continue
            self._members, self.generation = members, number
            self._failed_at = None
            self._board.decide(f"entry/{number}/{self._roster.rank}", json.dumps(asdict(entry)))
            self._board.post(generation=number, num_pushed=0)
            entries = self._entries()
            if entries and self._connect():
                return entries

    def leave(self, *, pending: Sequence[dist.Work] = ()) -> None:
        """Give the lines of this generation up; ``pending`` as in ``move``."""
        for axis in (self.means, self.pushes):
            abandon(axis, pending=pending)
        self.means, self.pushes = Axis(), Axis()

    def _newest(self, *, lets_in: bool) -> tuple[int, tuple[tuple[int, str], ...]]:
        """The number and members of the newest generation that is decided on; decides on the next one if it is due."""
        number, members = self.generation, self._members
        while (said := self._board.decided(f"generation/{number + 1}")) is not None:
            number, members = number + 1, _parse(said)
        if number > self.generation:
            return number, members
        newcomers = self._newcomers() if lets_in else []
        wanted = [*self._alive(), *newcomers] if self.generation else self._first()
        return number + 1, _parse(self._board.decide(f"generation/{number + 1}", json.dumps(wanted)))

    def _ask_in(self, members: Sequence[tuple[int, str]]) -> None:
        """Wait outside of the newest generation, that of ``members``."""
        if self.generation:
            raise RankUnresponsiveError(
                f"the other replicas heard nothing of replica {self._roster.rank} for longer than"
                f" {self._may_be_silent_s():g} s and went on without it; it begins anew in its place"
            )
        if (said := self._board.decided(ENDED)) is not None:
            raise RunHasEndedError(json.loads(said))
        lines = self._board.lines()
        if all(
            lines[rank].life != life or self._board.silent_s(rank) > self._roster.max_silence_s
            for rank, life in members
        ):
            raise RankUnresponsiveError(
                f"replica {self._roster.rank} wants to go on with others, and none is left of those that were trained:"
                " all begin anew from the last checkpoint"
            )
        self._board.wait()

    def _first(self) -> list[tuple[int, str]]:
        """All places, where nothing has been decided on yet: the first generation is that of everybody."""
        return [(rank, line.life) for rank, line in enumerate(self._board.lines())]

    def _alive(self) -> list[tuple[int, str]]:
        lines, limit_s = self._board.lines(), self._may_be_silent_s()
        return [
            (rank, life)
            for rank, life in self._members
            if lines[rank].life == life and self._board.silent_s(rank) <= limit_s
        ]

    def _newcomers(self) -> list[tuple[int, str]]:
        """Who asks to be let in and is alive."""
        return [
            (rank, line.life)
            for rank, line in enumerate(self._board.lines())
            if line.life
            and line.generation == 0
            and (rank, line.life) not in self._members
            and self._board.silent_s(rank) <= _LEAST_SILENCE_S
        ]

    def _may_be_silent_s(self) -> float:
        limit_s = self._roster.max_silence_s
        return limit_s if self._failed_at is None else max(_LEAST_SILENCE_S, _SUSPICION * limit_s)

    def _entries(self) -> tuple[Entry, ...]:
        """What all members bring; none when this generation is over before all have come."""
        entries: dict[int, Entry] = {}
        while len(entries) < len(self._members):
            for rank in self.ranks:
                said = None if rank in entries else self._board.decided(f"entry/{self.generation}/{rank}")
                if said is not None:
                    entries[rank] = Entry(**json.loads(said))
            if len(entries) < len(self._members):
                if self.is_over():
                    return ()
                self._board.wait()
        return tuple(entries[rank] for rank in self.ranks)

    def _connect(self) -> bool:
        """Build the lines of the members; False where that fails, so that somebody is gone."""
        try:
            self.means = self._open("means")
            if self._with_pushes:
                self.pushes = self._open("pushes")
        except RuntimeError:
            self.failed()
            while not self.is_over():
                self._board.wait()
            return False
        return True

    def _open(self, name: str) -> Axis:
        return open_loose_axis(
            dist.PrefixStore(f"{name}/{self.generation}", self._roster.store),
            ranks=self.ranks,
            rank=self._roster.rank,
            device=self._device,
            connect_s=self._roster.max_silence_s,
        )


def _parse(said: str) -> tuple[tuple[int, str], ...]:
    return tuple((rank, life) for rank, life in json.loads(said))


def eldest(entries: Sequence[Entry]) -> Entry | None:
    """Of those that bring something the one that has heard of the newest synchronisation, the senior of equals."""
    return max((entry for entry in entries if not entry.is_new), key=lambda entry: entry.joined, default=None)
