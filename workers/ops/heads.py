"""Which heads of an attention are computed here, and for which rows: all of them for own rows, or some for more rows.

Heads of an attention do not meet, so ranks may share them out, each then attending for the rows of a run of shards
(``workers.comm.ulysses``).
"""

from typing import Protocol

from torch import Tensor

from workers.ops.row_layout import RowLayout


class Heads(Protocol):
    """The heads that attend here, and how rows come to them. ``layout`` is always that of the own rows."""

    def layout(self, layout: RowLayout) -> RowLayout:
        """The layout of the rows that attend here."""

    def own(self, num_heads: int) -> slice:
        """The heads that attend here."""

    def to_heads(self, x: Tensor, *, layout: RowLayout) -> Tensor:
        """Own rows of all heads [n, c, H, d_h] into attending rows of own heads [n', c, H', d_h]; differentiable."""

    def to_rows(self, x: Tensor, *, layout: RowLayout) -> Tensor:
        """The way back, [n', c, H', d_h] into [n, c, H, d_h]; differentiable."""


class AllHeads:
    """Every head attends here, for own rows."""

    def layout(self, layout: RowLayout) -> RowLayout:
        """See ``Heads``."""
        return layout

    def own(self, num_heads: int) -> slice:
        """See ``Heads``."""
        return slice(0, num_heads)

    def to_heads(self, x: Tensor, *, layout: RowLayout) -> Tensor:
        """See ``Heads``."""
        return x

    def to_rows(self, x: Tensor, *, layout: RowLayout) -> Tensor:
        """See ``Heads``."""
        return x
