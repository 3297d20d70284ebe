"""From records to bodies."""

import math
from collections import defaultdict
from collections.abc import Iterable

from api.schemas.jobs import JobDetail, JobLinks, JobView, TransitionView
from api.schemas.parts import MeasuredView, MetricsView, SeriesView
from service.jobs import Measured
from service.store.records import JobRecord, MetricPage, MetricPoint, Transition


def job_url(job_id: str) -> str:
    """The path of a job."""
    return f"/v1/jobs/{job_id}"


def job_view(record: JobRecord, *, stale: bool) -> JobView:
    """A job without its history."""
    return JobView.model_validate(_job_fields(record, stale=stale), from_attributes=True)


def job_detail(record: JobRecord, transitions: Iterable[Transition], *, stale: bool) -> JobDetail:
    """A job with its history."""
    history = tuple(TransitionView.model_validate(move, from_attributes=True) for move in transitions)
    return JobDetail.model_validate({**_job_fields(record, stale=stale), "transitions": history}, from_attributes=True)


def metrics_view(page: MetricPage) -> MetricsView:
    """Points as columns, one set per series and rank."""
    groups: defaultdict[tuple[str, int], list[MetricPoint]] = defaultdict(list)
    for point in page.points:
        groups[point.name, point.rank].append(point)
    series = tuple(
        SeriesView(
            name=name,
            rank=rank,
            steps=tuple(point.step for point in points),
            epochs=tuple(point.epoch for point in points),
            values=tuple(point.value if math.isfinite(point.value) else None for point in points),
            at=tuple(point.at for point in points),
        )
        for (name, rank), points in sorted(groups.items())
    )
    return MetricsView(series=series, next_after_step=page.next_after_step)


def measured_view(measured: Measured) -> MeasuredView:
    """What a run showed."""
    return MeasuredView(step_time_s=measured.step_time_s, memory_bytes=measured.memory_bytes)


def _job_fields(record: JobRecord, *, stale: bool) -> dict[str, object]:
    fields: dict[str, object] = {name: getattr(record, name) for name in type(record).model_fields}
    base = job_url(record.id)
    parts = ("events", "metrics", "plan", "logs", "artifacts", "cancel")
    return {**fields, "stale": stale, "links": JobLinks(**{part: f"{base}/{part}" for part in parts})}
