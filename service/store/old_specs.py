"""Reading a stored spec that today's rules refuse: it was legal when its job was made, and others must not suffer.

Goes out: what can still be read of it, and what cannot, in words. Such a job is shown and listed; it is not started.
"""

import json
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from service.spec import JobSpec

_NOTHING_READABLE = JobSpec.model_validate(
    {"name": "unreadable", "kind": "mqgnn", "dataset": {"name": "unreadable"}, "model": {"name": "graphsage"}}
)


@lru_cache(maxsize=1024)
def read_spec(text: str) -> tuple[JobSpec, str | None]:
    """A stored spec and, if it is not wholly legal today, why. Specs never change, so each is parsed once."""
    try:
        return JobSpec.model_validate_json(text), None
    except ValidationError as error:
        return _without(json.loads(text), error), str(error)


def _without(document: Any, error: ValidationError) -> JobSpec:
    """The spec without its unreadable fields; a field that cannot be left out leaves nothing to show."""
    for fault in error.errors():
        _drop(document, fault["loc"])
    try:
        return JobSpec.model_validate(document)
    except ValidationError:
        return _NOTHING_READABLE


def _drop(document: Any, location: tuple[str | int, ...]) -> None:
    for part in location:
        inner = document.get(part) if isinstance(document, dict) else None
        if part == location[-1] or not isinstance(inner, dict | list):
            break
        document = inner
    if isinstance(document, dict):
        document.pop(location[-1], None)
