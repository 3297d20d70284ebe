"""The holder's side of remote features: a few threads that answer requests for the rows that are kept here.

One thread accepts, one serves each asker; each answers from the features themselves and keeps nothing. Only who knows
the token is answered.
"""

import contextlib
import hmac
import secrets
import socket
import threading

from workers.data import feature_wire
from workers.data.features import DenseFeatures, SparseFeatures
from workers.errors import DatasetInvalidError

_LISTEN_BACKLOG = 64


class FeatureServer:
    """Serves the rows ``first`` … of the graph, which ``held`` keeps as rows 0 …, until it is stopped.

    Listens at ``address``, on a port of the system's choice; ``token`` is for those who shall be answered.
    """

    def __init__(self, held: DenseFeatures | SparseFeatures, *, first: int, address: str) -> None:
        self._held, self._first = held, first
        self.token = secrets.token_bytes(feature_wire.TOKEN_BYTES)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family, backlog=_LISTEN_BACKLOG)
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._is_stopped = False
        self._threads = [threading.Thread(target=self._accept, name="feature-server", daemon=True)]
        self._threads[0].start()

    def hold(self, held: DenseFeatures | SparseFeatures) -> None:
        """From now on answer from ``held``: the same rows, with other values."""
        self._held = held

    def stop(self) -> None:
        """Close all connections, and wait until all threads have left."""
        with self._lock:
            self._is_stopped = True
            open_ones = [self._listener, *self._connections]
        for each in open_ones:
            _shut(each)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                break  # stopped
            with self._lock:
                if self._is_stopped:
                    connection.close()
                    break
                self._connections.add(connection)
                thread = threading.Thread(target=self._serve, args=(connection,), name="feature-asker", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._listener.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            said = bytearray(feature_wire.TOKEN_BYTES)
            feature_wire.receive_into(connection, said)
            if not hmac.compare_digest(said, self.token):
                return
            while (rows := feature_wire.receive_request(connection)) is not None:
                try:
                    found = self._held.take(rows - self._first)
                except DatasetInvalidError as error:
                    feature_wire.send_fault(connection, f"rows here start at {self._first}: {error}")
                else:
                    feature_wire.send_answer(connection, found)
        except OSError:
            pass  # the asker is gone, or this server is stopped; who needed the answer says so
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()


def _shut(connection: socket.socket) -> None:
    """Wake whoever waits on it."""
    with contextlib.suppress(OSError):  # it has ended by itself
        connection.shutdown(socket.SHUT_RDWR)
