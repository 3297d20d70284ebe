"""What each model is called, and which kind of job trains it. Values only, no tensor library."""

from typing import Annotated, Literal, get_args

from pydantic import Field

from planner.frozen import Frozen
from workers.model_specs.custom import CustomGNNSpec, CustomSpec
from workers.model_specs.sampled import PropagationSpec, SampledAttentionSpec, SampledGNNSpec
from workers.model_specs.transformers import (
    ExphormerSpec,
    GraphGPSSpec,
    GraphormerSpec,
    GTSpec,
    NAGphormerSpec,
    SGFormerSpec,
)

Kind = Literal["megagraph", "mqgnn"]
TransformerSpec = GraphormerSpec | GTSpec | GraphGPSSpec | ExphormerSpec | SGFormerSpec | NAGphormerSpec | CustomSpec
SampledSpec = SampledGNNSpec | SampledAttentionSpec | PropagationSpec | CustomGNNSpec
ModelSpec = Annotated[TransformerSpec | SampledSpec, Field(discriminator="name")]


def _names(spec: type[Frozen]) -> tuple[str, ...]:
    return get_args(spec.model_fields["name"].annotation)


_SPECS_OF_KIND: dict[Kind, tuple[type[Frozen], ...]] = {
    "megagraph": get_args(TransformerSpec),
    "mqgnn": get_args(SampledSpec),
}
MODELS_OF_KIND: dict[Kind, tuple[str, ...]] = {
    kind: tuple(name for spec in specs for name in _names(spec)) for kind, specs in _SPECS_OF_KIND.items()
}
SPEC_OF_MODEL: dict[str, type[Frozen]] = {
    name: spec for specs in _SPECS_OF_KIND.values() for spec in specs for name in _names(spec)
}
