"""The Python client, also over connections and services that break."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api import transport
from api.auth import ensure_api_key, read_api_key
from api.client import GraphmillClient
from api.client_errors import DownloadRefusedError, RequestRefusedError, ServiceUnreachableError, WaitTimeoutError
from api.connection import NoApiKeyError, find_connection
from api.following import FollowedEvent, parse_events
from api.routes import events as route
from api.schemas.parts import ArtifactView
from api.server_state import remove_server_state, write_server_state
from api.transport import Pauses, check
from service.settings import Settings
from service.spec import JobState
from tests.kit.builders import job_document, job_spec, metric
from tests.kit.live_api import LiveApi, wait_until

WHOLE_LIFE = ["PENDING", "PROFILING", "PLANNING", "SCHEDULING", "RUNNING", "FINISHED"]


@pytest.fixture
def client(api: LiveApi) -> Iterator[GraphmillClient]:
    with GraphmillClient(api.url, api.key, settings=api.settings, patience_s=20) as client:
        yield client


def started(api: LiveApi, client: GraphmillClient) -> str:
    job_id = client.submit(job_document()).id
    wait_until(lambda: job_id in api.cluster.submitted)
    return job_id


def test_a_job_is_submitted_shown_and_waited_for(api: LiveApi, client: GraphmillClient) -> None:
    job_id = started(api, client)
    assert client.job(job_id).state is JobState.PENDING
    api.cluster.play(api.store, job_id)
    job = client.wait(job_id, timeout_s=10)
    assert (job.state, job.result) == (JobState.FINISHED, {"test_accuracy": 0.8})
    assert [move.target for move in job.transitions] == WHOLE_LIFE


def test_a_spec_may_be_a_value(client: GraphmillClient) -> None:
    assert client.submit(job_spec(name="as-value")).spec == job_spec(name="as-value")


def test_a_bad_spec_raises_with_every_fault(client: GraphmillClient) -> None:
    with pytest.raises(RequestRefusedError) as caught:
        client.submit(job_document(name="-", training={"learning_rate": float("nan")}))
    assert [fault.pointer for fault in caught.value.problem.errors] == ["/name", "/training/learning_rate"]


def test_one_call_makes_one_job_although_its_answer_is_lost(
    api: LiveApi, client: GraphmillClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, lost = client._transport._http.request, [True]

    def lose_first(*args: object, **kwargs: object) -> httpx.Response:
        answer = plain(*args, **kwargs)  # type: ignore[arg-type]
        if lost:
            lost.clear()
            raise httpx.ReadError("the answer was lost")
        return answer

    monkeypatch.setattr(client._transport._http, "request", lose_first)
    job = client.submit(job_document())
    assert [record.id for record in api.store.list_jobs().items] == [job.id]


def test_all_pages_of_jobs_are_one_list(client: GraphmillClient) -> None:
    ids = [client.submit(job_document()).id for _ in range(5)]
    assert [job.id for job in client.jobs(page_size=2)] == ids[::-1]
    assert list(client.jobs(state=JobState.FAILED)) == []


def test_following_survives_a_service_that_is_killed_and_served_again(api: LiveApi, client: GraphmillClient) -> None:
    job_id = started(api, client)
    events: list[FollowedEvent] = []
    done = threading.Event()

    def follow() -> None:
        events.extend(client.follow(job_id))
        done.set()

    thread = threading.Thread(target=follow)
    thread.start()
    wait_until(lambda: api.backend.streams == 1)
    api.stop()
    api.cluster.play(api.store, job_id, to=JobState.RUNNING)
    api.start()
    wait_until(lambda: api.backend.streams == 1)
    api.stop()
    api.cluster.end(job_id, state=api.cluster.runs[job_id].state)
    api.store.move(job_id, JobState.FINISHED)
    api.start()
    assert done.wait(20)
    thread.join()
    logged = [event for event in events if event.id is not None]
    assert [event.data["state"] for event in logged if event.type == "state"] == WHOLE_LIFE
    assert len({event.id for event in logged}) == len(logged)
    assert events[-1].final_state is JobState.FINISHED


def test_following_again_after_the_end_ends(api: LiveApi, client: GraphmillClient) -> None:
    job_id = started(api, client)
    api.cluster.play(api.store, job_id)
    api.store.set_progress(job_id, {"step": 9, "total_steps": 9})
    last = list(client.follow(job_id))[-1]
    assert last.id is not None
    assert list(client.follow(job_id, after=last.id)) == []


def test_following_a_service_that_stays_away_is_an_error_never_an_end(api: LiveApi) -> None:
    with GraphmillClient(api.url, api.key, settings=api.settings, patience_s=0.3) as client:
        job_id = started(api, client)
        stream = client.follow(job_id)
        next(stream)
        api.stop()
        with pytest.raises(ServiceUnreachableError, match="graphmill serve"):
            list(stream)
    api.start()


def test_a_quiet_stream_between_two_blips_is_an_answer(api: LiveApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route, "_PING_S", 0.0)
    now = [0.0]
    monkeypatch.setattr(transport, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep))
    with GraphmillClient(api.url, api.key, settings=api.settings, patience_s=60) as client:
        job_id = started(api, client)
        api.cluster.play(api.store, job_id, to=JobState.PROFILING)
        told: list[FollowedEvent] = []
        thread = threading.Thread(target=lambda: told.extend(client.follow(job_id)))
        thread.start()
        for _ in range(3):
            wait_until(lambda: api.backend.streams == 1)
            api.stop()
            api.start()
            wait_until(lambda: api.backend.streams == 1)
            now[0] += 3_600
        assert thread.is_alive()
        api.store.move(job_id, JobState.FAILED)
        thread.join(20)
    assert told[-1].final_state is JobState.FAILED


def test_following_an_unknown_job_is_refused(client: GraphmillClient) -> None:
    with pytest.raises(RequestRefusedError, match="job-none"):
        list(client.follow("job-none"))


def test_a_name_with_slashes_stays_one_name(client: GraphmillClient) -> None:
    with pytest.raises(RequestRefusedError) as caught:
        client.job("../cluster")
    assert caught.value.problem.code in ("job_not_found", "route_not_found")


def test_waiting_gives_up_in_time_and_the_job_goes_on(api: LiveApi, client: GraphmillClient) -> None:
    job_id = started(api, client)
    with pytest.raises(WaitTimeoutError, match="goes on"):
        client.wait(job_id, timeout_s=0)
    assert not api.store.get_job(job_id).ended


def test_series_come_whole_over_pages(api: LiveApi, client: GraphmillClient) -> None:
    job_id = started(api, client)
    api.store.add_metrics(job_id, [metric(step, rank=rank) for step in range(6_000) for rank in (0, 1)])
    series = client.metrics(job_id, names=["loss"])
    assert [(part.rank, part.steps) for part in series] == [(rank, tuple(range(6_000))) for rank in (0, 1)]
    assert client.metrics(job_id, ranks=[1])[0].rank == 1


def test_a_followed_log_is_whole_and_ends_with_the_job(api: LiveApi, client: GraphmillClient) -> None:
    job_id = started(api, client)
    log = Path(api.settings.job_uri(job_id)) / "logs" / "driver.log"
    log.parent.mkdir(parents=True)
    pieces: list[str] = []
    done = threading.Event()

    def follow() -> None:
        pieces.extend(client.logs(job_id, follow=True))
        done.set()

    thread = threading.Thread(target=follow)
    thread.start()  # before there is a log: it waits
    log.write_text("one\n")
    wait_until(lambda: pieces)
    with log.open("a") as stream:
        stream.write("x" * 300_000 + "\nlast\n")
    api.cluster.play(api.store, job_id)
    assert done.wait(20)
    thread.join()
    assert "".join(pieces) == log.read_text()


def test_a_log_is_read_to_its_present_end(api: LiveApi, client: GraphmillClient) -> None:
    job_id = started(api, client)
    assert list(client.logs(job_id)) == []
    log = Path(api.settings.job_uri(job_id)) / "logs" / "driver.log"
    log.parent.mkdir(parents=True)
    log.write_text("one\ntwo\n")
    assert "".join(client.logs(job_id)) == "one\ntwo\n"
    assert "".join(client.logs(job_id, tail=1)) == "two\n"


def test_the_export_is_downloaded_whole(api: LiveApi, client: GraphmillClient, tmp_path: Path) -> None:
    job_id = started(api, client)
    for path in ("export/model.safetensors", "export/config.json", "checkpoints/step-00000001/manifest.json"):
        file = Path(api.settings.job_uri(job_id)) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(path)
    files = client.download(job_id, tmp_path / "out")
    assert sorted(file.name for file in files) == ["config.json", "model.safetensors"]
    assert (tmp_path / "out" / "model.safetensors").read_text() == "export/model.safetensors"
    assert not list((tmp_path / "out").glob("*.part"))
    assert len(client.download(job_id, tmp_path / "all", prefix="")) == 3


@pytest.fixture
def exported(api: LiveApi, client: GraphmillClient) -> str:
    job_id = started(api, client)
    file = Path(api.settings.job_uri(job_id)) / "export" / "config.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"weights" * 50_000)
    return job_id


def test_a_download_that_breaks_begins_anew(
    client: GraphmillClient, exported: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, broken = httpx.Response.iter_bytes, [True]

    def break_once(response: httpx.Response) -> Iterator[bytes]:
        if broken and response.url.path.endswith("config.json"):
            broken.clear()
            yield b"something else"
            raise httpx.ReadError("the connection broke")
        yield from plain(response)

    monkeypatch.setattr(httpx.Response, "iter_bytes", break_once)
    (file,) = client.download(exported, tmp_path / "out")
    assert file.read_bytes() == b"weights" * 50_000
    assert not broken


def test_a_file_that_was_removed_since_it_was_listed_is_left_out_with_a_warning(
    client: GraphmillClient,
    exported: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    listing = client.artifacts(exported)
    gone = ArtifactView(
        path="checkpoints/step-00000001/manifest.json",
        size_bytes=1,
        modified_at="2026-11-29T00:00:00Z",  # type: ignore[arg-type]
        href=f"/v1/jobs/{exported}/artifacts/checkpoints/step-00000001/manifest.json",
    )
    known = listing.model_copy(update={"items": (gone, *listing.items)})
    monkeypatch.setattr(client, "artifacts", lambda _: known)
    files = client.download(exported, tmp_path / "out", prefix="")
    assert [file.name for file in files] == ["config.json"]
    assert "step-00000001" in caplog.text


def test_a_download_from_a_service_that_is_gone_leaves_nothing(
    api: LiveApi, exported: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = httpx.Response.iter_bytes

    def broken(response: httpx.Response) -> Iterator[bytes]:
        if not response.url.path.endswith("config.json"):
            yield from plain(response)
            return
        yield b"half"
        raise httpx.ReadError("the connection broke")

    monkeypatch.setattr(httpx.Response, "iter_bytes", broken)
    with (
        GraphmillClient(api.url, api.key, settings=api.settings, patience_s=0.2) as client,
        pytest.raises(ServiceUnreachableError),
    ):
        client.download(exported, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", ""])
def test_a_download_never_leaves_its_folder(client: GraphmillClient, tmp_path: Path, name: str) -> None:
    artifact = ArtifactView(path=name, size_bytes=1, modified_at="2026-11-29T00:00:00Z", href="/livez")  # type: ignore[arg-type]
    with pytest.raises(DownloadRefusedError):
        client._download(artifact, tmp_path / "out", name)


def test_cancel_cluster_and_data_sets(api: LiveApi, client: GraphmillClient) -> None:
    assert client.cancel(client.submit(job_document(resources={"num_workers": 99})).id).state is JobState.CANCELLED
    wait_until(lambda: client.cluster().reachable)
    assert client.cluster().num_cpus == 4
    assert any(item.name == "karate" for item in client.datasets())


def test_address_and_key_are_found_where_the_server_left_them(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, port=1234)
    with pytest.raises(NoApiKeyError, match="graphmill serve"):
        find_connection(settings)
    key_file = tmp_path / "api_key"
    key_file.touch(mode=0o600)
    key_file.write_text("the-key\n")
    assert find_connection(settings).url == "http://127.0.0.1:1234"
    write_server_state(settings, url="http://127.0.0.1:5678")
    assert find_connection(settings).url == "http://127.0.0.1:5678"
    remove_server_state(settings)
    assert find_connection(settings).url == "http://127.0.0.1:1234"
    elsewhere = Settings(home=tmp_path, url="http://far:80/", api_key="another-key-of-mine")
    assert (found := find_connection(elsewhere)).url == "http://far:80"
    assert found.api_key == "another-key-of-mine"
    assert find_connection(elsewhere, url="http://here", api_key="k").api_key == "k"


@pytest.mark.parametrize(
    ("url", "is_sent"), [("http://far.example", False), ("http://localhost:9", True), ("http://10.1.2.3:8421", True)]
)
def test_the_key_of_this_machine_is_not_sent_elsewhere(tmp_path: Path, url: str, is_sent: bool) -> None:
    settings = Settings(home=tmp_path, url=url)
    ensure_api_key(settings)
    write_server_state(settings, url="http://10.1.2.3:8421")  # this machine, under the address that it listens on
    if is_sent:
        assert find_connection(settings).api_key == read_api_key(settings)
    else:
        with pytest.raises(NoApiKeyError, match="no API key for http://far"):
            find_connection(settings)


def test_an_address_that_is_none_is_not_waited_for(api: LiveApi) -> None:
    with (
        GraphmillClient("far.example:80", api.key, settings=api.settings, patience_s=1_000) as client,
        pytest.raises(ServiceUnreachableError, match="GRAPHMILL_URL"),
    ):
        client.cluster()


def test_a_stranger_on_the_port_is_not_mistaken_for_the_service() -> None:
    answer = httpx.Response(404, text="<html>", request=httpx.Request("GET", "http://x/v1/jobs"))
    with pytest.raises(RequestRefusedError, match="not as Graphmill does"):
        check(answer)


def test_patience_begins_anew_after_an_answer() -> None:
    slept: list[float] = []
    pauses = Pauses(1e-9, sleep=slept.append)
    assert pauses.wait()
    assert not pauses.wait()
    pauses.reset()
    assert pauses.wait()
    assert len(slept) == 2


def test_no_pause_is_longer_than_the_patience_that_is_left() -> None:
    slept: list[float] = []
    pauses = Pauses(0.05, sleep=slept.append)
    assert pauses.wait(at_least_s=10.0)
    assert slept == [0.05]


def test_pauses_grow_to_a_limit() -> None:
    slept: list[float] = []
    pauses = Pauses(1e9, longest_s=1.0, sleep=slept.append)
    for _ in range(8):
        pauses.wait()
    assert slept[:4] == [0.1, 0.2, 0.4, 0.8]
    assert max(slept) == 1.0


@given(cut=st.integers(0, 12))
def test_an_event_that_was_cut_off_is_not_told(cut: int) -> None:
    lines = [": ping", "", "event: state", "id: 1", 'data: {"state":"PENDING"}', "", "event: progress", "data: {}", ""]
    told = list(parse_events(lines[:cut]))
    assert len(told) == (cut >= 6) + (cut >= 9)


def test_data_over_several_lines_is_joined() -> None:
    assert next(parse_events(["data: {", 'data: "a": 1}', ""])).data == {"a": 1}
