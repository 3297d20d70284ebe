"""How feature rows travel between their holder and whoever asks: length-prefixed messages over one TCP connection.

    asker:   token [TOKEN_BYTES], once; then (num_rows u64, numbers int64 [num_rows]) as often as it likes
    holder:  (status u64, num_bytes u64), then num_bytes: of a fault its text, else

             dense    float32 [num_rows, F]
             sparse   lengths int32 [num_rows], columns int32 [entries], values float32 [entries]

Numbers are little-endian and those of the whole graph. A request has at most ``ROWS_PER_PIECE`` rows, so neither end
ever holds more than one such piece beside what it serves or asks for.
"""

import socket
import struct

import numpy as np

from workers.data.features import DenseFeatures, SparseFeatures
from workers.data.features_in_pieces import ROWS_PER_PIECE

TOKEN_BYTES = 16
FOUND, FAULT = 0, 1
_REQUEST, _ANSWER = struct.Struct("<Q"), struct.Struct("<QQ")


def send_request(connection: socket.socket, rows: np.ndarray) -> None:
    """Ask for ``rows``. Raises ``OSError``."""
    connection.sendall(_REQUEST.pack(len(rows)) + np.ascontiguousarray(rows, dtype="<i8").tobytes())


def receive_request(connection: socket.socket) -> np.ndarray | None:
    """The rows of the next request; None when the asker has left. Raises ``OSError``."""
    head = connection.recv(_REQUEST.size, socket.MSG_WAITALL)
    if len(head) < _REQUEST.size:
        return None
    (num_rows,) = _REQUEST.unpack(head)
    if num_rows > ROWS_PER_PIECE:
        raise ConnectionError(f"a request for {num_rows} rows; at most {ROWS_PER_PIECE} are answered at once")
    rows = np.empty(num_rows, dtype="<i8")
    receive_into(connection, rows)
    return rows


def send_answer(connection: socket.socket, found: DenseFeatures | SparseFeatures) -> None:
    """Answer with the rows asked for. Raises ``OSError``."""
    if isinstance(found, DenseFeatures):
        parts = [np.ascontiguousarray(found.matrix, dtype="<f4")]
    else:
        parts = [np.diff(found.indptr).astype("<i4"), found.columns.astype("<i4"), found.values.astype("<f4")]
    connection.sendall(_ANSWER.pack(FOUND, sum(part.nbytes for part in parts)))
    for part in parts:
        connection.sendall(part.data)


def send_fault(connection: socket.socket, text: str) -> None:
    """Answer that there are no such rows, and why. Raises ``OSError``."""
    said = text.encode()
    connection.sendall(_ANSWER.pack(FAULT, len(said)) + said)


def receive_answer(
    connection: socket.socket, *, num_rows: int, num_features: int, is_sparse: bool
) -> tuple[DenseFeatures | SparseFeatures | str, int]:
    """(the ``num_rows`` rows asked for, or the text of a fault; their bytes on the way). Raises ``OSError``."""
    num_bytes, fault = _receive_head(connection)
    if fault is not None:
        return fault, 0
    if not is_sparse:
        matrix = np.empty((num_rows, num_features), dtype="<f4")
        _check_size(num_bytes, matrix.nbytes)
        receive_into(connection, matrix)
        return DenseFeatures(matrix), num_bytes
    lengths = np.empty(num_rows, dtype="<i4")
    receive_into(connection, lengths)
    indptr = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)])
    columns, values = np.empty(indptr[-1], dtype="<i4"), np.empty(indptr[-1], dtype="<f4")
    _check_size(num_bytes, lengths.nbytes + columns.nbytes + values.nbytes)
    receive_into(connection, columns)
    receive_into(connection, values)
    return SparseFeatures(indptr, columns, values, num_features=num_features), num_bytes


def _receive_head(connection: socket.socket) -> tuple[int, str | None]:
    """(bytes of the rows to come, None), or the text of a fault."""
    head = bytearray(_ANSWER.size)
    receive_into(connection, head)
    status, num_bytes = _ANSWER.unpack(head)
    if status == FOUND:
        return num_bytes, None
    said = bytearray(num_bytes)
    receive_into(connection, said)
    return 0, said.decode(errors="replace")


def receive_into(connection: socket.socket, target: np.ndarray | bytearray) -> None:
    """Fill ``target``. Raises ``OSError``, also when the other end leaves before."""
    view = memoryview(target).cast("B") if len(target) else memoryview(b"")
    while len(view):
        num_bytes = connection.recv_into(view)
        if not num_bytes:
            raise ConnectionResetError("the other end has closed the connection")
        view = view[num_bytes:]


def _check_size(found: int, wanted: int) -> None:
    if found != wanted:
        raise ConnectionError(f"an answer of {found} bytes where {wanted} were expected")
