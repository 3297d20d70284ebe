"""PyG's convolutions on the block of one layer: our kernels under the exact class, with its own parameters.

``convolve(convolution, x, block)`` gives the targets' rows. Of each class below, the options that its rule ``covers``
run on fused kernels (``workers.ops.aggregation``): sums straight from where the rows are, then one product. All else
runs as PyG wrote it, on the trimmed block, and is told once. Sums over neighbours, and degrees, are those of the whole
graph: where a block shows a sample, its sums are scaled up to estimates (``Block``), attention is over the sample.

``x`` are the sources' rows [S, F], or (``SparseRows``, or a block with ``own_rows``) those of all nodes.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import (
    MLP,
    ARMAConv,
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    MeanAggregation,
    SAGEConv,
    SGConv,
    SumAggregation,
    TAGConv,
)

from workers.models.blocks import Block
from workers.ops.aggregation import attend_rows, linear, linear_by_head, sum_and_project, sum_neighbours
from workers.ops.native_aggregation import is_native
from workers.ops.neighbours import SparseRows

_log = logging.getLogger(__name__)
_BIPARTITE = (SAGEConv, GINConv, GATConv, GATv2Conv)  # take (sources, targets)


def convolve(convolution: nn.Module, x: Tensor | SparseRows, block: Block, *, relu: bool = False) -> Tensor:
    """The targets' rows [T, F_out], cut at zero if ``relu``."""
    rule = _rule_of(convolution, x)
    if rule is not None:
        return rule(convolution, x, block, relu)
    _tell(type(convolution).__name__)
    assert isinstance(x, Tensor)
    assert block.own_rows is None
    return _as_written(convolution, x, block, relu)


def reads_in_place(convolution: nn.Module, features: Tensor | SparseRows) -> bool:
    """Whether ``convolve`` takes ``features`` of all nodes for it."""
    numbers = features.values if isinstance(features, SparseRows) else features
    return is_native(numbers) and _rule_of(convolution, features) is not None


def width_of(convolution: nn.Module) -> int:
    """Numbers in a row that ``convolution`` makes."""
    if isinstance(convolution, GINConv):
        return _last_linear(convolution.nn).weight.shape[0]
    heads = convolution.heads if getattr(convolution, "concat", False) else 1
    return convolution.out_channels * heads


@dataclass(frozen=True)
class _Rule:
    """How a class runs, and with which options on which rows."""

    run: Callable[..., Tensor]
    covers: Callable[[Any, Tensor | SparseRows], bool]  # (convolution, rows)


def _rule_of(convolution: nn.Module, x: Tensor | SparseRows) -> Callable[..., Tensor] | None:
    rule = _RULES.get(type(convolution))
    if rule is None or getattr(convolution, "flow", "source_to_target") != "source_to_target":
        return None
    return rule.run if rule.covers(convolution, x) else None


@cache
def _tell(name: str) -> None:
    _log.info("%s runs as PyG wrote it, on trimmed blocks: no fused kernel covers the class with these options", name)


def _as_written(convolution: nn.Module, x: Tensor, block: Block, relu: bool) -> Tensor:
    """The class itself on the block's edges."""
    edge_index = torch.stack((block.indices.long(), block.plain().rows))
    if isinstance(convolution, _BIPARTITE):
        out = convolution((x, x[: block.num_targets]), edge_index)
    else:
        out = convolution(x, edge_index)[: block.num_targets]
    return out.relu() if relu else out


def _sage(convolution: SAGEConv, x: Tensor | SparseRows, block: Block, relu: bool) -> Tensor:
    weight, bias = convolution.lin_l.weight, convolution.lin_l.bias
    if convolution.root_weight:
        weight = torch.cat((weight, convolution.lin_r.weight), dim=1)
    return sum_and_project(
        x, weight, bias, neighbours=block.means(weight.dtype), beside_own=convolution.root_weight, relu=relu
    )


def _covers_sage(convolution: SAGEConv, _: Tensor | SparseRows) -> bool:
    is_mean = type(convolution.aggr_module) is MeanAggregation
    return is_mean and not convolution.normalize and not convolution.project


def _gcn(convolution: GCNConv, x: Tensor | SparseRows, block: Block, relu: bool) -> Tensor:
    """Sum and product in the cheaper order. (``improved`` changes nothing where edges have no weights: so in PyG.)"""
    loops = 1.0 if convolution.add_self_loops else 0.0
    weight, bias = convolution.lin.weight, convolution.bias
    neighbours = block.normalized(weight.dtype, loops=loops)
    if block.own_rows is not None or isinstance(x, SparseRows) or _is_sum_first(weight, block):
        return sum_and_project(x, weight, bias, neighbours=neighbours, relu=relu)
    out = sum_neighbours(linear(x, weight), neighbours=neighbours)
    out = out if bias is None else out + bias
    return out.relu() if relu else out


def _is_sum_first(weight: Tensor, block: Block) -> bool:
    width_out, width_in = weight.shape
    sum_first = len(block.indices) * width_in + block.num_targets * width_in * width_out
    return sum_first < len(block.indices) * width_out + block.num_sources * width_in * width_out


def _covers_gcn(convolution: GCNConv, _: Tensor | SparseRows) -> bool:
    return convolution.normalize and _adds(convolution)


def _gin(convolution: GINConv, x: Tensor | SparseRows, block: Block, relu: bool) -> Tensor:
    chain = _chain_of(convolution.nn)
    own_scale = 1 + float(convolution.eps)
    if chain is None:
        assert isinstance(x, Tensor)
        out = convolution.nn(sum_neighbours(x, neighbours=block.sums(x.dtype, own_scale=own_scale)))
        return out.relu() if relu else out
    first, *others = chain
    neighbours = block.sums(first.weight.dtype, own_scale=own_scale)
    out = sum_and_project(x, first.weight, first.bias, neighbours=neighbours, relu=relu or bool(others))
    for number, layer in enumerate(others, 1):
        out = linear(out, layer.weight, layer.bias, relu=relu or number < len(others))
    return out


