"""Which rows are hot, and a cache of them that changes nothing but what is asked of others."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from planner.caching import NO_CACHE, CacheRule
from service.validation import SpecInvalidError, parse_spec
from tests.workers.mqgnn.graphs import clustered_graph, graph_of_edges
from workers.data.feature_server import FeatureServer
from workers.data.features import DenseFeatures, SparseFeatures, compact, windows
from workers.data.graph import TRAIN, Graph
from workers.data.remote_features import Holder, RemoteFeatures
from workers.mqgnn.feature_cache import count_hot_rows, fill_cache, inclusion_chances, rank_rows
from workers.mqgnn.sampling.csc import csc_of
from workers.mqgnn.sampling.named import build_sampler
from workers.spec import TrainSpec

GRAPH = clustered_graph(400, degree=12)
NUM_OWN = 100


def sparse_features() -> SparseFeatures:
    rng = np.random.default_rng(0)
    found = compact(DenseFeatures((rng.random((400, 40)) < rng.random((400, 1)) * 0.15).astype(np.float32)))
    assert isinstance(found, SparseFeatures)
    return found


FORMS = {"dense": GRAPH.features, "sparse": sparse_features()}


@contextmanager
def others_hold(features: DenseFeatures | SparseFeatures) -> Iterator[RemoteFeatures]:
    """The first rows are held here, the rest by another."""
    own, rest = windows(features, offsets=np.array([0, NUM_OWN, 400]))
    server = FeatureServer(rest, first=NUM_OWN, address="127.0.0.1")
    remote = RemoteFeatures(
        own, first=0, holders=[Holder("rank 1", NUM_OWN, 400, "127.0.0.1", server.port, server.token)]
    )
    yield remote
    remote.close()
    server.stop()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows_that_fit", [1, 40, 1000])
def test_a_cache_answers_what_the_holders_would(form, rows_that_fit):
    max_bytes = 4 * 400 + rows_that_fit * (32 if form == "dense" else 8 * 8)
    asked = np.random.default_rng(1).integers(400, size=900)
    with others_hold(FORMS[form]) as remote:
        cached = fill_cache(remote, hottest=np.arange(400)[::-1], max_bytes=max_bytes)
        before = remote.received_bytes
        np.testing.assert_array_equal(cached.gather(asked), FORMS[form].gather(asked))
        assert cached.nbytes <= max_bytes + 8
        assert cached.hits + cached.misses == np.count_nonzero(asked >= NUM_OWN)
        assert (cached.misses == 0) == (rows_that_fit == 1000)
        assert (remote.received_bytes > before) == (cached.misses > 0)


def test_the_hottest_rows_of_others_are_kept_and_own_ones_are_not():
    hottest = np.concatenate([np.arange(50), np.arange(350, 400), np.arange(50, 350)])
    with others_hold(FORMS["dense"]) as remote:
        cached = fill_cache(remote, hottest=hottest, max_bytes=4 * 400 + 50 * 32)
        cached.gather(np.arange(400))
        assert (cached.hits, cached.misses) == (50, 250)
        cached.gather(np.arange(350, 400))
        assert (cached.hits, cached.misses) == (100, 250)


@pytest.mark.parametrize("max_bytes", [0, 4 * 400, 4 * 400 + 31])
def test_a_budget_that_holds_no_row_is_no_cache(max_bytes):
    with others_hold(FORMS["dense"]) as remote:
        assert fill_cache(remote, hottest=np.arange(400), max_bytes=max_bytes) is None


def test_as_many_rows_are_hot_as_the_budget_holds():
    rows = {"num_rows": 400, "feature_bytes": 400 * 32}
    assert count_hot_rows(4 * 400 + 50 * 32, **rows) == 50
    assert count_hot_rows(1000, **rows) == 0
    assert count_hot_rows(10**9, **rows) == 400


MODEL = {"name": "graphsage", "fanouts": [3, 2]}
REFUSED = [
    ("mqgnn", MODEL, "local", {"prefer": 2}, "prefer draws neighbours whose rows need not travel"),
    ("mqgnn", {**MODEL, "sampler": "labor"}, "remote", {"prefer": 2}, "a form of the uniform sampler"),
    ("mqgnn", {**MODEL, "replace": True}, "remote", {"prefer": 2}, "a form of the uniform sampler"),
    ("mqgnn", {**MODEL, "name": "gat"}, "remote", {"prefer": 2}, "which gat does not take"),
    ("megagraph", {"name": "graphormer"}, "local", {"reuse": 2}, "it is for kind mqgnn"),
]


@pytest.mark.parametrize(("kind", "model", "features", "cache", "said"), REFUSED)
def test_a_cache_that_cannot_be_is_refused_where_it_stands(kind, model, features, cache, said):
    training = {"features": features, "cache": cache}
    document = {"name": "refused", "kind": kind, "dataset": {"name": "karate"}, "model": model, "training": training}
    with pytest.raises(SpecInvalidError) as caught:
        parse_spec(document)
    (fault,) = caught.value.details["faults"]
    assert fault["pointer"] == "/training/cache"
    assert said in f"{fault['detail']}; {fault['fix']}"
    with pytest.raises(ValidationError, match=f"training.cache: .*{said}"):
        TrainSpec(kind=kind, dataset={"name": "karate"}, model=model, training=training)


def test_a_model_of_another_kind_is_refused_as_such():
    training = {"features": "remote", "cache": {"prefer": 2}}
    document = {"name": "a", "kind": "mqgnn", "dataset": {"name": "karate"}, "model": {"name": "gt"}}
    with pytest.raises(SpecInvalidError) as caught:
        parse_spec({**document, "training": training})
    assert [fault["pointer"] for fault in caught.value.details["faults"]] == ["/model/name"]


def test_rows_do_not_lie_on_ranks_that_may_die_alone():
    training = {"features": "remote", "sync": "racom"}
    document = {"name": "a", "kind": "mqgnn", "dataset": {"name": "karate"}, "model": MODEL, "training": training}
    with pytest.raises(SpecInvalidError) as caught:
        parse_spec(document)
    assert [fault["pointer"] for fault in caught.value.details["faults"]] == ["/training/features"]
    with pytest.raises(ValidationError, match=r"training.features: rows lie on all ranks.*choose ddp or local_sgd"):
        TrainSpec(kind="mqgnn", dataset={"name": "karate"}, model=MODEL, training=training)
    TrainSpec(kind="mqgnn", dataset={"name": "karate"}, model=MODEL, training={**training, "sync": "local_sgd"})


def test_a_cache_of_kinds_that_have_none_may_be_switched_off():
    spec = TrainSpec(kind="megagraph", dataset={"name": "karate"}, model={"name": "gt"}, training={"cache": "off"})
    assert spec.training.cache == NO_CACHE
    asked = {"features": "remote", "cache": {"prefer": 9}}
    spec = TrainSpec(kind="mqgnn", dataset={"name": "karate"}, model=MODEL, training=asked)
    assert spec.training.cache == CacheRule(prefer=9)


def path_and_star() -> Graph:
    """Seeds 0 and 1; 0 hears from 2, which hears from 3 and 4; 1 hears from 5, 6, 7 and 8. 9 is heard by nobody."""
    edges = [(2, 0), (3, 2), (4, 2), (5, 1), (6, 1), (7, 1), (8, 1), (0, 9)]
    return graph_of_edges(edges, num_nodes=10)


def test_chances_follow_the_edges_hop_by_hop():
    found = inclusion_chances(path_and_star(), seeds=np.array([0, 1]), batch_size=1, fanouts=(2, 1))
    np.testing.assert_allclose(found, [0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0], atol=1e-9)
    every = inclusion_chances(path_and_star(), seeds=np.array([0, 1]), batch_size=2, fanouts=(-1, -1))
    np.testing.assert_allclose(every, [1] * 9 + [0], atol=1e-6)


def test_chances_foretell_how_often_mini_batches_need_a_node():
    seeds = np.flatnonzero(GRAPH.split == TRAIN)
    sampler = build_sampler(csc_of(GRAPH), name="uniform", fanouts=(3, 2))
    rng, counts = np.random.default_rng(0), np.zeros(400)
    for key in range(400):
        counts[sampler.sample(rng.choice(seeds, 16, replace=False), key=key).node_ids] += 1
    chances = inclusion_chances(GRAPH, seeds=seeds, batch_size=16, fanouts=(3, 2))
    assert np.corrcoef(chances, counts)[0, 1] > 0.9
    assert chances.mean() == pytest.approx(counts.mean() / 400, rel=0.1)


def test_rows_are_ranked_by_who_hears_from_them():
    graph = graph_of_edges([(3, 0), (3, 1), (3, 2), (1, 0), (1, 2), (2, 0)], num_nodes=5)
    ranked = rank_rows(graph, policy="degree", seeds=np.array([0]), batch_size=1, fanouts=(2,))
    assert ranked.tolist() == [3, 1, 2, 0, 4]
    by_chance = rank_rows(graph, policy="inclusion", seeds=np.array([2]), batch_size=1, fanouts=(1,))
    assert by_chance.tolist() == [2, 1, 3, 0, 4]
    assert sorted(rank_rows(replace(GRAPH), policy="degree", seeds=np.array([0]), batch_size=1, fanouts=())) == [
        *range(400)
    ]
