"""Global attention with a learned bias of distances, and of the edges along shortest paths.

Source: Ying et al., "Do Transformers Really Perform Bad for Graph Representation?", NeurIPS 2021, sections 3.1.2 and
3.1.3. ``Distance`` and ``EdgePath`` are units that hold tables; ``Attention``, a part of a block, refers to both. With
distances alone the bias is looked up tile by tile and never stands in memory; with edge paths, for small graphs, it is
built as [H, n_g, N_g] per graph, in every block anew or once per micro-batch (``EdgePath.keep``).

Shapes: n rows here, d hidden size, H heads, B = max_distance + 2 buckets; graph g has n_g rows here of N_g nodes.
"""

from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from workers.errors import KernelUnavailableError
from workers.models.graph_batch import GraphBatch
from workers.ops.attention_dropout import AttentionDropout
from workers.ops.attention_kernels import AttentionKernel, named_kernel
from workers.ops.biased_attention import Exchange, LocalExchange, biased_attention
from workers.ops.dense_bias_attention import dense_bias_attention
from workers.ops.near_pairs import dense_rows

# Sites of dropout: block i drops weights at this number + i, far above the sites of rows, which models number from 0.
_FIRST_SITE = 1000
# First bias per hop, and of the far bucket. Most pairs are far: with all buckets at zero a node of a graph of thousands
# would start with the average of the whole graph and learn to look near slowly, if at all. At -10 it takes 20,000 far
# nodes to outweigh the node itself; one unit per hop balances a hop's nodes against the fewer ones of the hop before.
# On Cora -8 and -10 were alike (78 % test), within the noise of seeds.
_BIAS_PER_HOP = -1.0
_FAR_BIAS = -10.0


class Distance(nn.Module):
    """Unit ``distance``: the home of the table [H, B] that the attention of all blocks shares; ``h`` passes by."""

    def __init__(self, num_heads: int, *, max_distance: int) -> None:
        super().__init__()
        hops = torch.arange(max_distance + 2, dtype=torch.get_default_dtype())
        row = (_BIAS_PER_HOP * hops).clamp(min=_FAR_BIAS)
        row[-1] = _FAR_BIAS
        self.table = nn.Parameter(row.repeat(num_heads, 1))

    def forward(self, h: Tensor, *, batch: GraphBatch) -> Tensor:
        """``h`` [n, d] itself: the table enters the blocks, tile by tile."""
        return h


class EdgePath(nn.Module):
    """Unit ``edge_path``: the table of a weight per position on a path, kind of edge and head; ``h`` passes by.

    ``keep``: the bias of a micro-batch is built once for all blocks here, and lives as long as its batch.
    """

    def __init__(self, num_heads: int, *, max_distance: int, edge_types: int) -> None:
        super().__init__()
        self.edge_types = edge_types
        self.table = nn.Parameter(torch.zeros(max_distance, edge_types, num_heads))
        nn.init.normal_(self.table, std=0.02)
        self.keep = False
        self._kept: WeakKeyDictionary[GraphBatch, tuple[Tensor, ...]] = WeakKeyDictionary()

    def forward(self, h: Tensor, *, batch: GraphBatch) -> Tensor:
        """``h`` [n, d] itself: the table enters the blocks."""
        return h

    def bias(self, batch: GraphBatch, *, distance: Distance) -> tuple[Tensor, ...]:
        """[H, n_g, N_g] of every graph: the weight of its distance, plus the mean weight of the edges on its path."""
        if not self.keep:
            return self._build(batch, distance)
        if batch not in self._kept:
            self._kept[batch] = self._build(batch, distance)
        return self._kept[batch]

    def _build(self, batch: GraphBatch, distance: Distance) -> tuple[Tensor, ...]:
        far = self.table.new_zeros(1, self.table.shape[2])  # what is no edge counts for nothing, not even in the mean
        weights = torch.cat([far, self.table.flatten(0, 1)])  # [1 + positions * types, H]
        positions = torch.arange(len(self.table), device=far.device) * self.edge_types
        parts = []
        for buckets, paths in zip(batch.buckets, batch.paths, strict=True):
            index = torch.where(paths > 0, paths + positions, 0).flatten(0, 1)  # [n_g N_g, positions]
            along = embedding_bag(index, weights, mode="mean", padding_idx=0)
            of_distance = distance.table[:, dense_rows(buckets, slice(None)).long()]
            parts.append(along.t().unflatten(1, buckets.shape) + of_distance)
        return tuple(parts)


def keep_bias(unit: nn.Module, *, keep: bool) -> None:
    """Whether ``unit`` shares the bias of a micro-batch with the other blocks of its process, or builds its own."""
    for module in unit.modules():
        if isinstance(module, EdgePath):
            module.keep = keep


def choose_kernel(model: nn.Module, *, name: str) -> None:
    """Have the kernel ``name`` (``workers.ops.attention_kernels``) compute all attention of ``model`` over distances.

    ``model`` is where it will run, in its number type. Raises ``KernelUnavailableError`` where the kernel does not run
    there, and where the model asks for none.
    """
    example = next(model.parameters())
    kernel = named_kernel(name, device=example.device, dtype=example.dtype)
    asking = [part for part in model.modules() if isinstance(part, Attention) and part.edge_path is None]
    if kernel is not None and not asking:
        raise KernelUnavailableError(
            f"attention_kernel {name} was asked for, and the model has no attention over distance buckets alone;"
            " ask for auto"
        )
    for part in asking:
        part.kernel = kernel


class Attention(nn.Module):
    """Multi-head self-attention with the shared bias. The key projection has no bias: softmax would cancel it.

    In training a share ``dropout`` of the weights is dropped, by counters of the pair
    (``workers.ops.attention_dropout``); ``index`` is that of the block.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        distance: Distance,
        edge_path: EdgePath | None,
        dropout: float = 0.0,
        index: int = 0,
    ) -> None:
        super().__init__()
        self.dropout, self.site = dropout, _FIRST_SITE + index
        self.distance, self.edge_path = distance, edge_path
        self.num_heads = num_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size, bias=False)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.out = nn.Linear(hidden_size, hidden_size)
        self.exchange: Exchange = LocalExchange()
        self.kernel: AttentionKernel | None = None  # chosen by the tensors

    def forward(self, h: Tensor, *, batch: GraphBatch) -> Tensor:
        """[n, d] from ``h`` [n, d]."""
        q, k, v = (linear(h).unflatten(1, (self.num_heads, -1)) for linear in (self.query, self.key, self.value))
        where = {"layout": batch.layout, "exchange": self.exchange, "dropout": self._drops(batch)}
        if self.edge_path is None:
            where["kernel"] = self.kernel
            mixed = biased_attention(q, k=k, v=v, table=self.distance.table, buckets=batch.buckets, **where)
        else:
            bias = self.edge_path.bias(batch, distance=self.distance)
            mixed = dense_bias_attention(q, k=k, v=v, bias=bias, **where)
        return self.out(mixed.flatten(1))

    def _drops(self, batch: GraphBatch) -> AttentionDropout | None:
        if not (self.training and self.dropout):
            return None
        return AttentionDropout(self.dropout, site=self.site, draw=batch.draw, node_ids=batch.graph_node_ids)
