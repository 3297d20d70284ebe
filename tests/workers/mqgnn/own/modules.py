"""Modules as users write them, and a small graph as PyG has it."""

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GATConv, GCNConv, GINConv, GraphSAGE, HeteroConv, PNAConv, SAGEConv, SGConv

from tests.workers.mqgnn.graphs import clustered_graph
from workers.data.edges import targets_of
from workers.data.graph import SPLIT_NAMES

WIDTH_IN, HIDDEN, WIDTH_OUT = 8, 16, 3


def pna(width_in: int, width_out: int) -> PNAConv:
    return PNAConv(width_in, width_out, ["mean", "max"], ["identity"], deg=torch.tensor([0, 1]))


def gin(width_in: int, width_out: int) -> GINConv:
    return GINConv(nn.Sequential(nn.Linear(width_in, width_out), nn.ReLU(), nn.Linear(width_out, width_out)))


class Two(nn.Module):
    """Two convolutions and a linear layer, with something between that a ``habit`` names."""

    def __init__(self, convolution=SAGEConv, habit: str = "") -> None:
        super().__init__()
        self.first, self.second = convolution(WIDTH_IN, HIDDEN), convolution(HIDDEN, HIDDEN)
        self.entry, self.head = nn.Linear(WIDTH_IN, HIDDEN), nn.Linear(HIDDEN, WIDTH_OUT)
        self.norm = nn.BatchNorm1d(HIDDEN) if habit.endswith("batch norm") else None
        self.habit = habit

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        if self.habit == "dropped features":
            x = functional.dropout(x, 0.2, training=self.training)
        if self.habit == "looped edges":
            edge_index = torch.cat((edge_index, torch.arange(len(x)).expand(2, -1)), dim=1)
        h = self.first(x, edge_index).relu()
        if self.habit == "batch norm":
            h = self.norm(h)
        if self.habit == "mean of rows":
            h = h - h.mean(dim=0)
        out = self.second(h, edge_index)
        if self.habit == "residuals":
            out = out + h + self.entry(x)
        if self.habit == "last batch norm":
            out = self.norm(out)
        return self.head(out)


class Zeroed(Two):
    """Its output is zero until it has learned something."""

    def __init__(self) -> None:
        super().__init__(habit="mean of rows")
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)


# name -> (how to build it, how it runs on mini-batches of two hops, whether call by call over all nodes)
MODULES = {
    "sage": (Two, "in place", True),
    "gcn": (lambda: Two(GCNConv), "in place", True),
    "gat": (lambda: Two(GATConv), "in place", True),
    "pna": (lambda: Two(pna), "trimmed", True),
    "pyg's own model": (lambda: GraphSAGE(WIDTH_IN, HIDDEN, 2, WIDTH_OUT), "in place", True),
    "dropped features": (lambda: Two(habit="dropped features"), "trimmed", True),
    "batch norm": (lambda: Two(habit="batch norm"), "in place", True),
    "residuals": (lambda: Two(GCNConv, habit="residuals"), "padded", True),
    "jumping knowledge": (lambda: GraphSAGE(WIDTH_IN, HIDDEN, 2, WIDTH_OUT, jk="cat"), "padded", True),
    "mean of rows": (lambda: Two(habit="mean of rows"), "whole", False),
    "zeroed head": (Zeroed, "whole", False),
    "looped edges": (lambda: Two(habit="looped edges"), "whole", False),
    "one convolution": (lambda: SAGEConv(WIDTH_IN, WIDTH_OUT), "whole", True),
    "two steps in one": (lambda: SGConv(WIDTH_IN, WIDTH_OUT, K=2), "whole", False),
}


def build(name: str) -> nn.Module:
    torch.manual_seed(1)
    return MODULES[name][0]()


def own_module(*, convolution: str = "SAGEConv", num_features: int, num_classes: int, **options) -> nn.Module:
    """What a job's spec names: any of the convolutions here between two linear layers; ``options`` as ``Sized``."""
    return Sized(globals()[convolution], num_features, num_classes, **options)


class Sized(nn.Module):
    """As wide as it is told."""

    def __init__(
        self,
        convolution: type[nn.Module],
        width_in: int,
        width_out: int,
        *,
        hidden: int = HIDDEN,
        num_layers: int = 2,
        residual: bool = False,
        norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        widths = [width_in, *[hidden] * num_layers]
        self.convs = nn.ModuleList(convolution(*pair) for pair in itertools.pairwise(widths))
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) if norm else nn.Identity() for _ in self.convs)
        self.entry = nn.Linear(width_in, hidden) if residual else None
        self.dropout, self.head = nn.Dropout(dropout), nn.Linear(hidden, width_out)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = x
        for conv, norm in zip(self.convs, self.norms, strict=True):
            h = self.dropout(norm(conv(h, edge_index)).relu())
        return self.head(h if self.entry is None else h + self.entry(x))


def pyg_data(num_nodes: int = 300, *, degree: int = 6) -> Data:
    graph = clustered_graph(num_nodes, degree=degree)
    edge_index = torch.stack((torch.from_numpy(graph.indices).long(), torch.from_numpy(targets_of(graph.indptr))))
    masks = {f"{name}_mask": torch.from_numpy(graph.split == part) for part, name in enumerate(SPLIT_NAMES)}
    return Data(x=torch.from_numpy(graph.features.matrix), edge_index=edge_index, y=torch.from_numpy(graph.y), **masks)


class Typed(nn.Module):
    """Two layers over papers and authors."""

    def __init__(self) -> None:
        super().__init__()
        kinds = [("author", "writes", "paper"), ("paper", "by", "author")]
        self.layers = nn.ModuleList(
            HeteroConv({kind: SAGEConv((-1, -1), width) for kind in kinds}) for width in (HIDDEN, WIDTH_OUT)
        )

    def forward(self, x: dict[str, Tensor], edge_index: dict[tuple[str, str, str], Tensor]) -> dict[str, Tensor]:
        hidden = {kind: rows.relu() for kind, rows in self.layers[0](x, edge_index).items()}
        return self.layers[1](hidden, edge_index)


def typed_data(num_papers: int = 200, num_authors: int = 80) -> HeteroData:
    """Authors write in one field each, three of four times; a paper's field is to be found."""
    generator = torch.Generator().manual_seed(0)
    field, home = torch.arange(num_papers) % WIDTH_OUT, torch.arange(num_authors) % WIDTH_OUT
    papers, authors = (torch.randint(size, (2000,), generator=generator) for size in (num_papers, num_authors))
    kept = (field[papers] == home[authors]) | (torch.rand(2000, generator=generator) < 0.1)
    written = torch.stack((authors[kept], papers[kept]))
    data = HeteroData()
    data["paper"].x, data["paper"].y = torch.randn(num_papers, 5, generator=generator), field
    data["author"].x = functional.one_hot(home, 4).float()
    data["author", "writes", "paper"].edge_index = written
    data["paper", "by", "author"].edge_index = written.flip(0)
    data["paper"].train_mask = torch.arange(num_papers) < num_papers // 2
    data["paper"].test_mask = ~data["paper"].train_mask
    return data
