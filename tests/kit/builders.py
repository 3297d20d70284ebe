"""Small valid values for tests: specs, clusters, stores, metric points. Each builder takes what the test is about."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from planner.cluster import ClusterSpec, NodeSpec
from planner.plan import Action, MegaGraphPlan, Prediction, Stage
from service.spec import JobSpec
from service.store.engine import open_store
from service.store.job_store import JobStore
from service.store.records import MetricPoint
from service.store.rows import find_row


def job_document(**changes: Any) -> dict[str, Any]:
    """A valid job spec as a client sends it."""
    document: dict[str, Any] = {
        "name": "test",
        "kind": "megagraph",
        "dataset": {"name": "karate"},
        "model": {"name": "graphormer", "hidden_size": 16, "num_heads": 4},
    }
    return {**document, **changes}


def job_spec(*, name: str = "test", workers: int = 2, cpus: float = 1.0, gpus: float = 0.0) -> JobSpec:
    """A valid job spec that asks for these resources."""
    resources = {"num_workers": workers, "cpus_per_worker": cpus, "gpus_per_worker": gpus}
    return JobSpec.model_validate(job_document(name=name, resources=resources))


def cluster_spec(*nodes: tuple[float, float]) -> ClusterSpec:
    """A cluster of nodes with (CPUs, GPUs); one node of 4 CPUs unless told otherwise."""
    found = tuple(
        NodeSpec(node_id=f"node-{place}", address=f"10.0.0.{place + 1}", num_cpus=cpus, num_gpus=gpus)
        for place, (cpus, gpus) in enumerate(nodes or ((4.0, 0.0),))
    )
    cpus, gpus = (sum(getattr(node, name) for node in found) for name in ("num_cpus", "num_gpus"))
    return ClusterSpec(nodes=found, free_cpus=cpus, free_gpus=gpus, ray_version="2.60.0")


def sqlite_url(folder: Path) -> str:
    """The address of a database file in a test's folder."""
    return f"sqlite:///{folder / 'graphmill.db'}"


def fresh_store(folder: Path) -> JobStore:
    """A migrated store in a test's folder, not bound by the disk."""
    return open_store(sqlite_url(folder), durable=False)


def age_spec(store: JobStore, job_id: str, **fields: Any) -> None:
    """Make the stored spec of a job one of an older version, with ``fields`` that today's rules refuse."""
    with Session(store._engine) as session, session.begin():
        row = find_row(session, job_id)
        row.spec = json.dumps({**json.loads(row.spec), **fields})


def metric(step: int, *, value: float = 1.0, name: str = "loss", rank: int = 0, epoch: int = 1) -> MetricPoint:
    """One metric point."""
    return MetricPoint(rank=rank, name=name, step=step, epoch=epoch, value=value, at=datetime.now(UTC))


def two_rank_plan() -> MegaGraphPlan:
    """A context-parallel plan of two ranks."""
    stage = Stage(
        units=("features", "degree", "distance", "block.0", "head"),
        ranks=(0, 1),
        dp_degree=1,
        cp_degree=2,
        exchange="ring",
    )
    step = (Action(0, "F", 0), Action(0, "B", 0))
    return MegaGraphPlan(
        world_size=2,
        stages=(stage,),
        actions=(step, step),
        predicted=Prediction(step_time_s=0.02, memory_bytes=(1_000_000, 1_000_000)),
        reasons=("The graph is one, so its nodes are shared.",),
    )
