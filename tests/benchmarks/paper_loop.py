"""The plain side of ``mqgnn_paper``: FastGCN and LADIES (+f+d) in NumPy and SciPy, as papers' own code has them.

Per hop and mini-batch: the targets' rows of the normalised adjacency, importance of all columns, a draw by
``Generator.choice``, the drawn columns scaled by the debiased weights; then a GCN of ``torch.nn.Linear`` and
``torch.sparse.mm``. The estimator, and what is known of a target itself, are ours (``workers.mqgnn.sampling.layers``),
so both sides train the same function.

A line in asks for an epoch (``{"rule", "sizes", "num_batches", "threads", "workers"}``) or, with ``epochs``, for the
accuracy of a fresh model after so many; a line out tells seconds or accuracy.
"""

import json
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from workers.mqgnn.sampling.layers import estimator

HIDDEN, BATCH_SIZE = 128, 512


class GCN(nn.Module):
    """Two or more layers of Â x Wᵀ + b with ReLU between them (Kipf & Welling, ICLR 2017)."""

    def __init__(self, num_features: int, num_classes: int, num_layers: int) -> None:
        super().__init__()
        widths = [num_features, *[HIDDEN] * (num_layers - 1), num_classes]
        self.layers = nn.ModuleList(nn.Linear(*ends) for ends in pairwise(widths))

    def forward(self, x: Tensor, adjacencies: list[Tensor]) -> Tensor:
        for place, (layer, adjacency) in enumerate(zip(self.layers, adjacencies, strict=True)):
            x = torch.sparse.mm(adjacency, layer(x))
            x = x.relu() if place < len(self.layers) - 1 else x
        return x


class LayerLoop:
    """Samples in the loader's worker: (features of the outermost nodes, an adjacency per layer, labels)."""

    def __init__(self, adjacency: sp.csr_matrix, x: np.ndarray, y: np.ndarray, *, rule: str, sizes: list[int]) -> None:
        degrees = np.diff(adjacency.indptr) + 1.0
        roots = sp.diags(degrees**-0.5)
        self._neighbours, self._own = (roots @ adjacency @ roots).tocsr(), 1 / degrees
        self._x, self._y, self._rule, self._sizes = x, y, rule, sizes
        self._everybody = importance(self._neighbours)
        self._rng = np.random.default_rng(0)

    def __call__(self, seeds: list[np.ndarray]) -> tuple[Tensor, list[Tensor], Tensor]:
        targets, found = np.asarray(seeds), []
        for size in self._sizes:
            rows = self._neighbours[targets]
            shares = importance(rows) if self._rule == "ladies" else self._everybody
            shares = shares / shares.sum()
            num_candidates = np.count_nonzero(shares)
            drawn = self._rng.choice(len(shares), min(size, num_candidates), replace=False, p=shares)
            is_drawn_by_all = len(drawn) == num_candidates
            weights = 1.0 if is_drawn_by_all else estimator(shares[drawn], num_candidates, debiased=True)
            scale = np.zeros(len(shares))
            scale[drawn] = weights
            sources = np.concatenate([targets, np.setdiff1d(drawn, targets, assume_unique=True)])
            block = rows[:, sources] @ sp.diags(scale[sources])
            own = sp.diags(self._own[targets], shape=block.shape)
            found.append(as_tensor(block + own))
            targets = sources
        return torch.from_numpy(self._x[targets]), found[::-1], torch.from_numpy(self._y[np.asarray(seeds)])

    def whole(self) -> Tensor:
        """The normalised adjacency of the whole graph."""
        return as_tensor(self._neighbours + sp.diags(self._own))


def importance(rows: sp.csr_matrix) -> np.ndarray:
    """The norm of every column [N]: "+f", flat."""
    return np.sqrt(np.asarray(rows.multiply(rows).sum(axis=0)).ravel())


def as_tensor(matrix: Any) -> Tensor:
    """A sparse tensor of torch."""
    matrix = matrix.tocoo()
    places = torch.from_numpy(np.stack((matrix.row, matrix.col)).astype(np.int64))
    values = torch.from_numpy(matrix.data.astype(np.float32))
    return torch.sparse_coo_tensor(places, values, matrix.shape, check_invariants=False).coalesce()


class Plain:
    """The graph, and a model per rule."""

    def __init__(self, folder: Path) -> None:
        with np.load(folder / "graph.npz") as graph:
            indptr, indices, self.x, self.y, self.seeds = (
                graph[name] for name in ("indptr", "indices", "x", "y", "seeds")
            )
        ones = np.ones(len(indices))
        self.adjacency = sp.csr_matrix((ones, indices, indptr), shape=(len(self.y), len(self.y)))
        self.num_classes = int(self.y.max()) + 1
        self.loaders: dict[str, Any] = {}
        self.models: dict[str, tuple[nn.Module, torch.optim.Optimizer]] = {}

    def answer(self, ask: dict[str, Any]) -> dict[str, float]:
        """Seconds of an epoch after the first mini-batch of another, or the accuracy after ``epochs``."""
        torch.set_num_threads(ask["threads"])
        loader = self.loader(ask)
        if "epochs" in ask:
            fresh = self.build(ask)
            for _ in range(ask["epochs"]):
                run(iter(loader), *fresh)
            return {"accuracy": self.accuracy(fresh[0], loader.collate_fn, num_layers=len(ask["sizes"]))}
        made = self.models.setdefault(ask["rule"], self.build(ask))
        run(iter(loader), *made, at_most=1)
        begin = time.perf_counter()
        run(iter(loader), *made)
        return {"seconds": time.perf_counter() - begin}

    def build(self, ask: dict[str, Any]) -> tuple[nn.Module, torch.optim.Optimizer]:
        """A fresh model and its optimiser."""
        torch.manual_seed(0)
        model = GCN(self.x.shape[1], self.num_classes, len(ask["sizes"]))
        return model, torch.optim.Adam(model.parameters(), lr=0.01, fused=True)

    def loader(self, ask: dict[str, Any]) -> Any:
        """With workers that stay, those of one way at a time."""
        key = json.dumps({name: ask[name] for name in ("rule", "sizes", "num_batches", "workers")})
        if key not in self.loaders:
            self.loaders.clear()
            self.loaders[key] = DataLoader(
                self.seeds[: ask["num_batches"] * BATCH_SIZE],
                batch_size=BATCH_SIZE,
                shuffle=True,
                num_workers=ask["workers"],
                persistent_workers=ask["workers"] > 0,
                collate_fn=LayerLoop(self.adjacency, self.x, self.y, rule=ask["rule"], sizes=ask["sizes"]),
            )
        return self.loaders[key]

    @torch.no_grad()
    def accuracy(self, model: nn.Module, loop: Any, *, num_layers: int) -> float:
        """Of all nodes that are no seeds, on the whole graph."""
        right = model(torch.from_numpy(self.x), [loop.whole()] * num_layers).argmax(dim=1).numpy() == self.y
        is_held_out = np.ones(len(self.y), dtype=bool)
        is_held_out[self.seeds] = False
        return float(right[is_held_out].mean())


def run(
    batches: Iterator[Any], model: nn.Module, optimizer: torch.optim.Optimizer, *, at_most: int | None = None
) -> None:
    """Steps of training, all of ``batches`` or the first so many."""
    for number, (x, adjacencies, y) in enumerate(batches):
        if number == at_most:
            break
        optimizer.zero_grad()
        cross_entropy(model(x, adjacencies), y).backward()
        optimizer.step()


def serve(folder: Path) -> None:
    """An answer for every line that comes in."""
    plain = Plain(folder)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(plain.answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
