"""Shapes, clusters and profiles with round numbers, for tests that check the planner's arithmetic by hand."""

from planner.cluster import BARE_PROCESS_BYTES, ClusterSpec, NodeSpec
from planner.profiles import (
    JobShape,
    LinkSample,
    Profile,
    ProfileKey,
    SampledShape,
    StageSample,
    TransformerShape,
    UnitSample,
)

MIB = 2**20
SIZES = ((100, 100), (400, 100), (400, 400), (1600, 1600))


def transformer_shape(**changes: object) -> TransformerShape:
    values = {
        "model": "graphormer",
        "num_layers": 2,
        "hidden_size": 64,
        "num_heads": 4,
        "num_features": 100,
        "num_classes": 7,
        "num_buckets": 6,
        "ffn_ratio": 1.0,
        "graph_sizes": (1000,),
    }
    values = {**values, **changes}
    blocks = (f"block.{index}" for index in range(values["num_layers"]))
    return TransformerShape(units=("features", *blocks, "head"), **values)


def sampled_shape(**changes: object) -> SampledShape:
    values = {
        "model": "graphsage",
        "num_layers": 2,
        "hidden_size": 128,
        "num_features": 100,
        "num_classes": 8,
        "num_nodes": 10_000,
        "num_edges": 100_000,
        "num_train": 5_000,
        "batch_size": 512,
        "fanouts": (10, 5),
        "graph_bytes": 5_000_000,
    }
    return SampledShape(**{**values, **changes})


def cluster(*, cores: int = 2, memory_bytes: int = 16 * 2**30, num_nodes: int = 1) -> ClusterSpec:
    nodes = tuple(
        NodeSpec(
            node_id=f"node-{index}",
            address=f"10.0.0.{index}",
            num_cpus=8,
            physical_cores=cores,
            memory_bytes=memory_bytes,
        )
        for index in range(num_nodes)
    )
    return ClusterSpec(nodes=nodes, free_cpus=8.0 * num_nodes)


def cluster_with_room(num_bytes: int, *, num_ranks: int, cores: int = 2) -> ClusterSpec:
    """One node on which each of ``num_ranks`` ranks may take ``num_bytes`` (give or take a byte)."""
    return cluster(cores=cores, memory_bytes=round((num_bytes + BARE_PROCESS_BYTES) * num_ranks / 0.9) + 1)


def key_of(shape: JobShape, *, num_ranks: int) -> ProfileKey:
    return ProfileKey(shape=shape, device_name="made up", num_ranks=num_ranks, software=(("torch", "2.13.0"),))


def transformer_profile(
    shape: TransformerShape,
    *,
    num_ranks: int,
    threads: dict[int, float] | None = None,
    alpha_s: float = 1e-4,
    bytes_per_s: float = 1e9,
    parameter_bytes: int = 400_000,
) -> Profile:
    """A block takes 1 ms + 1 µs a row + 10 ns a pair forward, twice that backward; ``threads`` map counts to speed-ups.

    Of the 1 ms, each visit of a shard takes 0.4 ms (all samples are of one shard). It saves 1,000 bytes a row and peaks
    at 2,000 bytes a row and 4 bytes a pair.
    """
    units = []
    for count, speed in (threads or {1: 1.0}).items():
        for rows, columns, graphs in (*((rows, columns, 1) for rows, columns in SIZES), (100, 100, 4)):
            all_rows, all_pairs = graphs * rows, graphs * rows * columns
            size = {"rows": rows, "graphs": graphs, "threads": count}
            block_s = (6e-4 + 4e-4 * graphs + 1e-6 * all_rows + 1e-8 * all_pairs) / speed
            linear_s = 1e-6 * all_rows / speed
            peak = 2000 * all_rows + 4 * all_pairs
            units += [
                _unit("block", block_s, columns=columns, saved=1000 * all_rows, peak=peak, **size),
                _unit("features", linear_s, saved=100 * all_rows, peak=300 * all_rows, **size),
                _unit("head", linear_s, saved=50 * all_rows, peak=100 * all_rows, **size),
            ]
        units.append(
            UnitSample(
                unit="optimizer",
                num_rows=0,
                num_columns=0,
                num_threads=count,
                forward_s=5e-4 / speed,
                backward_s=0.0,
                saved_bytes=0,
                peak_bytes=0,
            )
        )
    operations = ("all_reduce", "p2p") if num_ranks > 1 else ()
    links = tuple(
        LinkSample(operation=operation, world_size=num_ranks, num_bytes=size, seconds=alpha_s + size / bytes_per_s)
        for operation in operations
        for size in (4096, 65_536, 1_048_576)
    )
    return Profile(
        key=key_of(shape, num_ranks=num_ranks),
        measured_at="2026-11-29T00:00:00Z",
        duration_s=1.0,
        units=tuple(units),
        links=links,
        parameter_bytes=parameter_bytes,
        base_bytes=10 * MIB,
    )


def sampled_profile(
    shape: SampledShape,
    *,
    num_ranks: int,
    sample_s: float = 4e-3,
    prepare_s: float = 2e-3,
    compute_s: dict[int, float] | None = None,
    exchange_s: float = 1e-3,
    batch_bytes: int = MIB,
) -> Profile:
    seeds = -(-min(shape.batch_size, shape.num_train) // num_ranks)
    stages = [
        _stage("sample", seeds, sample_s, num_bytes=batch_bytes // 10),
        _stage("prepare", seeds, prepare_s, num_bytes=batch_bytes),
        *(
            _stage("compute", seeds, seconds, num_threads=count, peak_bytes=4 * batch_bytes)
            for count, seconds in (compute_s or {1: 10e-3}).items()
        ),
    ]
    if num_ranks > 1:
        stages.append(_stage("exchange", seeds, exchange_s, num_bytes=400_000))
    return Profile(
        key=key_of(shape, num_ranks=num_ranks),
        measured_at="2026-11-29T00:00:00Z",
        duration_s=1.0,
        stages=tuple(stages),
        parameter_bytes=400_000,
        base_bytes=10 * MIB,
    )


def _unit(
    unit: str, forward_s: float, *, rows: int, graphs: int, threads: int, saved: int, peak: int, columns: int = 0
) -> UnitSample:
    return UnitSample(
        unit=unit,
        num_graphs=graphs,
        num_rows=rows,
        num_columns=columns,
        num_threads=threads,
        forward_s=forward_s,
        backward_s=2 * forward_s,
        saved_bytes=saved,
        peak_bytes=peak,
    )


def _stage(
    stage: str, seeds: int, seconds: float, *, num_threads: int = 1, num_bytes: int = 0, peak_bytes: int = 0
) -> StageSample:
    return StageSample(
        stage=stage,
        num_threads=num_threads,
        batch_size=seeds,
        seconds=seconds,
        p95_s=1.5 * seconds,
        num_bytes=num_bytes,
        peak_bytes=peak_bytes or num_bytes,
    )
