"""What to train: data set, model, optimisation. Values only; importing this module imports no tensor library.

The models' own specs are in ``workers.model_specs``; this module hands them on.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_validator

from planner.caching import NO_CACHE, CacheRule, FeaturePlace
from planner.frozen import Frozen
from planner.profiles import Precision
from planner.sampling import Placement, SamplingRule
from planner.sync import SyncName, SyncRule
from workers.model_specs.by_name import MODELS_OF_KIND, SPEC_OF_MODEL, Kind, ModelSpec
from workers.model_specs.sampled import SampledFields, SampledGNNSpec
from workers.model_specs.transformers import GraphormerSpec

__all__ = [
    "MODELS_OF_KIND",
    "NAMED_DATASETS",
    "SPEC_OF_MODEL",
    "DatasetSpec",
    "GraphormerSpec",
    "Kind",
    "LinkSpec",
    "LossName",
    "MetricName",
    "ModelSpec",
    "SampledGNNSpec",
    "ScheduleSpec",
    "TrainSpec",
    "TrainingSpec",
]

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
    "MUTAG": "tu",
    "ENZYMES": "tu",
    "PROTEINS": "tu",
    "Mutagenicity": "tu",
    "ESOL": "molnet",
    "Tox21": "molnet",
    "HIV": "molnet",
    "ZINC": "zinc",
    "Peptides-func": "lrgb",
    "karate": "built in",
    "digits-knn": "built in",
    "sbm": "built in",
    "sbm-graphs": "built in",
}


class LinkSpec(Frozen):
    """Links to be predicted in the place of labels: which edges are hidden, and what false ones they are told from."""

    num_val: float = Field(default=0.05, ge=0, lt=1, description="share of the links")
    num_test: float = Field(default=0.1, ge=0, lt=1, description="share of the links")
    neg_sampling_ratio: int = Field(default=1, ge=1, le=1000, description="false links of each one in training")
    eval_negatives: int = Field(default=100, ge=1, le=10_000, description="false links that each one is ranked among")
    embedding_size: int = Field(default=64, ge=1, le=8192, description="numbers that a model gives each node")
    seed: int = Field(default=0, ge=0, lt=2**31, description="of the split, and of the false links in evaluation")

    @model_validator(mode="after")
    def _leaves_some(self) -> "LinkSpec":
        if self.num_val + self.num_test >= 1:
            raise ValueError(
                f"num_val {self.num_val} and num_test {self.num_test} leave no link to train on; choose smaller shares"
            )
        return self


class DatasetSpec(Frozen):
    """A data set by ``name``, or the user's own files by ``path`` (tables in a folder, or a saved PyG object).

    Without ``directed``, tables are taken both ways and a saved object as it is.
    """

    name: str | None = None
    path: str | None = Field(default=None, max_length=4096)  # as long as Linux takes one
    split: int = Field(default=0, ge=0, le=9, description="which of several shipped splits")
    links: LinkSpec | None = Field(default=None, description="predict links, not labels")
    directed: bool | None = Field(default=None, description="own files: edges are kept one way, or taken both ways")

    @model_validator(mode="after")
    def _one_source(self) -> "DatasetSpec":
        if (self.name is None) == (self.path is None):
            raise ValueError("give either a data set name or a path to your own files, not both and not neither")
        return self

    @model_validator(mode="after")
    def _own_way(self) -> "DatasetSpec":
        if self.name is not None and self.directed is not None:
            raise ValueError("directed is for your own files; named data sets have their own way: leave it out")
        return self


LossName = Literal["cross_entropy", "binary_cross_entropy", "l1", "mse", "huber"]
AttentionKernelName = Literal["auto", "native", "plain", "triton", "flex"]
MetricName = Literal[
    "accuracy",
    "macro_f1",
    "roc_auc",
    "average_precision",
    "mae",
    "rmse",
    "mrr",
    "hits_at_1",
    "hits_at_3",
    "hits_at_10",
    "hits_at_50",
]


class ScheduleSpec(Frozen):
    """How the learning rate moves: it rises linearly for ``warmup_epochs``, then does what ``name`` says."""

    name: Literal["constant", "cosine", "plateau"] = "constant"
    warmup_epochs: int = Field(default=0, ge=0, le=1_000_000)
    patience: int = Field(
        default=10, ge=1, le=1_000_000, description="plateau: evaluations without a better score before a cut"
    )
    factor: float = Field(default=0.5, gt=0, lt=1, description="plateau: what a cut multiplies the rate by")


class TrainingSpec(Frozen):
    """Optimisation. ``batch_size`` is graphs (megagraph, ignored on one graph) or seeds (mqgnn) per step, all ranks.

    ``loss`` and ``metric`` left out are those of the data set (``workers.training.objective``).
    """

    epochs: int = Field(default=50, ge=1, le=1_000_000)
    loss: LossName | None = None
    metric: MetricName | None = None
    class_weights: Literal["balanced"] | tuple[Annotated[float, Field(ge=0, le=1e9)], ...] | None = None
    optimizer: Literal["adam", "adamw"] = "adam"
    schedule: ScheduleSpec = ScheduleSpec()
    clip_norm: float | None = Field(default=None, gt=0, le=1e9, description="largest norm of all gradients together")
    early_stopping: int | None = Field(
        default=None, ge=1, le=1_000_000, description="evaluations without a better score"
    )
    learning_rate: float = Field(default=0.01, gt=0, le=10)
    weight_decay: float = Field(default=5e-4, ge=0, le=10)
    batch_size: int = Field(default=512, ge=1, le=10_000_000)
    seed: int = Field(default=0, ge=0, lt=2**31)
    eval_every_epochs: int = Field(default=5, ge=1, le=1_000_000)
    checkpoint_every_epochs: int = Field(default=10, ge=1, le=1_000_000)
    checkpoint_every_steps: int | None = Field(
        default=None, ge=1, le=1_000_000_000, description="optimiser steps, within epochs, too"
    )
    dtype: Literal["float32", "float64"] = "float32"
    attention_kernel: AttentionKernelName = "auto"
    sync: SyncRule = SyncRule()
    features: FeaturePlace = Field(default="local", description="where the rows of node features are")
    cache: CacheRule = CacheRule()
    sampling: SamplingRule = SamplingRule()
    precision: Precision = Field(default="float32", description="of products with weights")

    @model_validator(mode="after")
    def _precision_of_dtype(self) -> "TrainingSpec":
        if self.precision == "bfloat16" and self.dtype != "float32":
            raise ValueError(
                f"precision bfloat16 keeps all but products in float32; found dtype {self.dtype}: choose dtype float32,"
                " or leave precision out"
            )
        return self

    @model_validator(mode="after")
    def _warm_up_ends(self) -> "TrainingSpec":
        if self.schedule.warmup_epochs >= self.epochs:
            raise ValueError(
                f"schedule.warmup_epochs {self.schedule.warmup_epochs} must be less than epochs {self.epochs}"
            )
        return self


@dataclass(frozen=True)
class OneKindAlone:
    """A ``field`` of ``training`` that ``kind`` alone may set to one of ``values`` other than the ``usual`` one.

    Where the field is a rule of several parts, ``part`` is the one that is asked.
    """

    field: str
    kind: Kind
    values: tuple[str, ...]
    usual: str
    reason: str
    part: str = "name"


ONE_KIND_ALONE = (
    OneKindAlone(
        field="attention_kernel",
        kind="megagraph",
        values=get_args(AttentionKernelName),
        usual="auto",
        reason="sampled GNNs have no attention kernel to choose",
    ),
    OneKindAlone(
        field="precision",
        kind="megagraph",
        values=get_args(Precision),
        usual="float32",
        reason="sampled GNNs compute in float32",
    ),
    OneKindAlone(
        field="sync",
        kind="mqgnn",
        values=get_args(SyncName),
        usual="ddp",
        reason="graph transformers sum gradients in every step",
    ),
    OneKindAlone(
        field="features",
        kind="mqgnn",
        values=get_args(FeaturePlace),
        usual="local",
        reason="the ranks of a graph transformer read the rows of their own shards alone",
    ),
    OneKindAlone(
        field="sampling",
        kind="mqgnn",
        values=get_args(Placement),
        usual="local",
        reason="graph transformers sample nothing",
        part="placement",
    ),
)


def refuse_features(features: FeaturePlace, sync: SyncRule) -> str | None:
    """Why ``features`` cannot lie where replicas go together by ``sync``, and what to change; None where they can."""
    if features == "remote" and sync.outlives_replicas(num_ranks=2):
        return "rows lie on all ranks, and with sync racom one may die while others train; choose ddp or local_sgd"
    return None


def refuse_sampling(rule: SamplingRule, features: FeaturePlace, *, cache: CacheRule, task: Any) -> str | None:
    """Why a job with ``task`` cannot sample by ``rule``, and what to change; None where it can."""
    if not rule.is_remote:
        return None
    if task in ("predict", "evaluate"):
        return f"task {task} takes all neighbours, so there is nothing to sample; leave it out"
    if features == "remote":
        return "actors gather the rows that they sample, and features remote are held by the ranks; choose one of both"
    if cache.reuses:
        return "cache.reuse keeps subgraphs on the ranks, and here actors sample them; choose one of both"
    return None


def refuse_cache(cache: CacheRule, features: FeaturePlace, *, kind: Kind, model: Frozen) -> str | None:
    """Why a job of ``kind`` that trains ``model`` cannot go by ``cache``, and what to change; None where it can."""
    if kind != "mqgnn":
        return None if cache in (CacheRule(), NO_CACHE) else "it is for kind mqgnn; leave it out"
    if not isinstance(model, SampledFields):  # a model of another kind is refused as such
        return None
    if model.sampler_backend == "pyg_lib" and cache.reuses:
        return "reuse needs samples that can be drawn again, and pyg-lib's cannot; leave out model.sampler_backend"
    if cache.prefer == 1:
        return None
    if features != "remote":
        return "prefer draws neighbours whose rows need not travel, and all are here; set training.features to remote"
    if model.sampling_words not in ("uniform", "uniform out"):
        return "prefer is a form of the uniform sampler without replacement; choose that, or leave prefer out"
    if not model.takes_weights:
        return f"prefer gives weights for sums over neighbours, which {model.name} does not take; leave it out"
    return None


# Fields of a sampled model that read columns which named data sets do not have: (field, value) -> what is read.
OWN_COLUMNS: dict[tuple[str, str | bool], str] = {
    ("sampler", "weighted"): "weights of edges",
    ("temporal", True): "times of nodes",
}


class TrainSpec(Frozen):
    """One run, without the service's words around it: training, or the use of what job ``from_job`` has trained."""

    kind: Kind
    task: Literal["train", "predict", "evaluate"] = "train"
    from_job: str | None = Field(default=None, max_length=100, description="id of the finished job whose model is used")
    dataset: DatasetSpec
    model: ModelSpec
    training: TrainingSpec = TrainingSpec()

    @model_validator(mode="after")
    def _model_to_use(self) -> "TrainSpec":
        if self.task == "train" and self.from_job is not None:
            raise ValueError("from_job belongs to task predict or evaluate; training starts from fresh weights")
        if self.task != "train" and self.from_job is None:
            raise ValueError(f"task {self.task} needs from_job, the id of the finished job whose model is used")
        return self

    @model_validator(mode="after")
    def _training_of_kind(self) -> "TrainSpec":
        asked = {
            "attention_kernel": self.training.attention_kernel,
            "precision": self.training.precision,
            "sync": self.training.sync.name,
            "features": self.training.features,
            "sampling": self.training.sampling.placement,
        }
        for rule in ONE_KIND_ALONE:
            if self.kind != rule.kind and asked[rule.field] != rule.usual:
                raise ValueError(f"training.{rule.field} is for kind {rule.kind}: {rule.reason}; leave it out")
        return self

    @model_validator(mode="after")
    def _caches_fit(self) -> "TrainSpec":
        if reason := refuse_features(self.training.features, self.training.sync):
            raise ValueError(f"training.features: {reason}")
        if reason := refuse_cache(self.training.cache, self.training.features, kind=self.kind, model=self.model):
            raise ValueError(f"training.cache: {reason}")
        return self

    @model_validator(mode="after")
    def _samples_somewhere(self) -> "TrainSpec":
        rule, features = self.training.sampling, self.training.features
        if reason := refuse_sampling(rule, features, cache=self.training.cache, task=self.task):
            raise ValueError(f"training.sampling: {reason}")
        return self

    @model_validator(mode="after")
    def _tables_in_step(self) -> "TrainSpec":
        if getattr(self.model, "node_embedding_size", 0) and self.training.sync.name != "ddp":
            raise ValueError(
                f"model.node_embedding_size is learned in steps of all replicas; found training.sync"
                f" {self.training.sync.name!r}: leave sync out"
            )
        return self

    @model_validator(mode="after")
    def _links_of_kind(self) -> "TrainSpec":
        if self.dataset.links is not None and self.kind != "mqgnn":
            raise ValueError(
                "dataset.links is for kind mqgnn: graph transformers predict nodes and graphs; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _columns_of_own_files(self) -> "TrainSpec":
        for (field, value), columns in OWN_COLUMNS.items():
            if self.dataset.name is not None and getattr(self.model, field, None) == value:
                raise ValueError(
                    f"model.{field} {value!r} reads {columns}, which named data sets do not have; leave it out, or give"
                    " your own files by dataset.path"
                )
        return self

    @model_validator(mode="after")
    def _model_of_kind(self) -> "TrainSpec":
        if self.model.name not in MODELS_OF_KIND[self.kind]:
            raise ValueError(
                f"kind {self.kind} trains {', '.join(MODELS_OF_KIND[self.kind])}; found model {self.model.name!r}"
            )
        return self
