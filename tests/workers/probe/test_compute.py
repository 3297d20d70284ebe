"""Units are measured at real shapes, within a budget, and hold what memory-efficient attention promises."""

import pytest
import torch

from planner.profiles import ProbeRequest, UnitSize
from tests.planner.made_up import cluster
from tests.workers.probe.test_describe import dataset_of, transformer_spec
from workers.ops.biased_attention import LocalExchange, biased_attention
from workers.ops.row_layout import RowLayout, whole
from workers.probe.compute import StandInExchange, fit_size, growth, measure_units
from workers.probe.describe import describe_job, profile_key
from workers.probe.made_up_rows import shard_sizes
from workers.probe.ranks import Ranks
from workers.probe.toy_graph import ring_graph

ALONE = Ranks(0, world_size=1, group=None, device=torch.device("cpu"))
SPEC = transformer_spec(hidden_size=16, num_heads=2)
DATASET = dataset_of(ring_graph())


def measure(*sizes: UnitSize, threads: tuple[int, ...] = (1,), budget_s: float = 60.0, repeats: int = 1):
    key = profile_key(describe_job(SPEC, DATASET), cluster=cluster(), num_ranks=1)
    request = ProbeRequest(key=key, unit_sizes=sizes, threads=threads, budget_s=budget_s, repeats=repeats)
    return measure_units(request, spec=SPEC, dataset=DATASET, ranks=ALONE)


def test_every_unit_is_measured_at_every_size_and_thread_count():
    sizes = (
        UnitSize(num_rows=8, num_columns=16, num_shards=2),
        UnitSize(num_rows=16, num_columns=32, num_graphs=3, num_shards=2),
    )
    before = torch.get_num_threads()
    samples = measure(*sizes, threads=(1, 2))
    torch.set_num_threads(before)
    found = {(s.unit, s.num_rows, s.num_columns, s.num_graphs, s.num_threads) for s in samples}
    expected = {
        (unit, rows, columns if unit == "block" else 0, graphs, threads)
        for unit in ("features", "degree", "distance", "block", "head")
        for rows, columns, graphs in ((8, 16, 1), (16, 32, 3))
        for threads in (1, 2)
    } | {("optimizer", 0, 0, 1, threads) for threads in (1, 2)}
    assert found == expected
    assert all(sample.forward_s > 0 for sample in samples)


def test_no_score_is_kept_for_backward():
    narrow, wide = UnitSize(num_rows=64, num_columns=64), UnitSize(num_rows=64, num_columns=1024, num_shards=16)
    saved = {sample.num_columns: sample.saved_bytes for sample in measure(narrow, wide) if sample.unit == "block"}
    assert saved[64] == saved[1024]


def test_peaks_cover_what_is_kept():
    assert all(s.peak_bytes >= s.saved_bytes for s in measure(UnitSize(num_rows=64, num_columns=128, num_shards=2)))


def test_a_spent_budget_leaves_the_smallest_size():
    sizes = (UnitSize(num_rows=8, num_columns=16, num_shards=2), UnitSize(num_rows=512, num_columns=1024, num_shards=2))
    rows = {sample.num_rows for sample in measure(*sizes, budget_s=1e-9) if sample.unit == "block"}
    assert rows == {8}


@pytest.mark.parametrize(
    ("runs", "num_graphs", "expected"),
    [
        (100.0, 1, (100, 200, 1, 5)),  # all repeats
        (4.0, 1, (100, 200, 1, 2)),  # 1.5 of 4 runs are not timed
        (2.5 / 4, 1, (50, 100, 1, 1)),  # a quarter of the pairs is affordable once
        (2.5 / 4, 8, (100, 200, 2, 1)),  # or a quarter of the graphs
        (-1.0, 1, (1, 1, 1, 1)),
    ],
)
def test_a_size_is_repeated_less_often_then_shrunk(runs, num_graphs, expected):
    size = UnitSize(num_rows=100, num_columns=200, num_graphs=num_graphs)
    fitted, repeats = fit_size(size, affordable_runs=runs, repeats=5)
    assert (fitted.num_rows, fitted.num_columns, fitted.num_graphs, repeats) == expected


def test_a_run_grows_no_faster_than_its_fastest_term():
    before = UnitSize(num_rows=10, num_columns=20)
    assert growth(before, UnitSize(num_rows=20, num_columns=40)) == 4
    assert growth(before, UnitSize(num_rows=10, num_columns=20, num_shards=5)) == 5
    assert growth(before, UnitSize(num_rows=1, num_columns=2, num_graphs=8)) == 8
    assert growth(before, UnitSize(num_rows=30, num_columns=2)) == 3


@pytest.mark.parametrize(
    ("rows", "columns", "shards", "expected"),
    [(10, 10, 1, (10,)), (10, 20, 2, (10, 10)), (9, 33, 4, (9, 8, 8, 8)), (2, 5, 4, (2, 1, 1, 1)), (1, 1, 2, (1, 0))],
)
def test_what_is_not_here_is_cut_evenly_over_the_other_shards(rows, columns, shards, expected):
    assert shard_sizes(UnitSize(num_rows=rows, num_columns=columns, num_shards=shards)) == expected


def test_the_stand_in_computes_what_one_process_would():
    torch.manual_seed(0)
    q, k, v = (torch.randn(12, 2, 4, dtype=torch.float64) for _ in range(3))
    table = torch.randn(2, 3, dtype=torch.float64)
    buckets = torch.randint(3, (12, 12), dtype=torch.uint8)
    complete = biased_attention(
        q, k=k, v=v, table=table, buckets=(buckets,), layout=whole((12,)), exchange=LocalExchange()
    )
    kv = torch.stack((k, v), dim=1)
    shards = biased_attention(
        q[:4],
        k=k[:4],
        v=v[:4],
        table=table,
        buckets=(buckets[:4],),
        layout=RowLayout(sizes=((4,), (4,), (4,))),
        exchange=StandInExchange(kv.split(4)),
    )
    torch.testing.assert_close(shards, complete[:4])