def _covers_gin(convolution: GINConv, x: Tensor | SparseRows) -> bool:
    has_fixed_eps = not convolution.eps.requires_grad
    return _adds(convolution) and has_fixed_eps and (isinstance(x, Tensor) or _chain_of(convolution.nn) is not None)


def _chain_of(module: nn.Module) -> list[nn.Module] | None:
    """The linear layers of ``module`` if it is nothing but those with ReLU between them."""
    if isinstance(module, MLP):
        is_bare = all(isinstance(norm, nn.Identity) for norm in module.norms) and not any(module.dropout)
        is_bare = is_bare and isinstance(module.act, nn.ReLU) and module.plain_last
        return list(module.lins) if is_bare else None
    if type(module) is nn.Sequential:
        layers = list(module)
        kinds = [nn.ReLU if place % 2 else nn.Linear for place in range(len(layers))]
        is_chain = len(layers) % 2 == 1 and all(map(isinstance, layers, kinds))
        return layers[::2] if is_chain else None
    return [module] if type(module) is nn.Linear else None


def _last_linear(module: nn.Module) -> nn.Module:
    return [part for part in module.modules() if hasattr(part, "weight") and part.weight.dim() == 2][-1]


def _gat(convolution: GATConv, x: Tensor, block: Block, relu: bool) -> Tensor:
    """Attention on raw rows: a head's score of a source is x · (Wᵀ a), and W comes after the sums."""
    heads, channels = convolution.heads, convolution.out_channels
    weight = convolution.lin.weight.view(heads, channels, -1)
    sums = attend_rows(
        x,
        neighbours=block.plain(),
        source_vectors=(weight * convolution.att_src.view(heads, channels, 1)).sum(dim=1),
        target_vectors=(weight * convolution.att_dst.view(heads, channels, 1)).sum(dim=1),
        negative_slope=convolution.negative_slope,
        with_self=convolution.add_self_loops,
    )
    if convolution.concat:
        bias = None if convolution.bias is None else convolution.bias.view(heads, channels)
        return linear_by_head(sums, weight, bias, relu=relu).flatten(1)
    mean = weight.transpose(0, 1).reshape(channels, -1) / heads
    return linear(sums.flatten(1), mean, convolution.bias, relu=relu)


def _covers_gat(convolution: GATConv, x: Tensor | SparseRows) -> bool:
    """Compiled kernels only, on rows that are dense."""
    is_shared = convolution.lin is not None and convolution.lin_edge is None and convolution.res is None
    is_dropped = convolution.dropout > 0 and convolution.training
    return isinstance(x, Tensor) and is_native(x) and is_shared and not is_dropped and _adds(convolution)


def _sgc(convolution: SGConv, x: Tensor | SparseRows, block: Block, relu: bool) -> Tensor:
    weight, bias = convolution.lin.weight, convolution.lin.bias
    loops = 1.0 if convolution.add_self_loops else 0.0
    return sum_and_project(x, weight, bias, neighbours=block.normalized(weight.dtype, loops=loops), relu=relu)


def _covers_sgc(convolution: SGConv, _: Tensor | SparseRows) -> bool:
    return convolution.K == 1 and not convolution.cached and _adds(convolution)


def _tag(convolution: TAGConv, x: Tensor | SparseRows, block: Block, relu: bool) -> Tensor:
    own, propagated = convolution.lins
    weight = torch.cat((propagated.weight, own.weight), dim=1)
    neighbours = block.normalized(weight.dtype, loops=0.0)
    return sum_and_project(x, weight, convolution.bias, neighbours=neighbours, beside_own=True, relu=relu)


def _covers_tag(convolution: TAGConv, _: Tensor | SparseRows) -> bool:
    return convolution.K == 1 and convolution.normalize and _adds(convolution)


def _arma(convolution: ARMAConv, x: Tensor | SparseRows, block: Block, relu: bool) -> Tensor:
    """All stacks side by side in one product, then their mean."""
    stacks, width_out = convolution.num_stacks, convolution.out_channels
    weight = torch.cat((convolution.init_weight, convolution.root_weight[0]), dim=1).transpose(1, 2).flatten(0, 1)
    bias = None if convolution.bias is None else convolution.bias[0].flatten()
    neighbours = block.normalized(weight.dtype, loops=0.0)
    out = sum_and_project(
        x, weight, bias, neighbours=neighbours, beside_own=True, relu=isinstance(convolution.act, nn.ReLU)
    )
    out = out.view(-1, stacks, width_out).mean(dim=1)
    return out.relu() if relu else out


def _covers_arma(convolution: ARMAConv, _: Tensor | SparseRows) -> bool:
    is_plain = convolution.act is None or isinstance(convolution.act, nn.ReLU)
    return convolution.num_layers == 1 and not convolution.dropout and is_plain and _adds(convolution)


def _adds(convolution: nn.Module) -> bool:
    return type(convolution.aggr_module) is SumAggregation


_RULES: dict[type, _Rule] = {
    SAGEConv: _Rule(_sage, _covers_sage),
    GCNConv: _Rule(_gcn, _covers_gcn),
    GINConv: _Rule(_gin, _covers_gin),
    GATConv: _Rule(_gat, _covers_gat),
    SGConv: _Rule(_sgc, _covers_sgc),
    TAGConv: _Rule(_tag, _covers_tag),
    ARMAConv: _Rule(_arma, _covers_arma),
}
