"""From a document to a ``JobSpec``, with every fault of it at once.

Pydantic stops at the first layer that fails: a rule that compares two fields does not run while a third is wrong, and
the fields of a model with an unknown name are not looked at. ``find_faults`` therefore asks Pydantic first, and then
holds the rules between fields against whatever part of the document can still be read.
"""

import json
import math
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import PurePosixPath
from typing import Any

from pydantic import ValidationError

from planner.caching import CacheRule
from planner.errors import GraphmillError
from planner.sampling import SamplingRule
from planner.sync import SyncRule
from service.faults import Fault, closest, describe, show, to_pointer
from service.spec import JobSpec
from workers.model_specs.by_name import MODELS_OF_KIND, SPEC_OF_MODEL
from workers.model_specs.sampled import SampledGNNSpec
from workers.model_specs.transformers import TransformerFields
from workers.spec import (
    NAMED_DATASETS,
    ONE_KIND_ALONE,
    OWN_COLUMNS,
    TrainingSpec,
    refuse_cache,
    refuse_features,
    refuse_sampling,
)

_MAX_DEPTH = 32
_MAX_FAULTS = 100  # more help nobody, and each costs time to put into words
_KINDS: Mapping[str, tuple[str, ...]] = {str(kind): names for kind, names in MODELS_OF_KIND.items()}
_MODELS = tuple(name for names in _KINDS.values() for name in names)


class SpecInvalidError(GraphmillError):
    """A job spec has faults; ``details['faults']`` lists all of them with ``pointer``, ``detail`` and ``fix``."""

    code = "spec_invalid"


def parse_spec(document: Any) -> JobSpec:
    """Check a decoded JSON document, strictly: no text is taken for a number. Raises ``SpecInvalidError``."""
    faults = find_faults(document)
    if faults:
        raise spec_invalid(*faults)
    return JobSpec.model_validate_json(json.dumps(document), strict=True)


def spec_invalid(*faults: Fault) -> SpecInvalidError:
    """One error that lists them all."""
    many = f"more than {_MAX_FAULTS} faults" if len(faults) > _MAX_FAULTS else f"{len(faults)} faults"
    count = "1 fault" if len(faults) == 1 else many
    listed = "; ".join(f"{fault.pointer or 'the document'}: {fault.detail}" for fault in faults)
    return SpecInvalidError(f"the job spec has {count}: {listed}", faults=[fault.model_dump() for fault in faults])


def find_faults(document: Any) -> list[Fault]:
    """All faults of a document, sorted by pointer; empty if it is a valid spec.

    Of more than ``_MAX_FAULTS``, that many are told, and one more entry says how many are not.
    """
    if not isinstance(document, dict):
        return [Fault(pointer="", detail=f"found {show(document)}", fix="a job spec is an object: {...}")]
    faults: list[Fault] = []
    document = _cleaned(document, (), faults)
    odd = {fault.pointer for fault in faults}
    faults += [fault for fault in _rules_between_fields(document) if fault.pointer not in odd]
    ruled = tuple(faults)
    findings = _pydantic_findings(document)
    for item in findings[:_MAX_FAULTS]:
        fault = describe(item, JobSpec)
        if fault.pointer in odd or (item["type"] in _RULED and _says_more(ruled, than=fault)):
            continue
        faults.append(fault)
    untold = len(faults[_MAX_FAULTS:]) + len(findings[_MAX_FAULTS:])
    told = sorted(faults[:_MAX_FAULTS], key=lambda fault: fault.pointer)
    return told if not untold else [*told, _not_told(untold)]


def _not_told(count: int) -> Fault:
    return Fault(pointer="", detail=f"{count} more are not listed", fix="mend the others first, then submit again")


# Findings whose words a rule between fields below says better.
_RULED = frozenset({"value_error", "union_tag_invalid", "union_tag_not_found"})


def _says_more(ruled: tuple[Fault, ...], *, than: Fault) -> bool:
    return any(fault.pointer == than.pointer or fault.pointer.startswith(than.pointer + "/") for fault in ruled)


def _pydantic_findings(document: dict[str, Any]) -> list[Mapping[str, Any]]:
    try:
        JobSpec.model_validate_json(json.dumps(_with_usable_model(document)), strict=True)
    except ValidationError as error:
        return [dict(item) for item in error.errors(include_url=False)]
    return []


def _with_usable_model(document: dict[str, Any]) -> dict[str, Any]:
    """The document with its most likely model in place of an unknown one, so that the other fields are checked too."""
    model = document.get("model")
    if not isinstance(model, dict) or model.get("name") in _MODELS:
        return document
    kinds = get_close_matches(str(document.get("kind")), _KINDS, n=1)
    trained = _KINDS[kinds[0]] if kinds else _MODELS
    likely = get_close_matches(str(model.get("name")), trained, n=1)
    return {**document, "model": {**model, "name": likely[0] if likely else trained[0]}}


