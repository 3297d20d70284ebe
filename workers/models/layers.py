"""The small parts that models share: features in, positions, feed-forward network, norms, and the head.

Shapes: n rows, F features, d hidden size, g graphs, C classes. Sites of dropout are numbered by each model.
"""

from torch import Tensor, nn

from workers.model_specs.transformers import Norm, Pooling
from workers.models.batch_norm import CountedBatchNorm
from workers.models.graph_batch import GraphBatch
from workers.ops.counter_dropout import CounterDropout
from workers.ops.exchanges import LocalSums, SumExchange
from workers.ops.segment import segment_sum
from workers.ops.sign_flips import flip_signs


class Features(nn.Module):
    """Unit ``features``: drops of the features and projects them into the hidden state."""

    def __init__(self, num_features: int, hidden_size: int, *, dropout: float) -> None:
        super().__init__()
        self.dropout = CounterDropout(dropout, site=0)
        self.project = nn.Linear(num_features, hidden_size)

    def forward(self, _: None, *, batch: GraphBatch) -> Tensor:
        """[n, d], the beginning of the hidden state."""
        return self.project(self.dropout(batch.x, node_ids=batch.node_ids, draw=batch.draw))


class Laplacian(nn.Module):
    """Unit ``laplacian``: adds a projection of the Laplacian eigenvectors.

    A sign of an eigenvector means nothing, so in training each column of each graph is turned at random, the same on
    every rank (``workers.ops.sign_flips``).
    """

    def __init__(self, size: int, hidden_size: int) -> None:
        super().__init__()
        self.project = nn.Linear(size, hidden_size, bias=False)

    def forward(self, h: Tensor, *, batch: GraphBatch) -> Tensor:
        """[n, d] from ``h`` [n, d]."""
        positions = batch.laplacian
        if self.training:
            positions = flip_signs(positions, graph_ids=batch.graph_ids[batch.graph_of_row], draw=batch.draw)
        return h + self.project(positions)


class Walks(nn.Module):
    """Unit ``walks``: adds a projection of the return probabilities of random walks."""

    def __init__(self, length: int, hidden_size: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(length)
        self.project = nn.Linear(length, hidden_size, bias=False)

    def forward(self, h: Tensor, *, batch: GraphBatch) -> Tensor:
        """[n, d] from ``h`` [n, d]."""
        return h + self.project(self.norm(batch.walks))


class FeedForward(nn.Sequential):
    """Two linear layers of ``hidden_size`` rows with a wider one between; [n, d] → [n, d]."""

    def __init__(self, hidden_size: int, *, ratio: float, activation: type[nn.Module] = nn.ReLU) -> None:
        width = max(1, round(hidden_size * ratio))
        super().__init__(nn.Linear(hidden_size, width), activation(), nn.Linear(width, hidden_size))


def build_norm(norm: Norm, num_columns: int) -> nn.Module:
    """Batch norm counts over all shards; layer norm looks at each row by itself. Both map [n, d] → [n, d]."""
    return CountedBatchNorm(num_columns) if norm == "batch" else nn.LayerNorm(num_columns)


class Head(nn.Module):
    """Unit ``head``: predictions of every row [n, C], or with pooling of every graph [g, C], the same on all shards.

    Where no data set has decided, rows are predicted.
    """

    def __init__(self, hidden_size: int, num_classes: int, *, pooling: Pooling | None) -> None:
        super().__init__()
        self.pooling = pooling or "none"
        self.norm = nn.LayerNorm(hidden_size)
        self.project = nn.Linear(hidden_size, num_classes)
        self.sums: SumExchange = LocalSums()

    def forward(self, h: Tensor, *, batch: GraphBatch) -> Tensor:
        """[n, C] or [g, C] from ``h`` [n, d]."""
        h = self.norm(h)
        if self.pooling != "none":
            h = self.sums.sum(segment_sum(h, indptr=batch.graph_indptr))
        if self.pooling == "mean":
            h = h / batch.graph_sizes.unsqueeze(1)
        return self.project(h)
