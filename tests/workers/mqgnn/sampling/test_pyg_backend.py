"""pyg-lib as the backend of samplers: held against a stand-in of its signature, as the library is seldom here."""

import logging
import sys
import types

import numpy as np
import pytest
import torch

from tests.workers.mqgnn.sampling.odd_edges import star_csc
from tests.workers.mqgnn.sampling.same import assert_same, edges_of
from workers.errors import SeedsInvalidError
from workers.model_specs.sampled import SampledGNNSpec
from workers.mqgnn.sampling import pyg_backend
from workers.mqgnn.sampling.csc import Csc, csc_of_edges
from workers.mqgnn.sampling.named import build_sampler
from workers.mqgnn.sampling.neighbors import NeighborOptions, NeighborSampler


def wide_csc(num_nodes: int = 40, *, num_edges: int = 200) -> Csc:
    rng = np.random.default_rng(0)
    csc = csc_of_edges(rng.integers(num_nodes, size=num_edges), rng.integers(num_nodes, size=num_edges), num_nodes=40)
    return Csc(csc.indptr, csc.indices.astype(np.int64), num_nodes, edge_ids=csc.edge_ids)


def neighbor_sample(
    rowptr: torch.Tensor,
    col: torch.Tensor,
    seed: torch.Tensor,
    num_neighbors: list[int],
    node_time=None,
    edge_time=None,
    seed_time=None,
    edge_weight=None,
    csc: bool = False,
    replace: bool = False,
    directed: bool = True,
    disjoint: bool = False,
    temporal_strategy: str = "uniform",
    return_edge_id: bool = True,
):
    """pyg-lib's function for all neighbours, or the first few, written down from its documentation."""
    assert csc
    assert directed
    nodes = [(tree if disjoint else 0, node) for tree, node in enumerate(seed.tolist())]
    rows, columns, edges, per_hop, edges_per_hop, first = [], [], [], [len(nodes)], [], 0
    for fanout in num_neighbors:
        frontier, before = range(first, len(nodes)), len(edges)
        first = len(nodes)
        for target in frontier:
            tree, node = nodes[target]
            begin, end = rowptr[node : node + 2].tolist()
            for position in range(begin, end if fanout < 0 else min(end, begin + fanout)):
                if edge_weight is not None and not edge_weight[position] > 0:
                    continue
                source = (tree, int(col[position]))
                if source not in nodes:
                    nodes.append(source)
                rows.append(nodes.index(source))
                columns.append(target)
                edges.append(position)
        per_hop.append(len(nodes) - first)
        edges_per_hop.append(len(edges) - before)
    found = torch.tensor(nodes, dtype=torch.int64).reshape(-1, 2)
    row, column, edge = (torch.tensor(values, dtype=torch.int64) for values in (rows, columns, edges))
    return row, column, found if disjoint else found[:, 1], edge, per_hop, edges_per_hop


@pytest.fixture
def install(monkeypatch):
    """Put a function where pyg-lib would have its own."""

    def put(function) -> None:
        module = types.ModuleType("pyg_lib.sampler")
        if function is not None:
            module.neighbor_sample = function
        monkeypatch.setitem(sys.modules, "pyg_lib", types.ModuleType("pyg_lib"))
        monkeypatch.setitem(sys.modules, "pyg_lib.sampler", module)
        pyg_backend.find_pyg_lib.cache_clear()

    yield put
    pyg_backend.find_pyg_lib.cache_clear()


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("relabel_last_hop", [False, True])
@pytest.mark.parametrize("seeds", [[3, 17, 5, 8], []])
def test_the_form_is_that_of_our_own_sampler(seeds, relabel_last_hop, disjoint, install):
    install(neighbor_sample)
    options = {"fanouts": (-1, -1), "relabel_last_hop": relabel_last_hop, "disjoint": disjoint}
    ours, theirs = (
        build_sampler(wide_csc(), name="uniform", backend=name, **options).sample(np.array(seeds, dtype=int), key=1)
        for name in ("own", "pyg_lib")
    )
    assert_same(theirs, ours)


def test_edges_are_told_by_their_own_numbers():
    csc, options = wide_csc(), NeighborOptions(edge_ids=True)
    sampler = pyg_backend.PygLibSampler(csc, fanouts=(2, 2), options=options, function=neighbor_sample)
    found = sampler.sample(np.array([1, 2]), key=0)
    known = dict(zip(csc.edge_ids.tolist(), csc.indices.tolist(), strict=True))
    assert [known[edge] for edge in found.edge_ids.tolist()] == [source for source, _ in edges_of(found)]


@pytest.mark.parametrize(
    ("seeds", "words"), [([1, 40], "seed 40 at position 1"), ([4, 7, 4], "given twice.*position 2")]
)
def test_a_wrong_seed_never_reaches_it(seeds, words, install):
    install(neighbor_sample)
    sampler = build_sampler(wide_csc(), name="uniform", fanouts=(2,), backend="pyg_lib")
    with pytest.raises(SeedsInvalidError, match=words):
        sampler.sample(np.array(seeds), key=1)


def other_arguments(rowptr, col, seed, num_neighbors, replace, directed, disjoint):
    raise AssertionError("never called")


def other_results(*_args, **_kwargs):
    return torch.tensor([0]), torch.tensor([0])


def of_another_torch(*_args, **_kwargs):
    raise OSError("undefined symbol: _ZN3c106detail")


@pytest.mark.parametrize("function", [None, other_arguments, other_results, of_another_torch])
def test_g22_without_a_pyg_lib_that_works_our_own_sampler_runs_and_one_line_says_so(function, install, caplog):
    """Case G22: another release of pyg-lib (or torch) broke sampling. Here it only means our own sampler."""
    install(function)
    with caplog.at_level(logging.INFO):
        samplers = [build_sampler(wide_csc(), name="uniform", fanouts=(3, 2), backend="pyg_lib") for _ in range(3)]
    (line,) = caplog.records
    assert "own sampler takes its place" in line.message
    expected = NeighborSampler(wide_csc(), fanouts=(3, 2)).sample(np.arange(9), key=4)
    assert_same(samplers[0].sample(np.arange(9), key=4), expected)


def test_where_it_runs_one_line_says_what_is_not_promised(install, caplog):
    install(neighbor_sample)
    with caplog.at_level(logging.INFO):
        samplers = [build_sampler(wide_csc(), name="uniform", fanouts=(2,), backend="pyg_lib") for _ in range(2)]
    assert all(isinstance(sampler, pyg_backend.PygLibSampler) for sampler in samplers)
    (line,) = caplog.records
    assert "random numbers of its own" in line.message


def test_weights_are_handed_on():
    star = star_csc(3, weights=[1, 0, 2])
    csc = Csc(star.indptr, star.indices.astype(np.int64), 4, edge_ids=star.edge_ids, weights=star.weights)
    options = NeighborOptions("weighted", edge_ids=True)
    sampler = pyg_backend.PygLibSampler(csc, fanouts=(-1,), options=options, function=neighbor_sample)
    assert sampler.sample(np.array([0]), key=0).edge_ids.tolist() == [0, 2]


@pytest.mark.parametrize("options", [{"sampler": "labor"}, {"sampler": "ladies"}, {"temporal": True}])
def test_what_it_cannot_sample_is_refused_with_the_spec(options):
    with pytest.raises(ValueError, match="samples uniform and weighted; found"):
        SampledGNNSpec(name="graphsage", sampler_backend="pyg_lib", **options)
