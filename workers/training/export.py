"""A trained model as two files that need no cluster: ``model.safetensors`` (weights), ``config.json`` (how to build).

``load_exported`` gives back the plain module, in evaluation mode.
"""

import json
from typing import Any

import torch
from pydantic import TypeAdapter
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from workers.models.registry import build_model
from workers.spec import ModelSpec
from workers.training.export_config import FORMAT, no_export, read_config
from workers.training.folder import Folder


def export_model(
    state: dict[str, torch.Tensor],
    *,
    spec: ModelSpec,
    num_features: int,
    num_classes: int,
    folder: Folder,
    extra: dict[str, Any],
) -> None:
    """Write the parameters in ``state`` with all that is needed to use them. ``config.json`` comes last: it commits."""
    config = {
        "format": FORMAT,
        "model": spec.model_dump(mode="json"),
        "num_features": num_features,
        "num_classes": num_classes,
        **extra,
    }
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    folder.write("model.safetensors", save_tensors(tensors))
    folder.write("config.json", json.dumps(config, indent=1).encode())


def load_exported(folder: Folder) -> torch.nn.Module:
    """Build the plain module from an exported folder. Raises ``CheckpointInvalidError`` when it is not one."""
    config = read_config(folder)
    try:
        tensors = load_tensors(folder.read("model.safetensors"))
    except FileNotFoundError as error:
        raise no_export(folder) from error
    spec: ModelSpec = TypeAdapter(ModelSpec).validate_python(config["model"])
    model = build_model(spec, num_features=config["num_features"], num_classes=config["num_classes"])
    model.load_state_dict(tensors)
    return model.eval()
