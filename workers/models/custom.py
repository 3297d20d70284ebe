"""A user's own graph transformer, found by import path, as a list of units.

    model: {name: custom, module: "my_package.my_models:build", arguments: {...}, units: [features, block.0, head]}

``build(**arguments, num_features=…, num_classes=…)`` returns a ``torch.nn.Module``; every name in ``units`` is the path
of one of its submodules, in the order in which they run, and is called ``(h, batch=batch)`` as
``workers.models.units`` says. Its own ``forward`` is never called. Attributes named ``exchange``, ``neighbours``,
``sums`` or ``batch_sums`` are the seams (``workers.ops``) and are swapped where rows lie on several ranks; a module
without them must mix no rows. Torch's ``BatchNorm1d`` is taken for one that has the last of them.
"""

from torch import nn

from workers.errors import ModelInvalidError
from workers.model_specs.custom import CustomSpec
from workers.models.batch_norm import count_all_rows
from workers.models.import_path import build_by_path
from workers.models.units import GraphTransformer


class Custom(GraphTransformer):
    """Runs the units of ``module`` in the order of the spec."""

    def __init__(self, spec: CustomSpec, module: nn.Module) -> None:
        super().__init__()
        self.spec = spec
        self.module = module

    def units(self) -> dict[str, nn.Module]:
        """See ``GraphTransformer``."""
        return self.named(*(self.module.get_submodule(name) for name in self.spec.units))


def build_custom(spec: CustomSpec, *, num_features: int, num_classes: int) -> Custom:
    """Import, call, and hold the result against the spec. Raises ``ModelInvalidError``."""
    module = build_by_path(spec.module, arguments=spec.arguments, num_features=num_features, num_classes=num_classes)
    known = {path for path, _ in module.named_modules() if path}
    if unknown := [unit for unit in spec.units if unit not in known]:
        raise ModelInvalidError(f"{spec.module} has no submodules {unknown}; it has {sorted(known)}")
    for unit in spec.units:
        if (found := type(module.get_submodule(unit))).forward is nn.Module.forward:
            raise ModelInvalidError(
                f"unit {unit!r} of {spec.module} is a {found.__name__}, which computes nothing: name the modules in it"
            )
    count_all_rows(module)
    model = Custom(spec, module)
    held = {parameter for unit in model.units().values() for parameter in unit.parameters()}
    if outside := [path for path, parameter in module.named_parameters() if parameter not in held]:
        raise ModelInvalidError(
            f"{spec.module} has parameters in no unit: {outside}; name the submodules that hold them"
        )
    return model
