"""Every fault of a spec at once, each where it is and with what to change."""

import json
from copy import deepcopy
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from service.faults import Fault
from service.spec import JobSpec
from service.validation import SpecInvalidError, find_faults, parse_spec
from tests.kit.builders import job_document
from workers.spec import MODELS_OF_KIND

TEN_FAULTS: dict[str, Any] = {
    "name": "-starts with a dash",
    "kind": "megagraph",
    "dataset": {"name": "Coraa", "path": "/data/mine"},
    "model": {"name": "graphormr", "hidden_size": 30, "num_heads": 4, "num_layers": 0},
    "training": {"epochs": "5", "learning_rate": float("nan"), "epocs": 3},
    "resources": {"num_workers": 0},
}
TEN_POINTERS = [
    "/dataset",
    "/dataset/name",
    "/model/hidden_size",
    "/model/name",
    "/model/num_layers",
    "/name",
    "/resources/num_workers",
    "/training/epochs",
    "/training/epocs",
    "/training/learning_rate",
]


def bounds_missing(schema: dict[str, Any], *, place: str = "") -> list[str]:
    """The numbers of a schema that could be without end."""
    is_number = schema.get("type") in ("integer", "number")
    found = [place] if is_number and not {"maximum", "exclusiveMaximum"} & set(schema) else []
    inner = [*schema.get("anyOf", ()), schema["items"]] if "items" in schema else schema.get("anyOf", ())
    for part in inner:
        found += bounds_missing(part, place=place)
    for name, part in schema.get("properties", {}).items():
        found += bounds_missing(part, place=f"{place}/{name}")
    return found


def test_every_number_of_a_spec_has_an_end() -> None:
    schema = JobSpec.model_json_schema()
    parts = {"": schema, **schema["$defs"]}
    assert [place for name, part in parts.items() for place in bounds_missing(part, place=name)] == []


def test_a_path_is_no_longer_than_a_path_can_be() -> None:
    assert not find_faults(job_document(dataset={"path": "/" + "x" * 4095}))
    (fault,) = find_faults(job_document(dataset={"path": "/" + "x" * 900_000}))
    assert (fault.pointer, fault.fix) == ("/dataset/path", "give at most 4096")
    assert len(fault.detail) < 200


def faults_of(**changes: Any) -> dict[str, Fault]:
    return {fault.pointer: fault for fault in find_faults(job_document(**changes))}


def test_a_valid_document_becomes_its_spec() -> None:
    spec = parse_spec(job_document(name="mine"))
    assert spec.name == "mine"
    assert spec.model.name == "graphormer"


def test_ten_faults_are_found_at_once() -> None:
    assert [fault.pointer for fault in find_faults(TEN_FAULTS)] == TEN_POINTERS


def test_every_fault_says_what_was_found_and_what_to_change() -> None:
    for fault in find_faults(TEN_FAULTS):
        assert fault.detail
        assert fault.fix


def test_the_error_carries_all_faults() -> None:
    with pytest.raises(SpecInvalidError, match="10 faults") as caught:
        parse_spec(TEN_FAULTS)
    assert [fault["pointer"] for fault in caught.value.details["faults"]] == TEN_POINTERS


def test_a_warm_up_without_an_end_is_named_beside_other_faults() -> None:
    faults = faults_of(training={"epochs": 5, "learning_rate": -1, "schedule": {"warmup_epochs": 9}})
    assert set(faults) == {"/training/learning_rate", "/training/schedule/warmup_epochs"}
    assert "choose at most 4" in faults["/training/schedule/warmup_epochs"].fix
    assert set(faults_of(training={"epochs": 5, "schedule": {"warmup_epochs": 5}})) == {
        "/training/schedule/warmup_epochs"
    }
    assert not faults_of(training={"epochs": 5, "schedule": {"warmup_epochs": 4}})


@pytest.mark.parametrize("field", ["name", "kind", "dataset", "model"])
def test_a_missing_field_is_named(field: str) -> None:
    document = job_document()
    del document[field]
    assert {fault.pointer: fault.detail for fault in find_faults(document)} == {f"/{field}": "missing"}


def test_a_misspelt_field_is_answered_with_its_neighbour() -> None:
    fault = faults_of(training={"learning_rat": 0.1})["/training/learning_rat"]
    assert 'did you mean "learning_rate"?' in fault.fix


