"""What the planner and the probes leave in the store: the plan of a job, and profiles by fingerprint."""

from pydantic import ValidationError
from sqlalchemy.orm import Session

from planner.plan import MegaGraphPlan, MQGNNPlan, parse_plan
from planner.profiles import Profile
from service.store.rows import find_row, now
from service.store.tables import ProfileRow


def put_plan(session: Session, job_id: str, plan: MegaGraphPlan | MQGNNPlan) -> None:
    """Store the plan of a job; a later one replaces it."""
    find_row(session, job_id, lock=True).plan = plan.model_dump_json()


def read_plan(session: Session, job_id: str) -> MegaGraphPlan | MQGNNPlan | None:
    """The plan of a job, None before it was planned."""
    text = find_row(session, job_id).plan
    return None if text is None else parse_plan(text)


def put_profile(session: Session, profile: Profile) -> None:
    """Store a profile under its fingerprint; a newer measurement replaces the older."""
    row = ProfileRow(fingerprint=profile.key.fingerprint, profile=profile.model_dump_json(), saved_at=now())
    session.merge(row)


def read_profile(session: Session, fingerprint: str) -> Profile | None:
    """The profile of this fingerprint, if it was ever measured by a version that wrote it as this one reads it."""
    row = session.get(ProfileRow, fingerprint)
    try:
        return None if row is None else Profile.model_validate_json(row.profile)
    except ValidationError:
        return None
