"""Accuracy of sampled GNNs as jobs train them fastest, against plain PyG: ten models on three graphs, ten paired seeds.

    python -m tests.benchmarks.mqgnn_accuracy [--json] [--only Cora ...] [--models gcn ...] [--seeds 10] [--store FILE]

Ours is the runtime's own ``train`` on two replicas: stages in threads, RaCoM between the replicas, every second epoch
from kept subgraphs. Plain PyG (``peer_accuracy``) runs in the environment of ``make bench-peers``. Both sides of a pair
start from the same seed, and so the same weights, and take the same mini-batch size, fanouts, epochs and optimiser; a
score is that of the test part at the best validation score. With ``--store`` every score is kept in a file, and a later
run goes on where one ended.

``pooled_delta_ci_max``: how many points may be lost by the mean over all cells, the upper end of a 95 % interval over
the seeds' means. ``cells_significant``: cells that lose in a paired t-test, Holm's correction over all cells.
``below_published``: cells whose result is published and whose plain side is more than a point below it in the mean, a
baseline too weak. The models of the MQ-GNN paper, whose samplers PyG has not, train once each on Cora; their
points stand in the details.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy import stats

from planner.caching import CacheRule
from planner.sync import SyncRule
from tests.benchmarks.frame import Outcome, main
from tests.benchmarks.kept import Kept, parse_store
from tests.benchmarks.side_process import SideProcess
from tests.conftest import find_data_root
from tests.kit.gloo_pool import GlooPool
from tests.kit.rank_runs import queue_budgets, sampled_run
from workers.data.datasets import load_dataset
from workers.data.paths import DataPaths
from workers.model_specs.sampled import SamplerName
from workers.mqgnn.train import train
from workers.spec import SPEC_OF_MODEL, DatasetSpec, TrainingSpec, TrainSpec

PEERS = Path(".venv-peers/bin/python")
MODELS = ("graphsage", "gcn", "gin", "gat", "gatv2", "appnp", "sgc", "tag", "arma", "pna")
NUM_SEEDS, NUM_RANKS = 10, 2
RULE = SyncRule(name="racom")
# Two epochs use the samples of one of them. (Features held elsewhere, and their cache, do not go with RaCoM.)
CACHE = CacheRule(reuse=2, subgraph_bytes=2**26, feature_bytes=0)
LAYER_SIZES = (512, 512)  # nodes of a hop, where a sampler draws for a whole one
# (model, sampler) of the paper's ten.
PAPER_MODELS: Sequence[tuple[str, SamplerName]] = (
    ("gcn", "uniform"),
    ("graphsage", "uniform"),
    *(("gcn", f"{rule}{form}") for rule in ("fastgcn", "ladies") for form in ("", "+f", "+d", "+f+d")),
)
DELTA_BAR, LEVEL, POINTS_BELOW = 0.2, 0.05, 1.0


@dataclass(frozen=True)
class Settings:
    """How both sides train on one graph."""

    hidden_size: int
    fanouts: tuple[int, ...]
    batch_size: int
    epochs: int
    eval_every_epochs: int
    learning_rate: float
    weight_decay: float
    dropout: float
    metric: str


GRAPHS: Mapping[str, Settings] = {
    "Cora": Settings(64, (10, 10), 70, 60, 2, 0.01, 5e-4, 0.5, "accuracy"),
    "Photo": Settings(128, (10, 10), 512, 60, 3, 0.003, 5e-5, 0.5, "accuracy"),
    "Tolokers": Settings(128, (15, 10), 512, 80, 4, 0.003, 0.0, 0.2, "roc_auc"),
}
# In points. Cora, public split: Kipf & Welling, ICLR 2017; Veličković et al., ICLR 2018. Photo, the shipped split: Luo
# et al., arXiv 2406.08993. Tolokers: Platonov et al., ICLR 2023.
PUBLISHED: Mapping[tuple[str, str], float] = {
    ("Cora", "gcn"): 81.5,
    ("Cora", "gat"): 83.0,
    ("Photo", "gcn"): 96.10,
    ("Photo", "graphsage"): 96.78,
    ("Photo", "gat"): 96.60,
    ("Tolokers", "gcn"): 83.64,
    ("Tolokers", "graphsage"): 82.43,
    ("Tolokers", "gat"): 83.70,
}


def train_rank(
    rank: int,
    world_size: int,
    graph: str,
    model: str,
    seed: int,
    sampler: SamplerName,
    root: Path,
    cache: Path,
    folder: Path,
) -> float:
    """Our side of one pair, on one replica."""
    given = GRAPHS[graph]
    spec = SPEC_OF_MODEL[model](
        name=model,
        hidden_size=given.hidden_size,
        fanouts=given.fanouts if sampler == "uniform" else LAYER_SIZES,
        dropout=given.dropout,
        sampler=sampler,
    )
    training = TrainingSpec(
        epochs=given.epochs,
        batch_size=given.batch_size,
        eval_every_epochs=given.eval_every_epochs,
        checkpoint_every_epochs=given.epochs,
        learning_rate=given.learning_rate,
        weight_decay=given.weight_decay,
        seed=seed,
        sync=RULE,
        cache=CACHE,
    )
    values = train(
        sampled_run(
            TrainSpec(kind="mqgnn", dataset=DatasetSpec(name=graph), model=spec, training=training),
            job_dir=folder,
            data=DataPaths(root=root, cache=cache),
            rank=rank,
            world_size=world_size,
            queues=queue_budgets(max_items=4, max_bytes=2**26),
            cache=CACHE,
            report_every_steps=sys.maxsize,
        )
    )
    return values[f"test_{given.metric}"]


class Scores:
    """Points by (graph, model, seed, side) (``Kept``)."""

    def __init__(self, path: Path | None) -> None:
        self._kept = Kept(path)

    def get(self, graph: str, model: str, seed: int, side: str, *, run: Any) -> float:
        """The points of one training, which ``run()`` makes from 0 to 1 unless they are known."""

        def train() -> float:
            points = 100 * run()
            print(f"{graph} {model}, seed {seed}: {side} {points:.2f}", flush=True)
            return points

        return self._kept.get([graph, model, seed, side, asdict(GRAPHS[graph])], make=train)


@dataclass(frozen=True)
class Cell:
    """Points of both sides by seed."""

    graph: str
    model: str
    ours: tuple[float, ...]
    plain: tuple[float, ...]

    @property
    def lost(self) -> np.ndarray:
        """Points that ours are lower, by seed."""
        return np.subtract(self.plain, self.ours)

    @property
    def is_below_published(self) -> bool:
        """Whether a published result is more than ``POINTS_BELOW`` above plain PyG's mean."""
        published = PUBLISHED.get((self.graph, self.model))
        return published is not None and statistics.mean(self.plain) < published - POINTS_BELOW


