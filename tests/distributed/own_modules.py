"""Modules of a user's own that do what nobody asked them to: one middle unit of each misbehaves, as ``kind`` says."""

from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from tests.distributed.equality import Case
from tests.distributed.odd_graphs import odd_set
from workers.model_specs.custom import CustomSpec
from workers.models.graph_batch import GraphBatch
from workers.models.layers import Features, Head

WIDTH = 8
UNITS = ("features", "block.0", "block.1", "head")
_BUILT = count()  # of this process: first weights that no seed decides


class Linear(nn.Module):
    """A layer, and what ``then`` makes of its rows."""

    def __init__(self, then: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.then = nn.Linear(WIDTH, WIDTH), then

    def forward(self, h: Tensor, *, batch: GraphBatch) -> Any:
        return self.then(self.layer(h))


class Own(nn.Module):
    """``features``, two blocks, ``head``."""

    def __init__(self, *, kind: str, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.features = Features(num_features, WIDTH, dropout=0.0)
        self.block = nn.ModuleList([Linear(THEN.get(kind, nn.Identity)()), Linear(nn.Identity())])
        self.head = Head(WIDTH, num_classes + (kind == "classes"), pooling="mean" if kind == "pooled" else "none")
        if kind == "frozen":
            self.block.requires_grad_(False)
        if kind == "unused":
            self.block[0].never = nn.Parameter(torch.ones(3))
        if kind == "unseeded":
            nn.init.constant_(self.block[0].layer.weight, 0.01 * (1 + next(_BUILT)))


THEN: dict[str, Callable[[], Callable[[Tensor], Any]]] = {
    "wide": lambda: lambda h: torch.cat([h, h], dim=1),
    "fewer rows": lambda: lambda h: h[:-1],
    "nothing": lambda: lambda h: None,
    "pair": lambda: lambda h: (h, h),
    "half": lambda: lambda h: h.half(),
    "detached": lambda: lambda h: h.detach(),
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "torch dropout": lambda: nn.Dropout(0.5),
}


def own_case(kind: str, **layout: Any) -> Case:
    """The odd graphs, and a module of this ``kind``."""
    spec = CustomSpec(module=f"{__name__}:Own", arguments={"kind": kind}, units=UNITS, hidden_size=WIDTH)
    return Case(odd_set(), spec=spec, **layout)
