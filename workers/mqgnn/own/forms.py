"""How a user's module runs on sampled mini-batches, and which way is right for it: found out on one of them.

    in place   as trimmed, and its first convolution reads features where they are, without gathering them
    trimmed    each convolution computes only what the next ones need, by our kernels where they cover it
    padded     as trimmed, with rows of zeros in the place of the others: residuals and the like meet equal shapes
    whole      the module as it is written on the whole subgraph, as with PyG's ``NeighborLoader``

The first three ask that rows meet in convolutions alone, one call per fanout. Whether that holds is not guessed: a
copy with weights drawn anew runs in both ways on the first mini-batch, and its outputs for the seeds must be equal.
They are judged with the degrees of the subgraph, where both say the same; in training, degrees and sums over
neighbours are those of the whole graph, estimated from the sample (``workers.models.convolutions``).
"""

import copy
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from workers.errors import ModelInvalidError
from workers.models.blocks import InPlace
from workers.models.convolutions import convolve, reads_in_place
from workers.models.node_table import table_of
from workers.mqgnn.minibatch import MiniBatch
from workers.mqgnn.own.calls import NotApartError, no_edges, one_row_allowed, taken_over

_log = logging.getLogger(__name__)

Form = Literal["in place", "trimmed", "padded", "whole"]
# What a module raises that meets other shapes than it expects, or that returns them.
UNFIT = (NotApartError, RuntimeError, IndexError, ModelInvalidError)
_WHOLE = "the module runs whole on each sampled subgraph, as with PyG's NeighborLoader"
_NOISE = 0.3  # added to each weight of the copy: zeros at the start of training must hide nothing
_TOLERANCE = 1e-3  # of the largest output: far above float32's rounding, far below another function


@contextmanager
def seeded(model: nn.Module, number: int) -> Iterator[None]:
    """One training pass of ``model``: it draws what ``number`` names."""
    with one_row_allowed(model):
        torch.manual_seed(number % 2**63)
        yield


class OwnForward:
    """Runs a user's module on mini-batches in one ``form``; see ``workers.mqgnn.engine.Forward``.

    What the module itself draws (dropout) is seeded by ``draw`` and ``rank``, so a step is the same in any run. A
    module that turns out to be unlike what it was when the form was chosen goes on as a whole, and the log says so.
    """

    def __init__(self, form: Form, *, rank: int, num_outputs: int, as_matrix: bool = False) -> None:
        """``as_matrix``: the module takes ``adj_t``, a sparse matrix, in the place of ``edge_index``."""
        self.form, self._rank, self._num_outputs, self._as_matrix = form, rank, num_outputs, as_matrix

    def __call__(self, model: nn.Module, batch: MiniBatch, *, draw: int) -> Tensor:
        """Outputs [num_seeds, C] for the seeds of ``batch``."""
        if not len(batch.seeds):
            weight = next(model.parameters())
            return weight.new_zeros(0, self._num_outputs)
        if (table := table_of(model)) is not None:
            batch = replace(batch, x=table.beside(batch.x, batch.node_ids))
        with seeded(model, draw + self._rank):
            return self._outputs(model, batch)

    def _outputs(self, model: nn.Module, batch: MiniBatch) -> Tensor:
        if self.form == "whole":
            return run_whole(model, batch, as_matrix=self._as_matrix)
        try:
            return run_on_blocks(model, batch, is_padded=self.form == "padded")
        except UNFIT as error:
            if isinstance(batch.x, InPlace):
                raise ModelInvalidError(
                    f"the module no longer runs as it did on the first mini-batch: {error}; its path must not depend on"
                    " what it meets"
                ) from error
            tell(_WHOLE, error)
            self.form = "whole"
            return run_whole(model, batch, as_matrix=self._as_matrix)


def run_whole(model: nn.Module, batch: MiniBatch, *, as_matrix: bool) -> Tensor:
    """The seeds' outputs of ``model`` as it is written, on all rows and edges of ``batch``."""
    assert isinstance(batch.x, Tensor)
    return run_on(model, batch.x, indptr=batch.indptr, indices=batch.indices, as_matrix=as_matrix)[: len(batch.seeds)]


def run_on(model: nn.Module, x: Tensor, *, indptr: Tensor, indices: Tensor, as_matrix: bool) -> Tensor:
    """Outputs [n, C] of ``model`` as it is written, on rows ``x`` [n, F] and the in-edges of the first of them."""
    edges = matrix_of_csr(indptr, indices, like=x) if as_matrix else edges_of_csr(indptr, indices)
    return checked_outputs(model(x, edges), num_rows=len(x))


def run_on_blocks(model: nn.Module, batch: MiniBatch, *, is_padded: bool) -> Tensor:
    """The seeds' outputs of ``model``, its convolutions on trimmed blocks. Raises ``NotApartError``."""
    edges, num_calls = batch.edges, 0
    in_place = batch.x if isinstance(batch.x, InPlace) else None
    # No number at all: what looks at it beside the first convolution shows in the outputs. (No row at all would not do:
    # dropout gives such a matrix back as it is.)
    entry = batch.x if in_place is None else torch.full((1, _width(in_place)), torch.nan)
    placeholder = no_edges(batch.seeds.device)

    def on_block(number: int, convolution: nn.Module, x: Tensor) -> Tensor:
        nonlocal num_calls
        num_calls = number + 1
        hop = edges.num_layers - num_calls
        if hop < 0:
            raise NotApartError(f"it calls more than {edges.num_layers} convolutions, one for each fanout")
        if in_place is not None and not number:
            if x is not entry:
                raise NotApartError("it changes features before the first convolution")
            if not reads_in_place(convolution, in_place.features):
                raise NotApartError(f"{type(convolution).__name__} has no kernel for them")
            return convolve(convolution, in_place.features, edges.block(hop, in_place=in_place))
        num_sources = edges.num_nodes(hop + 1)
        if len(x) < num_sources if is_padded else len(x) != num_sources:
            raise NotApartError(f"{type(convolution).__name__} is called with {len(x)} rows, not {num_sources}")
        out = convolve(convolution, x[:num_sources], edges.block(hop))
        return functional.pad(out, (0, 0, 0, len(x) - len(out))) if is_padded else out

    with taken_over(model, edge_index=placeholder, convolve=on_block):
        outputs = model(entry, placeholder)
    if num_calls != edges.num_layers:
        raise NotApartError(f"it calls {num_calls} convolutions; there are {edges.num_layers} fanouts")
    num_rows = len(batch.node_ids) if is_padded else len(batch.seeds)
    return checked_outputs(outputs, num_rows=num_rows)[: len(batch.seeds)]


