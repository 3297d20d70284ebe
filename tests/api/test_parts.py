"""Metrics, plan, logs and artifacts of a job over HTTP."""

import math
import os
import time
from pathlib import Path

import httpx
import pytest

from service.job_files import Artifact
from tests.kit.builders import job_spec, metric, two_rank_plan
from tests.kit.live_api import LiveApi
from workers.training.folder import Folder


@pytest.fixture
def job_id(api: LiveApi) -> str:
    return api.store.create_job(job_spec(workers=100))[0].id


def write(api: LiveApi, job_id: str, path: str, content: bytes) -> Path:
    file = Path(api.settings.job_uri(job_id)) / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def test_series_come_by_name_and_rank(api: LiveApi, http: httpx.Client, job_id: str) -> None:
    points = [metric(step, value=1 / step, rank=rank) for step in (1, 2) for rank in (0, 1)]
    api.store.add_metrics(job_id, [*points, metric(2, name="val_accuracy", value=0.5)])
    series = http.get(f"/v1/jobs/{job_id}/metrics").json()["series"]
    assert [(part["name"], part["rank"]) for part in series] == [("loss", 0), ("loss", 1), ("val_accuracy", 0)]
    assert (series[0]["steps"], series[0]["values"]) == ([1, 2], [1.0, 0.5])


def test_series_are_filtered_and_paged(api: LiveApi, http: httpx.Client, job_id: str) -> None:
    api.store.add_metrics(job_id, [metric(step, rank=rank) for step in range(4) for rank in (0, 1)])
    page = http.get(f"/v1/jobs/{job_id}/metrics", params={"rank": 1, "limit": 2}).json()
    assert (page["series"][0]["steps"], page["next_after_step"]) == ([0, 1], 1)
    rest = http.get(f"/v1/jobs/{job_id}/metrics", params={"rank": 1, "after_step": 1}).json()
    assert (rest["series"][0]["steps"], rest["next_after_step"]) == ([2, 3], None)
    assert http.get(f"/v1/jobs/{job_id}/metrics", params={"name": ["a", "b"]}).json()["series"] == []


def test_what_is_no_number_is_null(api: LiveApi, http: httpx.Client, job_id: str) -> None:
    api.store.add_metrics(job_id, [metric(1, value=math.nan), metric(2, value=math.inf)])
    assert http.get(f"/v1/jobs/{job_id}/metrics").json()["series"][0]["values"] == [None, None]


def test_a_file_that_is_removed_between_look_and_send_is_not_there(
    api: LiveApi, http: httpx.Client, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(api, job_id, "export/config.json", b"{}")
    plain = Artifact.read

    def remove_then_read(artifact: Artifact, begin: int, end: int) -> bytes:
        artifact.folder.remove()
        return plain(artifact, begin, end)

    monkeypatch.setattr(Artifact, "read", remove_then_read)
    answer = http.get(f"/v1/jobs/{job_id}/artifacts/export/config.json")
    assert (answer.status_code, answer.json()["code"]) == (404, "artifact_not_found")


def test_a_plan_comes_in_data_and_words_with_both_numbers(api: LiveApi, http: httpx.Client, job_id: str) -> None:
    early = http.get(f"/v1/jobs/{job_id}/plan")
    assert (early.status_code, early.json()["code"], early.json()["state"]) == (404, "not_planned", "PENDING")
    api.store.save_plan(job_id, two_rank_plan())
    api.store.add_metrics(job_id, [metric(1, name="step_time_s", value=0.03)])
    api.store.add_metrics(job_id, [metric(1, name="peak_memory_bytes", value=900_000, rank=1)])
    answer = http.get(f"/v1/jobs/{job_id}/plan").json()
    assert answer["plan"]["stages"][0]["cp_degree"] == 2
    assert "The graph is one" in answer["words"]
    assert answer["predicted"]["step_time_s"] == 0.02
    assert answer["measured"] == {"step_time_s": 0.03, "memory_bytes": {"1": 900_000}}


def test_a_log_is_read_on_from_where_the_last_piece_ended(api: LiveApi, http: httpx.Client, job_id: str) -> None:
    empty = http.get(f"/v1/jobs/{job_id}/logs")
    assert (empty.status_code, empty.text, empty.headers["graphmill-next-offset"]) == (200, "", "0")
    write(api, job_id, "logs/driver.log", b"one\ntwo\n")
    first = http.get(f"/v1/jobs/{job_id}/logs")
    assert (first.text, first.headers["graphmill-log-complete"]) == ("one\ntwo\n", "false")
    log = write(api, job_id, "logs/driver.log", b"one\ntwo\nthree\n")
    api.store.request_cancel(job_id)
    rest = http.get(f"/v1/jobs/{job_id}/logs", params={"offset": first.headers["graphmill-next-offset"]})
    assert (rest.text, rest.headers["graphmill-log-complete"]) == ("three\n", "false"), "the driver may say more"
    os.utime(log, (0, time.time() - 10))
    end = http.get(f"/v1/jobs/{job_id}/logs", params={"offset": rest.headers["graphmill-next-offset"]})
    assert (end.text, end.headers["graphmill-log-complete"]) == ("", "true")


def test_a_very_long_line_does_not_end_the_log(api: LiveApi, http: httpx.Client, job_id: str) -> None:
    content = ("é" * 5_000 + "\nafter\n").encode()
    write(api, job_id, "logs/driver.log", content)
    text, offset = "", 0
    while offset < len(content):
        piece = http.get(f"/v1/jobs/{job_id}/logs", params={"offset": offset, "limit": 1024})
        text, offset = text + piece.text, int(piece.headers["graphmill-next-offset"])
    assert text.encode() == content


def test_a_tail_gives_the_last_lines(api: LiveApi, http: httpx.Client, job_id: str) -> None:
    write(api, job_id, "logs/driver.log", b"one\ntwo\nthree\n")
    assert http.get(f"/v1/jobs/{job_id}/logs", params={"tail": 2}).text == "two\nthree\n"


def test_an_offset_beyond_the_log_is_a_problem(api: LiveApi, http: httpx.Client, job_id: str) -> None:
    answer = http.get(f"/v1/jobs/{job_id}/logs", params={"offset": 5})
    assert (answer.status_code, answer.json()["code"]) == (416, "log_offset_beyond_end")


def test_artifacts_are_listed_and_downloaded(api: LiveApi, http: httpx.Client, job_id: str) -> None:
    write(api, job_id, "export/model.safetensors", b"weights")
    write(api, job_id, "export/with space & more.json", b"{}")
    write(api, job_id, "export/config.json", b"{}")
    write(api, job_id, "checkpoints/step-00000001/rank-00000.pt", b"half")
    items = http.get(f"/v1/jobs/{job_id}/artifacts").json()["items"]
    names = ["config.json", "model.safetensors", "with space & more.json"]
    assert [item["path"] for item in items] == [f"export/{name}" for name in names]
    assert [http.get(item["href"]).content for item in items] == [b"{}", b"weights", b"{}"]
    part = http.get(items[1]["href"], headers={"Range": "bytes=2-"})
    assert (part.status_code, part.content) == (206, b"ights")


@pytest.mark.parametrize("asked", ["bytes=7-", "bytes=5-2", "bytes=x-y", "lines=1-2", "bytes"])
def test_a_range_that_is_not_there_is_a_problem(api: LiveApi, http: httpx.Client, job_id: str, asked: str) -> None:
    write(api, job_id, "export/config.json", b"weights")
    answer = http.get(f"/v1/jobs/{job_id}/artifacts/export/config.json", headers={"Range": asked})
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, answer.json()["code"]) == (416, "range_not_satisfiable")
    assert answer.headers["content-range"] == "bytes */7"


