"""Opening a database: the one place that knows how SQLite and PostgreSQL differ.

Comes in: a SQLAlchemy address. Goes out: a ``JobStore`` whose schema is the newest. SQLite runs in WAL mode, so readers
never wait; writers begin with ``BEGIN IMMEDIATE`` and queue for up to ``BUSY_S``, instead of failing half-way when two
readers both turn into writers.
"""

import fcntl
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from service.store.errors import StoreUnavailableError
from service.store.job_store import JobStore
from service.store.transactions import WRITES

BUSY_S = 30  # a writer holds the lock for milliseconds; 30 s means that something is broken
HEAD_REVISION = "0002"
_ADVISORY_LOCK = 0x6772_6170_686D  # PostgreSQL wants a number that is ours: "graphm"


def open_store(url: str, *, durable: bool = True) -> JobStore:
    """Open the database at ``url``, made or migrated as needed; safe in several processes at once.

    With ``durable`` False, SQLite may lose the last moments at a power cut (never at a crash of the process): tests are
    then not bound by the disk. Raises ``StoreUnavailableError``.
    """
    try:
        engine = build_engine(url, durable=durable)
        with _alone(engine):
            if _revision(engine) != HEAD_REVISION:
                # Alembic takes half a second to import; a driver that finds the schema ready does not pay for it.
                from service.store.migrate import migrate

                migrate(engine)
    except ImportError as error:
        raise StoreUnavailableError(f"no driver for the database {_shown(url)} is installed: {error}") from error
    except (SQLAlchemyError, sqlite3.Error, OSError) as error:
        raise StoreUnavailableError(f"cannot open the database {_shown(url)}: {error}") from error
    return JobStore(engine)


def build_engine(url: str, *, durable: bool = True) -> Engine:
    """An engine with our habits set, and the folder of an SQLite file made. Errors do not show values of rows."""
    address = make_url(url)
    if address.get_backend_name() != "sqlite":
        return create_engine(address, pool_pre_ping=True, pool_size=20, hide_parameters=True)
    if not address.database or address.database == ":memory:":
        raise StoreUnavailableError("the store is shared by several processes, so SQLite needs a file, not :memory:")
    Path(address.database).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(address, connect_args={"timeout": BUSY_S}, pool_size=20, hide_parameters=True)
    _tame_sqlite(engine, synchronous="FULL" if durable else "NORMAL")
    return engine


def _tame_sqlite(engine: Engine, *, synchronous: str) -> None:
    """Hand transaction control to SQLAlchemy and begin writers with the write lock in hand."""

    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the sqlite3 module would otherwise begin on its own, and late
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute(f"PRAGMA synchronous={synchronous}")

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def _alone(engine: Engine) -> Iterator[None]:
    """Keep every other process out while the schema is looked at; a dying holder lets go."""
    if engine.dialect.name == "sqlite":
        with Path(f"{engine.url.database}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _switch_to_wal(engine)
            yield
        return
    with engine.connect() as connection:
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _ADVISORY_LOCK})
        try:
            yield
        finally:
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": _ADVISORY_LOCK})
            connection.commit()


def _switch_to_wal(engine: Engine) -> None:
    """The mode is a property of the file; two processes that switch it at once would fail, hence under the lock."""
    connection = engine.raw_connection()
    try:
        (mode,) = connection.cursor().execute("PRAGMA journal_mode=WAL").fetchone()
    finally:
        connection.close()
    if mode != "wal":
        raise StoreUnavailableError(
            f"SQLite keeps {engine.url.database} in the journal mode {mode!r}, in which readers and writers hold each"
            " other up; put the database on a local file system that can be written to"
        )


def _revision(engine: Engine) -> str | None:
    with engine.connect() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _shown(url: str) -> str:
    try:
        return make_url(url).render_as_string(hide_password=True)
    except SQLAlchemyError:
        return repr(url)
