import pytest
import torch.distributed as dist

from workers.comm.report_log import ReportReader, ReportWriter


@pytest.fixture
def store() -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def test_each_report_is_read_once_in_the_order_of_its_rank(store: dist.TCPStore) -> None:
    reader = ReportReader(store, size=2)
    assert reader.take() == []
    first, second = (ReportWriter(store, rank=rank) for rank in range(2))
    first.write({"rank": 0, "step": 1})
    second.write({"rank": 1, "step": 1})
    first.write({"rank": 0, "step": 2})
    assert reader.take() == [{"rank": 0, "step": 1}, {"rank": 0, "step": 2}, {"rank": 1, "step": 1}]
    assert reader.take() == []
    second.write({"rank": 1, "step": 2})
    assert reader.take() == [{"rank": 1, "step": 2}]


def test_who_comes_back_goes_on_counting_where_the_one_before_died_in_the_middle_of_a_report(
    store: dist.TCPStore,
) -> None:
    reader = ReportReader(store, size=1)
    dying = ReportWriter(store, rank=0)
    dying.write({"step": 1})
    store.set("report/0/1", "half")  # killed before the report counted
    ReportWriter(store, rank=0).write({"step": 5})
    assert reader.take() == [{"step": 1}, {"step": 5}]
    assert not store.check(["report/0/0"])
