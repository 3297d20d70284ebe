"""Reading a job spec from a YAML or JSON file into the document that the service checks."""

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from planner.errors import GraphmillError


class SpecFileError(GraphmillError):
    """The spec file cannot be read."""

    code = "spec_file_invalid"


class _UniqueKeys(yaml.SafeLoader):
    """YAML as ``safe_load`` reads it, but a key that stands twice is refused: one of the two would be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Fields of one mapping."""
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} stands here twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def read_spec_file(path: Path) -> object:
    """The document in a file, or on standard input for ``-``. Raises ``SpecFileError``."""
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text()
        document = json.loads(
            json.dumps(yaml.load(text, _UniqueKeys), default=str)
        )  # YAML has dates, JSON has their text
    except (OSError, UnicodeDecodeError) as error:
        raise SpecFileError(f"cannot read the spec: {error}") from error
    except yaml.YAMLError as error:
        raise SpecFileError(f"{path} is not YAML: {error}") from error
    except (TypeError, ValueError, RecursionError) as error:  # dates as keys, anchors in circles, endless nesting
        raise SpecFileError(f"{path} holds YAML that JSON has no words for: {error}") from error
    return _with_absolute_data(document, folder=Path.cwd() if str(path) == "-" else path.parent.absolute())


def _with_absolute_data(document: Any, *, folder: Path) -> Any:
    """The user's own files are named relative to the spec; the cluster's nodes stand elsewhere."""
    dataset = document.get("dataset") if isinstance(document, dict) else None
    if not isinstance(dataset, dict) or not isinstance(dataset.get("path"), str):
        return document
    return {**document, "dataset": {**dataset, "path": str((folder / Path(dataset["path"]).expanduser()).resolve())}}
