"""The dispatcher against a fake cluster: field reports of other services, as tests."""

import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from planner.cluster import ClusterSpec
from planner.errors import GraphmillError
from service.cluster import ClusterRefusedError, ClusterTroubledError, ClusterUnreachableError, RunState
from service.dispatch_loop import DispatchLoop
from service.dispatcher import LEASE, LEASE_S, Dispatcher
from service.policies import Patience
from service.spec import JobState
from service.store.job_store import JobStore
from service.store.records import JobRecord
from tests.kit.builders import cluster_spec, fresh_store, job_spec
from tests.kit.fake_cluster import FakeCluster
from workers.versions import installed_version


class Clock:
    """Real time plus what the test lets pass."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead

    def let_pass(self, seconds: float) -> None:
        self.ahead += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def dispatcher(store: JobStore, cluster: FakeCluster, clock: Clock) -> Dispatcher:
    return Dispatcher(store, cluster, holder="test", patience=Patience(), clock=clock)


def submit(store: JobStore, **resources: float) -> str:
    return store.create_job(job_spec(**resources))[0].id  # type: ignore[arg-type]


def reason_of(job: JobRecord) -> str:
    assert job.reason is not None
    return job.reason.code


def test_a_job_is_submitted_under_its_own_name(store: JobStore, cluster: FakeCluster, dispatcher: Dispatcher) -> None:
    job_id = submit(store)
    dispatcher.step()
    assert cluster.submitted == [job_id]
    assert cluster.entrypoints[job_id] == f"python -m service.driver_main {job_id} {installed_version()}"
    assert store.get_job(job_id).submission_id == job_id


def test_many_jobs_at_once_are_not_sent_to_the_cluster_at_once(
    store: JobStore, cluster: FakeCluster, dispatcher: Dispatcher
) -> None:
    ids = [submit(store) for _ in range(10)]
    dispatcher.step()
    assert cluster.submitted == ids[:2]  # 4 CPUs, 2 for each
    waiting = [store.get_job(job_id).waiting for job_id in ids[2:]]
    assert [w.position for w in waiting if w] == list(range(1, 9))
    assert all(w and w.code == "resources_busy" for w in waiting)


def test_a_thousand_jobs_drain_in_order(tmp_path: Path) -> None:
    store, cluster = fresh_store(tmp_path), FakeCluster(spec=cluster_spec((64, 0)))
    dispatcher = Dispatcher(store, cluster, holder="test")
    ids = [submit(store) for _ in range(1000)]
    for _ in range(40):
        dispatcher.step()
        for job in store.submitted_jobs():
            cluster.play(store, job.id)
        if not store.waiting_jobs():
            break
    assert cluster.submitted == ids
    assert {job.state for job in map(store.get_job, ids)} == {JobState.FINISHED}
    store.close()


def test_of_a_long_queue_only_the_head_is_read_and_explained(
    store: JobStore, dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.dispatcher.HEAD", 4)
    ids = [submit(store) for _ in range(12)]
    dispatcher.step()
    codes = [job.waiting.code for job in map(store.get_job, ids) if job.waiting and job.submission_id is None]
    assert codes == ["resources_busy"] * 2 + ["accepted"] * 8
    last = store.get_job(ids[-1]).waiting
    assert last is not None
    assert last.position == 10


def test_a_head_of_jobs_that_never_fit_hides_nobody(
    store: JobStore, cluster: FakeCluster, dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.dispatcher.HEAD", 4)
    for _ in range(9):
        submit(store, workers=100)
    job_id = submit(store)
    dispatcher.step()
    assert cluster.submitted == [job_id]


def test_a_crash_between_claim_and_submission_is_mended(
    store: JobStore, cluster: FakeCluster, dispatcher: Dispatcher
) -> None:
    job_id = submit(store)
    store.set_submission(job_id, job_id)  # and here the process died
    dispatcher.step()
    assert cluster.submitted == [job_id]


def test_a_submission_whose_answer_was_lost_is_not_repeated(
    store: JobStore, cluster: FakeCluster, dispatcher: Dispatcher, clock: Clock
) -> None:
    job_id = submit(store)
    cluster.answers_lost = 1
    dispatcher.step()
    for _ in range(3):
        clock.let_pass(20)
        dispatcher.step()
    assert cluster.submitted == [job_id]
    cluster.play(store, job_id)
    assert store.get_job(job_id).state is JobState.FINISHED


def test_a_dispatcher_killed_twice_is_continued_by_the_next(store: JobStore, cluster: FakeCluster) -> None:
    clock = Clock()
    ids = [submit(store) for _ in range(3)]
    Dispatcher(store, cluster, holder="first", clock=clock).step()
    cluster.play(store, ids[0], to=JobState.RUNNING)
    second = Dispatcher(store, cluster, holder="second", clock=clock)
    second.step()
    assert len(cluster.submitted) == 2  # the first one's lease still holds
    store.drop_lease(LEASE, holder="first")  # as if it had run out
    second.step()
    cluster.play(store, ids[1])
    store.drop_lease(LEASE, holder="second")
    Dispatcher(store, cluster, holder="third", clock=clock).step()
    assert cluster.submitted == ids
    assert [store.get_job(job_id).state for job_id in ids] == [JobState.RUNNING, JobState.FINISHED, JobState.PENDING]


def test_a_lost_lease_is_noticed_when_it_would_be_renewed(store: JobStore, cluster: FakeCluster, clock: Clock) -> None:
    first = Dispatcher(store, cluster, holder="first", clock=clock)
    first.step()
    store.drop_lease(LEASE, holder="first")
    store.take_lease(LEASE, holder="other", seconds=600)
    clock.let_pass(LEASE_S)
    submit(store)
    first.step()
    assert cluster.submitted == []


def test_cancelling_a_pending_submitted_job_ends_it_without_its_driver(
    store: JobStore, cluster: FakeCluster, dispatcher: Dispatcher
) -> None:
    job_id = submit(store)
    dispatcher.step()
    store.request_cancel(job_id)
    dispatcher.step()
    job = store.get_job(job_id)
    assert (job.state, reason_of(job)) == (JobState.CANCELLED, "cancelled")
    assert cluster.stopped == [job_id]


def test_a_driver_that_ignores_a_cancel_is_stopped_and_the_job_cancelled(
    store: JobStore, cluster: FakeCluster, dispatcher: Dispatcher, clock: Clock
) -> None:
    job_id = submit(store)
    dispatcher.step()
    cluster.play(store, job_id, to=JobState.RUNNING)
    store.request_cancel(job_id)
    dispatcher.step()
    assert cluster.stopped == []
    clock.let_pass(7)
    dispatcher.step()
    assert cluster.stopped == [job_id]
    cluster.end(job_id, RunState.STOPPED)
    dispatcher.step()
    assert store.get_job(job_id).state is JobState.CANCELLED


def test_a_cancel_is_not_lost_over_a_restart_of_the_dispatcher(
    store: JobStore, cluster: FakeCluster, dispatcher: Dispatcher, clock: Clock
) -> None:
    job_id = submit(store)
    dispatcher.step()
    cluster.play(store, job_id, to=JobState.RUNNING)
    store.request_cancel(job_id)
    dispatcher.release()
    clock.let_pass(7)
    Dispatcher(store, cluster, holder="next", clock=clock).step()
    assert cluster.stopped == [job_id]


def test_a_lost_driver_fails_its_job_with_a_cause(
    store: JobStore, cluster: FakeCluster, dispatcher: Dispatcher, clock: Clock
) -> None:
    job_id = submit(store)
    dispatcher.step()
    cluster.play(store, job_id, to=JobState.RUNNING)
    cluster.end(job_id, RunState.FAILED, "exit code 137")
    dispatcher.step()
    assert store.get_job(job_id).state is JobState.RUNNING  # it spoke a moment ago
    clock.let_pass(4)
    dispatcher.step()
    job = store.get_job(job_id)
    assert (job.state, reason_of(job)) == (JobState.FAILED, "driver_lost")
    assert job.reason is not None
    assert "exit code 137" in job.reason.text


def test_the_last_word_of_a_driver_counts_although_it_is_gone(
    store: JobStore, cluster: FakeCluster, dispatcher: Dispatcher, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = submit(store)
    dispatcher.step()
    cluster.play(store, job_id, to=JobState.RUNNING)
    before = store.submitted_jobs()
    cluster.end(job_id, RunState.SUCCEEDED)
    store.move(job_id, JobState.FINISHED)
    monkeypatch.setattr(store, "submitted_jobs", lambda: before)  # the list was read before the driver's last word
    clock.let_pass(60)
    dispatcher.step()
    assert [move.target for move in store.transitions(job_id)][-1] is JobState.FINISHED


def test_a_terminal_state_is_final_whatever_the_cluster_says(
    store: JobStore, cluster: FakeCluster, dispatcher: Dispatcher, clock: Clock
) -> None:
    job_id = submit(store)
    dispatcher.step()
    cluster.play(store, job_id)
    cluster.end(job_id, RunState.FAILED, "the supervisor lost its head node")
    clock.let_pass(600)
    dispatcher.step()
    assert store.get_job(job_id).state is JobState.FINISHED


def test_an_unreachable_cluster_fails_nobody_and_is_told(
    store: JobStore, cluster: FakeCluster, dispatcher: Dispatcher, clock: Clock
) -> None:
    running, claimed = submit(store), submit(store)
    dispatcher.step()
    cluster.play(store, running, to=JobState.RUNNING)
    late = submit(store)
    with cluster.unreachable():
        for _ in range(50):
            clock.let_pass(60)
            dispatcher.step()
        assert not dispatcher.view.reachable
        assert "cut off" in (dispatcher.view.fault or "")
        assert store.get_job(running).state is JobState.RUNNING
        assert store.get_job(claimed).state is JobState.PENDING
        waiting = store.get_job(late).waiting
        assert waiting is not None
        assert waiting.code == "cluster_unreachable"
    clock.let_pass(11)
    dispatcher.step()
    assert dispatcher.view.reachable
    assert dispatcher.view.failures == 0
    assert store.get_job(claimed).state is JobState.PENDING  # its time to start begins anew
    assert not store.get_job(running).ended


def test_an_unreachable_cluster_is_asked_less_and_less_often(
    store: JobStore, cluster: FakeCluster, dispatcher: Dispatcher, clock: Clock
) -> None:
    with cluster.unreachable():
        for _ in range(120):
            clock.let_pass(0.5)
            dispatcher.step()
    assert cluster.questions < 14  # a minute: 0.5, 1, 2, 4, 8, 10, 10 ... s apart


def test_the_view_keeps_the_last_known_cluster_and_its_age(
    cluster: FakeCluster, dispatcher: Dispatcher, clock: Clock
) -> None:
    dispatcher.step()
    seen = dispatcher.view.seen_at
    with cluster.unreachable():
        clock.let_pass(30)
        dispatcher.step()
    assert dispatcher.view.spec == cluster.spec
    assert dispatcher.view.seen_at == seen


@pytest.mark.parametrize("kind", [ClusterTroubledError, ClusterRefusedError, ClusterUnreachableError])
def test_a_complaint_about_one_driver_does_not_hold_up_the_others(
    store: JobStore, cluster: FakeCluster, dispatcher: Dispatcher, kind: type[GraphmillError]
) -> None:
    odd = submit(store)
    dispatcher.step()
    cluster.complaints[odd] = kind("HTTP 500: a traceback")
    good = submit(store)
    dispatcher.step()
    assert cluster.submitted == [odd, good]
    assert dispatcher.view.reachable
    assert store.get_job(odd).state is JobState.PENDING


@pytest.mark.parametrize("kind", [ClusterTroubledError, ClusterRefusedError, ClusterUnreachableError])
def test_a_driver_about_which_the_cluster_only_complains_has_its_time_to_start_and_no_more(
    store: JobStore, cluster: FakeCluster, dispatcher: Dispatcher, clock: Clock, kind: type[GraphmillError]
) -> None:
    odd = submit(store)
    dispatcher.step()
    cluster.complaints[odd] = kind("HTTP 500: a traceback")
    for _ in range(3):
        clock.let_pass(61)
        dispatcher.step()
    job = store.get_job(odd)
    assert (job.state, reason_of(job)) == (JobState.FAILED, "driver_start_timeout")
    assert job.reason is not None
    assert "a traceback" in job.reason.text


def test_of_runs_without_an_answer_one_is_asked_about_in_a_round_each_in_its_turn(
    store: JobStore, cluster: FakeCluster, dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.spec = cluster_spec((100, 0))
    odd, asked, plain = [submit(store) for _ in range(3)], list[str](), cluster.status
    dispatcher.step()
    cluster.complaints = dict.fromkeys(odd, ClusterUnreachableError("read timed out"))
    monkeypatch.setattr(cluster, "status", lambda name: (asked.append(name), plain(name))[1])
    for _ in range(4):
        dispatcher.step()
    assert asked == [*odd, *odd]
    cluster.complaints.clear()
    asked.clear()
    for _ in range(3):
        dispatcher.step()
    assert len(asked) == 1 + 2 + 3


def test_a_cluster_that_goes_away_within_a_round_is_not_waited_for_once_for_each_job(
    store: JobStore, cluster: FakeCluster, dispatcher: Dispatcher
) -> None:
    cluster.spec = cluster_spec((100, 0))
    ids = [submit(store) for _ in range(5)]
    dispatcher.step()
    cluster.complaints[ids[0]] = ClusterUnreachableError("read timed out")
    told = cluster.shape

    def shape_then_cut() -> ClusterSpec:
        cluster.shape = told_then_cut  # type: ignore[method-assign]
        return told()

    def told_then_cut() -> ClusterSpec:
        cluster.questions += 1
        raise ClusterUnreachableError("the cluster is cut off")

    cluster.shape = shape_then_cut  # type: ignore[method-assign]
    before = cluster.questions
    dispatcher.step()
    assert not dispatcher.view.reachable
    assert cluster.questions - before == 3  # the shape, the first run, the shape again


def test_a_submission_that_makes_trouble_is_tried_again_and_holds_up_nobody(
    store: JobStore, cluster: FakeCluster, dispatcher: Dispatcher
) -> None:
    odd, good = submit(store), submit(store)
    cluster.complaints[odd] = ClusterTroubledError("HTTP 500: no available agent")
    dispatcher.step()
    assert cluster.submitted == [good]
    del cluster.complaints[odd]
    dispatcher.step()
    assert cluster.submitted == [good, odd]


def test_a_lease_that_is_lost_in_the_middle_of_a_slow_round_ends_the_round(
    store: JobStore, cluster: FakeCluster, dispatcher: Dispatcher, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = submit(store)
    submit(store)
    plain = cluster.submit

    def submit_slowly(job_id: str, **rest: object) -> None:
        plain(job_id, **rest)  # type: ignore[arg-type]
        clock.let_pass(LEASE_S)
        store.drop_lease(LEASE, holder="test")
        store.take_lease(LEASE, holder="other", seconds=600)

    monkeypatch.setattr(cluster, "submit", submit_slowly)
    dispatcher.step()
    assert cluster.submitted == [first]


def test_a_refused_driver_fails_its_job_with_the_clusters_words(
    store: JobStore, cluster: FakeCluster, dispatcher: Dispatcher
) -> None:
    cluster.refusal = "the entrypoint is not allowed"
    job_id = submit(store)
    dispatcher.step()
    job = store.get_job(job_id)
    assert (job.state, reason_of(job)) == (JobState.FAILED, "cluster_refused")
    assert job.reason is not None
    assert "not allowed" in job.reason.text


def test_a_driver_that_never_starts_fails_its_job(
    store: JobStore, cluster: FakeCluster, dispatcher: Dispatcher, clock: Clock
) -> None:
    job_id = submit(store)
    dispatcher.step()
    clock.let_pass(181)
    dispatcher.view = type(dispatcher.view)(reachable_since=datetime.now(UTC))
    dispatcher.step()
    job = store.get_job(job_id)
    assert (job.state, reason_of(job)) == (JobState.FAILED, "driver_start_timeout")
    assert cluster.stopped == [job_id]


def test_a_head_that_forgot_a_pending_driver_gets_it_again(
    store: JobStore, cluster: FakeCluster, dispatcher: Dispatcher
) -> None:
    job_id = submit(store)
    dispatcher.step()
    cluster.forget()
    dispatcher.step()
    assert cluster.submitted == [job_id, job_id]


def test_waiting_reasons_are_written_only_when_they_change(
    store: JobStore, dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        submit(store)
    dispatcher.step()
    dispatcher.step()  # the first two are on their way now
    writes: list[object] = []
    monkeypatch.setattr(store, "set_all_waiting", writes.append)
    dispatcher.step()
    assert writes == []


def test_one_job_that_cannot_be_handled_does_not_hold_up_the_others(
    store: JobStore, cluster: FakeCluster, dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = submit(store), submit(store)
    plain = cluster.submit

    def submit_or_break(job_id: str, **rest: object) -> None:
        if job_id == bad:
            raise RuntimeError("a fault of ours")
        plain(job_id, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(cluster, "submit", submit_or_break)
    dispatcher.step()
    assert cluster.submitted == [good]


def test_a_job_cancelled_between_list_and_claim_is_not_submitted(
    store: JobStore, cluster: FakeCluster, dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = submit(store)
    before = store.waiting_jobs()
    store.request_cancel(job_id)
    monkeypatch.setattr(store, "waiting_jobs", lambda **_: before)
    dispatcher.step()
    assert cluster.submitted == []


def test_the_loop_survives_a_fault_and_hears_news_at_once(
    store: JobStore, cluster: FakeCluster, dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepped = threading.Event()
    plain, broken = dispatcher.step, [True]

    def step() -> None:
        if broken:
            broken.clear()
            raise OSError("the disk was away")
        plain()
        stepped.set()

    monkeypatch.setattr(dispatcher, "step", step)
    loop = DispatchLoop(dispatcher, interval_s=60)
    loop.start()
    while loop.fault is None:
        time.sleep(0.001)
    assert "the disk was away" in loop.fault
    submit(store)
    loop.wake()
    assert stepped.wait(10)
    loop.stop()
    assert loop.fault is None
    assert len(cluster.submitted) == 1
    assert store.take_lease(LEASE, holder="next", seconds=1)
