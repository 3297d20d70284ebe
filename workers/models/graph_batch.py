"""What a graph transformer computes on: rows of one or many graphs, and what its spec asks to know of them."""

from dataclasses import dataclass

from torch import Tensor

from workers.ops.row_edges import RowEdges
from workers.ops.row_layout import RowLayout


@dataclass(frozen=True, eq=False)
class GraphBatch:
    """Rows of one or many graphs, graph after graph as ``layout`` says.

    ``node_ids`` are unique in the data set and the same on every rank: they, with ``draw``, decide what dropout drops.
    ``x``, ``degree`` and ``node_ids`` are always there; the rest is None or empty where the model has no need of it
    (``workers.model_specs.Needs``).
    """

    x: Tensor  # [n, F]
    degree: Tensor  # int64 [n]
    node_ids: Tensor  # int64 [n]
    layout: RowLayout
    draw: int = 0
    buckets: tuple[Tensor, ...] = ()  # of graph g: uint8 [n_g, N_g], distance buckets of (own row, node of the graph)
    edges: RowEdges | None = None  # edges into the rows that lie here