@pytest.mark.parametrize(
    ("asked", "status", "content", "told"),
    [
        ("bytes=0-2", 206, b"wei", "bytes 0-2/7"),
        ("bytes=5-99", 206, b"ts", "bytes 5-6/7"),
        ("bytes=-3", 206, b"hts", "bytes 4-6/7"),
        ("bytes=-99", 206, b"weights", "bytes 0-6/7"),
        ("bytes=0-1,3-4", 200, b"weights", None),
    ],
)
def test_a_range_is_served_as_it_is_asked(
    api: LiveApi, http: httpx.Client, job_id: str, asked: str, status: int, content: bytes, told: str | None
) -> None:
    write(api, job_id, "export/config.json", b"weights")
    answer = http.get(f"/v1/jobs/{job_id}/artifacts/export/config.json", headers={"Range": asked})
    assert (answer.status_code, answer.content, answer.headers.get("content-range")) == (status, content, told)


def test_artifacts_and_log_come_from_behind_a_uri_too(tmp_path: Path) -> None:
    behind = LiveApi(tmp_path, storage="memory://behind-a-uri")
    try:
        job_id, http = behind.store.create_job(job_spec(workers=100))[0].id, behind.http()
        job = Folder(behind.settings.job_uri(job_id))
        (job / "export").write("config.json", b"weights")
        (job / "logs").write(f"driver-{0:016d}.log", b"one\n")
        (job / "logs").write(f"driver-{4:016d}.log", b"two\n")
        listed = http.get(f"/v1/jobs/{job_id}/artifacts").json()
        assert listed["directory"] == job.uri
        assert http.get(listed["items"][0]["href"]).content == b"weights"
        assert http.get(f"/v1/jobs/{job_id}/logs").text == "one\ntwo\n"
        http.close()
    finally:
        behind.close()


@pytest.mark.parametrize("asked", [{"after_step": 10**30}, {"after_step": 2**63}, {"rank": 2**31}, {"rank": -1}])
def test_numbers_that_no_column_holds_are_problems(http: httpx.Client, job_id: str, asked: dict[str, int]) -> None:
    answer = http.get(f"/v1/jobs/{job_id}/metrics", params=asked)
    assert (answer.status_code, answer.json()["code"]) == (422, "request_invalid")


@pytest.mark.parametrize(
    "path", ["..%2f..%2f..%2fapi_key", "%2e%2e/%2e%2e/%2e%2e/api_key", "export%2f..%2f..%2f..%2f..%2fapi_key", "x"]
)
def test_nothing_outside_the_artifacts_can_be_downloaded(
    api: LiveApi, http: httpx.Client, job_id: str, path: str
) -> None:
    write(api, job_id, "export/config.json", b"{}")
    answer = http.get(f"/v1/jobs/{job_id}/artifacts/{path}")
    assert answer.status_code == 404
    assert b"gmk_" not in answer.content
