"""Rows that others hold: the same as rows in memory, and errors that name who gave none."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from workers.data.feature_server import FeatureServer
from workers.data.features import DenseFeatures, SparseFeatures, compact, windows
from workers.data.features_in_pieces import ROWS_PER_PIECE
from workers.data.remote_features import Holder, RemoteFeatures
from workers.errors import DatasetInvalidError, FeaturesUnreachableError

HERE = "127.0.0.1"
BOUNDS = (0, 5_000, 5_000, 12_000, 20_000)  # the second of four holds nothing


def matrix(*, density: float) -> np.ndarray:
    rng = np.random.default_rng(0)
    cells = rng.standard_normal((BOUNDS[-1], 6)).astype(np.float32)
    return cells * (rng.random(cells.shape) < density)


WHOLE = {
    "dense": DenseFeatures(matrix(density=1.0)),
    "sparse": compact(DenseFeatures(matrix(density=0.05))),
}


@contextmanager
def dealt_out(features: DenseFeatures | SparseFeatures, *, own: int) -> Iterator[RemoteFeatures]:
    """The ``features`` cut at ``BOUNDS``; part ``own`` is held here, the others by servers."""
    with ExitStack() as stack:
        parts, holders = list(windows(features, offsets=np.array(BOUNDS))), []
        for place, part in enumerate(parts):
            if place == own:
                continue
            server = FeatureServer(part, first=BOUNDS[place], address=HERE)
            stack.callback(server.stop)
            holders.append(holder_of(server, place))
        remote = RemoteFeatures(parts[own], first=BOUNDS[own], holders=holders)
        stack.callback(remote.close)
        yield remote


def holder_of(server: FeatureServer, place: int) -> Holder:
    return Holder(f"rank {place}", BOUNDS[place], BOUNDS[place + 1], HERE, server.port, server.token)


@pytest.mark.parametrize("form", WHOLE)
@pytest.mark.parametrize("own", [0, 1, 3])
def test_rows_of_all_holders_come_in_the_order_asked_for(form, own):
    rng = np.random.default_rng(1)
    many = rng.integers(BOUNDS[-1], size=3 * ROWS_PER_PIECE + 7)  # with doubles, and several requests to a holder
    with dealt_out(WHOLE[form], own=own) as remote:
        assert (remote.num_rows, remote.num_features) == (BOUNDS[-1], 6)
        for rows in (many, np.array([19_999, 0, 5_000]), many[:1].astype(np.int32), many[:0], np.arange(5_000)):
            np.testing.assert_array_equal(remote.gather(rows), WHOLE[form].gather(rows))
            taken = remote.take(rows)
            assert isinstance(taken, type(WHOLE[form]))
            np.testing.assert_array_equal(taken.gather(np.arange(len(rows))), WHOLE[form].gather(rows))


def test_sparse_rows_travel_sparse():
    rows = np.arange(20_000)
    received = {}
    for form, features in WHOLE.items():
        with dealt_out(features, own=1) as remote:
            remote.gather(rows)
            received[form] = remote.received_bytes
    assert received["dense"] >= 20_000 * 6 * 4
    assert received["sparse"] < received["dense"] / 3


def test_who_stops_in_the_middle_of_an_answer_can_ask_again():
    with dealt_out(WHOLE["dense"], own=0) as remote:
        pieces = remote.pieces(np.arange(20_000))
        for _ in range(4):
            next(pieces)
        pieces.close()
        np.testing.assert_array_equal(remote.gather(np.array([19_000])), WHOLE["dense"].gather(np.array([19_000])))


def test_own_rows_are_asked_of_nobody():
    with dealt_out(WHOLE["dense"], own=3) as remote:
        remote.gather(np.arange(12_000, 20_000))
        assert remote.received_bytes == 0


def test_several_threads_may_ask_at_once():
    rows = [np.random.default_rng(seed).integers(BOUNDS[-1], size=9_000) for seed in range(4)]
    found: dict[int, np.ndarray] = {}
    with dealt_out(WHOLE["dense"], own=0) as remote:

        def ask(place: int) -> None:
            found[place] = remote.gather(rows[place])

        threads = [threading.Thread(target=ask, args=(place,)) for place in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for place, asked in enumerate(rows):
        np.testing.assert_array_equal(found[place], WHOLE["dense"].gather(asked))


def test_a_row_that_does_not_exist_is_named():
    named = pytest.raises(DatasetInvalidError, match="features of node 20000 were asked")
    with dealt_out(WHOLE["dense"], own=0) as remote, named:
        remote.gather(np.array([3, 20_000]))


def test_a_holder_that_has_not_what_it_is_said_to_have_says_so():
    server = FeatureServer(DenseFeatures(np.zeros((4, 6), np.float32)), first=5, address=HERE)
    own = DenseFeatures(np.zeros((5, 6), np.float32))
    remote = RemoteFeatures(own, first=0, holders=[Holder("rank 1", 5, 20, HERE, server.port, server.token)])
    with pytest.raises(FeaturesUnreachableError, match=r"held by rank 1 at 127.0.0.1.*rows here start at 5.*node 7"):
        remote.gather(np.array([12]))
    np.testing.assert_array_equal(remote.gather(np.array([6])), np.zeros((1, 6)))  # it goes on with the next one
    remote.close()
    server.stop()


def test_who_does_not_know_the_token_gets_nothing():
    server = FeatureServer(WHOLE["dense"], first=0, address=HERE)
    own = DenseFeatures(np.zeros((0, 6), np.float32))
    stranger = RemoteFeatures(own, first=0, holders=[Holder("rank 1", 0, 20_000, HERE, server.port, bytes(16))])
    with pytest.raises(FeaturesUnreachableError, match=r"nodes 0 to 19999 are held by rank 1 at 127.0.0.1:\d+"):
        stranger.gather(np.arange(9))
    assert stranger.received_bytes == 0
    server.stop()


def test_a_holder_that_is_gone_is_named():
    gone = FeatureServer(WHOLE["dense"], first=0, address=HERE)
    gone.stop()
    late = RemoteFeatures(
        DenseFeatures(np.zeros((0, 6), np.float32)),
        first=0,
        holders=[Holder("rank 7", 0, 20_000, HERE, gone.port, gone.token)],
    )
    with pytest.raises(FeaturesUnreachableError, match=r"held by rank 7 .*[Cc]onnection refused"):
        late.gather(np.arange(3))


def test_a_holder_that_dies_between_two_answers_is_named():
    part = DenseFeatures(np.ones((50, 6), np.float32))
    server = FeatureServer(part, first=0, address=HERE)
    remote = RemoteFeatures(
        DenseFeatures(np.zeros((0, 6), np.float32)),
        first=0,
        holders=[Holder("rank 2", 0, 50, HERE, server.port, server.token)],
    )
    remote.gather(np.arange(50))
    server.stop()
    with pytest.raises(FeaturesUnreachableError, match=r"held by rank 2 at 127.0.0.1"):
        remote.gather(np.arange(50))


def test_a_holder_that_stays_silent_is_named_in_time():
    with socket.create_server((HERE, 0)) as silent:
        remote = RemoteFeatures(
            DenseFeatures(np.zeros((0, 6), np.float32)),
            first=0,
            holders=[Holder("rank 3", 0, 9, HERE, silent.getsockname()[1], bytes(16))],
            timeout_s=0.05,
        )
        with pytest.raises(FeaturesUnreachableError, match=r"rank 3.*no answer within 0.05 s"):
            remote.gather(np.arange(9))


def test_a_stopped_server_leaves_no_thread():
    before = threading.active_count()
    with dealt_out(WHOLE["dense"], own=0) as remote:
        remote.gather(np.arange(20_000))
        assert threading.active_count() > before
    assert threading.active_count() == before
