"""The specs of modules of the user's own, one for each kind of job. Values only, no tensor library."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from planner.frozen import Frozen
from planner.profiles import Traffic
from workers.model_specs.needs import Needs
from workers.model_specs.sampled import SampledFields
from workers.model_specs.transformers import Pooling

# package.module:callable, which is called with arguments, num_features and num_classes
ImportPath = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]


class CustomSpec(Frozen):
    """A graph transformer of the user's own, found at ``module``; ``units`` are paths of its submodules."""

    name: Literal["custom"] = "custom"
    module: ImportPath
    arguments: dict[str, Any] = Field(default_factory=dict)
    units: tuple[str, ...] = Field(min_length=1)
    needs: Needs = Needs()
    hidden_size: int = Field(default=64, ge=1, le=8192)
    pooling: Pooling | None = None

    @field_validator("units")
    @classmethod
    def _end_with_head(cls, units: tuple[str, ...]) -> tuple[str, ...]:
        if units[-1] != "head" or len(set(units)) < len(units):
            raise ValueError(f"units are distinct and the last one is 'head', which predicts; found {list(units)}")
        return units

    @property
    def blocks(self) -> tuple[str, ...]:
        """Names of the blocks."""
        return tuple(unit for unit in self.units if unit.startswith("block."))

    @property
    def num_tokens(self) -> int:
        """Hidden vectors that a row carries from unit to unit."""
        return 1

    @property
    def row_width(self) -> int:
        """Columns of the hidden state that units hand on."""
        return self.hidden_size

    @property
    def traffic(self) -> Traffic | None:
        """The spec does not tell."""
        return None

    @property
    def has_sums(self) -> bool:
        """The spec does not tell, so the module may."""
        return True


class CustomGNNSpec(SampledFields):
    """A module of the user's own that trains on sampled neighbourhoods, found at ``module``."""

    name: Literal["custom_gnn"] = "custom_gnn"
    module: ImportPath
    arguments: dict[str, Any] = Field(default_factory=dict)
    takes: Literal["edge_index", "adj_t"] = Field(default="edge_index", description="what it is called with, beside x")
