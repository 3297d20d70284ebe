"""Random signs for Laplacian eigenvectors in training: v and -v are both eigenvectors, so no model may rely on one.

Source: Dwivedi et al., "Benchmarking Graph Neural Networks", JMLR 2023, section 4. The sign of (graph, column) in one
drawing is a hash, as in ``counter_dropout``: all shards of a graph flip alike, whatever ranks they lie on.
"""

from torch import Tensor

from workers.ops.counter_dropout import draw_of, keep_mask

_SITE = 1 << 20  # tells the signs from the dropout masks of a model, whose sites count from 0


def flip_signs(vectors: Tensor, *, graph_ids: Tensor, draw: int) -> Tensor:
    """``vectors`` [n, k] times +1 or -1 per (graph, column): ``graph_ids`` int64 [n] names the graph of every row."""
    keep = keep_mask(graph_ids, num_columns=vectors.shape[1], p=0.5, key=draw_of(_SITE, draw))
    return vectors * (2 * keep.to(vectors.dtype) - 1)
