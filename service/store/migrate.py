"""Bringing a database to the newest schema; ``engine.open_store`` calls this with every other process kept out.

To add a revision: change ``tables.py``, write ``migrations/versions/vNNNN_*.py`` by hand, raise
``engine.HEAD_REVISION``; the tests compare the migrated schema with the tables.
"""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.util.exc import CommandError
from sqlalchemy import Engine

from service.store.errors import StoreUnavailableError

_MIGRATIONS = Path(__file__).parent / "migrations"


def migrate(engine: Engine) -> None:
    """Run all missing migrations in one transaction. Raises ``StoreUnavailableError`` if the database is newer."""
    config = alembic_config()
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            raise StoreUnavailableError(
                f"the database was written by another version of graphmill ({error}); install that version or newer"
            ) from error


def alembic_config() -> Config:
    """Alembic's settings; the migrations travel inside the package, so no file is needed."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    return config
