"""What a job looks like to the planner, and what its profile is valid for. No tensor library is imported here."""

import json
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from planner.cluster import ClusterSpec, list_hosts, room_per_rank
from planner.profiles import JobShape, ProfileKey, SampledShape, ShardCounts, TransformerShape
from workers.data.graph import TRAIN, Graph, GraphDataset, rows_to_train
from workers.data.graph_encodings.index_form import heaviest_rows
from workers.data.shard_counts import count_shards
from workers.model_specs.by_name import TransformerSpec
from workers.model_specs.custom import CustomGNNSpec
from workers.model_specs.needs import Needs, mixes_of
from workers.model_specs.sampled import SampledFields
from workers.mqgnn.sampling.sampled_graph import copied_bytes
from workers.ops.native import kernel_form
from workers.spec import TrainSpec
from workers.training.model_fit import resolve_model
from workers.training.objective import resolve_objective

# How much is dropped decides no time; whether, the shape says.
_NOT_COMPUTED = frozenset({"name", "dropout", "input_dropout", "attention_dropout"})
# Chosen: counting takes a pass over the edges for each number of shards; beyond, the planner takes bounds.
_MOST_COUNTED_SHARDS = 16
# Of rows learned for each node: they, two moments, the best so far, and all four as a checkpoint writes them.
_TABLE_COPIES = 8
_SOFTWARE = ("graphmill", "numba", "numpy", "pyg-lib", "torch", "torch-geometric", "triton")


def describe_job(spec: TrainSpec, dataset: GraphDataset, *, most_ranks: int = 1) -> JobShape:
    """The shape of training ``spec`` on ``dataset``: sizes only. One graph may be cut into ``most_ranks`` shards.

    Raises ``ObjectiveInvalidError`` when loss or metric do not fit the labels, ``ModelInvalidError`` when the model
    does not fit the data.
    """
    resolve_objective(spec.training, dataset)
    model = resolve_model(spec.model, dataset)
    if isinstance(model, SampledFields):
        return _describe_sampled(spec, model, dataset)
    return _describe_transformer(spec, model, dataset, most_ranks=most_ranks)


def profile_key(
    shape: JobShape, *, cluster: ClusterSpec, num_ranks: int, cpus_per_rank: float = 1.0, gpus_per_rank: float = 0.0
) -> ProfileKey:
    """What a profile of ``shape`` is valid for: where the ranks may run, how they lie, this process's software.

    Raises ``NoPlanFitsError`` when no node of ``cluster`` can take a rank.
    """
    per_rank = {"cpus_per_rank": cpus_per_rank, "gpus_per_rank": gpus_per_rank}
    hosts, room = list_hosts(cluster, **per_rank), room_per_rank(cluster, num_ranks=num_ranks, **per_rank)
    versions = ((name, _version(name)) for name in _SOFTWARE)
    software = (("python", platform.python_version()), ("kernels", kernel_form()), *versions)
    return ProfileKey(
        shape=shape,
        device_name=_names({node.device_name if gpus_per_rank else node.cpu_name for node in hosts}),
        cpu_name=_names({node.cpu_name for node in hosts}),
        num_ranks=num_ranks,
        cores_per_rank=room.num_cores,
        ranks_per_node=room.ranks_per_node,
        software=software,
        **per_rank,
    )


def _describe_transformer(
    spec: TrainSpec, model: TransformerSpec, dataset: GraphDataset, *, most_ranks: int
) -> TransformerShape:
    sizes = tuple(graph.num_nodes for graph in dataset.graphs if _is_trained(graph))
    needs, fields = model.needs, model.model_dump(mode="json")
    distance, hops = needs.max_distance or 0, needs.num_hops
    is_dense, asked = needs.max_distance is not None, spec.training.attention_kernel
    return TransformerShape(
        model=model.name,
        units=model.units,
        num_layers=fields.get("num_layers", len(model.blocks)),  # a module of the user's own need not tell
        hidden_size=model.hidden_size,
        num_heads=fields.get("num_heads", 1),
        num_features=dataset.num_features,
        num_classes=dataset.num_classes,
        num_buckets=distance + 2 if is_dense else 0,
        ffn_ratio=fields.get("ffn_ratio", 0.0),
        mixes=mixes_of(needs, has_sums=model.has_sums),
        num_tokens=model.num_tokens,
        extra_columns=needs.laplacian_size
        + needs.walk_length
        + (0 if hops is None else (hops + 1) * dataset.num_features),
        pair_bytes=(is_dense and not needs.near_pairs) + needs.edge_paths * distance,
        near_pairs=heaviest_rows(dataset.graphs, max_distance=distance) if needs.near_pairs else (),
        num_edges=_num_edges(needs, num_edges=dataset.num_edges, num_nodes=dataset.num_nodes),
        traffic=model.traffic,
        shards=_count_shards(needs, dataset, most_ranks=most_ranks),
        options=(
            *((name, json.dumps(value)) for name, value in fields.items() if name not in _NOT_COMPUTED),
            *((("attention_kernel", asked),) if asked != "auto" else ()),
        ),
        graph_sizes=sizes,
        other_graph_sizes=tuple(graph.num_nodes for graph in dataset.graphs if not _is_trained(graph)),
        graphs_per_step=min(spec.training.batch_size, len(sizes)),
        uses_dropout=fields.get("dropout", 0) > 0,
        uses_input_dropout=fields.get("input_dropout", 0) > 0,
        uses_attention_dropout=fields.get("attention_dropout", 0) > 0,
        dtype=spec.training.dtype,
        precision=spec.training.precision,
    )


