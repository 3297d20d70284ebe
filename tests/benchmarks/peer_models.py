"""The models by name from PyG alone, as ``workers.models.sampled`` builds them: same classes, layers and start."""

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import APPNP, ARMAConv, SGConv, TAGConv
from torch_geometric.nn.models import GAT, GCN, GIN, PNA, GraphSAGE
from torch_geometric.nn.models.basic_gnn import BasicGNN

HEADS, TELEPORT = 4, 0.1


class APPNPNet(nn.Module):
    """The MLP and propagation of PyG's example."""

    def __init__(
        self, num_features: int, hidden_size: int, num_steps: int, num_classes: int, *, dropout: float
    ) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(num_features, hidden_size), nn.Linear(hidden_size, num_classes)
        self.dropout, self.propagation = nn.Dropout(dropout), APPNP(K=num_steps, alpha=TELEPORT)

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        return self.propagation(self.second(self.dropout(self.first(x).relu())), edge_index)


class Stack(BasicGNN):
    """PyG's frame around a convolution that it has no model of."""

    supports_edge_weight, supports_edge_attr = True, False
    kind: type[nn.Module]

    def init_conv(self, in_channels: int, out_channels: int, **options: Any) -> Any:
        """One layer."""
        return self.kind(in_channels, out_channels, **options)


def build(
    name: str,
    *,
    num_features: int,
    hidden_size: int,
    num_layers: int,
    num_classes: int,
    dropout: float = 0.0,
    degrees: Tensor | None = None,
) -> nn.Module:
    """A fresh model. ``degrees`` [N] are the graph's, for PNA."""
    sizes = (num_features, hidden_size, num_layers, num_classes)
    if name == "appnp":
        return APPNPNet(*sizes, dropout=dropout)
    kinds: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
        "graphsage": (GraphSAGE, {}),
        "gcn": (GCN, {}),
        "gin": (GIN, {}),
        "gat": (GAT, {"heads": HEADS}),
        "gatv2": (GAT, {"heads": HEADS, "v2": True}),
        "sgc": (type("SGC", (Stack,), {"kind": SGConv}), {"K": 1}),
        "tag": (type("TAG", (Stack,), {"kind": TAGConv}), {"K": 1}),
        "arma": (type("ARMA", (Stack,), {"kind": ARMAConv}), {}),
        "pna": (
            PNA,
            {
                "aggregators": ["mean", "min", "max", "std"],
                "scalers": ["identity", "amplification", "attenuation"],
                "deg": torch.tensor([0, 1]) if degrees is None else torch.bincount(degrees),
            },
        ),
    }
    kind, options = kinds[name]
    return kind(*sizes, dropout=dropout, **options)
