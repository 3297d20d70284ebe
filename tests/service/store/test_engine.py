"""Opening and migrating a database, alone and in company."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from service.store.engine import HEAD_REVISION, build_engine, open_store
from service.store.errors import StoreUnavailableError
from service.store.migrate import head_revision
from service.store.tables import Base
from tests.kit.builders import fresh_store, job_spec, sqlite_url


def test_the_known_head_is_the_newest_migration() -> None:
    assert head_revision() == HEAD_REVISION


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
