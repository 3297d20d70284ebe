"""Cluster, data sets, health, and the description of the API."""

import subprocess
import sys
import threading

import httpx
import pytest

from api.app import create_app
from api.errors import PROBLEMS
from tests.kit.builders import job_spec
from tests.kit.live_api import LiveApi, wait_until


def test_the_cluster_is_shown_with_what_is_promised(api: LiveApi, http: httpx.Client) -> None:
    job_id = api.store.create_job(job_spec(workers=3))[0].id
    wait_until(lambda: api.cluster.submitted == [job_id])
    cluster = http.get("/v1/cluster").json()
    assert cluster["reachable"]
    assert (cluster["num_cpus"], cluster["promised_cpus"]) == (4, 3)
    assert cluster["nodes"][0]["address"] == "10.0.0.1"
    assert cluster["dashboard_url"] == "http://fake-dashboard"


def test_an_unreachable_cluster_is_shown_as_last_seen(api: LiveApi, http: httpx.Client) -> None:
    wait_until(lambda: api.backend.loop.dispatcher.view.reachable)
    with api.cluster.unreachable():
        wait_until(lambda: not api.backend.loop.dispatcher.view.reachable)
        cluster = http.get("/v1/cluster").json()
        ready = http.get("/readyz")
    assert (cluster["reachable"], cluster["num_cpus"]) == (False, 4)
    assert "cut off" in cluster["fault"]
    assert ready.status_code == 503
    assert [name for name, check in ready.json()["checks"].items() if not check["ok"]] == ["cluster"]
    wait_until(lambda: http.get("/readyz").status_code == 200)


def test_readiness_walks_the_path_of_work(api: LiveApi, http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_until(lambda: http.get("/readyz").status_code == 200)

    def full_disk(*_: object, **__: object) -> bool:
        raise OSError("no space left")

    monkeypatch.setattr(api.store, "take_lease", full_disk)
    monkeypatch.setattr("api.readiness._FRESH_S", 0.0)
    checks = http.get("/readyz").json()["checks"]
    assert not checks["database"]["ok"]
    assert http.get("/livez").status_code == 200


def test_readiness_answers_although_the_database_hangs(
    api: LiveApi, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    monkeypatch.setattr("api.readiness._PATIENCE_S", 0.2)
    monkeypatch.setattr(api.store, "take_lease", lambda *_, **__: release.wait(20))
    answer = http.get("/readyz")
    release.set()
    assert answer.status_code == 503
    assert "no answer" in answer.json()["checks"]["database"]["detail"]


def test_many_askers_cost_the_database_one_write_a_second(
    api: LiveApi, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[str] = []
    monkeypatch.setattr("api.readiness._FRESH_S", 1_000.0)
    monkeypatch.setattr(api.store, "take_lease", lambda name, **_: writes.append(name))
    for _ in range(20):
        assert http.get("/readyz").json()["checks"]["database"]["ok"]
    assert writes.count("readiness") == 1


def test_data_sets_are_listed_with_where_they_come_from(http: httpx.Client) -> None:
    items = {item["name"]: item for item in http.get("/v1/datasets").json()["items"]}
    assert items["karate"]["is_found"]
    assert "Cora" in items


def test_a_fault_of_ours_is_a_problem_without_its_secrets(
    api: LiveApi, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr(api.store, "list_jobs", broken)
    answer = http.get("/v1/jobs")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert "hunter2" not in answer.text


SCHEMA = create_app().openapi()
OPERATIONS = [
    (f"{method.upper()} {path}", operation)
    for path, methods in SCHEMA["paths"].items()
    for method, operation in methods.items()
]


@pytest.mark.parametrize(("name", "operation"), OPERATIONS, ids=[name for name, _ in OPERATIONS])
def test_every_route_is_described_whole(name: str, operation: dict[str, object]) -> None:
    assert operation["summary"]
    assert operation["description"]
    responses = operation["responses"]
    assert isinstance(responses, dict)
    success = next(answer for status, answer in responses.items() if status.startswith("2"))
    assert success.get("content") or name.startswith("POST"), "what comes back is described"
    if name.split()[1].startswith("/v1"):
        assert "401" in responses
        assert all("application/problem+json" in responses[s]["content"] for s in responses if s >= "400")


def test_the_description_has_no_loose_ends() -> None:
    text = str(SCHEMA)
    names = set(SCHEMA["components"]["schemas"])
    used = {part.split("'")[0] for part in text.split("#/components/schemas/")[1:]}
    assert used <= names
    assert "HTTPValidationError" not in text
    assert SCHEMA["paths"]["/v1/jobs"]["post"]["requestBody"]["required"]
    assert "name" in SCHEMA["components"]["schemas"]["JobSpec"]["required"]
    assert "training" not in SCHEMA["components"]["schemas"]["JobSpec"]["required"]


def test_every_problem_that_a_route_names_has_a_status_of_its_kind() -> None:
    assert all(400 <= kind.status < 600 and kind.title for kind in PROBLEMS.values())


@pytest.mark.parametrize("module", ["api.main", "api.app", "api.cli", "api.client"])
def test_no_door_imports_torch_or_ray(module: str) -> None:
    code = f"import sys, {module}; sys.exit(' '.join(m for m in ('torch', 'ray') if m in sys.modules) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
