"""Jobs with a module of the user's own on several ranks against the same on one."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.kit.rank_runs import sampled_run
from workers.data.paths import DataPaths
from workers.model_specs.custom import CustomGNNSpec
from workers.mqgnn.train import train
from workers.spec import DatasetSpec, TrainingSpec, TrainSpec
from workers.training.export import load_exported
from workers.training.folder import Folder

GCN = {"convolution": "GCNConv"}


def train_whole(
    rank: int, world_size: int, folder: Path, arguments: dict[str, Any], training: dict[str, Any]
) -> dict[str, float]:
    """Scores at the end of a run whose replicas see all neighbours."""
    own = CustomGNNSpec(module="tests.workers.mqgnn.own.modules:own_module", arguments=arguments, fanouts=(-1, -1))
    settings = {"epochs": 4, "batch_size": 128, "eval_every_epochs": 2, "dtype": "float64"} | training
    spec = TrainSpec(kind="mqgnn", dataset=DatasetSpec(name="sbm"), model=own, training=TrainingSpec(**settings))
    data = DataPaths(root=None, cache=folder / "cache")

    def report(_: Any) -> None:
        if world_size > 1:
            dist.barrier()

    run = sampled_run(
        spec,
        job_dir=folder / f"on-{world_size}",
        data=data,
        rank=rank,
        world_size=world_size,
        report=report,
        features=spec.training.features,
    )
    return train(run)


def exported(folder: Path, world_size: int) -> dict[str, torch.Tensor]:
    return load_exported(Folder(folder / f"on-{world_size}" / "export")).state_dict()


@pytest.mark.parametrize("features", ["local", "remote"])
def test_replicas_of_a_module_equal_one_process(pool, tmp_path, features):
    alone = train_whole(0, 1, tmp_path, GCN, {})
    found = pool.run(train_whole, tmp_path, GCN, {"features": features}, world_size=3)
    assert [scores["test_accuracy"] for scores in found] == [alone["test_accuracy"]] * 3
    one, three = exported(tmp_path, 1), exported(tmp_path, 3)
    for name, tensor in one.items():
        torch.testing.assert_close(three[name], tensor, rtol=0, atol=1e-9)


@pytest.mark.parametrize("sync", ["ddp", "local_sgd", "racom"])
def test_statistics_that_replicas_gather_apart_are_one_models_when_it_is_scored(pool, tmp_path, sync):
    arguments = GCN | {"norm": True, "dropout": 0.2}
    found = pool.run(train_whole, tmp_path, arguments, {"sync": {"name": sync}, "dtype": "float32"}, world_size=2)
    assert found[0]["test_accuracy"] == found[1]["test_accuracy"] > 0.5
    assert float(exported(tmp_path, 2)["norms.0.running_mean"].abs().max()) > 0
