"""An index that no plan can hold is refused before anything is measured, with what would do instead."""

import pytest

from planner.errors import NoPlanFitsError
from planner.pair_index import check_pair_index
from tests.planner.made_up import MIB, cluster, cluster_with_room, transformer_shape


def refuse(shape, *, room_bytes: int, num_ranks: int = 2) -> NoPlanFitsError:
    where = cluster_with_room(room_bytes, num_ranks=num_ranks)
    with pytest.raises(NoPlanFitsError) as caught:
        check_pair_index(shape, cluster=where, num_ranks=num_ranks)
    return caught.value


def test_asked_bytes_budget_and_the_ranks_that_would_do_are_named():
    # 40,000 squared bytes over two ranks are 763 MiB each; of 100 MiB it takes 16
    error = refuse(transformer_shape(graph_sizes=(40_000,)), room_bytes=100 * MIB)
    assert "takes 763 MiB per rank" in error.message
    assert "a rank may take 100 MiB" in error.message
    assert "16 ranks or more" in error.message
    assert "gt and exphormer" in error.message
    assert error.details["needed_bytes"] == 800_000_000


def test_an_index_that_fits_is_let_through():
    shape = transformer_shape(graph_sizes=(10_000,))
    check_pair_index(shape, cluster=cluster_with_room(100 * MIB, num_ranks=2), num_ranks=2)
    refuse(shape, room_bytes=47 * MIB)


def test_models_without_an_index_and_clusters_without_a_limit_are_let_through():
    large = {"graph_sizes": (1_000_000,)}
    check_pair_index(transformer_shape(**large, pair_bytes=0), cluster=cluster(), num_ranks=2)
    check_pair_index(transformer_shape(**large), cluster=cluster(memory_bytes=0), num_ranks=2)


def test_graphs_that_are_only_evaluated_count_and_edge_paths_weigh():
    assert "763 MiB" in refuse(transformer_shape(other_graph_sizes=(40_000,)), room_bytes=MIB).message
    assert "3.73 GiB" in refuse(transformer_shape(graph_sizes=(40_000,), pair_bytes=5), room_bytes=MIB).message


def test_the_form_of_near_pairs_is_named_where_the_model_has_it():
    shape = transformer_shape(graph_sizes=(40_000,), options=(("index", '"dense"'),))
    assert "index: near_pairs" in refuse(shape, room_bytes=MIB).message
    assert "near_pairs" not in refuse(transformer_shape(graph_sizes=(40_000,)), room_bytes=MIB).message
