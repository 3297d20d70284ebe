import pytest
import torch.distributed as dist

from workers.mqgnn.racom.board import Board, Line
from workers.mqgnn.racom.dealing import BLOCK_STEPS, Dealing


def everybody():
    return (0, 1)


@pytest.fixture
def boards():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for place in range(2):  # as two replicas that start at once
        store.set(f"line/{place}", Line().encode())
    made = [Board(store, place=place, size=2) for place in range(2)]
    yield made
    for board in made:
        board.close()


def test_a_line_survives_its_text():
    line = Line(clock=3, wants=2, kind="step", seeds_per_s=1.5, loss=float("inf"), num_pushed=4)
    assert Line.decode(line.encode().encode()) == line


def test_others_see_what_one_posts_and_one_sees_its_own_at_once(boards):
    one, other = boards
    one.post(clock=5, seeds_per_s=2.0)
    assert one.lines()[0].clock == 5
    while other.lines()[0].clock != 5:
        other.wait()
    assert other.lines()[0].seeds_per_s == 2.0
    assert other.lines()[1].clock == 0
    assert other.lines()[1].life != other.lines()[0].life


def test_who_decides_first_decides_for_all(boards):
    one, other = boards
    assert one.decide("sync/1", "average") == "average"
    assert other.decide("sync/1", "step") == "average"
    assert other.decide("sync/2", "step") == "step"


def test_all_deal_a_block_alike_whatever_they_know_of_rates(boards):
    one, other = boards
    first = Dealing(one, members=everybody)(0)
    assert first == (256, 256)
    one.post(seeds_per_s=300.0)
    other.post(seeds_per_s=100.0)
    while min(line.seeds_per_s for line in one.lines()) == 0:
        one.wait()
    dealing = Dealing(one, members=everybody)
    assert dealing(BLOCK_STEPS - 1) == first  # decided before the rates were known
    assert dealing(BLOCK_STEPS) == (384, 128)
    assert Dealing(other, members=everybody)(BLOCK_STEPS + 3) == (384, 128)


def test_a_board_whose_store_is_gone_says_so():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    board = Board(store, place=0, size=1)
    board._watched = _Gone()
    with pytest.raises(dist.DistStoreError, match="gone"):
        post_for_long(board)
    board.close()


def post_for_long(board: Board) -> None:
    for clock in range(1000):
        board.post(clock=clock)
        board.wait()


class _Gone:
    def set(self, key, value):
        raise dist.DistStoreError("gone")
