"""The profile: what the probes measured, and what identifies it. Workers write it, the planner reads it.

Two shapes describe a job to the planner without a tensor in sight; a ``Profile`` belongs to one shape, device, dtype
and set of software versions (its key) and is never used for another.
"""

import hashlib
from typing import Annotated, Literal

from pydantic import Field

from planner.caching import CacheRule, FeaturePlace
from planner.frozen import Frozen
from planner.sampling import SamplingRule
from planner.sync import SyncRule

# How the rows of a graph meet: every pair of them, along its edges, by sums over all.
Mixing = Literal["dense", "edges", "sums"]
# What products with weights are computed in, where numbers are float32.
Precision = Literal["float32", "bfloat16"]


class ShardCounts(Frozen):
    """How the edges of the one graph of a job fall on ``cp_degree`` shards of equal rows in natural order.

    ``most_edges``, counted as ``TransformerShape.num_edges`` is, end in the fullest shard; ``halo_rows`` rows of others
    are what the shard with most asks for.
    """

    cp_degree: int
    most_edges: int
    halo_rows: int


class Traffic(Frozen):
    """What a block tells other ranks in its forward pass, and as much again in backward; keys and values apart.

    Each of ``halos`` brings so many numbers of every halo row, each of ``sums`` sums so many over the shards of a
    graph, each of ``batch_sums`` over all ranks. Where ``expander_degree`` is not 0, halos are of its edges, too.
    """

    halos: tuple[int, ...] = ()
    sums: tuple[int, ...] = ()
    batch_sums: tuple[int, ...] = ()
    expander_degree: int = 0


