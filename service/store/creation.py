"""The birth of a job. One idempotency key makes one job, whoever comes first and however many come at once."""

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.spec import JobSpec, JobState
from service.store.errors import IdempotencyConflictError, QueueFullError
from service.store.event_log import append_event
from service.store.ids import new_job_id
from service.store.moves import append_transition
from service.store.old_specs import read_spec
from service.store.records import Waiting
from service.store.rows import now
from service.store.tables import JobRow

_JUST_ACCEPTED = Waiting(code="accepted", reason="accepted; the dispatcher says more when its turn comes near")


def insert_job(session: Session, spec: JobSpec, *, idempotency_key: str | None, max_pending: int | None) -> JobRow:
    """A new row with its first transition and event. The unique key of the table refuses a repeated key.

    Raises ``QueueFullError`` if ``max_pending`` jobs wait already.
    """
    if max_pending is not None and (waiting := _count_pending(session)) >= max_pending:
        raise QueueFullError(f"{waiting} jobs wait already, the limit is {max_pending}; try again later")
    at = now()
    row = JobRow(
        id=new_job_id(),
        state=JobState.PENDING,
        spec=spec.model_dump_json(),
        idempotency_key=idempotency_key,
        created_at=at,
        updated_at=at,
        waiting=_JUST_ACCEPTED.model_dump(exclude={"position"}),
        restarts=0,
    )
    session.add(row)
    session.flush()
    append_transition(session, row.id, source=None, target=JobState.PENDING, reason=None, at=at)
    append_event(session, row.id, "state", {"state": JobState.PENDING, "source": None, "reason": None}, at=at)
    return row


def find_by_key(session: Session, spec: JobSpec, *, idempotency_key: str) -> JobRow | None:
    """The job that this key made. Raises ``IdempotencyConflictError`` if that was for another spec."""
    row = session.scalar(select(JobRow).where(JobRow.idempotency_key == idempotency_key))
    if row is None:
        return None
    if read_spec(row.spec) != (spec, None):
        raise IdempotencyConflictError(
            f"the idempotency key {idempotency_key!r} made job {row.id} from another spec; a new spec needs a new key",
            job_id=row.id,
        )
    return row


def _count_pending(session: Session) -> int:
    return session.scalar(select(func.count()).where(JobRow.state == JobState.PENDING)) or 0
