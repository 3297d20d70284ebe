"""The first tables: jobs, their transitions, events and metrics, profiles, leases."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Make all tables."""
    _make_jobs()
    _make_history()
    op.create_table(
        "profiles",
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("profile", sa.Text, nullable=False),
        sa.Column("saved_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("fingerprint", name="pk_profiles"),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("holder", sa.String(255), nullable=False),
        sa.Column("until", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )


def _make_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("number", sa.Integer, nullable=False, autoincrement=True),
        sa.Column("id", sa.String(40), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("spec", sa.Text, nullable=False),
        sa.Column("idempotency_key", sa.String(255)),
        sa.Column("reason_code", sa.String(64)),
        sa.Column("reason_text", sa.Text),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("updated_at", _TIME, nullable=False),
        sa.Column("submitted_at", _TIME),
        sa.Column("started_at", _TIME),
        sa.Column("finished_at", _TIME),
        sa.Column("observed_at", _TIME),
        sa.Column("cancel_requested_at", _TIME),
        sa.Column("waiting", sa.Text),
        sa.Column("submission_id", sa.String(64)),
        sa.Column("restarts", sa.Integer, nullable=False),
        sa.Column("progress", sa.Text),
        sa.Column("result", sa.Text),
        sa.Column("plan", sa.Text),
        sa.PrimaryKeyConstraint("number", name="pk_jobs"),
        sa.UniqueConstraint("id", name="uq_jobs_id"),
        sa.UniqueConstraint("idempotency_key", name="uq_jobs_idempotency_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_jobs_state_number", "jobs", ["state", "number"])


def _make_history() -> None:
    op.create_table(
        "transitions",
        sa.Column("id", sa.Integer, nullable=False, autoincrement=True),
        sa.Column("job_id", sa.String(40), nullable=False),
        sa.Column("source", sa.String(16)),
        sa.Column("target", sa.String(16), nullable=False),
        sa.Column("reason_code", sa.String(64)),
        sa.Column("reason_text", sa.Text),
        sa.Column("at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_transitions"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_transitions_job_id"),
    )
    op.create_index("ix_transitions_job_id", "transitions", ["job_id"])
    op.create_table(
        "events",
        sa.Column("id", sa.Integer, nullable=False, autoincrement=True),
        sa.Column("job_id", sa.String(40), nullable=False),
        sa.Column("type", sa.String(64), nullable=False),
        sa.Column("data", sa.Text, nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_events_job_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_job_id_id", "events", ["job_id", "id"])
    op.create_table(
        "metrics",
        sa.Column("job_id", sa.String(40), nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("step", sa.Integer, nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("value", sa.Double),
        sa.Column("at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "rank", "name", "step", name="pk_metrics"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_metrics_job_id"),
    )
    op.create_index("ix_metrics_job_id_step", "metrics", ["job_id", "step"])
