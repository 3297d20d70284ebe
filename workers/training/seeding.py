"""One seed for every generator a run touches."""

import random

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seed Python, numpy and torch (all devices). Ranks of one job use the same seed, so replicas start equal."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
