"""The example of docs/trainer.md: how much of a script changes, and that both scripts run."""

import difflib
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch_geometric.loader
from torch_geometric.data import Data
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE

from workers.mqgnn.own.pyg_data import dataset_of
from workers.mqgnn.sampling.csc import csc_of
from workers.mqgnn.sampling.neighbors import NeighborSampler

PAGE = Path(__file__).resolve().parents[4] / "docs" / "trainer.md"
BEFORE, AFTER = re.findall(r"```python\n(# (?:before|after)\.py\n.*?)```", PAGE.read_text(), flags=re.DOTALL)


class Loader:
    """PyG's, where its compiled sampler is not installed: as many of its words as the example uses."""

    def __init__(self, data: Data, *, num_neighbors: list[int], batch_size: int, input_nodes, shuffle: bool) -> None:
        self._data, self._seeds, self._batch_size = data, np.flatnonzero(input_nodes), batch_size
        self._sampler = NeighborSampler(csc_of(dataset_of(data).graphs[0]), fanouts=num_neighbors)
        assert shuffle

    def __iter__(self):
        order = np.random.permutation(self._seeds)
        for first in range(0, len(order), self._batch_size):
            seeds = order[first : first + self._batch_size]
            found = self._sampler.sample(seeds, key=first)
            targets = np.repeat(np.arange(len(found.indptr) - 1), np.diff(found.indptr))
            yield Data(
                x=self._data.x[found.node_ids],
                edge_index=torch.from_numpy(np.stack((found.indices, targets))).long(),
                y=self._data.y[found.node_ids],
                batch_size=len(seeds),
            )


def changes() -> tuple[list[str], list[str]]:
    """(lines written, lines gone), the first line, which names the file, apart."""
    lines = [line for line in difflib.ndiff(BEFORE.splitlines()[1:], AFTER.splitlines()[1:]) if line[2:].strip()]
    return [line for line in lines if line[0] == "+"], [line for line in lines if line[0] == "-"]


def test_at_most_five_lines_of_the_script_are_written_anew():
    written, gone = changes()
    assert len(written) == 4
    assert len(gone) == len(written) + 6  # as the page says


@pytest.mark.parametrize("script", [BEFORE, AFTER], ids=["before", "after"])
def test_both_scripts_run_and_learn(script, monkeypatch, capsys):
    if not (WITH_PYG_LIB or WITH_TORCH_SPARSE):
        monkeypatch.setattr(torch_geometric.loader, "NeighborLoader", Loader)
    torch.manual_seed(0)
    np.random.seed(0)
    exec(compile(script, "script", "exec"), {})
    assert float(capsys.readouterr().out.split()[-1]) > 0.5