def judge(cells: Sequence[Cell], *, papers: Mapping[str, float] = MappingProxyType({})) -> Outcome:
    """The figures of all cells, which have the same seeds; ``papers``: points of the paper's models."""
    by_seed = np.mean([cell.lost for cell in cells], axis=0)
    reach = float(stats.t.ppf(1 - LEVEL / 2, len(by_seed) - 1)) * float(stats.sem(by_seed))
    chances = [chance_of_no_loss(cell.lost) for cell in cells]
    figures = {
        "pooled_delta_ci_max": float(by_seed.mean()) + reach,
        "cells_significant": float(sum(holm(chances))),
        "below_published": float(sum(cell.is_below_published for cell in cells)),
    }
    verdicts = {
        "pooled_delta_ci_max": figures["pooled_delta_ci_max"] <= DELTA_BAR,
        "cells_significant": figures["cells_significant"] == 0,
        "below_published": figures["below_published"] == 0,
    }
    details = {
        f"{cell.graph} {cell.model}": {
            "ours": statistics.mean(cell.ours),
            "plain": statistics.mean(cell.plain),
            "lost": float(cell.lost.mean()),
            "chance_of_no_loss": chance,
            "published": PUBLISHED.get((cell.graph, cell.model)),
        }
        for cell, chance in zip(cells, chances, strict=True)
    } | {f"Cora, {name}": points for name, points in papers.items()}
    return Outcome(figures, verdicts, details)


