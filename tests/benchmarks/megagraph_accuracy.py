"""Known accuracies: graph transformers trained as ``docs/examples`` says, means over seeds, on one rank and on four.

    python -m tests.benchmarks.megagraph_accuracy [--json] [--only cora esol ...] [--store FILE]

Every set is trained through the runtime's own ``train`` from its example, which is a job spec that anyone may submit;
the score is that of the test part at the best validation score. Where a set names ranks, the same training runs on
them, with the same seeds, and the means must be as near as the seeds' own spread lets one expect. A set without a bar
is one short run, which must end better than it began. With ``--store`` every run is kept in a file, and a later call
goes on where one ended.
"""

import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from api.spec_file import read_spec_file
from service.spec import JobSpec
from service.validation import parse_spec
from tests.benchmarks.frame import Outcome, main
from tests.benchmarks.kept import Kept, parse_store
from tests.conftest import find_data_root
from tests.distributed.equality import Case, plan_of
from tests.distributed.odd_graphs import odd_set
from tests.kit.gloo_pool import GlooPool
from workers.data.paths import DataPaths
from workers.megagraph.train import train
from workers.training.folder import Folder
from workers.training.run import RankRun, Report

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
SEEDS = (0, 1, 2)
TIMEOUT_S = 3 * 3600.0


@dataclass(frozen=True)
class Spread:
    """Ranks beside the one: graphs dealt to ``dp`` of them, each graph cut over ``cp``."""

    cp: int = 1
    dp: int = 1
    exchange: str = "ring"

    @property
    def num_ranks(self) -> int:
        return self.cp * self.dp


ONE = Spread()
CUT = Spread(cp=4, exchange="halo")
DEALT = Spread(dp=4)


@dataclass(frozen=True)
class Known:
    """What a set is held against. ``bar`` None: there is none, and what is learned must grow from first to last.

    ``folds``: a seed's score is the mean over so many splits. ``many``: ranks that must do as one.
    """

    example: str
    score: str
    bar: float | None
    lower_is_better: bool = False
    seeds: tuple[int, ...] = SEEDS
    folds: int = 1
    many: Spread | None = DEALT

    def holds(self, mean: float) -> bool:
        """Whether ``mean`` is as good as the bar asks."""
        assert self.bar is not None, f"{self.example} has no bar"
        return mean <= self.bar if self.lower_is_better else mean >= self.bar


SETS: Mapping[str, Known] = {
    "cora": Known("cora-sgformer", "accuracy", 0.81, many=CUT),
    "citeseer": Known("citeseer-sgformer", "accuracy", 0.69, many=CUT),
    "photo": Known("photo-sgformer", "accuracy", 0.93, many=CUT),
    "minesweeper": Known("minesweeper-exphormer", "roc_auc", 0.88, many=CUT),
    "esol": Known("esol-graphgps", "rmse", 1.2, lower_is_better=True),
    "proteins": Known("proteins-exphormer", "accuracy", 0.70, folds=10),
    "peptides": Known("peptides-func-exphormer", "average_precision", None, seeds=(0,), many=None),
}


@dataclass(frozen=True)
class Trained:
    """What one run ended with: scores at the best validation score; loss and validation score of every evaluation."""

    test: float
    validation: float
    best_epoch: int
    losses: tuple[float, ...]
    scores: tuple[float, ...]

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> "Trained":
        """From JSON, which has no tuples."""
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})


def read_example(name: str) -> JobSpec:
    """The job spec ``docs/examples/NAME.yaml``."""
    return parse_spec(read_spec_file(EXAMPLES / f"{name}.yaml"))


def variant(job: JobSpec, *, seed: int, fold: int = 0) -> JobSpec:
    """``job`` with another seed, on another of its data set's splits."""
    return job.model_copy(
        update={
            "training": job.training.model_copy(update={"seed": seed}),
            "dataset": job.dataset.model_copy(update={"split": fold}),
        }
    )


def train_rank(
    rank: int, world_size: int, job: JobSpec, spread: Spread, score: str, root: Path, cache: Path, folder: Path
) -> Trained:
    """One rank's part of a run of ``job`` on the ranks of ``spread``, which share ``folder``."""
    spec = job.train_spec()
    plan = plan_of(Case(odd_set(), cp=spread.cp, dp=spread.dp, exchange=spread.exchange, spec=spec.model))
    losses: list[float] = []
    scores: list[float] = []

    def report(said: Report) -> None:
        if f"val_{score}" in said.values:
            losses.append(said.values["loss"])
            scores.append(said.values[f"val_{score}"])

    values = train(
        RankRun(
            spec=spec,
            plan=plan.model_copy(update={"report_every_steps": sys.maxsize}),
            rank=rank,
            world_size=world_size,
            device=torch.device("cpu"),
            data=DataPaths(root=root, cache=cache),
            job_dir=Folder(folder),
            report=report,
        )
    )
    return Trained(
        test=values[f"test_{score}"],
        validation=values[f"val_{score}"],
        best_epoch=int(values["best_epoch"]),
        losses=tuple(losses),
        scores=tuple(scores),
    )


