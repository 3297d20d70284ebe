"""One fault of a document: where it is, what was found, what to change. And the words for what Pydantic finds.

``describe`` turns one entry of ``ValidationError.errors()`` into a ``Fault``. The location that Pydantic gives contains
the tag of a union ("graphormer"), which no document has: ``_walk`` follows the spec's classes to leave it out, and ends
at the class whose field is wrong, so that a misspelt field can be answered with its nearest neighbour.
"""

import json
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel

from planner.frozen import Frozen

_SHOWN_CHARACTERS = 60
_TYPES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "a text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "dict_type": "an object",
    "finite_number": "a finite number",
}
_EXPONENT = re.compile(r"[+-]?\d{1,9}[eE][+-]?\d{1,3}")  # a number to JSON; YAML 1.1 wants a point and a sign in it
_BOUNDS = {"greater_than": ">", "greater_than_equal": "≥", "less_than": "<", "less_than_equal": "≤"}
_BOUND_KEYS = {"greater_than": "gt", "greater_than_equal": "ge", "less_than": "lt", "less_than_equal": "le"}


class Fault(Frozen):
    """``pointer`` is a JSON pointer (RFC 6901) into the document, empty for the document itself."""

    pointer: str
    detail: str
    fix: str


def describe(item: Mapping[str, Any], root: type[BaseModel]) -> Fault:
    """Put one finding of Pydantic about a document of type ``root`` into words."""
    path, owner = _walk(item["loc"], root)
    kind, value, context = item["type"], item.get("input"), item.get("ctx", {})
    pointer = to_pointer(path)
    if kind == "missing":
        return Fault(pointer=pointer, detail="missing", fix=f"add {path[-1]!r}{_meaning(owner, path[-1])}")
    if kind == "extra_forbidden":
        known = tuple(owner.model_fields) if owner else ()
        fix = f"{closest(str(path[-1]), known)}known here are {', '.join(known)}"
        return Fault(pointer=pointer, detail=f"unknown field {path[-1]!r}", fix=fix)
    if kind == "string_pattern_mismatch":
        fix = f"use a text that matches {context['pattern']}{_meaning(owner, path[-1])}"
        return Fault(pointer=pointer, detail=f"found {show(value)}", fix=fix)
    return Fault(pointer=pointer, detail=f"found {show(value)}", fix=_fix(kind, value, context, item["msg"]))


def to_pointer(path: Iterable[str | int]) -> str:
    """A JSON pointer from its parts."""
    text = "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
    return text.encode(errors="replace").decode()  # a key with half a character must not spoil the answer


def closest(word: Any, known: Iterable[str]) -> str:
    """``did you mean "x"? `` or nothing."""
    by_lower = {name.lower(): name for name in known}
    near = get_close_matches(str(word).lower(), by_lower, n=1, cutoff=0.6)
    return f'did you mean "{by_lower[near[0]]}"? ' if near else ""


def show(value: Any) -> str:
    """A value as it stood in the document, cut when long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def _fix(kind: str, value: Any, context: Mapping[str, Any], message: str) -> str:
    if kind in _BOUNDS:
        bound = context[_BOUND_KEYS[kind]]
        return f"choose a value {_BOUNDS[kind]} {bound if isinstance(bound, int) else format(bound, 'g')}"
    if kind == "float_type" and isinstance(value, str) and _EXPONENT.fullmatch(value):
        return f"give a number; YAML takes {value} for a text: write {float(value)} or {_with_point(value)}"
    if kind in _TYPES:
        return f"give {_TYPES[kind]}"
    if kind == "literal_error":
        expected = str(context["expected"])
        return f"{closest(value, expected.replace(chr(39), '').replace(' or ', ', ').split(', '))}use {expected}"
    if kind in ("too_short", "string_too_short"):
        return f"give at least {context['min_length']}"
    if kind in ("too_long", "string_too_long"):
        return f"give at most {context['max_length']}"
    if kind == "value_error":
        return str(context.get("error", message))
    return message


def _with_point(number: str) -> str:
    """``1e-3`` as ``1.0e-3``, ``1e3`` as ``1.0e+3``."""
    digits, exponent = number.lower().split("e")
    return f"{digits}.0e{exponent if exponent[0] in '+-' else '+' + exponent}"


def _meaning(owner: type[BaseModel] | None, field: str | int) -> str:
    info = None if owner is None else owner.model_fields.get(str(field))
    return f": {info.description}" if info is not None and info.description else ""


def _walk(location: tuple[str | int, ...], root: type[BaseModel]) -> tuple[list[str | int], type[BaseModel] | None]:
    """The location without union tags, and the class that owns its last part (None inside plain lists)."""
    path: list[str | int] = []
    owner: type[BaseModel] | None = root
    choices: tuple[type[BaseModel], ...] = ()  # classes that the next part, a tag, chooses from
    for place, part in enumerate(location):
        if choices:
            owner, choices = next((cls for cls in choices if part in _tags(cls)), None), ()
            continue
        path.append(part)
        if place == len(location) - 1:
            break
        inner = _classes_of(owner, part)
        owner, choices = (inner[0], ()) if len(inner) == 1 else (None, inner)
    return path, owner


def _classes_of(owner: type[BaseModel] | None, field: str | int) -> tuple[type[BaseModel], ...]:
    info = None if owner is None else owner.model_fields.get(str(field))
    if info is None:
        return ()
    members = get_args(info.annotation) or (info.annotation,)
    return tuple(member for member in members if isinstance(member, type) and issubclass(member, BaseModel))


def _tags(cls: type[BaseModel]) -> tuple[Any, ...]:
    """The names that choose this class in a union: the values of its literal fields."""
    return tuple(tag for info in cls.model_fields.values() for tag in get_args(info.annotation) if isinstance(tag, str))
