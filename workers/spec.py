"""What to train: data set, model, optimisation. Values only; importing this module imports no tensor library."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from planner.frozen import Frozen

Kind = Literal["megagraph", "mqgnn"]

# name -> where it comes from; the readers live in workers/data
NAMED_DATASETS: dict[str, str] = {
    "Cora": "planetoid",
    "Citeseer": "planetoid",
    "Photo": "amazon",
    "Computers": "amazon",
    "CS": "coauthor",
    "Physics": "coauthor",
    "Tolokers": "heterophilous",
    "Minesweeper": "heterophilous",
    "WordNet3": "wordnet3",
    "karate": "built in",
    "digits-knn": "built in",
    "sbm": "built in",
    "sbm-graphs": "built in",
}


class DatasetSpec(Frozen):
    """A data set by ``name`` or the user's own files by ``path`` (a folder with edges.csv and nodes.csv)."""

    name: str | None = None
    path: str | None = None
    split: int = Field(default=0, ge=0, le=9, description="which of several shipped splits")

    @model_validator(mode="after")
    def _one_source(self) -> "DatasetSpec":
        if (self.name is None) == (self.path is None):
            raise ValueError("give either a data set name or a path to your own files, not both and not neither")
        return self


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


ModelSpec = Annotated[GraphormerSpec | SampledGNNSpec, Field(discriminator="name")]
MODELS_OF_KIND: dict[Kind, tuple[str, ...]] = {"megagraph": ("graphormer",), "mqgnn": ("graphsage", "gcn")}


class TrainingSpec(Frozen):
    """Optimisation. ``batch_size`` is graphs (megagraph, ignored on one graph) or seeds (mqgnn) per step, all ranks."""

    epochs: int = Field(default=50, ge=1, le=1_000_000)
    learning_rate: float = Field(default=0.01, gt=0, le=10)
    weight_decay: float = Field(default=5e-4, ge=0, le=10)
    batch_size: int = Field(default=512, ge=1, le=10_000_000)
    seed: int = Field(default=0, ge=0, lt=2**31)
    eval_every_epochs: int = Field(default=5, ge=1)
    checkpoint_every_epochs: int = Field(default=10, ge=1)
    dtype: Literal["float32", "float64"] = "float32"


class TrainSpec(Frozen):
    """One training run, without the service's words around it."""

    kind: Kind
    dataset: DatasetSpec
    model: ModelSpec
    training: TrainingSpec = TrainingSpec()

    @model_validator(mode="after")
    def _model_of_kind(self) -> "TrainSpec":
        if self.model.name not in MODELS_OF_KIND[self.kind]:
            raise ValueError(
                f"kind {self.kind} trains {', '.join(MODELS_OF_KIND[self.kind])}; found model {self.model.name!r}"
            )
        return self
