"""PyG's two sides of ``mqgnn_epoch``: run by the Python of ``.venv-peers``, so it imports nothing of ours
but other scripts for it.

``default`` is what PyG's documentation shows: ``NeighborLoader`` and the model on the whole mini-batch. ``tuned`` is
what an expert makes of it by hand: torch-sparse's native sampler called in the loader's workers, hops told apart, every
layer on a bipartite block with no row too many, features gathered once. Both give the same outputs for the same sample,
which is checked before anything is timed.

A line in asks for one epoch: ``{"side", "model", "fanouts", "num_batches", "threads", "workers", "layout"}``; a line
out tells its seconds.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_sparse
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader

from tests.benchmarks.peer_models import build

HIDDEN, BATCH_SIZE = 128, 1024


class Peer:
    """The graph, and one loader per way to run."""

    def __init__(self, folder: Path) -> None:
        with np.load(folder / "graph.npz") as graph:
            arrays = {name: torch.from_numpy(graph[name]) for name in graph.files}
        self.indptr, self.indices, self.seeds, self.y = (arrays[n] for n in ("indptr", "indices", "seeds", "y"))
        self.x = arrays["x"] if "x" in arrays else dense(arrays)
        self.num_classes = int(self.y.max()) + 1
        targets = torch.repeat_interleave(self.indptr.diff())
        self.data = Data(x=self.x, y=self.y, edge_index=torch.stack((self.indices, targets)))
        self.models: dict[str, tuple[nn.Module, torch.optim.Optimizer]] = {}
        self.loaders: dict[str, Any] = {}

    def epoch_s(self, ask: dict[str, Any]) -> float:
        """Seconds of one epoch after the first few mini-batches of another."""
        torch.set_num_threads(ask["threads"])
        name, num_layers = ask["model"], len(ask["fanouts"])
        if (key := f"{name}{num_layers}") not in self.models:
            made = self.build(name, num_layers)
            self.models[key] = (made, torch.optim.Adam(made.parameters(), lr=0.01, fused=True))
        model, optimizer = self.models[key]
        step = {"default": default_loss, "tuned": tuned_loss}[ask["side"]]
        loader = self.loader(ask)
        run(loader, model, optimizer, step, at_most=1)
        begin = time.perf_counter()
        run(loader, model, optimizer, step, at_most=ask["num_batches"])
        return time.perf_counter() - begin

    def build(self, name: str, num_layers: int) -> nn.Module:
        """A fresh model."""
        torch.manual_seed(0)
        sizes = {"num_features": self.x.shape[1], "num_classes": self.num_classes}
        return build(name, **sizes, hidden_size=HIDDEN, num_layers=num_layers)

    def loader(self, ask: dict[str, Any]) -> Any:
        """Built once for each way, with workers that stay; seeds as many as are asked for."""
        key = json.dumps({name: ask[name] for name in ("side", "fanouts", "workers", "layout", "num_batches")})
        if key not in self.loaders:
            self.loaders.clear()  # the workers of one way at a time
            seeds = self.seeds[: ask["num_batches"] * BATCH_SIZE]
            options = {"batch_size": BATCH_SIZE, "shuffle": True, "num_workers": ask["workers"]}
            options["persistent_workers"] = ask["workers"] > 0
            if ask["side"] == "default":
                self.loaders[key] = NeighborLoader(
                    self.data, num_neighbors=ask["fanouts"], input_nodes=seeds, **options
                )
            else:
                collate = Blocks(self, fanouts=ask["fanouts"], layout=ask["layout"])
                self.loaders[key] = DataLoader(seeds, collate_fn=collate, **options)
        return self.loaders[key]


def dense(arrays: dict[str, Tensor]) -> Tensor:
    """Features as practitioners hold them."""
    size = (len(arrays["begins"]) - 1, int(arrays["num_features"]))
    rows = torch.repeat_interleave(arrays["begins"].diff())
    x = torch.zeros(size)
    x[rows, arrays["columns"].long()] = arrays["values"]
    return x


def run(
    loader: Any,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    step: Callable[[nn.Module, Any], Tensor],
    *,
    at_most: int,
) -> None:
    """So many steps of training."""
    batches: Iterator[Any] = iter(loader)
    for _ in range(at_most):
        optimizer.zero_grad()
        step(model, next(batches)).backward()
        optimizer.step()


def default_loss(model: nn.Module, batch: Any) -> Tensor:
    """As PyG's documentation shows."""
    return cross_entropy(model(batch.x, batch.edge_index)[: batch.batch_size], batch.y[: batch.batch_size])


