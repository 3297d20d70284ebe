"""The event log: what happened to a job, in order, for those who follow it."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.store.records import Event
from service.store.rows import to_event
from service.store.tables import EventRow


def append_event(session: Session, job_id: str, type_: str, data: Mapping[str, Any], *, at: datetime) -> EventRow:
    """Add an event. The caller holds the lock of the job's row, so ids follow the order of commits.

    The row has its id after the session's next flush.
    """
    row = EventRow(job_id=job_id, type=type_, data=dict(data), at=at)
    session.add(row)
    return row


def select_events(session: Session, job_id: str, *, after: int, limit: int) -> list[Event]:
    """Events of one job with an id above ``after``, oldest first."""
    query = select(EventRow).where(EventRow.job_id == job_id, EventRow.id > after).order_by(EventRow.id).limit(limit)
    return [to_event(row) for row in session.scalars(query)]
