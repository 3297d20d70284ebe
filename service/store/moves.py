"""Moving a job between its states. A move, its transition and its event are one transaction."""

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.spec import JobState
from service.states import TERMINAL, IllegalMoveError, check_move
from service.store.errors import JobEndedError
from service.store.event_log import append_event
from service.store.records import Reason, Transition
from service.store.rows import find_row, now, to_reason
from service.store.tables import JobRow, TransitionRow

CANCELLED_WAITING = Reason(code="cancelled", text="cancelled by its user before it started")


def move_job(
    session: Session, job_id: str, target: JobState, *, reason: Reason | None, only_from: JobState | None
) -> JobRow:
    """Compare and set: the row is locked, the table of moves asked, then everything written together.

    Raises ``IllegalMoveError``, also if the job is not in ``only_from`` any more.
    """
    row = find_row(session, job_id, lock=True)
    source = JobState(row.state)
    if only_from is not None and source != only_from:
        raise IllegalMoveError(
            f"job {job_id} was to go from {only_from} to {target}, but it is {source} now", state=source, target=target
        )
    check_move(source, target)
    at = now()
    row.state, row.updated_at = target, at
    row.reason_code, row.reason_text = (None, None) if reason is None else (reason.code, reason.text)
    row.waiting = None
    if source is JobState.PENDING and target not in TERMINAL:
        row.started_at = at
    if target in TERMINAL:
        row.finished_at = at
    append_transition(session, job_id, source=source, target=target, reason=reason, at=at)
    shown = None if reason is None else reason.model_dump()
    append_event(session, job_id, "state", {"state": target, "source": source, "reason": shown}, at=at)
    return row


def restart_job(session: Session, job_id: str, reason: Reason) -> JobRow:
    """Over RUNNING to RESTARTING, counted. Raises ``IllegalMoveError`` for a job that has no ranks."""
    if find_row(session, job_id, lock=True).state != JobState.RUNNING:
        move_job(session, job_id, JobState.RUNNING, reason=None, only_from=None)
    row = move_job(session, job_id, JobState.RESTARTING, reason=reason, only_from=JobState.RUNNING)
    row.restarts += 1
    return row


def cancel_job(session: Session, job_id: str) -> JobRow:
    """Cancel at once what nobody has started; ask the driver of everything else. Asking twice changes nothing.

    Raises ``JobEndedError`` if the job finished or failed; a cancelled one is given back as it is.
    """
    row = find_row(session, job_id, lock=True)
    state = JobState(row.state)
    if state in TERMINAL and state is not JobState.CANCELLED:
        raise JobEndedError(f"job {job_id} is {state} already; there is nothing to cancel", job_id=job_id, state=state)
    if state is JobState.CANCELLED or row.cancel_requested_at is not None:
        return row
    at = now()
    row.cancel_requested_at = row.updated_at = at
    append_event(session, job_id, "cancel_requested", {"state": state}, at=at)
    if state is JobState.PENDING and row.submission_id is None:
        return move_job(session, job_id, JobState.CANCELLED, reason=CANCELLED_WAITING, only_from=state)
    return row


def append_transition(
    session: Session,
    job_id: str,
    *,
    source: JobState | None,
    target: JobState,
    reason: Reason | None,
    at: datetime,
) -> None:
    """Write down one move."""
    code, text = (None, None) if reason is None else (reason.code, reason.text)
    session.add(TransitionRow(job_id=job_id, source=source, target=target, reason_code=code, reason_text=text, at=at))


def select_transitions(session: Session, job_id: str) -> list[Transition]:
    """All moves of a job, in order."""
    query = select(TransitionRow).where(TransitionRow.job_id == job_id).order_by(TransitionRow.id)
    return [
        Transition(
            job_id=row.job_id,
            source=None if row.source is None else JobState(row.source),
            target=JobState(row.target),
            reason=to_reason(row.reason_code, row.reason_text),
            at=row.at,
        )
        for row in session.scalars(query)
    ]
