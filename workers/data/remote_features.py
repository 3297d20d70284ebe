"""Node features whose rows lie with several holders, behind the same questions as features in memory.

Own rows are read where they are, others are asked of their holder, who runs a ``FeatureServer``: a few thousand at a
time, the next request under way while an answer arrives. Nothing is kept (``workers.mqgnn.feature_cache`` is for that).
"""

import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from workers.data import feature_wire
from workers.data.feature_server import FeatureServer
from workers.data.features import DenseFeatures, SparseFeatures, check_rows
from workers.data.features_in_pieces import ROWS_PER_PIECE, FeaturesInPieces, Piece, pieces_of
from workers.errors import FeaturesUnreachableError

# A holder answers in milliseconds unless it is stopped or cut off; its death closes the connection at once.
ANSWER_TIMEOUT_S = 60.0
# Requests under way: one that is answered, one that waits. Both fit into the buffers of a connection.
_AHEAD = 2


@dataclass(frozen=True)
class Holder:
    """Who holds the rows ``first`` to ``end`` - 1, and where it answers those who know ``token``."""

    name: str
    first: int
    end: int
    address: str
    port: int
    token: bytes


class RemoteFeatures(FeaturesInPieces):
    """Features [N, F] of which this process holds the rows from ``first`` on, ``own``, and ``holders`` the others.

    All together hold every row once. ``server`` serves ``own`` to others. Whoever asks while another thread does waits
    for it.
    """

    def __init__(
        self,
        own: DenseFeatures | SparseFeatures,
        *,
        first: int,
        holders: Sequence[Holder],
        server: FeatureServer | None = None,
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        self._own, self.first, self._server = own, first, server
        self.num_features = own.num_features
        self.num_rows = own.num_rows + sum(holder.end - holder.first for holder in holders)
        self.is_sparse = isinstance(own, SparseFeatures)
        self._asked = [
            _Asked(holder, num_features=own.num_features, is_sparse=self.is_sparse, timeout_s=timeout_s)
            for holder in holders
        ]
        self._lock = threading.Lock()

    @property
    def received_bytes(self) -> int:
        """Bytes of the rows that have come from holders so far."""
        return sum(asked.received_bytes for asked in self._asked)

    def is_own(self, rows: np.ndarray) -> np.ndarray:
        """Bool: which of ``rows`` are held here."""
        return (rows >= self.first) & (rows < self.first + self._own.num_rows)

    def pieces(self, rows: np.ndarray) -> Iterator[Piece]:
        """The features of ``rows``: own ones, then what holders answer, as it comes.

        Raises ``DatasetInvalidError`` for a row that does not exist, and ``FeaturesUnreachableError``.
        """
        rows = np.asarray(rows)
        check_rows(rows, num_rows=self.num_rows)
        with self._lock:
            yield from self._ask(rows)

    def update(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Give those of ``rows`` that are held here their float32 ``values`` [len(rows), F], also for others."""
        is_own = self.is_own(rows)
        self._own = self._own.replaced(rows[is_own] - self.first, values[is_own])
        if self._server is not None:
            self._server.hold(self._own)

    def arrays(self) -> dict[str, np.ndarray]:
        """Those of the rows that are held here."""
        return self._own.arrays()

    def first_not_finite(self) -> tuple[int, int] | None:
        """(node, feature) of the first NaN or infinity that is held here."""
        found = self._own.first_not_finite()
        return None if found is None else (found[0] + self.first, found[1])

    def _ask(self, rows: np.ndarray) -> Iterator[Piece]:
        """All of ``rows``; holders work while own ones are read."""
        waiting = []
        try:
            for asked in self._asked:
                places = np.flatnonzero((rows >= asked.holder.first) & (rows < asked.holder.end))
                if len(places):
                    asked.begin(rows[places], places)
                    waiting.append(asked)
            places = np.flatnonzero(self.is_own(rows))
            yield from pieces_of(self._own, rows[places] - self.first, places)
            while waiting:
                yield from waiting[0].answers()
                waiting.pop(0)
        finally:
            for asked in waiting:
                asked.close()  # an answer that nobody took would be taken for the next one

    def close(self) -> None:
        """Leave all holders."""
        with self._lock:
            for asked in self._asked:
                asked.close()


class _Asked:
    """One holder as the asker sees it: a connection, made when it is first needed."""

    def __init__(self, holder: Holder, *, num_features: int, is_sparse: bool, timeout_s: float) -> None:
        self.holder, self.received_bytes = holder, 0
        self._num_features, self._is_sparse, self._timeout_s = num_features, is_sparse, timeout_s
        self._connection: socket.socket | None = None
        self._requests: list[tuple[np.ndarray, np.ndarray]] = []  # (places, rows)
        self._num_sent = 0

    def begin(self, rows: np.ndarray, places: np.ndarray) -> None:
        """Send the first requests for ``rows``, which belong to ``places``."""
        parts = [slice(start, start + ROWS_PER_PIECE) for start in range(0, len(rows), ROWS_PER_PIECE)]
        self._requests = [(places[part], rows[part]) for part in parts]
        self._num_sent = 0
        try:
            if self._connection is None:
                self._connection = self._connect()
            self._send_up_to(_AHEAD)
        except OSError as error:
            raise self._lost(error) from error

    def answers(self) -> Iterator[Piece]:
        """The rows that were begun; while one piece is taken, the next ones are under way."""
        assert self._connection is not None, "begin comes first"
        for number, (places, rows) in enumerate(self._requests, 1):
            try:
                found, num_bytes = feature_wire.receive_answer(
                    self._connection, num_rows=len(rows), num_features=self._num_features, is_sparse=self._is_sparse
                )
                self._send_up_to(number + _AHEAD)
            except OSError as error:
                raise self._lost(error) from error
            if isinstance(found, str):
                raise self._lost(found)
            self.received_bytes += num_bytes
            yield places, found

    def close(self) -> None:
        """Leave."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send_up_to(self, end: int) -> None:
        assert self._connection is not None
        for _, rows in self._requests[self._num_sent : end]:
            feature_wire.send_request(self._connection, rows)
            self._num_sent += 1

    def _connect(self) -> socket.socket:
        made = socket.create_connection((self.holder.address, self.holder.port), timeout=self._timeout_s)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.sendall(self.holder.token)
        return made

    def _lost(self, why: object) -> FeaturesUnreachableError:
        self.close()
        holder = self.holder
        what = f"no answer within {self._timeout_s:g} s" if isinstance(why, TimeoutError) else str(why)
        return FeaturesUnreachableError(
            f"the features of nodes {holder.first} to {holder.end - 1} are held by {holder.name} at"
            f" {holder.address}:{holder.port}, which gave none: {what}. See whether it still runs, and whether its"
            " address can be reached from here",
            holder=holder.name,
        )