def chance_of_no_loss(lost: np.ndarray) -> float:
    """p of a one-sided paired t-test; where all seeds say the same, 0 or 1."""
    if np.ptp(lost) == 0:
        return float(lost[0] <= 0)
    return float(stats.ttest_1samp(lost, 0, alternative="greater").pvalue)


def holm(chances: Sequence[float]) -> list[bool]:
    """Which hypotheses fall at ``LEVEL`` over all of them (Holm, 1979)."""
    fallen = [False] * len(chances)
    for rank, place in enumerate(sorted(range(len(chances)), key=chances.__getitem__)):
        if chances[place] > LEVEL / (len(chances) - rank):
            break
        fallen[place] = True
    return fallen


def measure(graphs: Sequence[str], *, models: Sequence[str], num_seeds: int, store: Path | None) -> Outcome:
    """Every cell that is asked for, pair by pair."""
    root, scores, cells, papers = find_data_root(), Scores(store), [], {}
    if not root.is_dir() or not PEERS.exists():
        sys.exit(f"needs the data sets at {root} (or GRAPHMILL_DATA_ROOT) and {PEERS} (`make bench-peers`)")
    with GlooPool(NUM_RANKS) as pool, tempfile.TemporaryDirectory() as scratch:
        for graph in graphs:
            folder = Path(scratch) / graph
            folder.mkdir()
            data = DataPaths(root=root, cache=folder / "cache")
            write(graph, data, folder)
            with SideProcess([str(PEERS), "-m", "tests.benchmarks.peer_accuracy", str(folder)]) as peer:
                sides = {
                    "ours": partial(train_ours, pool, graph, data=data, folder=folder),
                    "plain": partial(train_plain, peer, graph),
                }
                for model in models:
                    points = {
                        side: tuple(
                            scores.get(graph, model, seed, side, run=partial(run, model, seed))
                            for seed in range(num_seeds)
                        )
                        for side, run in sides.items()
                    }
                    cells.append(Cell(graph, model, **points))
                if graph == "Cora":
                    papers = paper_points(scores, partial(train_ours, pool, graph, data=data, folder=folder))
    return judge(cells, papers=papers)


def paper_points(scores: Scores, train_ours: Any) -> dict[str, float]:
    """Points of the paper's ten models on Cora, of one training each."""
    return {
        (name := f"{model} by {sampler}"): scores.get(
            "Cora", name, 0, "ours", run=partial(train_ours, model, 0, sampler=sampler)
        )
        for model, sampler in PAPER_MODELS
    }


def train_ours(
    pool: GlooPool,
    graph: str,
    model: str,
    seed: int,
    *,
    data: DataPaths,
    folder: Path,
    sampler: SamplerName = "uniform",
) -> float:
    """Our side of one pair."""
    arguments = (graph, model, seed, sampler, data.root, data.cache, folder / f"{model}-{sampler}-{seed}")
    return pool.run(train_rank, *arguments, timeout_s=3600.0)[0]


def train_plain(peer: SideProcess, graph: str, model: str, seed: int) -> float:
    """PyG's side of it."""
    return peer.ask(asdict(GRAPHS[graph]) | {"model": model, "seed": seed})["score"]


def write(graph: str, data: DataPaths, folder: Path) -> None:
    """What PyG's side reads: the very graph, features and split that ours trains on."""
    found = load_dataset(DatasetSpec(name=graph), paths=data).graphs[0]
    np.savez(
        folder / "graph.npz",
        indptr=found.indptr,
        indices=found.indices.astype(np.int64),
        x=found.features.gather(np.arange(found.num_nodes)),
        y=found.y,
        split=found.split,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--seeds", type=int, default=NUM_SEEDS)
    own, others = parse_store(parser)

    def run(graphs: Sequence[str]) -> Outcome:
        """Ten models on three graphs, ten seeds."""
        return measure(graphs, models=own.models, num_seeds=own.seeds, store=own.store)

    sys.exit(main("mqgnn_accuracy", run, parts=tuple(GRAPHS), arguments=others))
