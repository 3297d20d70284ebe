"""The numbers of each graph transformer, its units in order, and what it asks to know of a graph. Values only.

``units`` are the names that plans use; the module of the model lists its parts in the same order. ``needs`` is what
``workers.megagraph.batches`` makes ready. Importing this module imports no tensor library.
"""

from typing import Literal

from pydantic import Field, model_validator

from planner.frozen import Frozen
from planner.profiles import Traffic
from workers.model_specs.needs import Needs

Pooling = Literal["none", "mean", "sum"]
Norm = Literal["batch", "layer"]
MessagePassing = Literal["gcn", "gine"]
# Of the distances: a byte for every pair, 5 bytes for each pair within reach, or what ``workers.training.model_fit``
# finds the smaller one for the data set.
IndexForm = Literal["dense", "near_pairs", "auto"]


class TransformerFields(Frozen):
    """What all transformers have in common."""

    num_layers: int = Field(default=2, ge=1, le=64)
    hidden_size: int = Field(default=64, ge=4, le=8192)
    num_heads: int = Field(default=2, ge=1, le=128)
    ffn_ratio: float = Field(default=2.0, gt=0, le=8)
    dropout: float = Field(default=0.5, ge=0, lt=1)
    input_dropout: float = Field(default=0.5, ge=0, lt=1)
    pooling: Pooling | None = Field(default=None, description="how graphs are predicted; left out: by the data set")

    @model_validator(mode="after")
    def _heads_divide(self) -> "TransformerFields":
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} must be a multiple of num_heads {self.num_heads};"
                f" try hidden_size {self.hidden_size - self.hidden_size % self.num_heads or self.num_heads}"
            )
        return self

    @property
    def blocks(self) -> tuple[str, ...]:
        """Names of the blocks, one per layer."""
        return tuple(f"block.{index}" for index in range(self.num_layers))

    @property
    def num_tokens(self) -> int:
        """Hidden vectors that a row carries from unit to unit."""
        return 1

    @property
    def row_width(self) -> int:
        """Columns of the hidden state that units hand on."""
        return self.num_tokens * self.hidden_size

    @property
    def traffic(self) -> Traffic | None:
        """What a block tells other ranks beside keys and values of dense attention; None where that is not known."""
        return Traffic()

    @property
    def has_sums(self) -> bool:
        """Whether a unit sums over all rows of a graph."""
        return self.pooling in ("mean", "sum")


class GraphormerSpec(TransformerFields):
    """Graphormer (Ying et al., NeurIPS 2021): degree embedding, a learned distance bias, and edges along paths."""

    name: Literal["graphormer"] = "graphormer"
    ffn_ratio: float = Field(default=1.0, gt=0, le=8)
    input_dropout: float = Field(default=0.7, ge=0, lt=1)
    max_distance: int = Field(default=2, ge=1, le=250, description="farther pairs share the far bucket")
    index: IndexForm = "auto"
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    edge_types: int = Field(default=0, ge=0, le=254, description="kinds of edges to tell apart; 0: none")

    @model_validator(mode="after")
    def _paths_are_of_all_pairs(self) -> "GraphormerSpec":
        if self.edge_types and self.index == "near_pairs":
            raise ValueError(
                f"index 'near_pairs' leaves out the pairs whose edge paths edge_types {self.edge_types} asks for;"
                " choose index 'dense', or edge_types 0"
            )
        return self

    @property
    def units(self) -> tuple[str, ...]:
        """Names of the units, in order."""
        edge_path = ("edge_path",) if self.edge_types else ()
        return ("features", "degree", "distance", *edge_path, *self.blocks, "head")

    @property
    def needs(self) -> Needs:
        """Hop distances for the bias, and the edges on the paths."""
        return Needs(
            max_distance=self.max_distance,
            near_pairs=self.index == "near_pairs",
            pair_dropout=self.attention_dropout > 0,
            edge_paths=self.edge_types > 0,
            edge_types=self.edge_types,
        )


class _PositionedFields(TransformerFields):
    laplacian_size: int = Field(default=0, ge=0, le=512, description="eigenvectors of the Laplacian; 0: none")
    norm: Norm = "batch"

    @property
    def _positions(self) -> tuple[str, ...]:
        return ("laplacian",) if self.laplacian_size else ()

    def _norm_sums(self, num_norms: int) -> tuple[int, ...]:
        """Elements of the sums of so many norms: a batch norm sums columns and a count, then squares."""
        return (self.hidden_size + 1, self.hidden_size) * num_norms if self.norm == "batch" else ()


