"""The numbers of each model that trains on sampled neighbourhoods. Values only, no tensor library."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from planner.frozen import Frozen

# By rule, each defined in workers/mqgnn/sampling; "+f" is flat, "+d" debiased.
SamplerName = Literal[
    "uniform",
    "weighted",
    "labor",
    "fastgcn",
    "fastgcn+f",
    "fastgcn+d",
    "fastgcn+f+d",
    "ladies",
    "ladies+f",
    "ladies+d",
    "ladies+f+d",
]
Direction = Literal["in", "out"]
SampledPooling = Literal["mean", "sum"]
Backend = Literal["own", "pyg_lib"]
Relation = tuple[str, str, str]  # source type, type of the edge, target type


# Models that take no weighted sums over neighbours, as layer-wise samplers need them: softmax, extremes, deviations,
# and whatever a module of the user's own does.
_UNWEIGHTED = ("gat", "gatv2", "pna", "custom_gnn")
# Samplers that choose neighbours of one node at a time, so that each seed can have a subgraph of its own.
NODE_WISE = ("uniform", "weighted", "labor")
# Models that look at the sample alone: the others know degrees of the whole graph, later edges among them.
_TIMELESS = ("graphsage", "gat", "gatv2")

# Models whose convolutions take sources and targets of two types (as in PyG's HeteroConv).
_TYPED = ("graphsage", "gat", "gatv2", "gin")


class TypeNames(Frozen):
    """What a hetero model tells apart, by number."""

    nodes: tuple[str, ...]
    relations: tuple[Relation, ...]


class SampledFields(Frozen):
    """What all models have in common that train on sampled neighbourhoods: one fanout per layer, nearest hop first."""

    name: str
    fanouts: tuple[Annotated[int, Field(ge=-1, le=10_000)], ...] = Field(default=(10, 5), min_length=1, max_length=8)
    sampler: SamplerName = "uniform"
    replace: bool = Field(default=False, description="neighbours may be drawn twice")
    disjoint: bool = Field(default=False, description="each seed has a subgraph of its own")
    temporal: bool = Field(default=False, description="no edge later than the seed's time; disjoint in any case")
    hetero: bool = Field(default=False, description="weights of their own for each type of nodes and of edges")
    types: TypeNames | None = Field(default=None, description="hetero: filled in from the data")
    sampler_backend: Backend = Field(default="own", description="pyg_lib, where it is installed: other random numbers")
    direction: Direction = Field(default="in", description="of the edges along which a node hears from others")
    pooling: SampledPooling = Field(default="mean", description="of nodes, where graphs are predicted")
    node_embedding_size: int = Field(default=0, ge=0, le=8192, description="numbers learned for each node")

    @model_validator(mode="after")
    def _few_replace(self) -> "SampledFields":
        if self.replace and self.sampler not in ("uniform", "weighted"):
            raise ValueError(f"sampler {self.sampler!r} draws without replacement; found replace: true, leave it out")
        return self

    @property
    def takes_weights(self) -> bool:
        """Whether neighbours may be weighted in what the model sums over them."""
        return self.name not in _UNWEIGHTED

    @model_validator(mode="after")
    def _sampler_fits(self) -> "SampledFields":
        if not self.takes_weights and self.sampler not in NODE_WISE:
            raise ValueError(
                f"sampler {self.sampler!r} gives weights for sums over neighbours, which {self.name} does not take;"
                f" choose {', '.join(NODE_WISE)}"
            )
        return self

    @model_validator(mode="after")
    def _own_subgraphs_fit(self) -> "SampledFields":
        if (self.disjoint or self.temporal) and self.sampler not in NODE_WISE:
            raise ValueError(
                f"sampler {self.sampler!r} draws nodes for all seeds together, so no seed has a subgraph of its own;"
                f" for disjoint or temporal choose {', '.join(NODE_WISE)}"
            )
        if (self.disjoint or self.temporal) and self.node_embedding_size:
            raise ValueError(
                "rows learned for nodes (node_embedding_size) go with shared subgraphs; leave one of them out"
            )
        if self.temporal and self.name not in _TIMELESS:
            raise ValueError(
                f"temporal: {self.name} may know degrees of the whole graph, later edges among them; choose"
                f" {', '.join(_TIMELESS)}, which look at the sample alone"
            )
        return self

    @model_validator(mode="after")
    def _backend_fits(self) -> "SampledFields":
        if self.sampler_backend == "pyg_lib" and (self.temporal or self.sampler not in ("uniform", "weighted")):
            asked = "temporal, which pyg-lib takes for edges sorted by time alone" if self.temporal else self.sampler
            raise ValueError(
                f"sampler_backend 'pyg_lib' samples uniform and weighted; found {asked}: leave sampler_backend out"
            )
        return self

    @model_validator(mode="after")
    def _types_fit(self) -> "SampledFields":
        if self.types is not None and not self.hetero:
            raise ValueError("types are those of hetero models; set hetero, or leave types out")
        if not self.hetero:
            return self
        if self.name not in _TYPED:
            raise ValueError(f"hetero: {self.name} has no form for several types; choose {', '.join(_TYPED)}")
        plain = {
            "direction": "in",
            "disjoint": False,
            "temporal": False,
            "sampler_backend": "own",
            "node_embedding_size": 0,
        }
        odd = [name for name, usual in plain.items() if getattr(self, name) != usual]
        if self.sampler not in ("uniform", "weighted") or odd:
            raise ValueError(
                f"hetero samples uniform or weighted, along in-edges; found sampler {self.sampler!r}"
                f"{''.join(f', {name} {getattr(self, name)!r}' for name in odd)}: leave them out"
            )
        return self

    @property
    def sampling_words(self) -> str:
        """How neighbours are chosen, the fanouts apart, in words that are equal only for equal ways."""
        flags = {"replace": self.replace, "disjoint": self.disjoint, "temporal": self.temporal, "hetero": self.hetero}
        chosen = [name for name, is_set in flags.items() if is_set]
        backend = [] if self.sampler_backend == "own" else [self.sampler_backend]
        return " ".join([self.sampler, *chosen, *["out"] * (self.direction == "out"), *backend])

    @property
    def num_layers(self) -> int:
        """One layer per hop."""
        return len(self.fanouts)


class LayerFields(SampledFields):
    """What the models by name have in common: layers of one width, with dropout between them."""

    hidden_size: int = Field(default=128, ge=1, le=8192)
    dropout: float = Field(default=0.5, ge=0, lt=1)


class SampledGNNSpec(LayerFields):
    """A message-passing model of PyG, or its convolution stacked."""

    name: Literal["graphsage", "gcn", "gin", "sgc", "tag", "arma", "pna"]


class SampledAttentionSpec(LayerFields):
    """GAT (Veličković et al., ICLR 2018) or GATv2 (Brody et al., ICLR 2022)."""

    name: Literal["gat", "gatv2"]
    num_heads: int = Field(default=4, ge=1, le=128)

    @model_validator(mode="after")
    def _fits(self) -> "SampledAttentionSpec":
        if self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size {self.hidden_size} must be a multiple of num_heads {self.num_heads}")
        return self


class PropagationSpec(LayerFields):
    """APPNP (Gasteiger et al., ICLR 2019): one step of propagation per fanout."""

    name: Literal["appnp"] = "appnp"
    teleport: float = Field(default=0.1, ge=0, lt=1, description="share of a node's own prediction in each step")
