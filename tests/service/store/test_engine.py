"""Opening and migrating a database, alone and in company."""

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from service.store.engine import HEAD_REVISION, build_engine, open_store
from service.store.errors import StoreUnavailableError
from service.store.migrate import alembic_config
from service.store.tables import Base
from tests.kit.builders import fresh_store, job_spec, sqlite_url


def test_the_known_head_is_the_newest_migration() -> None:
    assert ScriptDirectory.from_config(alembic_config()).get_current_head() == HEAD_REVISION


def test_migrations_make_exactly_the_tables(tmp_path: Path) -> None:
    fresh_store(tmp_path).close()
    with build_engine(sqlite_url(tmp_path)).connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


def test_processes_that_open_a_new_database_at_once_all_succeed(tmp_path: Path) -> None:
    code = f"from service.store.engine import open_store; open_store({sqlite_url(tmp_path)!r}).list_jobs()"
    processes = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) for _ in range(6)]
    assert [process.communicate(timeout=60)[1] for process in processes] == [b""] * 6


def test_a_database_survives_being_opened_again(tmp_path: Path) -> None:
    first = fresh_store(tmp_path)
    record, _ = first.create_job(job_spec())
    first.close()
    assert fresh_store(tmp_path).get_job(record.id) == record


def test_readers_do_not_wait_for_a_writer(tmp_path: Path) -> None:
    store = fresh_store(tmp_path)
    writer = sqlite3.connect(tmp_path / "graphmill.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    assert store.list_jobs().items == ()
    writer.execute("ROLLBACK")
    writer.close()


def test_a_database_of_a_newer_version_is_refused_by_name(tmp_path: Path) -> None:
    fresh_store(tmp_path).close()
    connection = sqlite3.connect(tmp_path / "graphmill.db")
    connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.commit()
    connection.close()
    with pytest.raises(StoreUnavailableError, match="another version of graphmill"):
        fresh_store(tmp_path)


def test_a_file_that_is_no_database_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "graphmill.db").write_bytes(b"notes of somebody, and no database at all" * 100)
    with pytest.raises(StoreUnavailableError, match=r"cannot open the database .*graphmill\.db.*not a database"):
        fresh_store(tmp_path)


def test_a_file_system_on_which_readers_would_block_writers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    class WithoutSharedMemory(sqlite3.Connection):
        def cursor(self, *arguments: Any) -> sqlite3.Cursor:
            super().execute("PRAGMA locking_mode=EXCLUSIVE")
            super().execute("PRAGMA journal_mode=MEMORY")
            return super().cursor(Stubborn)

    class Stubborn(sqlite3.Cursor):
        def execute(self, statement: str, *arguments: Any) -> sqlite3.Cursor:
            return super().execute(statement.replace("journal_mode=WAL", "journal_mode"), *arguments)

    monkeypatch.setattr(
        sqlite3.dbapi2, "connect", lambda *where, **how: connect(*where, **how, factory=WithoutSharedMemory)
    )
    with pytest.raises(StoreUnavailableError, match="journal mode 'memory'"):
        fresh_store(tmp_path)


def test_errors_of_the_database_do_not_show_what_was_written(tmp_path: Path) -> None:
    engine = build_engine(sqlite_url(tmp_path))
    with engine.connect() as connection, pytest.raises(OperationalError) as caught:
        connection.execute(text("INSERT INTO nowhere VALUES (:value)"), {"value": "a-secret-word"})
    assert "a-secret-word" not in str(caught.value)


def test_memory_is_no_place_for_a_shared_store() -> None:
    with pytest.raises(StoreUnavailableError, match="needs a file"):
        open_store("sqlite://")


def test_a_missing_database_driver_is_named_and_the_password_is_not() -> None:
    with pytest.raises(StoreUnavailableError, match="no driver for the database") as caught:
        open_store("mysql+mysqldb://user:secret-word@localhost/db")
    assert "secret-word" not in str(caught.value)


def test_an_address_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="cannot open"):
        open_store("nonsense")
