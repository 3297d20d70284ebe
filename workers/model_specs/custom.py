"""The spec of a module of the user's own. Values only, no tensor library."""

from typing import Any, Literal

from pydantic import Field, field_validator

from planner.frozen import Frozen
from planner.profiles import Traffic
from workers.model_specs.needs import Needs
from workers.model_specs.transformers import Pooling


class CustomSpec(Frozen):
    """A module of the user's own: ``module`` is ``package.module:callable``, ``units`` paths of its submodules."""

    name: Literal["custom"] = "custom"
    module: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
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
