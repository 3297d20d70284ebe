"""The tables. ``migrations/`` brings a database to exactly this; a test compares the two."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, MetaData, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from service.store.columns import JsonText, RealOrNan, UtcDateTime

_NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """Constraints carry the same names on every database, so that migrations can name them."""

    metadata = MetaData(naming_convention=_NAMES)


class JobRow(Base):
    """One job. ``number`` is its place in the order of arrival; ``id`` is what everyone else calls it."""

    __tablename__ = "jobs"
    __table_args__ = (
        Index(None, "state", "number"),
        Index(None, "state", "submission_id", "number"),  # counts the queue without reading its specs
        {"sqlite_autoincrement": True},
    )

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(String(40), unique=True)
    state: Mapped[str] = mapped_column(String(16))
    spec: Mapped[str] = mapped_column(Text)
    idempotency_key: Mapped[str | None] = mapped_column(String(255), unique=True)
    reason_code: Mapped[str | None] = mapped_column(String(64))
    reason_text: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)
    submitted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    observed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    cancel_requested_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    waiting: Mapped[dict[str, Any] | None] = mapped_column(JsonText)
    submission_id: Mapped[str | None] = mapped_column(String(64))
    restarts: Mapped[int] = mapped_column(default=0)
    progress: Mapped[dict[str, Any] | None] = mapped_column(JsonText)
    result: Mapped[dict[str, Any] | None] = mapped_column(JsonText)
    plan: Mapped[str | None] = mapped_column(Text)


class TransitionRow(Base):
    """One move of one job."""

    __tablename__ = "transitions"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    source: Mapped[str | None] = mapped_column(String(16))
    target: Mapped[str] = mapped_column(String(16))
    reason_code: Mapped[str | None] = mapped_column(String(64))
    reason_text: Mapped[str | None] = mapped_column(Text)
    at: Mapped[datetime] = mapped_column(UtcDateTime)


class EventRow(Base):
    """One entry of the event log; an id is never used twice."""

    __tablename__ = "events"
    __table_args__ = (Index(None, "job_id", "id"), {"sqlite_autoincrement": True})

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    type: Mapped[str] = mapped_column(String(64))
    data: Mapped[dict[str, Any]] = mapped_column(JsonText)
    at: Mapped[datetime] = mapped_column(UtcDateTime)


class MetricRow(Base):
    """One value of one series of one rank; the key makes a repeated step replace itself."""

    __tablename__ = "metrics"
    __table_args__ = (Index(None, "job_id", "step"),)

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    rank: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    epoch: Mapped[int]
    value: Mapped[float | None] = mapped_column(RealOrNan)
    at: Mapped[datetime] = mapped_column(UtcDateTime)


class ProfileRow(Base):
    """What the probes measured, under the fingerprint of its key."""

    __tablename__ = "profiles"

    fingerprint: Mapped[str] = mapped_column(String(64), primary_key=True)
    profile: Mapped[str] = mapped_column(Text)
    saved_at: Mapped[datetime] = mapped_column(UtcDateTime)


class LeaseRow(Base):
    """A right that one process holds until ``until``; a process that dies lets go of it by silence."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    holder: Mapped[str] = mapped_column(String(255))
    until: Mapped[datetime] = mapped_column(UtcDateTime)
