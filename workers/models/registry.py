"""Name → model. To add one: its spec in ``workers/model_specs.py``, its module beside this file, a line here.

The modules are imported when asked for, because torch_geometric alone takes seconds to import.
"""

from torch import nn

from workers.model_specs import GraphormerSpec, ModelSpec


def build_model(spec: ModelSpec, *, num_features: int, num_classes: int) -> nn.Module:
    """A freshly initialised plain module for ``spec`` (drawn from torch's global generator)."""
    if isinstance(spec, GraphormerSpec):
        from workers.models.graphormer import Graphormer

        return Graphormer(spec, num_features=num_features, num_classes=num_classes)
    from workers.models.sampled import build_sampled_gnn

    return build_sampled_gnn(spec, num_features=num_features, num_classes=num_classes)