@torch.no_grad()
def choose_form(model: nn.Module, batch: MiniBatch, *, in_place: MiniBatch | None, as_matrix: bool) -> Form:
    """The fastest form that is right for ``model``, judged on ``batch``, gathered, and the same read ``in_place``.

    Logs why a faster one is not.
    """
    judged = judged_copy(model)
    batch = _with_own_degrees(batch)
    expected = run_whole(judged, batch, as_matrix=as_matrix)  # first: what fails here is the module's own fault
    forms: Sequence[tuple[Form, MiniBatch | None]] = (("in place", in_place), ("trimmed", batch), ("padded", batch))
    reason = ""
    for form, sample in forms:
        if sample is None or (form == "padded" and any(map(_counts_rows, model.modules()))):
            continue
        try:
            found = _judge(judged, _with_own_degrees(sample), is_padded=form == "padded")
        except UNFIT as error:
            reason = reason or ("" if form == "in place" else str(error))
            continue
        if are_equal(found, expected):
            return form
        reason = reason or "rows meet outside of its convolutions, or a convolution looks further than one hop"
    tell(_WHOLE, reason)
    return "whole"


def _judge(judged: nn.Module, batch: MiniBatch, *, is_padded: bool) -> Tensor:
    """Outputs in evaluation, after a copy's pass in training, which may take other ways through the module."""
    with torch.random.fork_rng(devices=[]), one_row_allowed(learner := _copy(judged).train()):
        if not run_on_blocks(learner, batch, is_padded=is_padded).isfinite().all():
            raise NotApartError("it looks at features beside its first convolution")
    return run_on_blocks(judged, batch, is_padded=is_padded)


def tell(what: str, reason: object) -> None:
    """One line of the log: ``what`` the module does, and why it does not go the faster way."""
    _log.info("%s: %s", what, str(reason).split("\n")[0])


@torch.no_grad()
def judged_copy(model: nn.Module) -> nn.Module:
    """A copy of ``model`` in evaluation mode whose weights were moved by noise."""
    judged = _copy(model).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in judged.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.add_((_NOISE * noise).to(parameter))
    return judged


def _copy(model: nn.Module) -> nn.Module:
    """All of ``model`` anew but its table of learned rows, which may be large and is not asked while it is judged."""
    table = table_of(model)
    return copy.deepcopy(model, {} if table is None else {id(table): table})


def _with_own_degrees(batch: MiniBatch) -> MiniBatch:
    """``batch`` with the subgraph's in-degrees in the place of the graph's: then samples are the whole."""
    counts = batch.indptr.diff().to(batch.degrees.dtype)
    degrees = functional.pad(counts, (0, len(batch.node_ids) - len(counts)))
    if not isinstance(batch.x, InPlace):
        return replace(batch, degrees=degrees)
    everywhere = torch.zeros_like(batch.x.degrees)
    everywhere[batch.node_ids.long()] = degrees.to(everywhere.dtype)
    return replace(batch, degrees=degrees, x=InPlace(batch.x.features, degrees=everywhere))


def are_equal(found: Tensor, expected: Tensor) -> bool:
    """Whether both are the outputs of one function, rounding apart."""
    if found.shape != expected.shape:
        return False
    return bool((found - expected).abs().max() <= _TOLERANCE * expected.abs().max())


def _counts_rows(module: nn.Module) -> bool:
    """Whether ``module`` learns from all rows that it meets in training, rows of zeros among them."""
    return isinstance(module, torch.nn.modules.batchnorm._BatchNorm)


def _width(in_place: InPlace) -> int:
    features = in_place.features
    return features.shape[1] if isinstance(features, Tensor) else features.num_features


def edges_of_csr(indptr: Tensor, indices: Tensor) -> Tensor:
    """In-edges of the first nodes as PyG's ``edge_index``, int64 [2, e]."""
    return torch.stack((indices.long(), torch.repeat_interleave(indptr.diff().long(), output_size=len(indices))))


def matrix_of_csr(indptr: Tensor, indices: Tensor, *, like: Tensor) -> Tensor:
    """The same as PyG's ``adj_t`` [N, N], N the rows of ``like``: row v holds the in-neighbours of v."""
    indptr = functional.pad(indptr.long(), (0, len(like) + 1 - len(indptr)), value=len(indices))
    values = like.new_ones(len(indices))
    size = (len(like), len(like))
    return torch.sparse_csr_tensor(indptr, indices.long(), values, size=size, check_invariants=False)


def checked_outputs(outputs: Any, *, num_rows: int) -> Tensor:
    """``outputs`` where they are one row for each of ``num_rows`` nodes. Raises ``ModelInvalidError``."""
    if not isinstance(outputs, Tensor) or outputs.dim() != 2 or len(outputs) != num_rows:
        found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ModelInvalidError(f"the module was given {num_rows} nodes and must return [{num_rows}, C]; found {found}")
    return outputs