def _rules_between_fields(document: dict[str, Any]) -> Iterator[Fault]:
    yield from _check_use(document.get("task", "train"), document.get("from_job"))
    dataset, model, training = document.get("dataset"), document.get("model"), document.get("training")
    if isinstance(training, dict):
        yield from _check_warm_up(training)
        yield from _check_training_of_kind(training, document.get("kind"))
        yield from _check_kernel(training.get("attention_kernel", "auto"), document)
        yield from _check_features(training)
        yield from _check_cache(training, document)
        yield from _check_sampling(training, document.get("task", "train"))
    if isinstance(dataset, dict):
        yield from _check_dataset(dataset)
    if isinstance(model, dict):
        yield from _check_model_name(model, document.get("kind"))
        yield from _check_heads(model)
        if isinstance(dataset, dict) and isinstance(dataset.get("name"), str):
            yield from _check_own_columns(model)


def _check_use(task: Any, from_job: Any) -> Iterator[Fault]:
    if task == "train" and from_job is not None:
        fix = "leave it out, or set task to predict or evaluate"
        yield Fault(pointer="/from_job", detail="training starts from fresh weights", fix=fix)
    if task in ("predict", "evaluate") and from_job is None:
        fix = "give the id of the finished job whose model is used"
        yield Fault(pointer="/from_job", detail=f"task {task} needs a trained model", fix=fix)


def _check_dataset(dataset: Mapping[str, Any]) -> Iterator[Fault]:
    name, path = dataset.get("name"), dataset.get("path")
    known = f"known are {', '.join(NAMED_DATASETS)}"
    if name is not None and path is not None:
        detail = f"names both a data set ({show(name)}) and a path ({show(path)})"
        yield Fault(pointer="/dataset", detail=detail, fix="keep name for a known data set, or path for your own files")
    if name is None and path is None:
        fix = f"give the path of your own files, or a name; {known}"
        yield Fault(pointer="/dataset", detail="names neither a data set nor a path", fix=fix)
    if isinstance(path, str) and not PurePosixPath(path).is_absolute():
        fix = "give the absolute path, as the cluster's nodes see it (`graphmill submit` makes it absolute by itself)"
        yield Fault(pointer="/dataset/path", detail=f"{show(path)} is a relative path", fix=fix)
    if isinstance(name, str) and name not in NAMED_DATASETS:
        fix = f"{closest(name, NAMED_DATASETS)}{known}"
        yield Fault(pointer="/dataset/name", detail=f"unknown data set {show(name)}", fix=fix)


def _check_model_name(model: Mapping[str, Any], kind: Any) -> Iterator[Fault]:
    name = model.get("name")
    trained = _KINDS.get(kind, _MODELS) if isinstance(kind, str) else _MODELS
    choice = f"use {' or '.join(trained)}"
    if name is None:
        yield Fault(pointer="/model/name", detail="missing", fix=choice)
    elif name not in _MODELS:
        detail = f"unknown model {show(name)}"
        yield Fault(pointer="/model/name", detail=detail, fix=f"{closest(name, trained)}{choice}")
    elif name not in trained:
        other = next(of for of, names in _KINDS.items() if name in names)
        fix = f"{choice}, or set kind to {other}"
        yield Fault(pointer="/model/name", detail=f"kind {kind} does not train {name}", fix=fix)


def _check_heads(model: Mapping[str, Any]) -> Iterator[Fault]:
    guess = TransformerFields if "num_heads" in model else SampledGNNSpec
    fields = SPEC_OF_MODEL.get(str(model.get("name")), guess).model_fields
    if "num_heads" not in fields:
        return
    hidden, heads = (model.get(name, fields[name].default) for name in ("hidden_size", "num_heads"))
    if type(hidden) is int and type(heads) is int and heads > 0 and hidden % heads:  # a bool is an int, but not here
        below = hidden - hidden % heads
        fix = f"choose hidden_size {below or heads} or {below + heads}, or another num_heads"
        detail = f"{hidden} is not a multiple of num_heads {heads}"
        yield Fault(pointer="/model/hidden_size", detail=detail, fix=fix)


def _check_own_columns(model: Mapping[str, Any]) -> Iterator[Fault]:
    for (field, value), columns in OWN_COLUMNS.items():
        if model.get(field) == value:
            fix = "leave it out, or give your own files by dataset.path"
            yield Fault(
                pointer=f"/model/{field}", detail=f"reads {columns}, which named data sets do not have", fix=fix
            )


