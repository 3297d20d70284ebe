"""Lists of jobs in pages."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.spec import JobState
from service.store.errors import CursorInvalidError
from service.store.job_store import JobStore
from tests.kit.builders import fresh_store, job_spec

STEPS = st.lists(st.sampled_from(["arrive", "cancel", "page"]), max_size=25)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(before=st.integers(0, 9), steps=STEPS, limit=st.integers(1, 4))
def test_pages_give_every_job_once_whatever_happens_meanwhile(before: int, steps: list[str], limit: int) -> None:
    with TemporaryDirectory() as folder:
        store = fresh_store(Path(folder))
        there = [store.create_job(job_spec())[0].id for _ in range(before)]
        expected = list(reversed(there))
        seen: list[str] = []
        page = store.list_jobs(limit=limit)
        seen += [job.id for job in page.items]
        for step in steps:
            if step == "arrive":
                there.append(store.create_job(job_spec())[0].id)
            elif step == "cancel" and there:
                store.request_cancel(there[len(there) // 2])
            elif step == "page" and page.next_cursor:
                page = store.list_jobs(limit=limit, cursor=page.next_cursor)
                seen += [job.id for job in page.items]
        while page.next_cursor:
            page = store.list_jobs(limit=limit, cursor=page.next_cursor)
            assert page.items
            seen += [job.id for job in page.items]
        assert seen == expected
        store.close()


def test_a_state_filter_keeps_pages_whole(store: JobStore) -> None:
    ids = [store.create_job(job_spec())[0].id for _ in range(6)]
    for job_id in ids[::2]:
        store.request_cancel(job_id)
    first = store.list_jobs(state=JobState.CANCELLED, limit=2)
    second = store.list_jobs(state=JobState.CANCELLED, limit=2, cursor=first.next_cursor)
    assert [job.id for job in (*first.items, *second.items)] == ids[4::-2]
    assert second.next_cursor is None


def test_a_page_that_ends_exactly_at_the_last_job_has_no_next(store: JobStore) -> None:
    for _ in range(3):
        store.create_job(job_spec())
    assert store.list_jobs(limit=3).next_cursor is None


@pytest.mark.parametrize(
    "cursor", ["", "nonsense", "am9iczo", "am9iczotMQ", "€", "am9iczo5OTk5OTk5OTk5OTk5OTk5OTk5OTk5"]
)
def test_a_foreign_cursor_is_refused(store: JobStore, cursor: str) -> None:
    with pytest.raises(CursorInvalidError, match="next_cursor"):
        store.list_jobs(cursor=cursor)


def test_positions_count_only_those_who_still_wait(store: JobStore) -> None:
    ids = [store.create_job(job_spec())[0].id for _ in range(5)]
    store.set_submission(ids[0], ids[0])
    store.request_cancel(ids[2])
    listed = {job.id: job.waiting.position for job in store.list_jobs().items if job.waiting}
    assert listed == {ids[0]: 0, ids[1]: 1, ids[3]: 2, ids[4]: 3}
    queue = (*store.submitted_jobs(), *store.waiting_jobs(limit=2), *store.waiting_jobs(skip=2))
    assert {job.id: job.waiting.position for job in queue if job.waiting} == listed
    assert all(job.waiting and job.waiting.position == listed[job.id] for job in map(store.get_job, listed))


def test_the_second_page_goes_on_counting_positions(store: JobStore) -> None:
    for _ in range(5):
        store.create_job(job_spec())
    first = store.list_jobs(limit=3)
    second = store.list_jobs(limit=3, cursor=first.next_cursor)
    positions = [job.waiting.position for job in (*first.items, *second.items) if job.waiting]
    assert positions == [5, 4, 3, 2, 1]


def test_submitted_and_waiting_jobs_come_in_the_order_of_arrival(store: JobStore) -> None:
    ids = [store.create_job(job_spec())[0].id for _ in range(6)]
    store.request_cancel(ids[1])
    for index in (3, 0):
        store.set_submission(ids[index], ids[index])
    assert [job.id for job in store.submitted_jobs()] == [ids[0], ids[3]]
    assert [job.id for job in store.waiting_jobs()] == [ids[2], ids[4], ids[5]]
    store.move(ids[0], JobState.FAILED)
    assert [job.id for job in store.submitted_jobs()] == [ids[3]]
