"""Metric series. The key is (job, rank, name, step): a step that runs again after a restart replaces its value."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from service.store.records import MetricPage, MetricPoint
from service.store.tables import MetricRow

# the same clause, spelled in two dialects
_INSERTS: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


def upsert_points(session: Session, job_id: str, points: Sequence[MetricPoint]) -> None:
    """Write points; those of one call with the same key must not differ (the last wins)."""
    unique = {(point.rank, point.name, point.step): {"job_id": job_id, **point.model_dump()} for point in points}
    insert = _INSERTS[session.get_bind().dialect.name](MetricRow)
    replace = {name: insert.excluded[name] for name in ("epoch", "value", "at")}
    session.execute(
        insert.on_conflict_do_update(index_elements=["job_id", "rank", "name", "step"], set_=replace),
        list(unique.values()),
    )


def select_points(
    session: Session,
    job_id: str,
    *,
    names: Sequence[str] | None,
    ranks: Sequence[int] | None,
    after_step: int | None,
    limit: int,
) -> MetricPage:
    """About ``limit`` points above ``after_step``, by step, name and rank; the last step of a page is whole."""
    query = select(MetricRow).where(MetricRow.job_id == job_id)
    if names:
        query = query.where(MetricRow.name.in_(names))
    if ranks:
        query = query.where(MetricRow.rank.in_(ranks))
    if after_step is not None:
        query = query.where(MetricRow.step > after_step)
    rows = list(session.scalars(_ordered(query).limit(limit + 1)))
    if len(rows) <= limit:
        return MetricPage(points=tuple(map(_to_point, rows)))
    last = rows[-1].step
    whole = [row for row in rows if row.step < last] or list(
        session.scalars(_ordered(query.where(MetricRow.step == last)))
    )
    return MetricPage(points=tuple(map(_to_point, whole)), next_after_step=whole[-1].step)


def select_newest(session: Session, job_id: str, *, names: Sequence[str], num_steps: int) -> list[MetricPoint]:
    """All points of these names at the newest ``num_steps`` of their steps, in order, however many came before."""
    query = select(MetricRow).where(MetricRow.job_id == job_id, MetricRow.name.in_(names))
    steps = query.with_only_columns(MetricRow.step).distinct().order_by(MetricRow.step.desc())
    newest = list(session.scalars(steps.limit(num_steps)))
    if not newest:
        return []
    return [_to_point(row) for row in session.scalars(_ordered(query.where(MetricRow.step >= newest[-1])))]


def _ordered(query: Select[Any]) -> Select[Any]:
    return query.order_by(MetricRow.step, MetricRow.name, MetricRow.rank)


def _to_point(row: MetricRow) -> MetricPoint:
    value = float("nan") if row.value is None else row.value
    return MetricPoint(rank=row.rank, name=row.name, step=row.step, epoch=row.epoch, value=value, at=row.at)