class TransformerShape(Frozen):
    """A graph transformer job. ``graph_sizes`` are nodes per training graph; one entry means one large graph.

    ``units`` are the model's units in order: what is measured by kind (the name up to the dot) and placed by plans.
    ``other_graph_sizes`` are graphs that are only evaluated: they take memory, and no time of a step.

    ``mixes`` are the ways in which rows meet. ``num_tokens`` hidden vectors are handed on for each row. Ready before a
    step lie ``extra_columns`` numbers for each row beside its features, ``pair_bytes`` for each pair of nodes of a
    graph, and the ``num_edges`` of all graphs (0 where the model uses none). Where distances are held of near pairs
    alone, ``near_pairs[k]`` of them belong to those ⌈N/2^k⌉ rows of each graph that have the most. ``traffic`` is what
    a block tells other ranks, None where that is not known; ``shards`` says how edges fall on shards, where that was
    counted. ``options`` are the model's own fields, as text: jobs that differ in any share no profile.
    """

    kind: Literal["megagraph"] = "megagraph"
    model: str
    units: tuple[str, ...]
    num_layers: int
    hidden_size: int
    num_heads: int
    num_features: int
    num_classes: int
    num_buckets: int
    ffn_ratio: float
    mixes: tuple[Mixing, ...] = ("dense",)
    num_tokens: int = 1
    extra_columns: int = 0
    pair_bytes: int = 1
    near_pairs: tuple[int, ...] = ()
    num_edges: int = 0
    traffic: Traffic | None = Traffic()
    shards: tuple[ShardCounts, ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    graph_sizes: tuple[int, ...]
    other_graph_sizes: tuple[int, ...] = ()
    graphs_per_step: int = 1
    uses_dropout: bool = False
    uses_input_dropout: bool = False
    uses_attention_dropout: bool = False
    dtype: Literal["float32", "float64"] = "float32"
    precision: Precision = "float32"

    @property
    def row_width(self) -> int:
        """Columns of the hidden state that units hand on."""
        return self.num_tokens * self.hidden_size


class SampledShape(Frozen):
    """A sampled GNN job. ``batch_size`` counts the seeds of one optimiser step over all replicas.

    ``graph_bytes`` is the size of the graph store; the part that training touches becomes resident in every rank. The
    stages are measured on the graph itself, so its ``dataset_fingerprint`` belongs to the shape: sizes do not tell how
    neighbourhoods overlap. ``sampler`` says how neighbours are chosen. ``largest_degree`` is the most in-neighbours of
    a node. ``sync`` is how replicas go together. ``features`` that are ``remote`` take ``feature_bytes`` of the graph's
    on all ranks together; ``cache`` is what the job says of caches, ``sampling`` where mini-batches are made.
    """

    kind: Literal["mqgnn"] = "mqgnn"
    model: str
    num_layers: int
    hidden_size: int
    num_heads: int = 1
    num_features: int
    num_classes: int
    num_nodes: int
    num_edges: int
    num_train: int
    batch_size: int
    fanouts: tuple[int, ...]
    sampler: str = "uniform"
    largest_degree: int = 0
    graph_bytes: int = 0
    feature_bytes: int = 0
    features: FeaturePlace = "local"
    cache: CacheRule = CacheRule()
    sampling: SamplingRule = SamplingRule()
    dataset_fingerprint: str = ""
    uses_dropout: bool = False
    dtype: Literal["float32", "float64"] = "float32"
    sync: SyncRule = SyncRule()


JobShape = Annotated[TransformerShape | SampledShape, Field(discriminator="kind")]


class ProfileKey(Frozen):
    """What a profile is valid for. ``fingerprint`` is its name in the store.

    ``device_name`` is what the model computes on, ``cpu_name`` what feeds it. ``ranks_per_node`` (fullest first)
    decides whether links cross machines and how many ranks share memory bandwidth, ``cores_per_rank`` which threads
    were tried.
    """

    shape: JobShape
    device_name: str
    cpu_name: str = "cpu"
    num_ranks: int
    cpus_per_rank: float = 1.0
    gpus_per_rank: float = 0.0
    cores_per_rank: float = 1.0
    ranks_per_node: tuple[int, ...] = ()
    software: tuple[tuple[str, str], ...]

    @property
    def device_kind(self) -> Literal["cpu", "cuda"]:
        """Where the model computes."""
        return "cuda" if self.gpus_per_rank else "cpu"

    @property
    def fingerprint(self) -> str:
        """Hex digest of the whole key."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:32]


class UnitSample(Frozen):
    """One ``unit`` of a transformer on ``num_graphs`` graphs of ``num_columns`` nodes in ``num_shards`` shards.

    ``unit`` is a kind of units (``block`` for ``block.0``, ``block.1``, …) or ``optimizer``.
    ``num_rows`` of each graph are the query rows, ``num_columns`` the keys (0 for units that mix no rows).
    ``saved_bytes`` stay alive between forward and backward, ``peak_bytes`` is the highest point above the start.
    """

    unit: str
    num_rows: int
    num_columns: int
    num_threads: int
    num_graphs: int = 1
    num_shards: int = 1
    forward_s: float
    backward_s: float
    saved_bytes: int
    peak_bytes: int


class LinkSample(Frozen):
    """One collective over ``world_size`` ranks: ``num_bytes`` is the payload of one rank."""

    operation: Literal["all_reduce", "p2p"]
    world_size: int
    num_bytes: int
    seconds: float


class StageSample(Frozen):
    """One stage of the sampled pipeline, run on ``batch_size`` seeds of one replica with ``num_threads``.

    ``seconds`` is the mean per mini-batch, ``p95_s`` what 95 % of the batches stay below, ``num_bytes`` what the stage
    hands on (exchange: the payload of one rank), ``peak_bytes`` the most that it holds while it works: in main memory
    for sample and prepare, else on the device. ``evaluate``, an evaluation of everything, is measured where a model
    does not tell what that holds. ``remote`` is never measured: it is what the planner makes of sample and prepare
    where others do both.
    """

    stage: Literal["sample", "prepare", "remote", "transfer", "compute", "exchange", "evaluate"]
    num_threads: int
    batch_size: int
    seconds: float
    p95_s: float
    num_bytes: int
    peak_bytes: int = 0


class Profile(Frozen):
    """All samples of one probe run. ``base_bytes`` is what the framework itself takes on first use (per rank)."""

    key: ProfileKey
    measured_at: str
    duration_s: float
    units: tuple[UnitSample, ...] = ()
    links: tuple[LinkSample, ...] = ()
    stages: tuple[StageSample, ...] = ()
    parameter_bytes: int = 0
    base_bytes: int = 0


class UnitSize(Frozen):
    """A size to measure units at: ``num_graphs`` graphs of ``num_columns`` nodes in ``num_shards`` shards.

    ``num_rows`` of each graph are on this rank, the first shard.
    """

    num_rows: int
    num_columns: int
    num_graphs: int = 1
    num_shards: int = 1

    @property
    def num_pairs(self) -> int:
        """(row, column) pairs of all graphs."""
        return self.num_graphs * self.num_rows * self.num_columns


class ProbeRequest(Frozen):
    """What the planner wants measured: sizes for the units, payloads for the links, threads to try.

    ``budget_s`` is for the units or stages alone; a probe shrinks the sizes that would break it.
    """

    key: ProfileKey
    unit_sizes: tuple[UnitSize, ...] = ()
    link_bytes: tuple[int, ...] = ()
    stage_batch_sizes: tuple[int, ...] = ()
    threads: tuple[int, ...] = (1,)
    repeats: int = Field(default=5, ge=1)
    budget_s: float = Field(default=6.0, gt=0)
