"""What an exported model says of itself, read without a tensor library: how to build it, and which data it fits."""

import json
from typing import Any

from workers.data.graph import GraphDataset
from workers.errors import CheckpointInvalidError, ExportMismatchError
from workers.spec import TrainSpec
from workers.training.folder import Folder
from workers.training.model_fit import resolve_model

FORMAT = 1


def read_config(folder: Folder) -> dict[str, Any]:
    """``config.json`` of an export. Raises ``CheckpointInvalidError`` when it is not one that this version reads."""
    try:
        config: dict[str, Any] = json.loads(folder.read("config.json"))
    except FileNotFoundError as error:
        raise no_export(folder) from error
    if config["format"] != FORMAT:
        raise CheckpointInvalidError(f"{folder.uri} has export format {config['format']}; this version reads {FORMAT}")
    return config


def no_export(folder: Folder) -> CheckpointInvalidError:
    """The error for a folder without an exported model."""
    return CheckpointInvalidError(f"{folder.uri} holds no exported model: config.json and model.safetensors are needed")


# Fields of a model that say how it computes: they follow from the data that it meets, and bind nothing that it learned.
_OF_COMPUTING = frozenset({"index"})


def check_fits(folder: Folder, *, spec: TrainSpec, dataset: GraphDataset) -> None:
    """Hold the export in ``folder`` against what it is to be used on. Raises ``ExportMismatchError``."""
    config = read_config(folder)
    asked = resolve_model(spec.model, dataset).model_dump(mode="json")
    if _trained(config["model"]) != _trained(asked):
        raise ExportMismatchError(
            f"job {spec.from_job} trained the model {config['model']}; the spec asks for"
            f" {asked}: repeat the model of that job"
        )
    for what, wanted, found in (
        ("features", config["num_features"], dataset.num_features),
        ("outputs", config["num_classes"], dataset.num_classes),
    ):
        if wanted != found:
            raise ExportMismatchError(
                f"the model of job {spec.from_job} takes {wanted} {what}, {dataset.name} has {found}:"
                " use it on data of the same shape"
            )


def _trained(model: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in model.items() if name not in _OF_COMPUTING}
