"""From rows to records, and finding the row of a job."""

import json
from datetime import UTC, datetime
from functools import lru_cache

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.spec import JobState
from service.store.errors import JobNotFoundError
from service.store.old_specs import read_spec
from service.store.records import Event, JobRecord, Reason, Waiting
from service.store.tables import EventRow, JobRow


def now() -> datetime:
    """The time that goes into rows."""
    return datetime.now(UTC)


def find_row(session: Session, job_id: str, *, lock: bool = False) -> JobRow:
    """The row of a job; with ``lock``, nobody else changes it until this transaction ends (SQLite locks as a whole).

    Raises ``JobNotFoundError``.
    """
    query = select(JobRow).where(JobRow.id == job_id)
    row = session.scalar(query.with_for_update() if lock else query)
    if row is None:
        raise JobNotFoundError(f"there is no job {job_id!r}; `graphmill jobs` lists those that exist", job_id=job_id)
    return row


def to_record(row: JobRow, *, position: int = 0) -> JobRecord:
    """One job; ``position`` is its place in the queue, which is counted, never stored."""
    spec, spec_fault = read_spec(row.spec)
    return JobRecord(
        id=row.id,
        spec=spec,
        spec_fault=spec_fault,
        state=JobState(row.state),
        reason=to_reason(row.reason_code, row.reason_text),
        created_at=row.created_at,
        updated_at=row.updated_at,
        submitted_at=row.submitted_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        observed_at=row.observed_at,
        cancel_requested_at=row.cancel_requested_at,
        waiting=None if row.waiting is None else Waiting(**row.waiting, position=position),
        submission_id=row.submission_id,
        world_size=None if row.plan is None else _world_size(row.plan),
        restarts=row.restarts,
        progress=row.progress or {},
        result=row.result,
    )


def to_reason(code: str | None, text: str | None) -> Reason | None:
    """A reason, if there is one."""
    return None if code is None else Reason(code=code, text=text or "")


def to_event(row: EventRow) -> Event:
    """One event."""
    return Event(id=row.id, job_id=row.job_id, type=row.type, data=row.data, at=row.at)


@lru_cache(maxsize=256)
def _world_size(plan: str) -> int | None:
    """None in a plan that another version wrote in other words. Plans may be long, so fewer are kept than of specs."""
    found = json.loads(plan).get("world_size")
    return found if isinstance(found, int) else None
