"""The floor of ``first_step``: a Ray job with ``TorchTrainer``, two ranks and an empty loop, as Ray's guides write it.

python -m tests.benchmarks.bare_train FILE        writes the time of the first all-reduce (seconds since the epoch)
"""

import sys
import time
from pathlib import Path

import ray
import torch
import torch.distributed as dist
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train_loop() -> float:
    """One all-reduce is the first thing that any training over several ranks does."""
    dist.all_reduce(torch.ones(1))
    reached_at = time.time()
    ray.train.report({"reached_at": reached_at})
    return reached_at


def main(target: str) -> None:
    """Run it and leave the time in ``target``."""
    path = Path(target)
    run_config = RunConfig(name=path.name, storage_path=str(path.parent / "bare"))
    trainer = TorchTrainer(train_loop, scaling_config=ScalingConfig(num_workers=2), run_config=run_config)
    path.write_text(str(trainer.fit().return_value))


if __name__ == "__main__":
    main(*sys.argv[1:])
