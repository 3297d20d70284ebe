"""Small changes to a job that are not moves."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.spec import JobState
from service.states import IllegalMoveError
from service.store.records import Waiting
from service.store.rows import find_row, now
from service.store.tables import JobRow


def claim(session: Session, job_id: str, submission_id: str) -> JobRow:
    """Give a pending job its submission id. It comes before the submission itself: whoever crashes between the two
    leaves a name under which the next one finds out what became of it. Raises ``IllegalMoveError``.
    """
    row = find_row(session, job_id, lock=True)
    if row.state != JobState.PENDING:
        raise IllegalMoveError(f"only a PENDING job can be submitted; {job_id} is {row.state}", state=row.state)
    row.submission_id, row.submitted_at = submission_id, now()
    return row


def write_waiting(session: Session, reasons: Mapping[str, Waiting | None]) -> None:
    """Set the waiting reasons of those jobs that still wait; the position is counted when read."""
    still = select(JobRow).where(JobRow.id.in_(list(reasons)), JobRow.state == JobState.PENDING)
    for row in session.scalars(still):
        waiting = reasons[row.id]
        row.waiting = None if waiting is None else waiting.model_dump(exclude={"position"})


def write_progress(session: Session, job_id: str, progress: Mapping[str, Any]) -> None:
    """Replace the progress and note the sign of life."""
    row = find_row(session, job_id, lock=True)
    row.progress, row.observed_at = dict(progress), now()
