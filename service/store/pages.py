"""Lists of jobs. Pages follow the order of arrival, so one that arrives meanwhile never shifts or repeats an entry."""

import base64
import binascii

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.spec import JobState
from service.states import TERMINAL
from service.store.errors import CursorInvalidError
from service.store.records import JobPage, JobRecord
from service.store.rows import to_record
from service.store.tables import JobRow

_CURSOR_MARK = "jobs:"
_UNFINISHED = tuple(state for state in JobState if state not in TERMINAL)
_PENDING = (JobRow.state == JobState.PENDING) & JobRow.submission_id.is_(None)


def select_page(session: Session, *, state: JobState | None, cursor: str | None, limit: int) -> JobPage:
    """Up to ``limit`` jobs, newest first. Raises ``CursorInvalidError``."""
    query = select(JobRow).order_by(JobRow.number.desc()).limit(limit + 1)
    if state is not None:
        query = query.where(JobRow.state == state)
    if cursor is not None:
        query = query.where(JobRow.number < _decode(cursor))
    rows = list(session.scalars(query))
    shown = rows[:limit]
    places = _positions(session, shown)
    return JobPage(
        items=tuple(to_record(row, position=places.get(row.number, 0)) for row in shown),
        next_cursor=_encode(shown[-1].number) if len(rows) > limit else None,
    )


def select_submitted(session: Session) -> list[JobRecord]:
    """The jobs that the cluster was given and that have not ended, in the order of arrival."""
    query = select(JobRow).where(JobRow.state.in_(_UNFINISHED), JobRow.submission_id.is_not(None))
    return [to_record(row) for row in session.scalars(query.order_by(JobRow.number))]


def select_waiting(session: Session, *, skip: int, limit: int) -> list[JobRecord]:
    """A piece of the queue, in the order of arrival, without its first ``skip`` jobs."""
    rows = session.scalars(select(JobRow).where(_PENDING).order_by(JobRow.number).offset(skip).limit(limit))
    return [to_record(row, position=position) for position, row in enumerate(rows, start=skip + 1)]


def position_of(session: Session, row: JobRow) -> int:
    """The place of a job among those that wait to be submitted, 1 is next; 0 for any other job."""
    return _positions(session, [row]).get(row.number, 0)


def _positions(session: Session, rows: list[JobRow]) -> dict[int, int]:
    """Places by job number. One count finds the oldest of the page, the rest of the page follows by counting up."""
    numbers = sorted(row.number for row in rows if _waits(row))
    if not numbers:
        return {}
    before = session.scalar(select(func.count()).where(_PENDING, JobRow.number < numbers[0])) or 0
    between = (
        select(JobRow.number).where(_PENDING, JobRow.number.between(numbers[0], numbers[-1])).order_by(JobRow.number)
    )
    return {number: before + place for place, number in enumerate(session.scalars(between), start=1)}


def _waits(row: JobRow) -> bool:
    return row.state == JobState.PENDING and row.submission_id is None


def _encode(number: int) -> str:
    return base64.urlsafe_b64encode(f"{_CURSOR_MARK}{number}".encode()).decode().rstrip("=")


def _decode(cursor: str) -> int:
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        mark, number = text[: len(_CURSOR_MARK)], int(text[len(_CURSOR_MARK) :])
    except (ValueError, binascii.Error) as error:
        raise CursorInvalidError(
            f"the cursor {cursor!r} is none of ours; use next_cursor of the page before"
        ) from error
    if mark != _CURSOR_MARK or not 0 <= number < 2**63:
        raise CursorInvalidError(f"the cursor {cursor!r} is none of ours; use next_cursor of the page before")
    return number
