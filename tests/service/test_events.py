"""Following a job."""

from service.events import EventFeed
from service.spec import JobState
from service.store.job_store import JobStore
from service.store.records import Waiting
from tests.kit.builders import job_spec
from tests.kit.fake_cluster import FakeCluster


def test_everything_logged_is_told_once_and_the_end_is_the_last(store: JobStore) -> None:
    job_id = store.create_job(job_spec())[0].id
    feed = EventFeed(store, job_id)
    told = [news for news in feed.poll().news if news.id is not None]
    FakeCluster().play(store, job_id)
    batch = feed.poll()
    told += [news for news in batch.news if news.id is not None]
    assert [news.data["state"] for news in told] == [
        "PENDING",
        "PROFILING",
        "PLANNING",
        "SCHEDULING",
        "RUNNING",
        "FINISHED",
    ]
    assert batch.ended
    assert batch.news[-1].data["state"] == "FINISHED"


def test_a_follower_that_comes_back_hears_only_what_it_missed(store: JobStore) -> None:
    job_id = store.create_job(job_spec())[0].id
    seen = EventFeed(store, job_id).poll().news[0].id
    assert seen is not None
    store.move(job_id, JobState.PROFILING)
    feed = EventFeed(store, job_id, after=seen)
    assert [news.data["state"] for news in feed.poll().news] == ["PROFILING"]


def test_a_follower_that_has_heard_the_end_hears_nothing(store: JobStore) -> None:
    job_id = store.create_job(job_spec())[0].id
    FakeCluster().play(store, job_id)
    store.set_progress(job_id, {"step": 9, "total_steps": 9})
    last = store.events_after(job_id)[-1].id
    batch = EventFeed(store, job_id, after=last).poll()
    assert batch.ended
    assert batch.news == ()


def test_progress_is_told_when_it_changes_and_needs_no_id(store: JobStore) -> None:
    job_id = store.create_job(job_spec())[0].id
    store.set_waiting(job_id, None)
    feed = EventFeed(store, job_id)
    feed.poll()
    store.set_progress(job_id, {"step": 1})
    first, again = feed.poll().news, feed.poll().news
    store.set_progress(job_id, {"step": 2})
    assert [(news.id, news.type, news.data) for news in first] == [(None, "progress", {"step": 1})]
    assert again == ()
    assert feed.poll().news[0].data == {"step": 2}


def test_the_reason_to_wait_is_told_with_its_numbers(store: JobStore) -> None:
    job_id = store.create_job(job_spec())[0].id
    feed = EventFeed(store, job_id)
    assert feed.poll().news[-1].data["code"] == "accepted"
    store.set_waiting(job_id, Waiting(code="never_fits", reason="asked 8 GPUs, the cluster has 0", asked={"gpus": 8.0}))
    told = feed.poll().news[-1]
    assert told.type == "waiting"
    assert told.data["reason"] == "asked 8 GPUs, the cluster has 0"
    assert told.data["position"] == 1


def test_a_long_log_is_told_in_batches_without_ending_early(store: JobStore) -> None:
    job_id = store.create_job(job_spec())[0].id
    for number in range(1_100):
        store.add_event(job_id, "note", {"number": number})
    store.request_cancel(job_id)
    feed, numbers, ended = EventFeed(store, job_id), [], False
    while not ended:
        batch = feed.poll()
        numbers += [news.data["number"] for news in batch.news if news.type == "note"]
        ended = batch.ended
    assert numbers == list(range(1_100))