class GTSpec(_PositionedFields):
    """Graph Transformer (Dwivedi & Bresson 2020): attention along the edges, Laplacian eigenvectors as positions."""

    name: Literal["gt"] = "gt"
    laplacian_size: int = Field(default=8, ge=0, le=512, description="eigenvectors of the Laplacian; 0: none")

    @property
    def units(self) -> tuple[str, ...]:
        """Names of the units, in order."""
        return ("features", *self._positions, *self.blocks, "head")

    @property
    def needs(self) -> Needs:
        """Edges and positions."""
        return Needs(edges=True, laplacian_size=self.laplacian_size)

    @property
    def traffic(self) -> Traffic:
        """Keys and values of neighbours."""
        return Traffic(halos=(2 * self.hidden_size,), batch_sums=self._norm_sums(2))


class _MessagePassingFields(_PositionedFields):
    message_passing: MessagePassing = "gcn"
    edge_types: int = Field(default=0, ge=0, le=254, description="kinds of edges to tell apart; 0: none")
    walk_length: int = Field(default=0, ge=0, le=512, description="steps of random walks as positions; 0: none")

    @property
    def _positions(self) -> tuple[str, ...]:
        return (*super()._positions, *(("walks",) if self.walk_length else ()))


class GraphGPSSpec(_MessagePassingFields):
    """GraphGPS (Rampášek et al., NeurIPS 2022): message passing and global attention side by side."""

    name: Literal["graphgps"] = "graphgps"
    max_distance: int = Field(default=2, ge=1, le=250, description="farther pairs share the far bucket")
    index: IndexForm = "auto"
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)

    @property
    def units(self) -> tuple[str, ...]:
        """Names of the units, in order."""
        return ("features", *self._positions, "distance", *self.blocks, "head")

    @property
    def needs(self) -> Needs:
        """Edges, distances for the bias, positions."""
        return Needs(
            edges=True,
            edge_types=self.edge_types,
            max_distance=self.max_distance,
            near_pairs=self.index == "near_pairs",
            pair_dropout=self.attention_dropout > 0,
            laplacian_size=self.laplacian_size,
            walk_length=self.walk_length,
        )

    @property
    def traffic(self) -> Traffic:
        """States of neighbours for the message passing."""
        return Traffic(halos=(self.hidden_size,), batch_sums=self._norm_sums(3))


class ExphormerSpec(_MessagePassingFields):
    """Exphormer (Shirzad et al., ICML 2023): GraphGPS with attention on edges, an expander graph and global nodes."""

    name: Literal["exphormer"] = "exphormer"
    expander_degree: int = Field(default=4, ge=0, le=64, multiple_of=2)
    num_global: int = Field(default=1, ge=0, le=64)

    @property
    def units(self) -> tuple[str, ...]:
        """Names of the units, in order."""
        return ("features", *self._positions, *self.blocks, "head")

    @property
    def needs(self) -> Needs:
        """Edges of three kinds, and positions."""
        return Needs(
            edges=True,
            edge_types=self.edge_types,
            expander_degree=self.expander_degree,
            num_global=self.num_global,
            laplacian_size=self.laplacian_size,
            walk_length=self.walk_length,
        )

    @property
    def traffic(self) -> Traffic:
        """States of neighbours, keys and values along all edges; of global nodes scores, then what they hear."""
        scores = self.num_global * self.num_heads
        return Traffic(
            halos=(self.hidden_size, 2 * self.hidden_size),
            sums=(scores, scores + self.num_global * self.hidden_size) if self.num_global else (),
            batch_sums=self._norm_sums(3),
            expander_degree=self.expander_degree,
        )


class SGFormerSpec(TransformerFields):
    """SGFormer (Wu et al., NeurIPS 2023): one layer of linear global attention beside a GCN of ``num_layers``."""

    name: Literal["sgformer"] = "sgformer"
    num_heads: int = Field(default=1, ge=1, le=128)
    graph_weight: float = Field(default=0.8, ge=0, le=1, description="share of the GCN in the sum")

    @property
    def units(self) -> tuple[str, ...]:
        """Names of the units, in order."""
        return ("features", "block.0", "head")

    @property
    def has_sums(self) -> bool:
        """Linear attention is sums."""
        return True

    @property
    def needs(self) -> Needs:
        """Edges for the GCN."""
        return Needs(edges=True)

    @property
    def traffic(self) -> Traffic:
        """States of neighbours for each layer of the GCN; one sum of linear attention."""
        attention = self.hidden_size**2 // self.num_heads + self.hidden_size + 2
        return Traffic(halos=(self.hidden_size,) * self.num_layers, sums=(attention,))


class NAGphormerSpec(TransformerFields):
    """NAGphormer (Chen et al., ICLR 2023): every node is a short sequence of its hop features."""

    name: Literal["nagphormer"] = "nagphormer"
    num_hops: int = Field(default=3, ge=1, le=64)

    @property
    def units(self) -> tuple[str, ...]:
        """Names of the units, in order."""
        return ("features", *self.blocks, "head")

    @property
    def num_tokens(self) -> int:
        """A token per hop."""
        return self.num_hops + 1

    @property
    def needs(self) -> Needs:
        """Hop features."""
        return Needs(num_hops=self.num_hops)
