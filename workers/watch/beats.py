"""Signs of life between the ranks of a run: small datagrams (UDP) from each to each, a few times a second at most.

Datagrams wait for nobody and have no server that could hang itself, unlike a collective or a key-value store. One that
is lost is made up for by the next; from a rank that could never be heard (a network that carries no UDP) nothing
follows. Addresses and a token that tells this run from others are exchanged once, over the process group. Limit: each
rank sends to all others, P² datagrams per interval; neighbours only would lift it for thousands of ranks.
"""

import json
import secrets
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Self

import torch

from workers.comm.axis import Axis

_LARGEST_BYTES = 4096
_PLACE_BYTES = 64  # "ADDRESS PORT TOKEN": 39 characters at most of an IPv6 address, 5, 16


@dataclass(frozen=True)
class Beat:
    """What a rank says of itself.

    ``cpu_s`` is the processor time of its process, ``where`` the line of code that its training is at. ``waits``: it
    stands in a collective, a receive or a report, for others to come. ``left``: it is done, or failed;
    ``verdict``: because of whom, in words.
    """

    rank: int
    pid: int
    node: str
    phase: str
    step: int
    num_steps: int
    steps_per_epoch: int
    unit: str
    count: int
    cpu_s: float
    waits: bool
    where: str
    left: bool = False
    verdict: str = ""


class BeatSocket:
    """One rank's end. ``peers`` are the addresses of the others; see ``open_beats``."""

    def __init__(self, own: socket.socket, *, peers: list[tuple[str, int]], token: str) -> None:
        self._socket, self._peers, self._token = own, peers, token
        self._own_place = own.getsockname()

    def send(self, beat: Beat) -> None:
        """To all others. A datagram that cannot leave is as good as lost."""
        message = json.dumps({"token": self._token, **asdict(beat)}).encode()
        for peer in self._peers:
            try:
                self._socket.sendto(message, peer)
            except OSError:
                continue

    def receive(self, *, seconds: float) -> Iterator[Beat]:
        """What arrives within ``seconds``; ends early when ``wake`` is called."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._socket.settimeout(left)
            try:
                message = self._socket.recv(_LARGEST_BYTES)
            except TimeoutError:
                return
            except OSError:  # the word of a router that a peer is gone
                continue
            if not message:
                return
            beat = self._parse(message)
            if beat is not None:
                yield beat

    def wake(self) -> None:
        """End a ``receive`` of another thread."""
        self._socket.sendto(b"", self._own_place)

    def close(self) -> None:
        """Free the port."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _parse(self, message: bytes) -> Beat | None:
        """Anyone may send to a port; only what carries the run's token is a beat."""
        try:
            values = json.loads(message)
            return Beat(**values) if values.pop("token") == self._token else None
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


def open_beats(axis: Axis, *, address: str, device: torch.device) -> BeatSocket:
    """Open this rank's socket, at ``address`` if that is one of this machine, and learn the others'. Collective.

    ``axis`` is the line of all ranks and can send from ``device``.
    """
    own = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    try:
        own.bind((address, 0))
    except OSError:  # the address is translated on the way here
        own.bind(("", 0))
    places = torch.zeros(axis.size, _PLACE_BYTES, dtype=torch.int64, device=device)
    said = f"{address} {own.getsockname()[1]} {secrets.token_hex(8)}".encode().ljust(_PLACE_BYTES)
    places[axis.index] = torch.tensor([*said], device=device)
    axis.sum_in_place(places)
    found = [bytes(row).decode().split() for row in places.tolist()]
    peers = [(host, int(port)) for place, (host, port, _) in enumerate(found) if place != axis.index]
    return BeatSocket(own, peers=peers, token=found[0][2])
