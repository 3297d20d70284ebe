"""Leases: a right that ends by itself. A process that is killed blocks nobody for longer than its lease."""

from datetime import timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.store.rows import now
from service.store.tables import LeaseRow


def take_lease(session: Session, name: str, *, holder: str, seconds: float) -> bool:
    """Take or renew a lease; False while another holder's has not run out."""
    at = now()
    row = session.scalar(select(LeaseRow).where(LeaseRow.name == name).with_for_update())
    if row is None:
        session.add(LeaseRow(name=name, holder=holder, until=at + timedelta(seconds=seconds)))
        session.flush()
        return True
    if row.holder != holder and row.until > at:
        return False
    row.holder, row.until = holder, at + timedelta(seconds=seconds)
    return True


def drop_lease(session: Session, name: str, *, holder: str) -> None:
    """Let go, if it is ours."""
    row = session.scalar(select(LeaseRow).where(LeaseRow.name == name).with_for_update())
    if row is not None and row.holder == holder:
        session.delete(row)