def test_a_misspelt_field_of_a_model_is_answered_with_the_models_own_fields() -> None:
    fault = faults_of(model={"name": "graphormer", "hiden_size": 8})["/model/hiden_size"]
    assert 'did you mean "hidden_size"?' in fault.fix
    assert "fanouts" not in fault.fix


def test_an_unknown_data_set_is_answered_with_all_known_ones() -> None:
    fault = faults_of(dataset={"name": "cora"})["/dataset/name"]
    assert 'did you mean "Cora"?' in fault.fix
    assert "digits-knn" in fault.fix


def test_a_data_set_needs_one_source() -> None:
    assert "neither" in faults_of(dataset={})["/dataset"].detail
    assert "both" in faults_of(dataset={"name": "Cora", "path": "/x"})["/dataset"].detail


@pytest.mark.parametrize(
    ("kind", "model", "fix"),
    [
        ("mqgnn", "graphormer", f"use {' or '.join(MODELS_OF_KIND['mqgnn'])}, or set kind to megagraph"),
        ("megagraph", "gcn", f"use {' or '.join(MODELS_OF_KIND['megagraph'])}, or set kind to mqgnn"),
    ],
)
def test_a_model_of_the_other_kind_is_refused(kind: str, model: str, fix: str) -> None:
    assert faults_of(kind=kind, model={"name": model})["/model/name"].fix == fix


def test_rules_between_fields_hold_although_other_fields_are_wrong() -> None:
    model = {"name": "graphormer", "hidden_size": 30, "num_heads": 4, "dropout": 7}
    assert set(faults_of(model=model, kind="mqgnn")) == {"/model/name", "/model/hidden_size", "/model/dropout"}


def test_heads_are_checked_against_the_default_width() -> None:
    assert faults_of(model={"name": "graphormer", "num_heads": 3})["/model/hidden_size"].fix.startswith("choose")


@pytest.mark.parametrize(
    ("name", "divides"), [("graphormer", True), ("gt", True), ("sgformer", False), ("custom", False), ("gcn", False)]
)
def test_heads_are_those_of_the_model_that_is_asked_for(name: str, divides: bool) -> None:
    """By default Graphormer and GT have two heads, SGFormer has one, and the others have no such field."""
    assert ("/model/hidden_size" in faults_of(model={"name": name, "hidden_size": 63})) is divides


def test_an_unknown_model_still_has_its_other_fields_checked() -> None:
    found = faults_of(kind="mqgnn", model={"name": "graphsaeg", "fanouts": [5, -7]})
    assert set(found) == {"/model/name", "/model/fanouts/1"}
    assert 'did you mean "graphsage"?' in found["/model/name"].fix


@pytest.mark.parametrize("value", ["5", 5.0, True, None, [5]])
def test_only_a_whole_number_is_a_whole_number(value: Any) -> None:
    assert faults_of(training={"epochs": value})["/training/epochs"].fix == "give a whole number"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_none_are_refused_everywhere(value: float) -> None:
    assert set(faults_of(limits={"max_runtime_s": value})) == {"/limits/max_runtime_s"}
    assert set(faults_of(resources={"cpus_per_worker": value})) == {"/resources/cpus_per_worker"}


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_texts_that_no_database_takes_are_refused(text: str) -> None:
    assert set(faults_of(dataset={"path": text})) == {"/dataset/path"}
    for fault in find_faults(job_document(**{text: 1})):
        fault.model_dump_json()  # what is answered can be written down


@pytest.mark.parametrize(
    ("workers", "gpus", "is_fine"), [(2, 0.5, False), (1, 0.5, True), (1, 1.5, False), (2, 2, True)]
)
def test_part_of_a_gpu_is_for_one_rank_alone(workers: int, gpus: float, is_fine: bool) -> None:
    faults = find_faults(job_document(resources={"num_workers": workers, "gpus_per_worker": gpus}))
    assert [fault.pointer for fault in faults] == ([] if is_fine else ["/resources/gpus_per_worker"])
    assert all("whole GPUs" in fault.fix for fault in faults)