def _check_warm_up(training: Mapping[str, Any]) -> Iterator[Fault]:
    schedule = training.get("schedule")
    warm_up = schedule.get("warmup_epochs") if isinstance(schedule, dict) else None
    epochs = training.get("epochs", TrainingSpec.model_fields["epochs"].default)
    if type(warm_up) is int and type(epochs) is int and warm_up >= epochs > 0:
        yield Fault(
            pointer="/training/schedule/warmup_epochs",
            detail=f"{warm_up} epochs of warm-up do not end within {epochs} epochs of training",
            fix=f"choose at most {epochs - 1}, or more epochs",
        )


def _check_training_of_kind(training: Mapping[str, Any], kind: Any) -> Iterator[Fault]:
    for rule in ONE_KIND_ALONE:
        given = training.get(rule.field, rule.usual)
        asked = given.get(rule.part, rule.usual) if isinstance(given, dict) else given
        if kind in tuple(_KINDS) and kind != rule.kind and asked in rule.values and asked != rule.usual:
            yield Fault(pointer=f"/training/{rule.field}", detail=rule.reason, fix="leave it out")


def _check_features(training: Mapping[str, Any]) -> Iterator[Fault]:
    try:
        sync = SyncRule.model_validate(training.get("sync", {}))
    except ValidationError:
        return
    reason = refuse_features(training.get("features", "local"), sync)
    yield from _refused(reason, pointer="/training/features")


def _check_cache(training: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[Fault]:
    """What ``refuse_cache`` says, where its parts can be read; what cannot be is told by itself."""
    kind, model = document.get("kind"), document.get("model")
    spec = SPEC_OF_MODEL.get(str(model.get("name"))) if isinstance(model, dict) else None
    if spec is None or kind not in tuple(_KINDS):
        return
    try:
        cache, asked = CacheRule.model_validate(training.get("cache", {})), spec.model_validate(model)
    except ValidationError:
        return
    reason = refuse_cache(cache, training.get("features", "local"), kind=kind, model=asked)
    yield from _refused(reason, pointer="/training/cache")


def _check_sampling(training: Mapping[str, Any], task: Any) -> Iterator[Fault]:
    try:
        cache = CacheRule.model_validate(training.get("cache", {}))
        rule = SamplingRule.model_validate(training.get("sampling", {}))
    except ValidationError:
        return
    reason = refuse_sampling(rule, training.get("features", "local"), cache=cache, task=task)
    yield from _refused(reason, pointer="/training/sampling")


def _refused(reason: str | None, *, pointer: str) -> Iterator[Fault]:
    """What a rule of ``workers.spec`` says against a part of the job, and after the last semicolon what to change."""
    if reason is not None:
        detail, _, fix = reason.rpartition("; ")
        yield Fault(pointer=pointer, detail=detail, fix=fix)


def _check_kernel(asked: Any, document: Mapping[str, Any]) -> Iterator[Fault]:
    pointer, resources = "/training/attention_kernel", document.get("resources", {})
    if document.get("kind") != "mqgnn" and isinstance(resources, dict):
        has_gpus = bool(resources.get("gpus_per_worker", 0))
        if asked in ("triton", "flex") and not has_gpus:
            fix = "set resources.gpus_per_worker to 1, or leave it out"
            yield Fault(pointer=pointer, detail=f"{asked} runs on GPUs, and the job asks for none", fix=fix)
        if asked == "native" and has_gpus:
            fix = "leave it out, or leave out resources.gpus_per_worker"
            yield Fault(pointer=pointer, detail="native runs on CPUs, and the job asks for GPUs", fix=fix)
    model = document.get("model")
    if asked == "flex" and isinstance(model, dict) and model.get("attention_dropout", 0) != 0:
        fix = "choose another kernel, or leave out model.attention_dropout"
        yield Fault(pointer=pointer, detail="flex cannot drop attention weights, and the model asks for that", fix=fix)


def _cleaned(value: Any, path: tuple[str | int, ...], faults: list[Fault]) -> Any:
    """The value without what no database or JSON reader takes: infinities, half characters, endless nesting."""
    if len(path) > _MAX_DEPTH:
        faults.append(Fault(pointer=to_pointer(path), detail="nested too deep", fix=f"at most {_MAX_DEPTH} levels"))
        return None
    if isinstance(value, dict):
        return {
            _cleaned(key, (*path, key), faults): _cleaned(item, (*path, key), faults) for key, item in value.items()
        }
    if isinstance(value, list):
        return [_cleaned(item, (*path, place), faults) for place, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        faults.append(Fault(pointer=to_pointer(path), detail=f"found {value}", fix="give a finite number"))
        return 1.0
    if isinstance(value, str) and not _is_plain(value):
        faults.append(
            Fault(pointer=to_pointer(path), detail="not a valid text", fix="leave out NUL and half characters")
        )
        return "?"
    return value


def _is_plain(text: str) -> bool:
    try:
        return "\0" not in text and bool(text.encode() or True)
    except UnicodeEncodeError:
        return False
