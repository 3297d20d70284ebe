"""The graph as a job's sampler and evaluation see it: turned, without edges that are never drawn, with a time per edge.

Both look at the same edges, so what is evaluated is what is trained with all neighbours.
"""

from dataclasses import replace

import numpy as np

from workers.data.edges import indptr_of, targets_of
from workers.data.graph import EDGE_COLUMNS, Graph
from workers.data.relations import relation_of_edges
from workers.model_specs.sampled import SampledFields
from workers.mqgnn.sampling.csc import along


def graph_to_sample(graph: Graph, model: SampledFields) -> Graph:
    """``graph`` as ``model`` has it sampled.

    A weighted sampler never draws an edge of weight 0, so there is none. Where time counts and edges have none, an
    edge is there as soon as its source is (as in PyG, which looks at the times of nodes). For a hetero model the types
    of edges become the numbers of their relations.
    """
    graph = along(graph, direction=model.direction)
    if model.sampler == "weighted":
        assert graph.edge_weights is not None, "held against the data before"
        graph = _keep_edges(graph, graph.edge_weights > 0)
    if model.temporal and graph.edge_times is None:
        assert graph.node_times is not None, "held against the data before"
        graph = replace(graph, edge_times=graph.node_times[graph.indices])
    if model.hetero:
        kinds = np.zeros(graph.num_nodes, dtype=np.uint8) if graph.node_types is None else graph.node_types
        graph = replace(graph, edge_types=relation_of_edges(graph).astype(np.uint8), node_types=kinds)
    if model.sampler_backend == "pyg_lib":
        graph = replace(graph, indices=graph.indices.astype(np.int64, copy=False))  # it takes one type of index
    return graph


def copied_bytes(graph: Graph, model: SampledFields) -> int:
    """Bytes that ``graph_to_sample`` and an evaluation by time hold beside the stored arrays."""
    ends = graph.indptr.nbytes + graph.indices.nbytes
    columns = sum(column.nbytes for column in graph.columns(EDGE_COLUMNS).values())
    copies = (model.direction == "out") + _drops_edges(graph, model)
    times = 8 * graph.num_edges * (model.temporal and graph.edge_times is None)
    widened = 8 * graph.num_edges * (model.sampler_backend == "pyg_lib")
    evaluated = 2 * ends * model.temporal  # the edges up to a time, and where they are in the graph
    return copies * (ends + columns) + times + widened + evaluated + _typed_bytes(graph, model)


def _typed_bytes(graph: Graph, model: SampledFields) -> int:
    """Of numbered relations, and of the edges cut apart by them: their ends, a pointer per node and relation."""
    if model.types is None:
        return 0
    pointers = 8 * len(model.types.relations) * graph.num_nodes
    weights = 0 if graph.edge_weights is None else graph.edge_weights.nbytes
    return graph.indices.nbytes + weights + graph.num_edges + pointers + 17 * graph.num_nodes


def _drops_edges(graph: Graph, model: SampledFields) -> bool:
    return model.sampler == "weighted" and graph.edge_weights is not None and not graph.edge_weights.all()


def _keep_edges(graph: Graph, kept: np.ndarray) -> Graph:
    if kept.all():
        return graph
    columns = {name: column[kept] for name, column in graph.columns(EDGE_COLUMNS).items()}
    indptr = indptr_of(targets_of(graph.indptr)[kept], num_targets=graph.num_nodes)
    return replace(graph, indptr=indptr, indices=graph.indices[kept], **columns)
