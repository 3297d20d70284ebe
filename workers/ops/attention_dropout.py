"""Dropout of attention weights whose mask is a function of *which* pair is dropped: the hash of ``counter_dropout``.

The weight of (row, column) in head h, at one site of the model in one drawing, is dropped by a hash of (draw, site, h,
row's node id, column's node id). So it does not matter which rank, block, tile, thread or kernel meets the pair, nor in
what order; backward computes the mask anew. Weights are dropped after the softmax; what is kept grows by 1 / (1 - p).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.ops.counter_dropout import column_bits, is_kept, key_of, row_bits, threshold_of
from workers.ops.row_layout import RowLayout


@dataclass(frozen=True)
class PairDropout:
    """The mask of one block of n rows and m columns, in H heads."""

    p: float
    row_bits: Tensor  # int32 [H, n]
    column_bits: Tensor  # int32 [m]

    @property
    def threshold(self) -> int:
        """See ``counter_dropout.threshold_of``."""
        return threshold_of(self.p)

    @property
    def keep_scale(self) -> float:
        """By what kept weights grow, so that the expectation stays."""
        return 1 / (1 - self.p)

    def factors(self, rows: slice, *, dtype: torch.dtype) -> Tensor:
        """By what the weights of some of the rows are multiplied: 0 or ``keep_scale``, [H, r, m]."""
        kept = is_kept(self.row_bits[:, rows].unsqueeze(2), self.column_bits, threshold=self.threshold)
        return kept.to(dtype).mul_(self.keep_scale)


@dataclass(frozen=True)
class AttentionDropout:
    """Drop a share ``p`` of the weights at one ``site`` of the model in the drawing ``draw``.

    ``draw`` as in ``counter_dropout.draw_of``. ``node_ids[g]`` int64 [N_g]: ids of all nodes of graph g, in the order
    of its rows over all shards. Sites are shared with ``CounterDropout``: each place of a model has its own number.
    """

    p: float
    site: int
    draw: int
    node_ids: Sequence[Tensor]

    def of_pairs(self, graph: int, *, rows: slice, columns: slice, heads: Iterable[int]) -> PairDropout:
        """The mask of ``rows`` and ``columns`` of ``graph``, both counted within it, in some of the model's heads."""
        key, ids = key_of(self.draw, self.site), self.node_ids[graph]
        by_head = [row_bits(ids[rows], key=key_of(key, head)) for head in heads]
        return PairDropout(self.p, torch.stack(by_head), column_bits(ids[columns]))


def mask_of(
    dropout: AttentionDropout | None, *, layout: RowLayout, heads: Iterable[int], graph: int, shard: int
) -> PairDropout | None:
    """The mask of the rows of ``graph`` that lie here and the keys that ``shard`` holds of it; None without dropout."""
    if dropout is None:
        return None
    rows, columns = layout.columns(layout.shard, graph), layout.columns(shard, graph)
    return dropout.of_pairs(graph, rows=rows, columns=columns, heads=heads)