class Blocks:
    """Samples in the loader's worker and cuts a bipartite block for every layer, outermost first."""

    def __init__(self, peer: Peer, *, fanouts: list[int], layout: str) -> None:
        self._indptr, self._indices, self._x, self._y = peer.indptr, peer.indices, peer.x, peer.y
        self._fanouts, self._layout = fanouts, layout

    def __call__(self, seeds: list[Tensor]) -> tuple[Tensor, list[tuple[Any, int]], Tensor]:
        batch = torch.stack(seeds)
        nodes, rows, columns, _ = torch.ops.torch_sparse.neighbor_sample(
            self._indptr, self._indices, batch, self._fanouts, False, True
        )
        return self._x[nodes], self.blocks(rows, columns, len(batch)), self._y[batch]

    def blocks(self, rows: Tensor, columns: Tensor, num_seeds: int) -> list[tuple[Any, int]]:
        """[(edges into the first so many nodes, their number)]: edges come by hop, nodes by the hop that met them."""
        num_targets, begin, found = num_seeds, 0, []
        for _ in self._fanouts:
            num_edges = begin + int((columns[begin:] < num_targets).sum())
            met = int(rows[begin:num_edges].max()) + 1 if num_edges > begin else 0
            num_nodes = max(num_targets, met)
            found.append((self.edges(rows[:num_edges], columns[:num_edges], (num_targets, num_nodes)), num_targets))
            num_targets, begin = num_nodes, num_edges
        return found[::-1]

    def edges(self, rows: Tensor, columns: Tensor, size: tuple[int, int]) -> Any:
        """As PyG's convolutions take them."""
        if self._layout == "index":
            return torch.stack((rows, columns))
        return torch_sparse.SparseTensor(row=columns, col=rows, sparse_sizes=size, is_sorted=False)


def tuned_loss(model: nn.Module, batch: Any) -> Tensor:
    """Each layer on the rows that it needs."""
    x, blocks, y = batch
    return cross_entropy(tuned_forward(model, x, blocks), y)


def tuned_forward(model: nn.Module, x: Tensor, blocks: list[tuple[Any, int]]) -> Tensor:
    """Outputs of the seeds."""
    for layer, (edges, num_targets) in enumerate(blocks):
        x = model.convs[layer]((x, x[:num_targets]), edges)
        if layer < len(blocks) - 1:
            x = x.relu()
    return x


def check(peer: Peer) -> None:
    """Both sides say the same of the same sample."""
    batch = peer.seeds[:64]
    nodes, rows, columns, _ = torch.ops.torch_sparse.neighbor_sample(
        peer.indptr, peer.indices, batch, [10, 5], False, True
    )
    for name in ("graphsage", "gin", "gat"):
        model = peer.build(name, 2)
        whole = model(peer.x[nodes], torch.stack((rows, columns)))[: len(batch)]
        for layout in ("index",) if name == "gat" else ("index", "sparse"):
            blocks = Blocks(peer, fanouts=[10, 5], layout=layout).blocks(rows, columns, len(batch))
            torch.testing.assert_close(tuned_forward(model, peer.x[nodes], blocks), whole, rtol=1e-4, atol=1e-4)


def serve(folder: Path) -> None:
    """An epoch for every line that comes in."""
    peer = Peer(folder)
    check(peer)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"seconds": peer.epoch_s(json.loads(line))}), flush=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