@pytest.mark.parametrize(
    ("kernel", "gpus", "words"),
    [
        ("auto", 0, None),
        ("plain", 1, None),
        ("native", 0, None),
        ("native", 1, "native runs on CPUs"),
        ("triton", 1, None),
        ("triton", 0, "triton runs on GPUs"),
        ("flex", 0, "flex runs on GPUs"),
    ],
)
def test_an_attention_kernel_wants_its_device(kernel: str, gpus: int, words: str | None) -> None:
    job = {"kind": "megagraph", "model": {"name": "graphormer"}, "training": {"attention_kernel": kernel}}
    faults = find_faults(job_document(**job, resources={"gpus_per_worker": gpus}))
    assert [fault.pointer for fault in faults] == ([] if words is None else ["/training/attention_kernel"])
    assert all(str(words) in fault.detail for fault in faults)


def test_flex_does_not_drop_attention_weights() -> None:
    training, resources = {"attention_kernel": "flex"}, {"gpus_per_worker": 1}
    job = {"kind": "megagraph", "model": {"name": "graphormer"}, "training": training, "resources": resources}
    assert find_faults(job_document(**job)) == []
    job["model"] = {"name": "graphormer", "attention_dropout": 0.1}
    (fault,) = find_faults(job_document(**job))
    assert (fault.pointer, "drop" in fault.detail) == ("/training/attention_kernel", True)


@pytest.mark.parametrize(
    "training",
    [
        {"precision": "bfloat16"},
        {"sync": "racom"},
        {"sync": {"name": "local_sgd"}},
        {"sampling": "remote"},
        {"sampling": {"placement": "remote", "num_actors": 3}},
    ],
)
def test_what_one_kind_alone_has_is_refused_where_it_stands(training: dict[str, Any]) -> None:
    (field,) = training
    jobs = [
        {"kind": "mqgnn", "model": {"name": "graphsage"}, "training": training},
        {"kind": "megagraph", "model": {"name": "graphormer"}, "training": training},
    ]
    refused = [[(fault.pointer, fault.fix) for fault in find_faults(job_document(**job))] for job in jobs]
    fault = [(f"/training/{field}", "leave it out")]
    assert refused == ([fault, []] if field == "precision" else [[], fault])


@pytest.mark.parametrize(
    ("changes", "words", "fix"),
    [
        ({"training": {"sampling": "remote", "features": "remote"}}, "are held by the ranks", "choose one of both"),
        (
            {"training": {"sampling": "remote", "cache": {"reuse": 2}}},
            "cache.reuse keeps subgraphs",
            "choose one of both",
        ),
        ({"training": {"sampling": "remote"}, "task": "predict", "from_job": "a"}, "nothing to sample", "leave it out"),
    ],
)
def test_remote_sampling_is_refused_beside_what_it_cannot_serve(changes: Any, words: str, fix: str) -> None:
    (fault,) = find_faults(job_document(kind="mqgnn", model={"name": "graphsage"}, **changes))
    assert (fault.pointer, fault.fix) == ("/training/sampling", fix)
    assert words in fault.detail


@pytest.mark.parametrize(
    ("sampling", "pointer"),
    [
        ("elsewhere", "/training/sampling/placement"),
        ({"placement": "remote", "num_actors": 0}, "/training/sampling/num_actors"),
        ({"placement": "remote", "cpus_per_actor": 0}, "/training/sampling/cpus_per_actor"),
        ({"placement": "remote", "actors": 2}, "/training/sampling/actors"),
        (["remote"], "/training/sampling"),
    ],
)
def test_a_rule_of_sampling_that_is_none_is_refused_where_it_is_wrong(sampling: Any, pointer: str) -> None:
    job = {"kind": "mqgnn", "model": {"name": "graphsage"}, "training": {"sampling": sampling}}
    assert [fault.pointer for fault in find_faults(job_document(**job))] == [pointer]


def test_sampled_gnns_have_no_attention_kernel() -> None:
    job = {"kind": "mqgnn", "model": {"name": "graphsage"}, "training": {"attention_kernel": "plain"}}
    (fault,) = find_faults(job_document(**job))
    assert (fault.pointer, fault.fix) == ("/training/attention_kernel", "leave it out")


