"""Where a watched thread is, and whether it waits for others there."""

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import torch
import torch.distributed as dist

from workers.mqgnn.racom.board import Board, Line
from workers.watch.beats import Beat
from workers.watch.progress import Progress
from workers.watch.rank_watch import WatchTerms, _Watch, place_of


def places_of(work: Callable[[], object]) -> set[tuple[str, bool]]:
    """Where a thread that does ``work`` over and over is found."""
    is_over = threading.Event()

    def repeat() -> None:
        while not is_over.is_set():
            work()

    thread = threading.Thread(target=repeat)
    thread.start()
    found = set()
    for _ in range(50):
        time.sleep(0.005)
        found.add(place_of(thread))
    is_over.set()
    thread.join()
    return found


def test_a_replica_that_waits_for_a_slower_one_waits() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for place in range(2):
        store.set(f"line/{place}", Line().encode())
    board = Board(store, place=0, size=2)
    try:
        places = places_of(board.wait)
    finally:
        board.close()
    assert any("racom/board.py" in where and waits for where, waits in places)


def test_a_rank_that_was_last_heard_preparing_says_at_once_that_it_takes_a_step() -> None:
    said: list[Beat] = []
    ear = SimpleNamespace(send=said.append)
    progress = Progress()
    terms = WatchTerms(rank=0, world_size=2, address="127.0.0.1", device=torch.device("cpu"), limit_s=20.0)
    watch = _Watch(ear, threading.current_thread(), said.append, terms=terms, progress=progress)  # type: ignore[arg-type]
    progress.announce = watch._announce
    watch._say()
    progress.begin_step(1)
    assert [beat.phase for beat in said] == ["preparation", "step"]
    with progress.during("preparation"):
        watch._say()
    assert [beat.phase for beat in said[2:]] == ["preparation", "step"]
    with progress.during("preparation"):
        pass  # which nobody has heard of
    progress.begin_step(2)
    assert len(said) == 4


def test_a_rank_that_waits_for_its_own_lock_does_not_wait_for_others() -> None:
    mine = threading.Event()
    places = places_of(lambda: mine.wait(0.1))
    assert all("watch/test_rank_watch.py" in where and not waits for where, waits in places)
