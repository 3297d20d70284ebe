"""The table of models: every transformer, in the forms that mix rows differently, and the exchanges that fit each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tests.distributed.odd_graphs import odd_set, one_graph
from workers.data.graph import TRAIN, VALIDATION, Graph, GraphDataset
from workers.model_specs.by_name import TransformerSpec
from workers.model_specs.custom import CustomSpec
from workers.model_specs.needs import Needs
from workers.model_specs.transformers import (
    ExphormerSpec,
    GraphGPSSpec,
    GraphormerSpec,
    GTSpec,
    NAGphormerSpec,
    SGFormerSpec,
)

DENSE = ("ring", "ulysses", "ulysses_ring")
EDGES = ("halo",)  # the others carry edges as the halo does
SUMS = ("reduce",)
NUM_EDGE_TYPES = 2
_DROPPED = {"dropout": 0.3, "input_dropout": 0.2}
_WIDE = {"hidden_size": 24, "num_heads": 12, **_DROPPED}  # heads for any number of ranks up to four, and for six
_NARROW = {"hidden_size": 8, "num_heads": 2, **_DROPPED}


def own_model(*mixers: str) -> CustomSpec:
    """The model of ``own_model`` that mixes rows in these ways."""
    sizes = {"hidden_size": 24, "num_heads": 12, "max_distance": 3, "num_layers": 2}
    dense = "attention" in mixers
    return CustomSpec(
        module="tests.distributed.equality.own_model:OwnModel",
        arguments={"mixers": [*mixers], **sizes},
        units=("features", *(("distance",) if dense else ()), "block.0", "block.1", "head"),
        needs=Needs(max_distance=3 if dense else None, edges="edges" in mixers),
        hidden_size=24,
    )


@dataclass(frozen=True)
class Model:
    """A model, and the exchanges that carry what it does."""

    spec: TransformerSpec
    exchanges: tuple[str, ...]

    @property
    def level(self) -> str:
        """What it predicts: a ``node`` or a ``graph``."""
        return "node" if self.spec.pooling is None else "graph"


MODELS = {
    "graphormer": Model(GraphormerSpec(**_WIDE, max_distance=3), DENSE),
    "graphormer with edge paths": Model(
        GraphormerSpec(**_WIDE, max_distance=3, edge_types=NUM_EDGE_TYPES, pooling="mean"), DENSE
    ),
    "gt": Model(GTSpec(**_NARROW, laplacian_size=2, norm="layer"), EDGES),
    "gt with batch norm": Model(GTSpec(**_NARROW, laplacian_size=0, norm="batch", pooling="sum"), EDGES),
    "graphgps": Model(GraphGPSSpec(**_WIDE, norm="layer", laplacian_size=2), DENSE),
    "graphgps with batch norm and gine": Model(
        GraphGPSSpec(
            **_WIDE, norm="batch", message_passing="gine", edge_types=NUM_EDGE_TYPES, walk_length=3, pooling="sum"
        ),
        DENSE,
    ),
    "exphormer": Model(ExphormerSpec(**_NARROW, norm="layer", walk_length=2, edge_types=NUM_EDGE_TYPES), EDGES),
    "exphormer with batch norm": Model(
        ExphormerSpec(**_NARROW, norm="batch", num_global=2, laplacian_size=2, pooling="mean"), EDGES
    ),
    "sgformer": Model(SGFormerSpec(**_NARROW), EDGES),
    "nagphormer": Model(NAGphormerSpec(**_NARROW), SUMS),
    "custom": Model(own_model("attention", "edges", "sums"), DENSE),
    "custom without attention": Model(own_model("edges", "sums"), EDGES),
    "custom of sums": Model(own_model("sums"), SUMS),
}


def many_graphs(model: Model) -> GraphDataset:
    """Odd graphs whose nodes, or that themselves, are predicted by ``model``; always the same object."""
    return _MANY[model.level]


def a_single_graph() -> GraphDataset:
    """One graph whose nodes are split; always the same object."""
    return _ONE


def typed(dataset: GraphDataset) -> GraphDataset:
    """``dataset`` with edges of two types."""
    generator = np.random.default_rng(21)

    def draw(graph: Graph) -> Graph:
        types = generator.integers(NUM_EDGE_TYPES, size=graph.num_edges, dtype=np.uint8)
        return replace(graph, edge_types=types)

    return replace(dataset, graphs=tuple(map(draw, dataset.graphs)), num_edge_types=NUM_EDGE_TYPES)


def as_wholes(dataset: GraphDataset, *, validated: Sequence[int] = (2,)) -> GraphDataset:
    """``dataset`` with a class per graph; all but those ``validated`` are for training."""
    graphs = tuple(
        replace(
            graph,
            y=np.array([place % dataset.num_classes]),
            split=np.array([VALIDATION if place in validated else TRAIN], dtype=np.int8),
        )
        for place, graph in enumerate(dataset.graphs)
    )
    return replace(dataset, graphs=graphs, level="graph")


_ONE = typed(one_graph())
_MANY = {"node": typed(odd_set()), "graph": as_wholes(typed(odd_set()))}
