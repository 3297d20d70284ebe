"""Name → model. To add one: its spec in ``workers/model_specs``, its module beside this file, a line here.

The modules are imported when asked for, because torch_geometric alone takes seconds to import.
"""

from importlib import import_module

from torch import nn

from workers.model_specs.by_name import MODELS_OF_KIND, ModelSpec
from workers.models.pyg_sources import remove_generated_sources

# name -> what builds it, called (spec, num_features=, num_classes=)
_BUILDERS = {
    "graphormer": "workers.models.graphormer:Graphormer",
    "gt": "workers.models.gt:GT",
    "graphgps": "workers.models.graphgps:GraphGPS",
    "sgformer": "workers.models.sgformer:SGFormer",
    "exphormer": "workers.models.exphormer:Exphormer",
    "nagphormer": "workers.models.nagphormer:NAGphormer",
    "custom": "workers.models.custom:build_custom",
    **dict.fromkeys(MODELS_OF_KIND["mqgnn"], "workers.models.sampled:build_sampled_gnn"),
    "custom_gnn": "workers.models.custom_gnn:build_custom_gnn",
}


def build_model(spec: ModelSpec, *, num_features: int, num_classes: int) -> nn.Module:
    """A freshly initialised plain module for ``spec`` (drawn from torch's global generator)."""
    place, name = _BUILDERS[spec.name].split(":")
    build = getattr(import_module(place), name)
    model = build(spec, num_features=num_features, num_classes=num_classes)
    remove_generated_sources()
    return model