def test_the_fewest_workers_are_not_more_than_the_most() -> None:
    assert faults_of(resources={"min_workers": 2, "num_workers": 2}) == {}
    fault = faults_of(resources={"min_workers": 3, "num_workers": 2})["/resources/min_workers"]
    assert fault.fix == "give at most num_workers, which is 2, or leave it out for exactly that many"


def test_a_bound_is_told_whole() -> None:
    assert faults_of(training={"seed": 2**31})["/training/seed"].fix == "choose a value < 2147483648"


@pytest.mark.parametrize(
    ("text", "cures"),
    [("1e-3", ("0.001", "1.0e-3")), ("-2E4", ("-20000.0", "-2.0e+4")), ("1e+3", ("1000.0", "1.0e+3"))],
)
def test_a_number_that_yaml_takes_for_a_text_is_answered_with_one_it_does_not(
    text: str, cures: tuple[str, str]
) -> None:
    assert yaml.safe_load(text) == text
    fix = faults_of(training={"learning_rate": text})["/training/learning_rate"].fix
    for cure in cures:
        assert cure in fix
        assert yaml.safe_load(cure) == float(text)


def test_of_very_many_faults_the_first_are_told_and_the_others_counted() -> None:
    faults = find_faults(job_document(name="-", **{f"odd{number}": 1 for number in range(5_000)}))
    assert len(faults) == 101
    assert faults[-1].detail == "4901 more are not listed"
    with pytest.raises(SpecInvalidError, match="more than 100 faults"):
        parse_spec(job_document(**{f"odd{number}": 1 for number in range(5_000)}))


def test_endless_nesting_is_refused() -> None:
    deep: Any = 1
    for _ in range(500):
        deep = [deep]
    assert any("nested too deep" in fault.detail for fault in find_faults(job_document(extra=deep)))


def test_names_with_slashes_are_escaped_in_pointers() -> None:
    assert "/a~1b~0c" in faults_of(**{"a/b~c": 1})


@pytest.mark.parametrize("document", [None, [], "text", 5, True])
def test_only_an_object_is_a_spec(document: Any) -> None:
    assert [fault.pointer for fault in find_faults(document)] == [""]


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.floats(),
    st.sampled_from(["", "graphormer", "gcn", "graphsage", "mqgnn", "megagraph", "Cora", "x\0", "float64"]),
    st.lists(st.integers(-2, 9), max_size=3),
    st.just({}),
)
PLACES = st.sampled_from(
    [
        ("name",),
        ("kind",),
        ("dataset",),
        ("dataset", "name"),
        ("dataset", "path"),
        ("dataset", "split"),
        ("model",),
        ("model", "name"),
        ("model", "hidden_size"),
        ("model", "num_heads"),
        ("model", "fanouts"),
        ("model", "dropout"),
        ("training",),
        ("training", "dtype"),
        ("training", "learning_rate"),
        ("training", "sampling"),
        ("resources", "num_workers"),
        ("limits", "max_runtime_s"),
        ("surprise",),
    ]
)


@given(changes=st.lists(st.tuples(PLACES, VALUES), max_size=4), drop=st.none() | PLACES)
def test_a_document_has_no_faults_exactly_if_it_is_a_spec(
    changes: list[tuple[tuple[str, ...], Any]], drop: tuple[str, ...] | None
) -> None:
    document = deepcopy(job_document(training={}, resources={}, limits={}))
    for path, value in changes:
        target: Any = document
        for part in path[:-1]:
            target = target.get(part) if isinstance(target, dict) else None
        if isinstance(target, dict):
            target[path[-1]] = value
    if drop is not None and len(drop) == 1:
        document.pop(drop[0], None)
    try:
        spec = JobSpec.model_validate_json(json.dumps(document, allow_nan=False), strict=True)
    except (ValidationError, ValueError):
        spec = None
    faults = find_faults(document)
    if spec is None or spec.dataset.name not in ("karate", "Cora"):  # no path that is drawn is absolute
        assert faults, document
    else:
        assert not faults, document


def test_own_files_want_an_absolute_path_because_the_nodes_stand_elsewhere() -> None:
    faults = find_faults({**job_document(), "dataset": {"path": "my/graph"}})
    assert [fault.pointer for fault in faults] == ["/dataset/path"]
    assert "absolute" in faults[0].fix
    assert find_faults({**job_document(), "dataset": {"path": "/data/my/graph"}}) == []
