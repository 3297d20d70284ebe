"""Places in a long queue are counted from an index."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the index."""
    op.create_index("ix_jobs_state_submission_id_number", "jobs", ["state", "submission_id", "number"])
