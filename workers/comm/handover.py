"""Rows on the way from one stage to its neighbour, each to the rank that owns it there.

Neighbouring stages may differ in cp degree (rows of a graph are cut otherwise) and in dp degree (graphs lie in other
replicas). All ranks know both cuts, so every rank knows what it sends to whom and nothing but rows travels. Hidden
states go forward along a route, their gradients come back along the same route reversed.

A send never waits for its receiver: what is under way is kept until it has left. Every message has a tag of its own, so
ranks may send and receive in different orders.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from workers.comm.axis import Axis
from workers.ops.row_layout import RowLayout


@dataclass(frozen=True)
class Holding:
    """The graphs of one micro-batch that one replica of a stage holds, and how their rows are cut over its ranks."""

    ranks: tuple[int, ...]  # the cp group: ranks[shard] holds that shard of every graph
    graphs: tuple[int, ...]  # positions in the data set
    layout: RowLayout


@dataclass(frozen=True)
class Route:
    """What one rank sends and receives when a micro-batch moves between two stages: runs of rows, by peer."""

    sends: dict[int, list[slice]]
    receives: dict[int, list[slice]]
    num_sent: int  # rows that this rank holds before
    num_received: int  # and after

    def reversed(self) -> "Route":
        """The way back."""
        return Route(sends=self.receives, receives=self.sends, num_sent=self.num_received, num_received=self.num_sent)


def find_route(sources: Sequence[Holding], targets: Sequence[Holding], *, rank: int) -> Route:
    """How ``rank`` takes part in moving the graphs of ``sources`` to where ``targets`` want them.

    Both name the same graphs, each once. What goes from one rank to another is in the order of the sources.
    """
    sends: defaultdict[int, list[slice]] = defaultdict(list)
    receives: defaultdict[int, list[slice]] = defaultdict(list)
    for sender, receiver, sent, received in _pieces(sources, targets):
        if sender == rank:
            _add(sends[receiver], sent)
        if receiver == rank:
            _add(receives[sender], received)
    return Route(
        sends=dict(sends),
        receives=dict(receives),
        num_sent=_num_rows(sources, rank),
        num_received=_num_rows(targets, rank),
    )


class Links:
    """Sends and receives rows over ``axis``, which holds the ranks of all stages."""

    def __init__(self, axis: Axis) -> None:
        self._axis = axis
        self._rank = axis.ranks[axis.index]
        self._own: dict[int, Tensor] = {}  # by tag: from one stage of this rank to its next stage
        self._leaving: list[tuple[dist.Work, Tensor]] = []

    def send(self, rows: Tensor, *, route: Route, tag: int) -> None:
        """Put ``rows`` [num_sent, d] on their way. ``tag`` names the message, the same on both sides."""
        self._leaving = [(work, kept) for work, kept in self._leaving if not work.is_completed()]
        for peer, pieces in route.sends.items():
            part = _gather(rows, pieces)
            if peer == self._rank:
                self._own[tag] = part
            else:
                self._leaving.append((dist.isend(part, peer, self._axis.group, tag), part))

    def expect(self, *, route: Route, tag: int, like: Tensor) -> "Expected":
        """Ask for rows of the width and kind of ``like`` [0, d]; the caller may work until it needs them."""
        arriving = []
        for peer, pieces in route.receives.items():
            if peer == self._rank:
                continue
            part = like.new_empty(sum(piece.stop - piece.start for piece in pieces), like.shape[1])
            arriving.append((dist.irecv(part, peer, self._axis.group, tag), part, pieces))
        return Expected(arriving=arriving, route=route, like=like)

    def receive(self, expected: "Expected", *, tag: int) -> Tensor:
        """The rows [num_received, d] that were asked for, when they are here."""
        route = expected.route
        for work, _, _ in expected.arriving:
            work.wait()
        parts = [(part, pieces) for _, part, pieces in expected.arriving]
        if self._rank in route.receives:
            parts.append((self._own.pop(tag), route.receives[self._rank]))
        if len(parts) == 1 and len(parts[0][1]) == 1:  # all rows from one rank, in order: already what is wanted
            return parts[0][0]
        rows = expected.like.new_empty(route.num_received, expected.like.shape[1])
        for part, pieces in parts:
            for piece, values in zip(pieces, part.split([piece.stop - piece.start for piece in pieces]), strict=True):
                rows[piece] = values
        return rows

    def settle(self) -> None:
        """Wait until everything that was sent has left."""
        for work, _ in self._leaving:
            work.wait()
        self._leaving.clear()


@dataclass(frozen=True)
class Expected:
    """Rows that were asked for and may still be on their way."""

    arriving: list[tuple[dist.Work, Tensor, list[slice]]]
    route: Route
    like: Tensor


def _pieces(sources: Sequence[Holding], targets: Sequence[Holding]) -> Iterator[tuple[int, int, slice, slice]]:
    """(sender, receiver, rows of the sender, rows of the receiver) of every run of rows that stays together."""
    wanted = {graph: (target, place) for target in targets for place, graph in enumerate(target.graphs)}
    for source in sources:
        for place, graph in enumerate(source.graphs):
            target, target_place = wanted[graph]
            for shard, sender in enumerate(source.ranks):
                has, first = source.layout.columns(shard, place), source.layout.rows(shard, place).start
                for target_shard, receiver in enumerate(target.ranks):
                    wants = target.layout.columns(target_shard, target_place)
                    start, stop = max(has.start, wants.start), min(has.stop, wants.stop)
                    if start < stop:
                        target_first = target.layout.rows(target_shard, target_place).start
                        sent = slice(first + start - has.start, first + stop - has.start)
                        yield sender, receiver, sent, _shifted(sent, target_first + start - wants.start)


def _shifted(piece: slice, start: int) -> slice:
    return slice(start, start + piece.stop - piece.start)


def _add(pieces: list[slice], piece: slice) -> None:
    """Append, or lengthen the last one where ``piece`` goes on with it."""
    if pieces and pieces[-1].stop == piece.start:
        piece = slice(pieces.pop().start, piece.stop)
    pieces.append(piece)


def _gather(rows: Tensor, pieces: list[slice]) -> Tensor:
    if len(pieces) == 1:
        return rows[pieces[0]].contiguous()
    return torch.cat([rows[piece] for piece in pieces])


def _num_rows(holdings: Sequence[Holding], rank: int) -> int:
    """Rows that ``rank`` holds; 0 where it is in none of ``holdings``."""
    return sum(holding.layout.num_rows(holding.ranks.index(rank)) for holding in holdings if rank in holding.ranks)
