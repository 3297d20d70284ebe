"""What a model's spec leaves open follows from the data: the form of its distance index."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.distributed.odd_graphs import build_graph, build_set, random_edges
from workers.data.graph import GraphDataset
from workers.errors import ExportMismatchError
from workers.model_specs.by_name import ModelSpec
from workers.model_specs.needs import Needs
from workers.model_specs.transformers import GraphGPSSpec, GraphormerSpec
from workers.spec import DatasetSpec, TrainSpec
from workers.training.export_config import FORMAT, check_fits
from workers.training.folder import Folder
from workers.training.model_fit import resolve_model


def one_graph(num_nodes: int) -> GraphDataset:
    return build_set([build_graph(num_nodes, random_edges(num_nodes, 2 * num_nodes, seed=0), seed=0)])


@pytest.mark.parametrize("spec", [GraphormerSpec, GraphGPSSpec])
def test_few_near_pairs_of_a_large_graph_are_held_alone(spec: type[ModelSpec]) -> None:
    assert resolve_model(spec(), one_graph(2000)).index == "near_pairs"
    assert resolve_model(spec(), one_graph(2000)).needs.near_pairs
    assert resolve_model(spec(max_distance=9), one_graph(2000)).index == "dense"
    assert resolve_model(spec(), one_graph(100)).index == "dense"
    assert resolve_model(spec(index="near_pairs"), one_graph(100)).index == "near_pairs"
    assert resolve_model(spec(index="dense"), one_graph(2000)).index == "dense"


def test_edge_paths_are_of_all_pairs() -> None:
    assert resolve_model(GraphormerSpec(edge_types=1), one_graph(2000)).index == "dense"
    with pytest.raises(ValidationError, match="choose index 'dense', or edge_types 0"):
        GraphormerSpec(index="near_pairs", edge_types=1)
    for needs in ({"edge_paths": True, "max_distance": 2}, {}):
        with pytest.raises(ValidationError, match="give a max_distance"):
            Needs(near_pairs=True, **needs)


def test_an_export_fits_data_that_it_meets_in_the_other_form(tmp_path: Path) -> None:
    trained = resolve_model(GraphormerSpec(), one_graph(2000))
    config = {"format": FORMAT, "model": trained.model_dump(mode="json"), "num_features": 6, "num_classes": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec = TrainSpec(
        kind="megagraph",
        task="predict",
        from_job="trained",
        dataset=DatasetSpec(name="karate"),
        model=GraphormerSpec(),
    )
    check_fits(Folder(tmp_path), spec=spec, dataset=one_graph(100))
    wider = spec.model_copy(update={"model": GraphormerSpec(hidden_size=128)})
    with pytest.raises(ExportMismatchError, match="repeat the model of that job"):
        check_fits(Folder(tmp_path), spec=wider, dataset=one_graph(100))