def _count_shards(needs: Needs, dataset: GraphDataset, *, most_ranks: int) -> tuple[ShardCounts, ...]:
    """How the edges of the one graph, if it is one and they matter, fall on 2, 3, … shards."""
    if len(dataset.graphs) > 1 or not (needs.edges or needs.expander_degree):
        return ()
    (graph,) = dataset.graphs
    counted = []
    for cp_degree in range(2, min(most_ranks, graph.num_nodes, _MOST_COUNTED_SHARDS) + 1):
        most, halo_rows = count_shards(graph, num_shards=cp_degree)
        most_edges = _num_edges(needs, num_edges=most, num_nodes=-(-graph.num_nodes // cp_degree))
        counted.append(ShardCounts(cp_degree=cp_degree, most_edges=most_edges, halo_rows=halo_rows))
    return tuple(counted)


def _num_edges(needs: Needs, *, num_edges: int, num_nodes: int) -> int:
    """Edges that message passing and sparse attention run along, those of expanders and global nodes included."""
    per_node = needs.expander_degree + needs.num_global
    both = 2 if needs.edges and per_node else 1  # kept with the others, and by themselves
    return (needs.edges * both) * num_edges + per_node * num_nodes


def _describe_sampled(spec: TrainSpec, model: SampledFields, dataset: GraphDataset) -> SampledShape:
    graphs = dataset.graphs
    stored = sum(graph_bytes(graph) for graph in graphs)
    itemsize = np.dtype(spec.training.dtype).itemsize
    table = _TABLE_COPIES * dataset.num_nodes * model.node_embedding_size * itemsize
    outputs = 0 if dataset.level == "node" else dataset.num_nodes * dataset.num_classes * itemsize
    return SampledShape(
        model=_words_of_model(model),
        num_layers=model.num_layers,
        hidden_size=getattr(model, "hidden_size", 0),  # a module of the user's own does not tell
        num_heads=getattr(model, "num_heads", 1),
        num_features=dataset.num_features + model.node_embedding_size,
        num_classes=dataset.num_classes,
        num_nodes=dataset.num_nodes,
        num_edges=dataset.num_edges,
        num_train=len(rows_to_train(dataset)),
        batch_size=spec.training.batch_size,
        fanouts=model.fanouts,
        sampler=" ".join(_words_of_sampling(model, dataset)),
        largest_degree=max(int(np.diff(graph.indptr).max(initial=0)) for graph in graphs),
        graph_bytes=stored * (1 + (len(graphs) > 1))  # several are copied into one
        + sum(copied_bytes(graph, model) for graph in graphs)
        + table
        + outputs
        + _link_bytes(dataset, itemsize=itemsize),
        feature_bytes=sum(array.nbytes for graph in graphs for array in graph.features.arrays().values()),
        features=spec.training.features,
        cache=spec.training.cache,
        sampling=spec.training.sampling,
        dataset_fingerprint=dataset.fingerprint,
        uses_dropout=getattr(model, "dropout", 0) > 0,
        dtype=spec.training.dtype,
        sync=spec.training.sync,
    )


def _words_of_model(model: SampledFields) -> str:
    """Equal only for models that compute alike, sizes apart."""
    if isinstance(model, CustomGNNSpec):
        return f"{model.name} {model.module}({json.dumps(model.arguments, sort_keys=True)}) {model.takes}"
    return f"{model.name} hetero" if model.hetero else model.name


def _words_of_sampling(model: SampledFields, dataset: GraphDataset) -> Iterator[str]:
    """All that decides how a step's seeds and their neighbours are drawn."""
    yield model.sampling_words
    if dataset.level == "graph":
        yield f"graphs:{model.pooling}"
    if dataset.links is not None:
        yield f"links:{dataset.links.num_negatives}"


def _link_bytes(dataset: GraphDataset, *, itemsize: int) -> int:
    """What is held, or made for a moment, where links are predicted: links, edges to search in, false ones, embeddings.

    14 numbers of int64 an edge: its ends as given, checked and sorted, its key before and after, and places between.
    """
    if (links := dataset.links) is None:
        return 0
    (graph,) = dataset.graphs
    num_scored = int(np.count_nonzero(links.split != TRAIN))
    embeddings = graph.num_nodes * dataset.num_classes * itemsize
    held = links.sources.nbytes + links.targets.nbytes + links.split.nbytes
    return (
        held + 8 * (14 * (graph.num_edges + 2 * num_scored) + num_scored * (2 + links.num_eval_negatives)) + embeddings
    )


def graph_bytes(graph: Graph) -> int:
    """Bytes of everything that is stored of ``graph``."""
    return sum(array.nbytes for array in graph.arrays().values())


def _is_trained(graph: Graph) -> bool:
    return bool((graph.split == TRAIN).any())


def _names(names: set[str]) -> str:
    return ",".join(sorted(names))


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"
