"""Submit, list, show, cancel over HTTP."""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from planner.cluster import ClusterSpec
from service.cluster import ClusterUnreachableError
from service.spec import JobState
from service.states import TERMINAL
from service.store.records import Reason
from tests.kit.builders import job_document, job_spec
from tests.kit.live_api import LiveApi, wait_until
from tests.service.test_validation import TEN_FAULTS, TEN_POINTERS


def code_of(answer: httpx.Response) -> str:
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == answer.status_code
    assert problem["type"] == f"urn:graphmill:problem:{problem['code']}"
    assert problem["title"]
    assert problem["instance"].startswith("/")
    return str(problem["code"])


def test_an_accepted_job_is_in_the_database_and_where_location_says(api: LiveApi, http: httpx.Client) -> None:
    answer = http.post("/v1/jobs", json=job_document(name="mine"))
    assert answer.status_code == 202
    job = answer.json()
    assert api.store.get_job(job["id"]).spec.name == "mine"
    assert http.get(answer.headers["Location"]).json()["id"] == job["id"]
    assert job["state"] == "PENDING"
    assert job["waiting"]["position"] == 1


def test_ten_faults_get_one_answer_with_ten_pointers(http: httpx.Client) -> None:
    answer = http.post("/v1/jobs", content=json.dumps(TEN_FAULTS), headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert code_of(answer) == "spec_invalid"
    errors = answer.json()["errors"]
    assert [error["pointer"] for error in errors] == TEN_POINTERS
    assert all(error["detail"] and error["fix"] for error in errors)


@pytest.mark.parametrize(
    ("content", "media_type", "status", "code"),
    [
        (b"{not json", "application/json", 400, "malformed_json"),
        (b'{"name": "a", "name": "b"}', "application/json", 400, "malformed_json"),
        (b"\xff\xfe", "application/json", 400, "malformed_json"),
        (b"", "application/json", 400, "malformed_json"),
        (b"[" * 100_000, "application/json", 400, "malformed_json"),
        (b'{"a": ' + b"1" * 10_000 + b"}", "application/json", 400, "malformed_json"),
        (b"name: a", "application/yaml", 415, "unsupported_media_type"),
        (b"{}", "", 415, "unsupported_media_type"),
        (b"[]", "application/json", 422, "spec_invalid"),
        (b"{}", "application/merge-patch+json; charset=utf-8", 422, "spec_invalid"),
        (b" " * 1_100_000, "application/json", 413, "body_too_large"),
    ],
)
def test_bad_bodies_are_problems(http: httpx.Client, content: bytes, media_type: str, status: int, code: str) -> None:
    answer = http.post("/v1/jobs", content=content, headers={"content-type": media_type})
    assert (answer.status_code, code_of(answer)) == (status, code)


def test_many_keys_of_which_one_is_twice_are_read_in_one_pass(http: httpx.Client) -> None:
    pairs = ",".join(f'"k{number}":1' for number in range(50_000))
    began = time.monotonic()
    answer = http.post(
        "/v1/jobs", content=f'{{{pairs},"k49999":2}}'.encode(), headers={"content-type": "application/json"}
    )
    assert (answer.status_code, code_of(answer)) == (400, "malformed_json")
    assert "k49999" in answer.json()["detail"]
    assert time.monotonic() - began < 5, "comparing each with each takes most of a minute"


def test_a_body_without_a_declared_length_is_limited_too(http: httpx.Client) -> None:
    answer = http.post("/v1/jobs", content=iter([b" " * 600_000] * 3), headers={"content-type": "application/json"})
    assert (answer.status_code, code_of(answer)) == (413, "body_too_large")
    assert "the limit is 1048576" in answer.json()["detail"]


def test_unknown_addresses_and_methods_are_problems(http: httpx.Client) -> None:
    missing, wrong = http.get("/v1/nothing"), http.delete("/v1/jobs")
    assert (missing.status_code, code_of(missing)) == (404, "route_not_found")
    assert (wrong.status_code, code_of(wrong)) == (405, "method_not_allowed")
    assert "GET" in wrong.headers["allow"] or "POST" in wrong.headers["allow"]


@pytest.mark.parametrize("method_and_path", ["GET ", "GET /events", "GET /metrics", "GET /logs", "POST /cancel"])
def test_an_unknown_job_is_a_problem(http: httpx.Client, method_and_path: str) -> None:
    method, _, path = method_and_path.partition(" ")
    answer = http.request(method, f"/v1/jobs/job-none{path}")
    assert (answer.status_code, code_of(answer)) == (404, "job_not_found")


def test_a_key_makes_one_job_and_a_second_spec_is_a_conflict(http: httpx.Client) -> None:
    headers = {"Idempotency-Key": "mine-1"}
    first = http.post("/v1/jobs", json=job_document(), headers=headers)
    again = http.post("/v1/jobs", json=job_document(), headers=headers)
    other = http.post("/v1/jobs", json=job_document(name="other"), headers=headers)
    assert first.json()["id"] == again.json()["id"]
    assert (other.status_code, code_of(other)) == (409, "idempotency_key_reused")


def test_a_key_sent_by_many_at_once_makes_one_job(api: LiveApi, http: httpx.Client) -> None:
    def submit(_: int) -> httpx.Response:
        return http.post("/v1/jobs", json=job_document(), headers={"Idempotency-Key": "same"})

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(submit, range(8)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(api.store.list_jobs().items) == 1


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, "é"])
def test_an_odd_key_is_a_problem(http: httpx.Client, key: str) -> None:
    answer = http.post("/v1/jobs", json=job_document(), headers={"Idempotency-Key": key.encode()})
    assert (answer.status_code, code_of(answer)) == (422, "request_invalid")
    assert answer.json()["errors"][0]["pointer"] == "/header/idempotency-key"