def train_on(pool: GlooPool, job: JobSpec, *, spread: Spread, score: str, root: Path, cache: Path) -> Trained:
    """``job`` on the ranks of ``spread``; all of them must tell the same."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = (job, spread, score, root, cache, Path(folder) / "job")
        first, *others = pool.run(train_rank, *arguments, world_size=spread.num_ranks, timeout_s=TIMEOUT_S)
    assert all(other == first for other in others), "ranks report one score"
    return first


class KeptRuns:
    """Runs by their job and ranks (``Kept``)."""

    def __init__(self, path: Path | None) -> None:
        self._kept = Kept(path)

    def get(self, job: JobSpec, *, spread: Spread, run: Callable[[], Trained]) -> Trained:
        """What ``job`` ended with on the ranks of ``spread``; ``run()`` where that is not known."""
        key = [job.model_dump(mode="json"), asdict(spread)]
        return Trained.read(self._kept.get(key, make=lambda: asdict(run())))


def scores_of(
    pool: GlooPool, known: Known, *, spread: Spread, kept: KeptRuns, root: Path, cache: Path
) -> list[list[Trained]]:
    """The runs of every seed, one per fold."""

    def run(job: JobSpec) -> Trained:
        found = train_on(pool, job, spread=spread, score=known.score, root=root, cache=cache)
        said = f"{found.test:.4f}, validation {found.validation:.4f} at epoch {found.best_epoch}"
        ranks = f"{spread.num_ranks} ranks, seed {job.training.seed}, split {job.dataset.split}"
        print(f"{known.example}, {ranks}: {said}", flush=True)
        return found

    example = read_example(known.example)
    jobs = [[variant(example, seed=seed, fold=fold) for fold in range(known.folds)] for seed in known.seeds]
    return [[kept.get(job, spread=spread, run=partial(run, job)) for job in folds] for folds in jobs]


def seed_means(runs: Sequence[Sequence[Trained]]) -> list[float]:
    """The test score of every seed, the mean over its folds."""
    return [statistics.mean(run.test for run in folds) for folds in runs]


def seed_noise(first: Sequence[float], second: Sequence[float]) -> float:
    """Two standard errors of the difference between the means of two lists of scores, one per seed each."""
    variance = sum(statistics.variance(scores) / len(scores) for scores in (first, second))
    return 2 * math.sqrt(variance)


def measure(names: Sequence[str], *, kept: KeptRuns) -> Outcome:
    """Train every set as its example says; the mean of its seeds against its bar."""
    root = find_data_root()
    if not root.is_dir():
        sys.exit(f"real data sets: not found at {root}; set GRAPHMILL_DATA_ROOT")
    figures: dict[str, float] = {}
    verdicts: dict[str, bool] = {}
    details: dict[str, object] = {}
    with GlooPool(4) as pool, tempfile.TemporaryDirectory() as cache:
        for name in names:
            known = SETS[name]
            sides = {side.num_ranks: side for side in (ONE, *([known.many] if known.many else []))}
            runs = {
                ranks: scores_of(pool, known, spread=side, kept=kept, root=root, cache=Path(cache))
                for ranks, side in sides.items()
            }
            means = {ranks: seed_means(found) for ranks, found in runs.items()}
            for ranks, found in means.items():
                label = f"{name}_p{ranks}"
                figures[label] = statistics.mean(found)
                verdicts[label] = has_learned(runs[ranks]) if known.bar is None else known.holds(figures[label])
            if known.many:
                alone, spread = means[1], means[known.many.num_ranks]
                apart = abs(statistics.mean(alone) - statistics.mean(spread))
                figures[f"{name}_apart"], verdicts[f"{name}_apart"] = apart, apart <= seed_noise(alone, spread)
            details[name] = {f"{ranks} ranks": describe(found, known) for ranks, found in runs.items()}
            print(f"{name}: {details[name]}", flush=True)
    return Outcome(figures, verdicts, details)


def has_learned(runs: Sequence[Sequence[Trained]]) -> bool:
    """Whether the last evaluation of every run has a lower loss and a higher validation score than the first."""
    flat = [run for folds in runs for run in folds]
    return all(run.losses[-1] < run.losses[0] and run.scores[-1] > run.scores[0] for run in flat)


def describe(runs: Sequence[Sequence[Trained]], known: Known) -> dict[str, object]:
    """What explains a set's figures."""
    flat = [run for folds in runs for run in folds]
    return {
        "bar": known.bar,
        "seeds": seed_means(runs),
        "runs": [run.test for run in flat],
        "validation": [run.validation for run in flat],
        "best_epochs": [run.best_epoch for run in flat],
        "losses": [thinned(run.losses) for run in flat],
        "validation_on_the_way": [thinned(run.scores) for run in flat],
    }


def thinned(values: Sequence[float]) -> Sequence[float]:
    """About eight of ``values``."""
    return values[:: max(1, len(values) // 8)]


if __name__ == "__main__":
    own, others = parse_store()

    def run(names: Sequence[str]) -> Outcome:
        """Every set as its example says, three seeds, on one rank and on four."""
        return measure(names, kept=KeptRuns(own.store))

    sys.exit(main("megagraph_accuracy", run, parts=tuple(SETS), arguments=others))
