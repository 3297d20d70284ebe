"""What a user's module says of every node: all neighbours, one convolution after the other, shared by replicas.

The module is run as often as it calls convolutions, and once more. In run k the convolutions before the k-th are
answered with their rows of the runs before, for whatever nodes are asked, so that the module's own code makes the
input of the k-th from them; then it is stopped, and the convolution computes its targets of one chunk from all their
neighbours. In the last run all are answered. Code between convolutions meets the same nodes everywhere, so residuals
and jumps over layers are as they are written. The result is that of ``model(x, edge_index)`` on the whole graph.

Alive at most: the rows of every convolution, Σ N · F_k · b, and those of a chunk (``workers.mqgnn.evaluation``).

Where this does not give what the module gives as a whole (``runs_by_calls``), it runs on the whole graph at once,
in every replica.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from workers.comm.axis import Axis
from workers.data.features import DenseFeatures
from workers.data.graph import Graph
from workers.models.convolutions import convolve
from workers.mqgnn.evaluation import Evaluator
from workers.mqgnn.minibatch import MiniBatch
from workers.mqgnn.own.calls import NotApartError, no_edges, taken_over
from workers.mqgnn.own.forms import UNFIT, are_equal, checked_outputs, judged_copy, run_on, run_whole, tell
from workers.mqgnn.own.replicas import equalize_statistics

_NUM_JUDGED_CHUNKS = 4  # at least: code that looks at all rows must meet different ones


class _Reached(BaseException):  # code between convolutions may catch exceptions
    """Stops the module at a convolution, and carries it and its input."""

    def __init__(self, convolution: nn.Module, x: Tensor) -> None:
        self.convolution, self.x = convolution, x


def rows_at(model: nn.Module, x: Tensor, answers: list[Tensor]) -> Tensor | tuple[nn.Module, Tensor]:
    """Run ``model`` on rows ``x`` [n, F], its first convolutions answered with ``answers`` [n, F_k].

    Returns its outputs, or the first convolution that has no answer and its input. Raises ``NotApartError``.
    """
    placeholder = no_edges(x.device)

    def answer(number: int, convolution: nn.Module, rows: Tensor) -> Tensor:
        if len(rows) != len(x):
            raise NotApartError(f"{type(convolution).__name__} is called with {len(rows)} rows, not {len(x)}")
        if number < len(answers):
            return answers[number]
        raise _Reached(convolution, rows)

    try:
        with taken_over(model, edge_index=placeholder, convolve=answer):
            return checked_outputs(model(x, placeholder), num_rows=len(x))
    except _Reached as reached:
        return reached.convolution, reached.x


class OwnEvaluator(Evaluator):
    """Scores and outputs of a user's module; see ``Evaluator``."""

    def __init__(self, graph: Graph, *, by_calls: bool, as_matrix: bool, **settings: Any) -> None:
        """``by_calls`` as ``runs_by_calls`` found; ``as_matrix``: the module takes ``adj_t``."""
        super().__init__(graph, **settings)
        self._by_calls, self._as_matrix = by_calls, as_matrix

    @torch.no_grad()
    def outputs(self, model: nn.Module) -> Iterator[tuple[slice, Tensor]]:
        """See ``Evaluator.outputs``. Raises ``ModelInvalidError`` for outputs that are not one row per node."""
        model.eval()
        equalize_statistics(model, axis=self._axis)
        if not self._by_calls:
            yield from self._at_once(model)
            return
        answers: list[Tensor] = []
        while isinstance(found := rows_at(model, self._rows([0]), [rows[:1] for rows in answers]), tuple):
            answers.append(self._answers(model, answers, width_in=found[1].shape[1]))
        for nodes in self._runs(row_bytes=self._row_bytes(answers, 0), edge_bytes=0):
            outputs = rows_at(model, self._rows(np.arange(nodes.start, nodes.stop)), [rows[nodes] for rows in answers])
            assert isinstance(outputs, Tensor)
            yield nodes, outputs

    def _answers(self, model: nn.Module, answers: list[Tensor], *, width_in: int) -> Tensor:
        """What the convolution after those with ``answers`` makes of all nodes [N, F]: this replica's, then all."""
        first = self._convolved(model, answers, slice(0, 1))
        everything = first.new_empty(self._graph.num_nodes, first.shape[1])
        row_bytes = self._row_bytes(answers, width_in + first.shape[1])
        for nodes in self._runs(row_bytes=row_bytes, edge_bytes=width_in * self._dtype.itemsize):
            everything[nodes] = self._convolved(model, answers, nodes)
        return self.share(everything)

    def _convolved(self, model: nn.Module, answers: list[Tensor], nodes: slice) -> Tensor:
        sources, block = self._block(nodes)
        places = torch.from_numpy(sources).to(self._device).long()
        found = rows_at(model, self._rows(sources), [rows[places] for rows in answers])
        assert isinstance(found, tuple)
        return convolve(*found, block)

    def _at_once(self, model: nn.Module) -> Iterator[tuple[slice, Tensor]]:
        indptr, indices = map(torch.from_numpy, (self._graph.indptr, self._graph.indices))
        outputs = run_on(
            model,
            self._rows(np.arange(self._graph.num_nodes)),
            indptr=indptr.to(self._device),
            indices=indices.to(self._device),
            as_matrix=self._as_matrix,
        )
        yield self.own, outputs[self.own]

    def _rows(self, nodes: np.ndarray | list[int]) -> Tensor:
        return torch.from_numpy(self._graph.features.gather(np.asarray(nodes))).to(self._device, self._dtype)

    def _row_bytes(self, answers: list[Tensor], width_in: int) -> int:
        widths = [self._graph.features.num_features, width_in, *(rows.shape[1] for rows in answers)]
        return sum(widths) * self._dtype.itemsize


@torch.no_grad()
def runs_by_calls(model: nn.Module, batch: MiniBatch, *, as_matrix: bool) -> bool:
    """Whether this way gives what ``model`` gives as a whole, judged on the subgraph of ``batch`` as a graph by itself.

    The log says why not.
    """
    judged, num_nodes = judged_copy(model), len(batch.node_ids)
    expected = run_whole(judged, replace(batch, seeds=batch.node_ids), as_matrix=as_matrix)
    indptr, indices = batch.indptr.cpu().numpy().astype(np.int64), batch.indices.cpu().numpy()
    graph = Graph(
        indptr=np.pad(indptr, (0, num_nodes + 1 - len(indptr)), mode="edge"),
        indices=indices,
        features=DenseFeatures(batch.x.cpu().numpy()),
        y=np.zeros(num_nodes, dtype=np.int64),
        split=np.zeros(num_nodes, dtype=np.int8),
    )
    row_bytes = max(48, graph.features.num_features * batch.x.dtype.itemsize)
    evaluator = OwnEvaluator(
        graph,
        by_calls=True,
        as_matrix=as_matrix,
        axis=Axis(),
        device=batch.x.device,
        dtype=batch.x.dtype,
        chunk_bytes=(num_nodes + len(indices)) * row_bytes // _NUM_JUDGED_CHUNKS,
    )
    reason: object = "rows meet outside of its convolutions, or a convolution looks further than one hop"
    try:
        if are_equal(torch.cat([outputs for _, outputs in evaluator.outputs(judged)]), expected):
            return True
    except UNFIT as error:
        reason = error
    tell("scores and predictions are made on the whole graph at once", reason)
    return False