def test_pages_give_every_job_once(http: httpx.Client) -> None:
    ids = [http.post("/v1/jobs", json=job_document()).json()["id"] for _ in range(7)]
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = http.get("/v1/jobs", params={"limit": 3, **cursor}).json()
        seen += [job["id"] for job in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert seen == ids[::-1]


def test_lists_are_filtered_by_state(api: LiveApi, http: httpx.Client) -> None:
    kept = http.post("/v1/jobs", json=job_document()).json()["id"]
    gone = http.post("/v1/jobs", json=job_document(resources={"num_workers": 100})).json()["id"]
    http.post(f"/v1/jobs/{gone}/cancel")
    assert [job["id"] for job in http.get("/v1/jobs", params={"state": "CANCELLED"}).json()["items"]] == [gone]
    assert kept in [job["id"] for job in http.get("/v1/jobs").json()["items"]]


@pytest.mark.parametrize(
    ("params", "status", "code"),
    [
        ({"cursor": "nonsense"}, 400, "cursor_invalid"),
        ({"limit": 0}, 422, "request_invalid"),
        ({"limit": "many"}, 422, "request_invalid"),
        ({"state": "SLEEPING"}, 422, "request_invalid"),
    ],
)
def test_odd_parameters_are_problems(http: httpx.Client, params: dict[str, str], status: int, code: str) -> None:
    answer = http.get("/v1/jobs", params=params)
    assert (answer.status_code, code_of(answer)) == (status, code)


def test_a_job_that_waits_says_why_in_numbers(api: LiveApi, http: httpx.Client) -> None:
    document = job_document(resources={"num_workers": 2, "gpus_per_worker": 4})
    job_id = http.post("/v1/jobs", json=document).json()["id"]
    wait_until(lambda: http.get(f"/v1/jobs/{job_id}").json()["waiting"]["code"] == "never_fits")
    waiting = http.get(f"/v1/jobs/{job_id}").json()["waiting"]
    assert waiting["reason"] == "asked 8 GPUs, the cluster has 0"
    assert (waiting["asked"]["gpus"], waiting["available"]["gpus"], waiting["position"]) == (8, 0, 1)


def test_a_whole_life_is_told_with_times_and_reasons(api: LiveApi, http: httpx.Client) -> None:
    job_id = http.post("/v1/jobs", json=job_document()).json()["id"]
    wait_until(lambda: api.cluster.submitted == [job_id])
    api.cluster.play(api.store, job_id)
    job = http.get(f"/v1/jobs/{job_id}").json()
    assert [move["target"] for move in job["transitions"]] == [
        "PENDING",
        "PROFILING",
        "PLANNING",
        "SCHEDULING",
        "RUNNING",
        "FINISHED",
    ]
    assert all(move["at"].endswith("Z") for move in job["transitions"])
    assert job["result"] == {"test_accuracy": 0.8}
    assert job["waiting"] is None


def test_cancelling_twice_is_accepted_and_after_the_end_it_is_a_conflict(api: LiveApi, http: httpx.Client) -> None:
    job_id = http.post("/v1/jobs", json=job_document(resources={"num_workers": 100})).json()["id"]
    answers = [http.post(f"/v1/jobs/{job_id}/cancel") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 202]
    assert {answer.json()["state"] for answer in answers} == {"CANCELLED"}
    done = http.post("/v1/jobs", json=job_document()).json()["id"]
    wait_until(lambda: api.cluster.submitted == [done])
    api.cluster.play(api.store, done)
    refused = http.post(f"/v1/jobs/{done}/cancel")
    assert (refused.status_code, code_of(refused)) == (409, "job_ended")
    assert refused.json()["state"] == "FINISHED"


def test_a_running_job_is_cancelled_by_its_driver(api: LiveApi, http: httpx.Client) -> None:
    job_id = http.post("/v1/jobs", json=job_document()).json()["id"]
    wait_until(lambda: api.cluster.submitted == [job_id])
    api.cluster.play(api.store, job_id, to=JobState.RUNNING)
    job = http.post(f"/v1/jobs/{job_id}/cancel").json()
    assert job["state"] == "RUNNING"
    assert job["cancel_requested_at"] is not None


@pytest.mark.parametrize("state", [state for state in JobState if state not in TERMINAL])
def test_a_cancel_is_acknowledged_within_a_second_although_the_cluster_hangs(
    api: LiveApi, http: httpx.Client, monkeypatch: pytest.MonkeyPatch, state: JobState
) -> None:
    job_id = http.post("/v1/jobs", json=job_document()).json()["id"]
    wait_until(lambda: api.cluster.submitted == [job_id])
    if state is not JobState.PENDING:
        api.cluster.play(api.store, job_id, to=JobState.RUNNING if state is JobState.RESTARTING else state)
    if state is JobState.RESTARTING:
        api.store.restart(job_id, Reason(code="worker_died", text="rank 1 died"))
    hung, released = threading.Event(), threading.Event()

    def hang() -> ClusterSpec:
        hung.set()
        released.wait(10)
        raise ClusterUnreachableError("it hangs")

    monkeypatch.setattr(api.cluster, "shape", hang)
    try:
        assert hung.wait(10)
        answer = http.post(f"/v1/jobs/{job_id}/cancel")
    finally:
        released.set()
    assert (answer.status_code, answer.json()["state"]) == (202, state)
    assert answer.elapsed.total_seconds() < 1


def test_lists_answer_whatever_the_cluster_does(api: LiveApi, http: httpx.Client) -> None:
    for _ in range(30):
        api.store.create_job(job_spec())
    with api.cluster.unreachable():
        answer = http.get("/v1/jobs")
        assert answer.status_code == 200
        assert answer.elapsed.total_seconds() < 1


def test_a_silent_driver_makes_its_job_stale(api: LiveApi, http: httpx.Client) -> None:
    job_id = api.store.create_job(job_spec())[0].id
    api.store.set_submission(job_id, job_id)
    api.cluster.play(api.store, job_id, to=JobState.RUNNING)
    assert http.get(f"/v1/jobs/{job_id}").json()["stale"] is False
    api.backend.jobs.settings = api.settings.model_copy(update={"stale_after_s": 1e-6})
    assert http.get(f"/v1/jobs/{job_id}").json()["stale"] is True


def test_a_full_queue_asks_for_patience(api: LiveApi, http: httpx.Client) -> None:
    api.backend.jobs.settings = api.settings.model_copy(update={"max_pending_jobs": 1})
    document = job_document(resources={"num_workers": 100})
    assert http.post("/v1/jobs", json=document).status_code == 202
    answer = http.post("/v1/jobs", json=document)
    assert (answer.status_code, code_of(answer)) == (429, "queue_full")
    assert int(answer.headers["Retry-After"]) > 0


def raw_submission(api: LiveApi) -> tuple[bytes, bytes]:
    """Head and body of a submission, to be sent by hand."""
    body = json.dumps(job_document()).encode()
    lines = (
        "POST /v1/jobs HTTP/1.1",
        "Host: graphmill",
        f"Authorization: Bearer {api.key}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join([*lines, "", ""]).encode(), body


def test_a_job_goes_its_way_although_its_client_hung_up(api: LiveApi, monkeypatch: pytest.MonkeyPatch) -> None:
    storing, hung_up, plain = threading.Event(), threading.Event(), api.store.create_job

    def create_slowly(*args: Any, **kwargs: Any) -> Any:
        storing.set()
        hung_up.wait(20)
        return plain(*args, **kwargs)

    monkeypatch.setattr(api.store, "create_job", create_slowly)
    with socket.create_connection(("127.0.0.1", api.port)) as connection:
        connection.sendall(b"".join(raw_submission(api)))
        assert storing.wait(20)
    hung_up.set()
    wait_until(lambda: api.cluster.submitted)
    assert [job.id for job in api.store.list_jobs().items] == api.cluster.submitted


def test_a_client_that_hangs_up_in_mid_request_leaves_nothing(
    api: LiveApi, http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    head, body = raw_submission(api)
    with socket.create_connection(("127.0.0.1", api.port)) as connection:
        connection.sendall(head + body[:10])
    assert http.get("/v1/jobs").json()["items"] == []
    assert not caplog.records
