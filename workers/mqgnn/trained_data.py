"""From a spec to what is sampled: one way for all who open the data of a run, so that they hold the same."""

from dataclasses import dataclass

from workers.data.datasets import load_dataset
from workers.data.graph import Graph, GraphDataset, rows_to_train
from workers.data.paths import DataPaths
from workers.data.union import as_one_graph
from workers.errors import DatasetInvalidError
from workers.mqgnn.sampling.sampled_graph import graph_to_sample
from workers.spec import TrainSpec
from workers.training.model_fit import resolve_model


@dataclass(frozen=True, eq=False)
class TrainedData:
    """``spec`` with its model settled, ``dataset``, and all its graphs as one ``graph``, as the model samples it."""

    spec: TrainSpec
    dataset: GraphDataset
    graph: Graph


def open_data(spec: TrainSpec, *, paths: DataPaths) -> TrainedData:
    """The data of a run that trains. Raises ``DatasetInvalidError`` and whatever a reader raises."""
    dataset = load_dataset(spec.dataset, paths=paths)
    graph = trained_graph(dataset)
    spec = spec.model_copy(update={"model": resolve_model(spec.model, dataset)})
    return TrainedData(spec=spec, dataset=dataset, graph=graph_to_sample(graph, spec.model))


def trained_graph(dataset: GraphDataset) -> Graph:
    """All graphs of ``dataset`` as one. Raises ``DatasetInvalidError`` when there is nothing to train on."""
    if not len(rows_to_train(dataset)):
        raise DatasetInvalidError(f"{dataset.name} has no {dataset.level} in its training split; nothing to learn from")
    return as_one_graph(dataset)
