"""Real data: the sampled GNN learns Amazon Photo as well as it should, on two replicas."""

from pathlib import Path

import pytest
import torch

from planner.plan import MQGNNPlan
from tests.kit.gloo_pool import GlooPool
from workers.data.paths import DataPaths
from workers.mqgnn.train import train
from workers.spec import DatasetSpec, SampledGNNSpec, TrainingSpec, TrainSpec
from workers.training.folder import Folder
from workers.training.run import RankRun

BAR = 0.93
MODEL = SampledGNNSpec(name="graphsage", hidden_size=64, fanouts=(10, 5))
TRAINING = TrainingSpec(epochs=9, batch_size=256, learning_rate=0.02, weight_decay=0.0, eval_every_epochs=3)


def train_photo(rank: int, world_size: int, root: Path, folder: Path) -> float:
    result = train(
        RankRun(
            spec=TrainSpec(kind="mqgnn", dataset=DatasetSpec(name="Photo"), model=MODEL, training=TRAINING),
            plan=MQGNNPlan(
                world_size=world_size,
                fanouts=MODEL.fanouts,
                batch_size=TRAINING.batch_size,
                num_threads=1,
                pipelined=False,
            ),
            rank=rank,
            world_size=world_size,
            device=torch.device("cpu"),
            data=DataPaths(root=root, cache=folder / "cache"),
            job_dir=Folder(folder / "job"),
            report=lambda report: None,
        )
    )
    return result["test_accuracy"]


@pytest.mark.slow
def test_graphsage_on_two_replicas_reaches_the_bar_on_photo(pool: GlooPool, data_root: Path, tmp_path: Path) -> None:
    first, second = pool.run(train_photo, data_root, tmp_path, world_size=2, timeout_s=300)
    assert first == second, "ranks report one accuracy"
    assert first >= BAR
