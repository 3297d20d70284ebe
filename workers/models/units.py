"""The frame of every graph transformer here: an ordered list of named units, run one after the other.

A unit is what a plan may place and treat on its own (``docs/plan.md``). Every unit is called alike,
``unit(h, batch=batch) -> h`` with ``h`` [n, d]; the first gets None and builds ``h``, the last (``head``) gives the
predictions. A unit that needs another's parameters, as every block needs the one distance table, refers to the module
that holds them: one module object, one parameter object, reached from each of them. The first unit in order names it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from workers.model_specs.by_name import TransformerSpec
from workers.models.graph_batch import GraphBatch


class GraphTransformer(nn.Module, ABC):
    """Base of the models; a subclass holds its units as submodules and lists them in ``units``, in order.

    ``spec`` names the units.
    """

    spec: TransformerSpec

    def __init__(self) -> None:
        super().__init__()
        self.register_state_dict_post_hook(_name_ties_once)
        self.register_load_state_dict_pre_hook(_spread_ties)

    @abstractmethod
    def units(self) -> dict[str, nn.Module]:
        """The units by name, in order; the kind of a unit is its name up to the dot."""

    def named(self, *parts: nn.Module) -> dict[str, nn.Module]:
        """``parts`` under the names that the spec gives to the units, in order."""
        return dict(zip(self.spec.units, parts, strict=True))

    def forward(self, batch: GraphBatch) -> Tensor:
        """Predictions [n, C] of the rows of ``batch``, or [g, C] of its graphs where the task is about graphs."""
        h = None
        for unit in self.units().values():
            h = unit(h, batch=batch)
        return h


def kind_of(unit: str) -> str:
    """``block.3`` → ``block``: units of one kind compute alike."""
    return unit.split(".")[0]


def find_ties(module: nn.Module) -> Mapping[str, str]:
    """Further name → first name of every parameter of ``module`` that is reached by more names than one."""
    first = {id(parameter): name for name, parameter in module.named_parameters()}
    everything = module.named_parameters(remove_duplicate=False)
    return {name: first[id(parameter)] for name, parameter in everything if first[id(parameter)] != name}


def _name_ties_once(module: nn.Module, state: dict[str, Any], prefix: str, _metadata: dict[str, Any]) -> None:
    for further in find_ties(module):
        del state[prefix + further]


def _spread_ties(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for further, first in find_ties(module).items():
        if prefix + first in state:
            state[prefix + further] = state[prefix + first]
