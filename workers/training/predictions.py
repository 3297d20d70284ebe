"""Predictions for every node or graph, as Parquet: each rank writes those of its own rows.

    predictions/part-00000.parquet …, then manifest.json, which names the parts; without it there are no predictions

Columns: ``id`` (number of the node or graph in the data set, from 0), ``split`` (train, val, test or null), ``label``,
``prediction`` and ``probabilities`` (per class or label; null for numbers). Classes are numbers; several labels or
numbers are lists, as are the embeddings of nodes whose links are predicted.
"""

import io
import json

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from torch import Tensor

from workers.comm.axis import Axis
from workers.data.graph import NO_LABEL, SPLIT_NAMES
from workers.training.folder import Folder
from workers.training.objective import Objective

MANIFEST = "manifest.json"


class Predictions:
    """Gathers the predictions of one rank, then writes them."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self._parts: list[pyarrow.Table] = []

    def add(self, outputs: Tensor, *, ids: Tensor, y: Tensor, split: Tensor) -> None:
        """Take in ``outputs`` [n, C] of the rows ``ids`` [n]; rows of id -1 are another rank's to write."""
        own = ids >= 0
        self._parts.append(self._table(outputs[own].cpu(), ids=ids[own].cpu(), y=y[own].cpu(), split=split[own].cpu()))

    def write(self, folder: Folder, *, rank: int, axis: Axis, device: torch.device) -> None:
        """Write this rank's part, then commit all of them. Collective over ``axis``, the line of all ranks."""
        counts = torch.zeros(axis.size, dtype=torch.int64, device=device)
        counts[axis.index] = sum(len(part) for part in self._parts)
        if counts[axis.index]:
            buffer = io.BytesIO()
            pyarrow.parquet.write_table(pyarrow.concat_tables(self._parts).combine_chunks(), buffer)
            folder.write(_part_name(rank), buffer.getvalue())
        axis.sum_in_place(counts)  # a rank that has given its count has written
        if rank == 0:
            rows = {_part_name(place): count for place, count in zip(axis.ranks, counts.tolist(), strict=True) if count}
            folder.write(MANIFEST, json.dumps({"task": self.objective.task, "rows": rows}, indent=1).encode())
        axis.barrier()

    def _table(self, outputs: Tensor, *, ids: Tensor, y: Tensor, split: Tensor) -> pyarrow.Table:
        parts = pyarrow.array(split.numpy(), mask=split.numpy() < 0)
        return pyarrow.table(
            {
                "id": ids.numpy(),
                "split": pyarrow.array(SPLIT_NAMES).take(parts),
                "label": _labels(y.numpy()),
                **self._predicted(outputs),
            }
        )

    def _predicted(self, outputs: Tensor) -> dict[str, pyarrow.Array]:
        match self.objective.task:
            case "regression" | "links":
                nothing = pyarrow.nulls(len(outputs), pyarrow.list_(pyarrow.float64()))
                return {"prediction": _lists(outputs.double().numpy()), "probabilities": nothing}
            case "multilabel":
                shares = outputs.double().sigmoid()
                return {"prediction": _lists((shares > 0.5).double().numpy()), "probabilities": _lists(shares.numpy())}
            case "classes":
                shares = outputs.double().softmax(dim=1)
                if self.objective.loss == "binary_cross_entropy":  # one class against the rest
                    shares = outputs.double().sigmoid()
                return {
                    "prediction": pyarrow.array(outputs.argmax(dim=1).numpy()),
                    "probabilities": _lists(shares.numpy()),
                }


def _labels(y: np.ndarray) -> pyarrow.Array:
    if y.ndim == 1:
        return pyarrow.array(y, mask=y == NO_LABEL)
    return _lists(y.astype(np.float64))


def _lists(rows: np.ndarray) -> pyarrow.Array:
    """A column of lists from [n, T]; NaN becomes null."""
    values = pyarrow.array(rows.reshape(-1), mask=np.isnan(rows.reshape(-1)))
    return pyarrow.ListArray.from_arrays(np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1], values)


def _part_name(rank: int) -> str:
    return f"part-{rank:05d}.parquet"
