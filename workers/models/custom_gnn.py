"""A user's own module for sampled neighbourhoods, found by import path, as it is written.

    model: {name: custom_gnn, module: "my_package.my_models:build", arguments: {...}, fanouts: [10, 5]}

``build(**arguments, num_features=…, num_classes=…)`` returns a ``torch.nn.Module`` that is called ``(x, edge_index)``,
or ``(x, adj_t)``, and gives one row of ``num_classes`` numbers for each node. How it runs on mini-batches is found out
by ``workers.mqgnn.own``. Where rows are learned for each node, ``num_features`` counts them, ``x`` has them beside the
features, and they lie in the module's ``node_table``.
"""

from torch import nn
from torch.nn.parameter import is_lazy

from workers.errors import ModelInvalidError
from workers.model_specs.custom import CustomGNNSpec
from workers.models.import_path import build_by_path
from workers.models.node_table import give_table


def build_custom_gnn(spec: CustomGNNSpec, *, num_features: int, num_classes: int) -> nn.Module:
    """Import, call, and hold the result against the spec. Raises ``ModelInvalidError``."""
    module = build_by_path(
        spec.module,
        arguments=spec.arguments,
        num_features=num_features + spec.node_embedding_size,
        num_classes=num_classes,
    )
    if lazy := [name for name, parameter in module.named_parameters() if is_lazy(parameter)]:
        raise ModelInvalidError(
            f"{spec.module} has parameters without a size: {', '.join(lazy)}; give all widths when it is built"
            " (num_features is told)"
        )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ModelInvalidError(f"{spec.module} has no parameters to train")
    if spec.node_embedding_size:
        give_table(module, spec.node_embedding_size)
    return module
