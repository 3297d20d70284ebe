"""Short transactions. A writer says so at its start, so that SQLite gives it the lock before it reads."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine
from sqlalchemy.orm import Session

WRITES = "graphmill_writes"


@contextmanager
def reading(engine: Engine) -> Iterator[Session]:
    """A session over one snapshot."""
    with Session(engine) as session:
        yield session


@contextmanager
def writing(engine: Engine) -> Iterator[Session]:
    """A session that commits at its end, or undoes everything if an error passes through."""
    with Session(engine) as session, session.begin():
        session.connection(execution_options={WRITES: True})
        yield session
