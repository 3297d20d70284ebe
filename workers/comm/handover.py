"""Rows on the way from one stage to its neighbour, each to the rank that owns it there.

Neighbouring stages may differ in cp degree (rows of a graph are cut otherwise) and in dp degree (graphs lie in other
replicas). All ranks know both cuts, so every rank knows what it sends to whom and nothing but rows travels. Hidden
states go forward along a route, their gradients come back along the same route reversed.

A send never keeps its rank waiting: what is under way is held until the receiver has answered, or to the end of the
step (gloo tells that something has left only to one who waits for it). Every message has a tag of its own, so
ranks may send and receive in different orders; where there are no tags, every stream has lanes of its own (``lanes``).
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from workers.comm.axis import Axis
from workers.comm.lanes import Lanes
from workers.comm.wire import Transfer, Wire
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
    stream: int = 0  # what else goes this way, in its order (``lanes.stream_of``)

    def reversed(self) -> "Route":
        """The way back."""
        return replace(
            self,
            sends=self.receives,
            receives=self.sends,
            num_sent=self.num_received,
            num_received=self.num_sent,
        )


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
    """Sends and receives rows over ``axis``, which holds the ranks 0 to P - 1 of all stages, or over its ``lanes``."""

    def __init__(self, axis: Axis, *, lanes: Lanes | None = None) -> None:
        self.wire = Wire(axis)
        self._lanes = lanes
        self._rank = axis.ranks[axis.index]
        self._own: dict[int, Tensor] = {}  # by tag: from one stage of this rank to its next stage
        self._leaving: dict[int, Transfer] = {}  # by tag

    @property
    def may_ask_ahead(self) -> bool:
        """Whether to ask for rows before the work that has to be done first.

        Over lanes the device would wait for them, and CUDA may load that work's kernels only once nothing waits.
        """
        return self._lanes is None

    def send(self, rows: Tensor, *, route: Route, tag: int) -> None:
        """Put ``rows`` [num_sent, d] on their way. ``tag`` names the message, the same on both sides."""
        parts = {peer: _gather(rows, pieces) for peer, pieces in route.sends.items()}
        if self._rank in parts:
            self._own[tag] = parts.pop(self._rank)
        self._leaving[tag] = self._start(sends=parts, receives={}, stream=route.stream, tag=tag)

    def confirm(self, *, tag: int) -> None:
        """Message ``tag`` has arrived, as its answer shows: what was kept of it may go."""
        self._leaving.pop(tag).wait()

    def expect(self, *, route: Route, tag: int, like: Tensor) -> "Expected":
        """Ask for rows of the width and kind of ``like`` [0, d]; the caller may work until it needs them."""
        rooms = {
            peer: like.new_empty(sum(map(_length, pieces)), like.shape[1])
            for peer, pieces in route.receives.items()
            if peer != self._rank
        }
        transfer = self._start(sends={}, receives=rooms, stream=route.stream, tag=tag)
        return Expected(transfer=transfer, route=route, like=like)

    def receive(self, expected: "Expected", *, tag: int) -> Tensor:
        """The rows [num_received, d] that were asked for, when they are here."""
        route = expected.route
        parts = dict(expected.transfer.wait())
        if self._rank in route.receives:
            parts[self._rank] = self._own.pop(tag)
        if len(parts) == 1:
            ((peer, part),) = parts.items()
            if len(route.receives[peer]) == 1:  # all rows from one rank, in order: already what is wanted
                return part
        rows = expected.like.new_empty(route.num_received, expected.like.shape[1])
        for peer, part in parts.items():
            pieces = route.receives[peer]
            for piece, values in zip(pieces, part.split([*map(_length, pieces)]), strict=True):
                rows[piece] = values
        return rows

    def settle(self) -> None:
        """Wait until everything that was sent has left."""
        for transfer in self._leaving.values():
            transfer.wait()
        self._leaving.clear()

    def close(self) -> None:
        """Free the lanes."""
        for wire in (self._lanes or {}).values():
            wire.axis.close()

    def _start(self, *, sends: dict[int, Tensor], receives: dict[int, Tensor], stream: int, tag: int) -> Transfer:
        if self._lanes is None:
            return self.wire.start(sends=sends, receives=receives, tag=tag)
        parts = [
            self._lanes[stream, self._rank, peer].start(sends={1: rows}, receives={}) for peer, rows in sends.items()
        ]
        parts += [
            self._lanes[stream, peer, self._rank].start(sends={}, receives={0: room}) for peer, room in receives.items()
        ]
        works = tuple(work for part in parts for work in part.works)
        return Transfer(received=receives, sent=tuple(sends.values()), works=works)


@dataclass(frozen=True)
class Expected:
    """Rows that were asked for and may still be on their way."""

    transfer: Transfer
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
                        received = slice(target_first + start - wants.start, target_first + stop - wants.start)
                        yield sender, receiver, sent, received


def _length(piece: slice) -> int:
    return piece.stop - piece.start


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
