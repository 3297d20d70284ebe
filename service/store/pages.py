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


def select_unfinished(session: Session) -> list[JobRecord]:
    """All jobs that have not ended, in the order of arrival."""
    query = select(JobRow).where(JobRow.state.not_in(TERMINAL)).order_by(JobRow.number)
    records, position = [], 0
    for row in session.scalars(query):
        waits = _waits(row)
        position += waits
        records.append(to_record(row, position=position if waits else 0))
    return records


def position_of(session: Session, row: JobRow) -> int:
    """The place of a job among those that wait to be submitted, 1 is next; 0 for any other job."""
    return _positions(session, [row]).get(row.number, 0)


def _positions(session: Session, rows: list[JobRow]) -> dict[int, int]:
    """Places by job number. One count finds the oldest of the page, the rest of the page follows by counting up."""
    numbers = sorted(row.number for row in rows if _waits(row))
    if not numbers:
        return {}
    pending = (JobRow.state == JobState.PENDING) & JobRow.submission_id.is_(None)
    before = session.scalar(select(func.count()).where(pending, JobRow.number < numbers[0])) or 0
    between = (
        select(JobRow.number).where(pending, JobRow.number.between(numbers[0], numbers[-1])).order_by(JobRow.number)
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
