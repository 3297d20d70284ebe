"""The store: the durable truth about jobs. The API and the drivers are its clients; workers never touch it.

Every method is one short transaction. Reads are snapshots; writes lock the job's row (SQLite: the database) first, so
no two processes can decide on the same state. Methods that name a job raise ``JobNotFoundError``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import IntegrityError

from planner.plan import MegaGraphPlan, MQGNNPlan
from planner.profiles import Profile
from service.spec import JobSpec, JobState
from service.store import creation, event_log, job_marks, leases, moves, pages, plans_and_profiles, series
from service.store.records import Event, JobPage, JobRecord, MetricPage, MetricPoint, Reason, Transition, Waiting
from service.store.rows import find_row, now, to_event, to_record
from service.store.transactions import reading, writing


class JobStore:
    """Jobs and all that belongs to them, over one SQLAlchemy engine. Safe to share between threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    # ---- birth, reading, lists

    def create_job(
        self, spec: JobSpec, *, idempotency_key: str | None = None, max_pending: int | None = None
    ) -> tuple[JobRecord, bool]:
        """Store a new PENDING job: (record, True); or the one that this key made before: (record, False).

        Raises ``IdempotencyConflictError`` if the key was used for another spec, ``QueueFullError``.
        """
        key = idempotency_key
        try:
            with writing(self._engine) as session:
                row = None if key is None else creation.find_by_key(session, spec, idempotency_key=key)
                created = row is None
                row = row or creation.insert_job(session, spec, idempotency_key=key, max_pending=max_pending)
                return to_record(row, position=pages.position_of(session, row)), created
        except IntegrityError:
            if key is None:
                raise
            # PostgreSQL lets two writers look at once; the unique key stops the second, who then finds the first's job.
            return self.create_job(spec, idempotency_key=key)

    def get_job(self, job_id: str) -> JobRecord:
        """One job as it is now."""
        with reading(self._engine) as session:
            row = find_row(session, job_id)
            return to_record(row, position=pages.position_of(session, row))

    def list_jobs(self, *, state: JobState | None = None, cursor: str | None = None, limit: int = 50) -> JobPage:
        """A page of jobs, newest first. Raises ``CursorInvalidError``."""
        with reading(self._engine) as session:
            return pages.select_page(session, state=state, cursor=cursor, limit=limit)

    def submitted_jobs(self) -> list[JobRecord]:
        """The jobs that the cluster was given and that have not ended, in the order of arrival."""
        with reading(self._engine) as session:
            return pages.select_submitted(session)

    def waiting_jobs(self, *, skip: int = 0, limit: int = 100) -> list[JobRecord]:
        """A piece of the queue, in the order of arrival, without its first ``skip`` jobs."""
        with reading(self._engine) as session:
            return pages.select_waiting(session, skip=skip, limit=limit)

    # ---- life

    def move(
        self, job_id: str, target: JobState, *, reason: Reason | None = None, only_from: JobState | None = None
    ) -> JobRecord:
        """Move a job, with its transition and a ``state`` event. After an ``IllegalMoveError`` nothing has changed."""
        with writing(self._engine) as session:
            return to_record(moves.move_job(session, job_id, target, reason=reason, only_from=only_from))

    def request_cancel(self, job_id: str) -> JobRecord:
        """Ask for the end of a job: one not yet submitted is CANCELLED at once, any other has ``cancel_requested_at``.

        Asking again changes nothing. Raises ``JobEndedError`` if it finished or failed.
        """
        with writing(self._engine) as session:
            row = moves.cancel_job(session, job_id)
            return to_record(row, position=pages.position_of(session, row))

    def transitions(self, job_id: str) -> list[Transition]:
        """All moves of a job, in order."""
        with reading(self._engine) as session:
            find_row(session, job_id)
            return moves.select_transitions(session, job_id)

    def set_submission(self, job_id: str, submission_id: str) -> JobRecord:
        """Claim a PENDING job for the cluster, before it is submitted. Raises ``IllegalMoveError``."""
        with writing(self._engine) as session:
            return to_record(job_marks.claim(session, job_id, submission_id))

    def set_waiting(self, job_id: str, waiting: Waiting | None) -> None:
        """Say why a pending job does not start; ignored once it is not pending."""
        self.set_all_waiting({job_id: waiting})

    def set_all_waiting(self, reasons: Mapping[str, Waiting | None]) -> None:
        """The same for many jobs in one transaction."""
        with writing(self._engine) as session:
            job_marks.write_waiting(session, reasons)

    def observe(self, job_id: str) -> None:
        """The driver's sign of life."""
        with writing(self._engine) as session:
            find_row(session, job_id, lock=True).observed_at = now()

    def set_progress(self, job_id: str, progress: Mapping[str, Any]) -> None:
        """Replace what the job last said about its progress; also a sign of life."""
        with writing(self._engine) as session:
            job_marks.write_progress(session, job_id, progress)

    def set_result(self, job_id: str, result: Mapping[str, Any]) -> None:
        """Store the outcome; call it before the move to FINISHED, so that whoever sees the state sees the result."""
        with writing(self._engine) as session:
            find_row(session, job_id, lock=True).result = dict(result)

    def restart(self, job_id: str, reason: Reason) -> int:
        """Move a job to RESTARTING, count it, and say how many restarts there were.

        Ranks that fail before their first report did run, so a job that is SCHEDULING or RESTARTING comes over RUNNING.
        """
        with writing(self._engine) as session:
            return moves.restart_job(session, job_id, reason).restarts

    # ---- plan and profiles

    def save_plan(self, job_id: str, plan: MegaGraphPlan | MQGNNPlan) -> None:
        """Store the plan of a job."""
        with writing(self._engine) as session:
            plans_and_profiles.put_plan(session, job_id, plan)

    def get_plan(self, job_id: str) -> MegaGraphPlan | MQGNNPlan | None:
        """The plan of a job, None before it was planned."""
        with reading(self._engine) as session:
            return plans_and_profiles.read_plan(session, job_id)

    def save_profile(self, profile: Profile) -> None:
        """Store a profile under its fingerprint."""
        with writing(self._engine) as session:
            plans_and_profiles.put_profile(session, profile)

    def find_profile(self, fingerprint: str) -> Profile | None:
        """The profile of this fingerprint, if it was ever measured."""
        with reading(self._engine) as session:
            return plans_and_profiles.read_profile(session, fingerprint)

    # ---- metrics and events

    def add_metrics(self, job_id: str, points: Sequence[MetricPoint]) -> None:
        """Write metric points; a step reported again replaces what it said before."""
        if points:
            with writing(self._engine) as session:
                series.upsert_points(session, job_id, points)

    def metrics(
        self,
        job_id: str,
        *,
        names: Sequence[str] | None = None,
        ranks: Sequence[int] | None = None,
        after_step: int | None = None,
        limit: int = 10_000,
    ) -> MetricPage:
        """Points in the order of their steps; about ``limit`` of them, never a part of a step."""
        with reading(self._engine) as session:
            find_row(session, job_id)
            return series.select_points(session, job_id, names=names, ranks=ranks, after_step=after_step, limit=limit)

    def newest_metrics(self, job_id: str, *, names: Sequence[str], num_steps: int = 256) -> list[MetricPoint]:
        """Points of the newest steps, so that a look at a run costs the same however long it has run."""
        with reading(self._engine) as session:
            find_row(session, job_id)
            return series.select_newest(session, job_id, names=names, num_steps=num_steps)

    def add_event(self, job_id: str, type_: str, data: Mapping[str, Any]) -> Event:
        """Append to the event log of a job."""
        with writing(self._engine) as session:
            find_row(session, job_id, lock=True)
            row = event_log.append_event(session, job_id, type_, data, at=now())
            session.flush()
            return to_event(row)

    def events_after(self, job_id: str, event_id: int = 0, limit: int = 500) -> list[Event]:
        """Events of a job with an id above ``event_id``, oldest first."""
        with reading(self._engine) as session:
            find_row(session, job_id)
            return event_log.select_events(session, job_id, after=event_id, limit=limit)

    # ---- leases

    def take_lease(self, name: str, *, holder: str, seconds: float) -> bool:
        """Take or renew a right that only one process has; False while another has it. Proves that writing works."""
        try:
            with writing(self._engine) as session:
                return leases.take_lease(session, name, holder=holder, seconds=seconds)
        except IntegrityError:  # PostgreSQL: two took a lease that nobody had; this one came second
            return False

    def drop_lease(self, name: str, *, holder: str) -> None:
        """Let go of a lease, if it is ours."""
        with writing(self._engine) as session:
            leases.drop_lease(session, name, holder=holder)
