"""What each model is called, its numbers, its units in order, and what it asks to know of a graph. Values only.

``units`` are the names that plans use; the module of the model lists its parts in the same order. Importing this
module imports no tensor library.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, model_validator

from planner.frozen import Frozen


@dataclass(frozen=True)
class Needs:
    """What a model asks to know of every graph, besides features and degrees; None where it does not ask."""

    max_distance: int | None = None  # hop distances up to so many, farther pairs in one bucket more
    edges: bool = False  # the edges into own rows, and which rows of other shards they start from


class GraphormerSpec(Frozen):
    """Graphormer (Ying et al., NeurIPS 2021): degree embedding and a learned distance bias."""

    name: Literal["graphormer"] = "graphormer"
    num_layers: int = Field(default=2, ge=1, le=64)
    hidden_size: int = Field(default=64, ge=4, le=8192)
    num_heads: int = Field(default=2, ge=1, le=128)
    max_distance: int = Field(default=2, ge=1, le=250, description="farther pairs share the far bucket")
    ffn_ratio: float = Field(default=1.0, gt=0, le=8)
    dropout: float = Field(default=0.5, ge=0, lt=1)
    input_dropout: float = Field(default=0.7, ge=0, lt=1)

    @model_validator(mode="after")
    def _heads_divide(self) -> "GraphormerSpec":
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} must be a multiple of num_heads {self.num_heads};"
                f" try hidden_size {self.hidden_size - self.hidden_size % self.num_heads or self.num_heads}"
            )
        return self

    @property
    def units(self) -> tuple[str, ...]:
        """Names of the units, in order."""
        return ("features", "degree", "distance", *_numbered("block", self.num_layers), "head")

    @property
    def needs(self) -> Needs:
        """Hop distances for the bias."""
        return Needs(max_distance=self.max_distance)


class SampledGNNSpec(Frozen):
    """A message-passing model of PyG trained on sampled neighbourhoods; one fanout per layer, nearest hop first."""

    name: Literal["graphsage", "gcn"]
    hidden_size: int = Field(default=128, ge=1, le=8192)
    dropout: float = Field(default=0.5, ge=0, lt=1)
    fanouts: tuple[Annotated[int, Field(ge=-1, le=10_000)], ...] = Field(default=(10, 5), min_length=1, max_length=8)

    @property
    def num_layers(self) -> int:
        """One layer per hop."""
        return len(self.fanouts)


TransformerSpec = GraphormerSpec
ModelSpec = Annotated[TransformerSpec | SampledGNNSpec, Field(discriminator="name")]
Kind = Literal["megagraph", "mqgnn"]
MODELS_OF_KIND: dict[Kind, tuple[str, ...]] = {"megagraph": ("graphormer",), "mqgnn": ("graphsage", "gcn")}


def _numbered(kind: str, count: int) -> tuple[str, ...]:
    return tuple(f"{kind}.{index}" for index in range(count))
