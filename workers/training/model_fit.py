"""Holds a model's spec against its data set, and fills in what follows from the data: pooling, form of the index.

spec.model + data set ─▶ resolve_model ─▶ the spec that is built, trained and exported. No tensor library in here.
"""

import numpy as np

from workers.data.edges import to_edges
from workers.data.graph import NO_SPLIT, NO_TIME, Graph, GraphDataset
from workers.data.graph_encodings.index_form import is_near_form_smaller
from workers.data.relations import MOST_RELATIONS, node_type_names, relations_of
from workers.errors import ModelInvalidError
from workers.model_specs.by_name import ModelSpec
from workers.model_specs.custom import CustomSpec
from workers.model_specs.needs import Needs
from workers.model_specs.sampled import SampledFields, TypeNames
from workers.model_specs.transformers import GraphGPSSpec, GraphormerSpec, IndexForm


def resolve_model(model: ModelSpec, dataset: GraphDataset) -> ModelSpec:
    """``model`` with its pooling: as it says, else none for nodes and the mean for graphs; and the form of its index.

    Raises ``ModelInvalidError`` where it does not fit what is predicted, or edge types that ``dataset`` has not.
    """
    if not dataset.num_features and not getattr(model, "node_embedding_size", 0):
        raise ModelInvalidError(
            f"{dataset.name} has no features: give its nodes some, or train a sampled GNN with"
            " model.node_embedding_size, numbers that are learned for each node"
        )
    if isinstance(model, SampledFields):
        _check_sampling(model, dataset)
        return _with_types(model, dataset) if model.hetero else model
    _check_edge_types(model.needs.edge_types, dataset)
    if model.needs.edge_paths and dataset.num_edge_types:
        _check_both_ways(dataset)
    if isinstance(model, GraphormerSpec | GraphGPSSpec) and model.index == "auto":
        model = model.model_copy(update={"index": _index_form(model.needs, dataset)})
    if model.pooling is None:
        return model.model_copy(update={"pooling": "none" if dataset.level == "node" else "mean"})
    if (model.pooling == "none") != (dataset.level == "node") and not isinstance(model, CustomSpec):
        wanted = "none" if dataset.level == "node" else "mean or sum"
        raise ModelInvalidError(
            f"model.pooling {model.pooling!r} does not fit {dataset.name}, where each {dataset.level} is predicted:"
            f" choose {wanted}, or leave it out"
        )
    return model


def _of_one_graph(model: SampledFields) -> dict[str, bool]:
    return {
        "sampler": model.sampler == "weighted",
        "disjoint": model.disjoint,
        "temporal": model.temporal,
        "hetero": model.hetero,
        "sampler_backend": model.sampler_backend != "own",
    }


def _check_sampling(model: SampledFields, dataset: GraphDataset) -> None:
    """Weights and times that the sampler looks at."""
    is_plain = dataset.level == "node" and dataset.links is None and len(dataset.graphs) == 1
    asked = [name for name, is_set in _of_one_graph(model).items() if is_set]
    if asked and not is_plain:
        raise ModelInvalidError(
            f"model.{asked[0]} is for nodes of one graph; {dataset.name} has graphs or links to predict, or several"
            f" graphs: leave {' and '.join(asked)} out",
            pointer=f"/model/{asked[0]}",
        )
    graph = dataset.graphs[0]
    if model.sampler == "weighted" and graph.edge_weights is None:
        raise ModelInvalidError(
            f"model.sampler 'weighted' draws by weights of edges, and those of {dataset.name} have none: add a column"
            " weight to the table of edges (edge_weight in a saved PyG object), or choose uniform",
            pointer="/model/sampler",
        )
    if not model.temporal:
        return
    if graph.node_times is None:
        raise ModelInvalidError(
            f"model.temporal looks at edges no later than the time of their seed, and the nodes of {dataset.name} have"
            " none: add a column time to the table of nodes (time in a saved PyG object), or leave temporal out",
            pointer="/model/temporal",
        )
    timeless = np.flatnonzero((graph.split != NO_SPLIT) & (graph.node_times == NO_TIME))
    if len(timeless):
        raise ModelInvalidError(
            f"model.temporal: node {timeless[0]} of {dataset.name} is in a part of the split and has no time; give"
            " it one, or take it out of the split",
            pointer="/model/temporal",
            node=int(timeless[0]),
        )


def _with_types(model: SampledFields, dataset: GraphDataset) -> SampledFields:
    """``model`` with the names of what it tells apart. One type of nodes is predicted."""
    (graph,) = dataset.graphs
    if graph.node_types is None and graph.edge_types is None:
        raise ModelInvalidError(
            f"model.hetero tells types of nodes and edges apart, and {dataset.name} has none: add a column type to the"
            " tables (or save a HeteroData), or leave hetero out",
            pointer="/model/hetero",
        )
    if graph.node_types is not None:
        predicted = np.unique(graph.node_types[graph.split != NO_SPLIT])
        if len(predicted) > 1:
            names = [node_type_names(dataset)[number] for number in predicted]
            raise ModelInvalidError(
                f"model.hetero predicts nodes of one type; the split of {dataset.name} has {', '.join(names)}: keep"
                " the labels of one of them",
                pointer="/model/hetero",
            )
    found = TypeNames(nodes=node_type_names(dataset), relations=relations_of(dataset))
    if len(found.relations) > MOST_RELATIONS:
        raise ModelInvalidError(
            f"model.hetero tells at most {MOST_RELATIONS} relations apart; {dataset.name} has {len(found.relations)}"
        )
    if model.types not in (None, found):
        raise ModelInvalidError(
            f"model.types {model.types} are not those of {dataset.name}, {found}: leave types out",
            pointer="/model/types",
        )
    return model.model_copy(update={"types": found})


def _index_form(needs: Needs, dataset: GraphDataset) -> IndexForm:
    assert needs.max_distance is not None, "an index is one of distances"
    if not needs.edge_paths and is_near_form_smaller(dataset.graphs, max_distance=needs.max_distance):
        return "near_pairs"
    return "dense"


def _check_both_ways(dataset: GraphDataset) -> None:
    if not all(map(_is_both_ways, dataset.graphs)):
        raise ModelInvalidError(
            "model.edge_types of a Graphormer are those along shortest paths, which run both ways, and"
            f" {dataset.name} has edges that lead one way: leave dataset.directed out, or set"
            " model.edge_types 0",
            pointer="/model/edge_types",
        )


def _is_both_ways(graph: Graph) -> bool:
    """In numpy alone: whoever describes a job imports no compiler."""
    sources, targets = to_edges(graph.indptr, graph.indices)
    there, back = targets * graph.num_nodes + sources, sources * graph.num_nodes + targets
    return bool(np.array_equal(there, np.sort(back)))


def _check_edge_types(asked: int, dataset: GraphDataset) -> None:
    """Edges without types count as one kind."""
    found = max(1, dataset.num_edge_types)
    if asked and (asked < found or (dataset.num_edge_types == 0 and asked > 1)):
        raise ModelInvalidError(
            f"model.edge_types {asked} does not fit {dataset.name}, which has {dataset.num_edge_types} kinds of edges:"
            f" choose {f'{found} or more' if dataset.num_edge_types else '0'}"
        )
