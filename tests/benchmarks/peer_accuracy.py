"""PyG's side of ``mqgnn_accuracy``, run by the Python of ``.venv-peers``: ``NeighborLoader`` and the model as it comes.

A line in asks for one training (the fields of ``Settings``, ``model`` and ``seed``); a line out tells the score of the
test part at the best validation score. Evaluation is of the whole graph at once.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader

from tests.benchmarks.peer_models import build

TRAIN, VALIDATION, TEST = range(3)  # as in ``workers.data.graph``


class Peer:
    """The graph."""

    def __init__(self, folder: Path) -> None:
        with np.load(folder / "graph.npz") as graph:
            arrays = {name: torch.from_numpy(graph[name]) for name in graph.files}
        self.degrees, self.split = arrays["indptr"].diff(), arrays["split"]
        edge_index = torch.stack((arrays["indices"], torch.repeat_interleave(self.degrees)))
        self.data = Data(x=arrays["x"], y=arrays["y"], edge_index=edge_index)

    def train(self, ask: dict[str, Any]) -> float:
        """The test score at the best validation score."""
        torch.manual_seed(ask["seed"])
        model = build(
            ask["model"],
            num_features=self.data.num_features,
            hidden_size=ask["hidden_size"],
            num_layers=len(ask["fanouts"]),
            num_classes=int(self.data.y.max()) + 1,
            dropout=ask["dropout"],
            degrees=self.degrees,
        )
        decay = {"lr": ask["learning_rate"], "weight_decay": ask["weight_decay"]}
        optimizer = torch.optim.Adam(model.parameters(), **decay)
        loader = NeighborLoader(
            self.data,
            num_neighbors=ask["fanouts"],
            input_nodes=self.split == TRAIN,
            batch_size=ask["batch_size"],
            shuffle=True,
        )
        best = (-1.0, -1.0)
        for epoch in range(1, ask["epochs"] + 1):
            model.train()
            for batch in loader:
                optimizer.zero_grad()
                out = model(batch.x, batch.edge_index)[: batch.batch_size]
                cross_entropy(out, batch.y[: batch.batch_size]).backward()
                optimizer.step()
            if epoch % ask["eval_every_epochs"] == 0:
                best = max(best, self.scores(model, metric=ask["metric"]), key=lambda pair: pair[0])
        return best[1]

    @torch.no_grad()
    def scores(self, model: torch.nn.Module, *, metric: str) -> tuple[float, float]:
        """(validation, test)."""
        model.eval()
        out = model(self.data.x, self.data.edge_index)
        score = {"accuracy": accuracy, "roc_auc": roc_auc}[metric]
        parts = (self.split == VALIDATION, self.split == TEST)
        validation, test = (score(out[part], self.data.y[part]) for part in parts)
        return validation, test


def accuracy(out: Tensor, y: Tensor) -> float:
    """Of the likeliest class."""
    return float((out.argmax(dim=1) == y).double().mean())


def roc_auc(out: Tensor, y: Tensor) -> float:
    """Of two classes: how often a positive ranks above a negative (Mann-Whitney)."""
    ranks = rankdata((out[:, 1] - out[:, 0]).double().numpy())
    positive = y.numpy() == 1
    num_positive = int(positive.sum())
    num_pairs = num_positive * (len(y) - num_positive)
    return float((ranks[positive].sum() - num_positive * (num_positive + 1) / 2) / num_pairs)


def serve(folder: Path) -> None:
    """A training for every line that comes in."""
    torch.set_num_threads(1)  # two wait for each other where anything else runs
    peer = Peer(folder)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"score": peer.train(json.loads(line))}), flush=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
