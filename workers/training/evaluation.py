"""Accuracy from counts, so that shards add up to exactly what one process would see."""

from dataclasses import dataclass

import torch
from torch import Tensor

from workers.data.graph import SPLIT_NAMES


def count_correct(logits: Tensor, *, y: Tensor, split: Tensor) -> Tensor:
    """Correct and total predictions per split: int64 [3, 2].

    ``logits`` [n, C], ``y`` [n] (−1: no label, never counted), ``split`` [n]. Counts of several shards are summed.
    """
    hit = logits.argmax(dim=1) == y
    counts = torch.zeros(len(SPLIT_NAMES), 2, dtype=torch.int64, device=logits.device)
    for code in range(len(SPLIT_NAMES)):
        chosen = (split == code) & (y >= 0)
        counts[code, 0] = (hit & chosen).sum()
        counts[code, 1] = chosen.sum()
    return counts


def accuracies(counts: Tensor) -> dict[str, float]:
    """``{"train_accuracy": …, "val_accuracy": …, "test_accuracy": …}`` in 0…1; a split without labels is left out."""
    return {
        f"{name}_accuracy": int(correct) / int(total)
        for name, (correct, total) in zip(SPLIT_NAMES, counts.tolist(), strict=True)
        if total
    }


@dataclass
class BestModel:
    """The weights at the best validation accuracy so far (the first of equals), kept on the CPU."""

    epoch: int = 0
    val_accuracy: float = -1.0
    test_accuracy: float = 0.0
    state: dict[str, Tensor] | None = None

    def offer(self, model: torch.nn.Module, *, epoch: int, scores: dict[str, float]) -> bool:
        """Keep ``model`` when it beats the best; without validation labels the newest is the best. True when kept."""
        score = scores.get("val_accuracy")
        if score is not None and score <= self.val_accuracy:
            return False
        self.epoch = epoch
        self.val_accuracy = -1.0 if score is None else score
        self.test_accuracy = scores.get("test_accuracy", 0.0)
        self.state = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
        return True
