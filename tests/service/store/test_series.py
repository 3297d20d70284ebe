"""Metrics, events, plans and profiles in the store."""

import math

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.profiles import Profile, ProfileKey, SampledShape
from service.store.job_store import JobStore
from tests.kit.builders import job_spec, metric, two_rank_plan


def values(store: JobStore, job_id: str, **which: object) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in store.metrics(job_id, **which).points]  # type: ignore[arg-type]


def test_a_step_reported_again_replaces_what_it_said(store: JobStore) -> None:
    job_id = store.create_job(job_spec())[0].id
    store.add_metrics(job_id, [metric(1, value=3.0), metric(2, value=2.0)])
    store.add_metrics(job_id, [metric(2, value=2.5), metric(3, value=1.0)])
    assert values(store, job_id) == [(1, 3.0), (2, 2.5), (3, 1.0)]


def test_a_key_repeated_within_one_report_counts_once(store: JobStore) -> None:
    job_id = store.create_job(job_spec())[0].id
    store.add_metrics(job_id, [metric(1, value=3.0), metric(1, value=4.0)])
    assert values(store, job_id) == [(1, 4.0)]


def test_values_that_are_no_numbers_survive(store: JobStore) -> None:
    job_id = store.create_job(job_spec())[0].id
    store.add_metrics(job_id, [metric(1, value=math.nan), metric(2, value=math.inf)])
    found = values(store, job_id)
    assert math.isnan(found[0][1])
    assert found[1][1] == math.inf


def test_series_are_chosen_by_name_rank_and_step(store: JobStore) -> None:
    job_id = store.create_job(job_spec())[0].id
    other = store.create_job(job_spec())[0].id
    points = [metric(step, name=name, rank=rank) for step in (1, 2) for name in ("loss", "lr") for rank in (0, 1)]
    store.add_metrics(job_id, points)
    store.add_metrics(other, [metric(9)])
    assert len(store.metrics(job_id).points) == 8
    assert {p.name for p in store.metrics(job_id, names=["loss"]).points} == {"loss"}
    assert {p.rank for p in store.metrics(job_id, ranks=[1]).points} == {1}
    assert {p.step for p in store.metrics(job_id, after_step=1).points} == {2}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(1, 6), max_size=8), limit=st.integers(1, 7))
def test_pages_of_metrics_give_every_point_once_and_cut_no_step(store: JobStore, sizes: list[int], limit: int) -> None:
    job_id = store.create_job(job_spec())[0].id
    points = [metric(step, rank=rank) for step, size in enumerate(sizes) for rank in range(size)]
    store.add_metrics(job_id, points)
    found: list[tuple[int, int]] = []
    page = store.metrics(job_id, limit=limit)
    while True:
        steps = [point.step for point in page.points]
        assert all(steps.count(step) == sizes[step] for step in set(steps))
        found += [(point.step, point.rank) for point in page.points]
        if page.next_after_step is None:
            break
        page = store.metrics(job_id, limit=limit, after_step=page.next_after_step)
    assert found == [(point.step, point.rank) for point in points]


def test_many_points_go_in_at_once(store: JobStore) -> None:
    job_id = store.create_job(job_spec())[0].id
    store.add_metrics(job_id, [metric(step) for step in range(2_000)])
    assert len(store.metrics(job_id).points) == 2_000


def test_events_are_read_on_from_the_last_one_seen(store: JobStore) -> None:
    job_id = store.create_job(job_spec())[0].id
    first = store.events_after(job_id)[0]
    note = store.add_event(job_id, "note", {"text": "hello", "at_step": 3})
    assert store.events_after(job_id, first.id) == [note]
    assert store.events_after(job_id, note.id) == []
    assert note.id > first.id


def test_event_ids_grow_over_all_jobs_and_logs_stay_apart(store: JobStore) -> None:
    one, two = (store.create_job(job_spec())[0].id for _ in range(2))
    ids = [store.add_event(job, "note", {}).id for job in (one, two, one)]
    assert ids == sorted(ids)
    assert [event.id for event in store.events_after(one)][1:] == [ids[0], ids[2]]


def test_a_plan_comes_back_as_it_was_stored(store: JobStore) -> None:
    job_id = store.create_job(job_spec())[0].id
    assert store.get_plan(job_id) is None
    store.save_plan(job_id, two_rank_plan())
    assert store.get_plan(job_id) == two_rank_plan()


def test_a_newer_profile_replaces_the_older_one_of_its_key(store: JobStore) -> None:
    shape = SampledShape(
        model="gcn",
        num_layers=2,
        hidden_size=8,
        num_features=4,
        num_classes=2,
        num_nodes=9,
        num_edges=20,
        num_train=4,
        batch_size=2,
        fanouts=(2, 2),
    )
    key = ProfileKey(shape=shape, device_name="cpu", num_ranks=2, software=(("torch", "2.13.0"),))
    old, new = (Profile(key=key, measured_at="2026-11-29", duration_s=seconds) for seconds in (1.0, 2.0))
    assert store.find_profile(key.fingerprint) is None
    store.save_profile(old)
    store.save_profile(new)
    assert store.find_profile(key.fingerprint) == new


def test_the_newest_points_are_few_however_long_the_job_has_run(store: JobStore) -> None:
    job_id = store.create_job(job_spec())[0].id
    assert store.newest_metrics(job_id, names=["step_time_s"]) == []
    ranks_points = [metric(step, name="step_time_s", rank=rank) for step in range(40) for rank in (0, 1)]
    store.add_metrics(job_id, [*ranks_points, *(metric(step, name="loss") for step in range(60))])
    found = store.newest_metrics(job_id, names=["step_time_s"], num_steps=3)
    assert [(point.step, point.rank) for point in found] == [(37, 0), (37, 1), (38, 0), (38, 1), (39, 0), (39, 1)]
