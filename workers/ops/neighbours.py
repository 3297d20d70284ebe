"""Which rows are summed into which: the edges of one layer's block, and what multiplies them. And the sum in torch.

    out[t] = target_scale[t] · Σ_{e into t} weights[e] · source_scale[s] · x[s]  +  own_scale[t] · x[own row of t]

``x`` has one row per source: those of a sampled block (then the targets are the first of them), or the whole feature
matrix, whose row numbers are the graph's own (then ``own_rows`` says where the targets are, and nothing is gathered).
``SparseRows`` are rows that are mostly zeros; ``expanded`` puts their entries in the place of the sources, so that a
product with a small matrix is again a sum of its rows.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class BySource:
    """The edges sorted by source, those of one source in the order of their targets."""

    begins: Tensor  # int32 [num_sources + 1]
    targets: Tensor  # int32 [e]
    edges: Tensor  # int32 [e], their places in the order by target


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The sum above. What is None is left out: scales and weights of one, no own row."""

    indptr: Tensor  # int32 [targets + 1]
    sources: Tensor  # int32 or int64 [e]
    num_sources: int
    weights: Tensor | None = None  # [e]
    source_scale: Tensor | None = None  # [num_sources]
    target_scale: Tensor | None = None  # [targets]
    own_rows: Tensor | None = None  # dtype of sources [targets]; None: row t
    own_scale: Tensor | None = None  # [targets]

    @property
    def num_targets(self) -> int:
        """Rows of the result."""
        return len(self.indptr) - 1

    @cached_property
    def rows(self) -> Tensor:
        """The target of every edge, int64 [e]."""
        return torch.repeat_interleave(self.indptr.diff().long(), output_size=len(self.sources))

    def factors(self, dtype: torch.dtype) -> Tensor:
        """What multiplies each edge's row, all scales together: [e]."""
        found = torch.ones(len(self.sources), dtype=dtype, device=self.sources.device)
        if self.weights is not None:
            found = found * self.weights.to(dtype)
        if self.source_scale is not None:
            found = found * self.source_scale[self.sources.long()]
        return found if self.target_scale is None else found * self.target_scale[self.rows]

    def own(self, x: Tensor) -> Tensor:
        """The targets' own rows of ``x``: [targets, F]."""
        return x[: self.num_targets] if self.own_rows is None else x[self.own_rows.long()]


@dataclass(frozen=True, eq=False)
class SparseRows:
    """CSR of a feature matrix [N, num_features] on the CPU: row v has ``values[i]`` in ``columns[i]``, i from
    ``begins[v]`` to ``begins[v + 1]``.
    """

    begins: Tensor  # int64 [N + 1]
    columns: Tensor  # int32 [entries]
    values: Tensor  # float32 [entries]
    num_features: int


def plain_sum(x: Tensor, *, neighbours: Neighbours, beside_own: bool) -> Tensor:
    """The sum above in torch, on any device; ``beside_own``: [targets, 2F], the own rows unscaled beside the sums."""
    size = (neighbours.num_targets, len(x))
    indptr = neighbours.indptr.to(neighbours.sources.dtype)
    values = neighbours.factors(x.dtype)
    out = torch.sparse_csr_tensor(indptr, neighbours.sources, values, size=size, check_invariants=False) @ x
    if beside_own:
        return torch.cat([out, neighbours.own(x)], dim=1)
    if neighbours.own_scale is None:
        return out
    return out + neighbours.own_scale.unsqueeze(1) * neighbours.own(x)


def plain_expanded(rows: SparseRows, *, neighbours: Neighbours, beside_own: bool) -> Neighbours:
    """See ``workers.ops.aggregation.expanded``."""
    edges = [(neighbours.sources.long(), neighbours.factors(torch.float32), neighbours.rows, 0)]
    scale = torch.ones(neighbours.num_targets) if beside_own else neighbours.own_scale
    if scale is not None:
        targets = torch.arange(neighbours.num_targets)
        own = targets if neighbours.own_rows is None else neighbours.own_rows.long()
        edges.append((own, scale.float(), targets, rows.num_features * beside_own))
    parts = [_entries(rows, sources, factors, targets, offset) for sources, factors, targets, offset in edges]
    columns, values, targets = (torch.cat(part) for part in zip(*parts, strict=True))
    order = torch.argsort(targets, stable=True)
    counts = torch.bincount(targets, minlength=neighbours.num_targets)
    return Neighbours(
        indptr=torch.cat([counts.new_zeros(1), counts.cumsum(0)]).int(),
        sources=columns[order].int(),
        num_sources=rows.num_features * (1 + beside_own),
        weights=values[order],
    )


def _entries(
    rows: SparseRows, sources: Tensor, factors: Tensor, targets: Tensor, offset: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(column + offset, value · factor, target) of every entry of the rows ``sources``."""
    begins, lengths = rows.begins[sources], rows.begins[sources + 1] - rows.begins[sources]
    edge = torch.repeat_interleave(lengths)
    place = torch.arange(len(edge)) - (lengths.cumsum(0) - lengths)[edge] + begins[edge]
    return rows.columns[place].long() + offset, rows.values[place] * factors[edge], targets[edge]
