"""A job's events as a stream."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from api.following import parse_events
from api.routes import events as route
from service.spec import JobState
from tests.kit.builders import job_spec
from tests.kit.live_api import LiveApi, wait_until

WHOLE_LIFE = ["PENDING", "PROFILING", "PLANNING", "SCHEDULING", "RUNNING", "FINISHED"]


def states(lines: list[str]) -> list[str]:
    return [event.data["state"] for event in parse_events(lines) if event.type == "state"]


def test_a_stream_tells_a_life_as_it_happens_and_ends_with_it(api: LiveApi, http: httpx.Client) -> None:
    job_id = api.store.create_job(job_spec())[0].id
    seen: list[str] = []
    with http.stream("GET", f"/v1/jobs/{job_id}/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.headers["cache-control"] == "no-cache"
        lines = stream.iter_lines()
        while states(seen) != ["PENDING"]:
            seen.append(next(lines))
        wait_until(lambda: api.cluster.submitted == [job_id])
        api.cluster.play(api.store, job_id)
        seen += list(lines)  # ends by itself
    assert states(seen) == WHOLE_LIFE


def test_a_stream_resumed_after_any_event_misses_and_repeats_nothing(api: LiveApi, http: httpx.Client) -> None:
    job_id = api.store.create_job(job_spec())[0].id
    wait_until(lambda: api.cluster.submitted == [job_id])
    api.cluster.play(api.store, job_id)
    logged = api.store.events_after(job_id)
    for place, event in enumerate(logged[:-1]):
        answer = http.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": str(event.id)})
        told = list(parse_events(answer.text.split("\n")))
        assert [item.id for item in told] == [later.id for later in logged[place + 1 :]]


def test_a_stream_resumed_after_the_end_says_do_not_come_back(api: LiveApi, http: httpx.Client) -> None:
    job_id = api.store.create_job(job_spec())[0].id
    wait_until(lambda: api.cluster.submitted == [job_id])
    api.cluster.play(api.store, job_id)
    api.store.set_progress(job_id, {"step": 9, "total_steps": 9})
    last = api.store.events_after(job_id)[-1].id
    assert http.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": str(last)}).status_code == 204


@pytest.mark.parametrize("event_id", ["x", "-1", "1.5", "9" * 30])
def test_an_odd_event_id_is_a_problem(api: LiveApi, http: httpx.Client, event_id: str) -> None:
    job_id = api.store.create_job(job_spec())[0].id
    answer = http.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": event_id})
    assert (answer.status_code, answer.json()["code"]) == (400, "event_id_invalid")


def test_a_quiet_stream_is_kept_open_with_comments(
    api: LiveApi, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "_PING_S", 0.0)
    job_id = api.store.create_job(job_spec(workers=100))[0].id
    with http.stream("GET", f"/v1/jobs/{job_id}/events") as stream:
        assert next(line for line in stream.iter_lines() if line.startswith(":")) == ": ping"


def test_progress_is_told_without_an_id(api: LiveApi, http: httpx.Client) -> None:
    job_id = api.store.create_job(job_spec())[0].id
    wait_until(lambda: api.cluster.submitted == [job_id])
    api.cluster.play(api.store, job_id, to=JobState.RUNNING)
    api.store.set_progress(job_id, {"step": 7, "total_steps": 9})
    with http.stream("GET", f"/v1/jobs/{job_id}/events") as stream:
        event = next(event for event in parse_events(stream.iter_lines()) if event.type == "progress")
    assert (event.id, event.data) == (None, {"step": 7, "total_steps": 9})


def test_too_many_streams_are_refused_and_closed_ones_make_room(api: LiveApi, http: httpx.Client) -> None:
    api.backend.settings = api.settings.model_copy(update={"max_streams": 1})
    job_id = api.store.create_job(job_spec(workers=100))[0].id
    with http.stream("GET", f"/v1/jobs/{job_id}/events") as stream:
        lines = stream.iter_lines()  # held, because dropping the iterator closes the stream
        next(lines)
        refused = http.get(f"/v1/jobs/{job_id}/events")
        assert (refused.status_code, refused.json()["code"]) == (503, "too_many_streams")
        assert "retry-after" in refused.headers
    wait_until(lambda: api.backend.streams == 0)
    with http.stream("GET", f"/v1/jobs/{job_id}/events") as stream:
        assert stream.status_code == 200


def test_the_limit_holds_for_many_who_come_at_once(api: LiveApi) -> None:
    api.backend.settings = api.settings.model_copy(update={"max_streams": 3})
    job_id = api.store.create_job(job_spec(workers=100))[0].id
    answered = threading.Barrier(20)

    def follow(_: int) -> int:
        with api.http() as client, client.stream("GET", f"/v1/jobs/{job_id}/events") as stream:
            answered.wait(30)  # nobody leaves before all were answered
            return stream.status_code

    with ThreadPoolExecutor(20) as pool:
        codes = sorted(pool.map(follow, range(20)))
    assert codes == [200] * 3 + [503] * 17
    wait_until(lambda: api.backend.streams == 0)


def test_a_service_that_ends_closes_its_streams_at_once(api: LiveApi, http: httpx.Client) -> None:
    job_id = api.store.create_job(job_spec(workers=100))[0].id
    ended = threading.Event()

    def follow() -> None:
        with http.stream("GET", f"/v1/jobs/{job_id}/events") as stream:
            list(stream.iter_lines())
        ended.set()

    thread = threading.Thread(target=follow)
    thread.start()
    wait_until(lambda: api.backend.streams == 1)
    began = time.monotonic()
    api.stop()
    assert ended.wait(10)
    assert time.monotonic() - began < 5
    thread.join()
    api.start()
