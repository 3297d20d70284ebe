"""All settings of Graphmill, and the only reader of the environment.

Comes in: variables named ``GRAPHMILL_*``. Goes out: one frozen ``Settings``, passed to whoever needs it. The nodes of
the embedded cluster get theirs through ``environment()``; secrets of the API are left out, because a cluster shows the
environment of its jobs to everyone who can see its dashboard.
"""

import os
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import fsspec
from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from planner.errors import GraphmillError

ENV_PREFIX = "GRAPHMILL_"
_MISSPELT = 0.9  # likeness of whole names: about two letters; no two settings are as much alike
_NOT_REACHED = "default_factory_not_called"  # pydantic's word on a setting whose default follows from a faulty one
_OF_DRIVERS = {"home", "database_url", "storage", "data_root", "cache"}  # the settings that a driver reads


class SettingsInvalidError(GraphmillError):
    """The settings contradict each other or this machine; the message names the variable to change."""

    code = "settings_invalid"


class Settings(BaseSettings):
    """Where things lie, how to reach them, and how patient the service is."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_ignore_empty=True, frozen=True, extra="ignore", validate_default=True
    )

    home: Path = Field(default=Path("~/.graphmill"), description="folder of the embedded mode: database, key, state")
    database_url: str = Field(
        default_factory=lambda data: f"sqlite:///{data['home'] / 'graphmill.db'}",
        repr=False,  # it may hold a password
        description="SQLAlchemy address of the database; SQLite serves only where API and cluster share a disk",
    )
    storage: str = Field(
        default_factory=lambda data: str(data["home"] / "storage"),
        description="path or URI that holds checkpoints, logs and artifacts, seen alike by API and ranks",
    )
    data_root: Path | None = Field(default=None, description="folder of raw data sets, never written to")
    cache: Path = Field(
        default_factory=lambda data: data["home"] / "cache", description="folder of prepared data sets, written by us"
    )
    host: str = Field(default="127.0.0.1", description="address that the API listens on")
    port: int = Field(default=8421, ge=0, le=65535, description="port that the API listens on")
    url: str | None = Field(default=None, description="where clients find the API; by default a server on this machine")
    api_key: str | None = Field(
        default=None, min_length=16, repr=False, description="the API key; by default read from home/api_key"
    )
    ray_dashboard: str | None = Field(
        default=None,
        description="address of an external cluster's dashboard; by default an embedded cluster is started",
    )
    ray_token: str | None = Field(default=None, repr=False, description="token of the external cluster, if it has one")
    max_body_bytes: int = Field(default=1_048_576, ge=1024, description="largest request body that the API reads")
    max_pending_jobs: int = Field(default=10_000, ge=1, description="waiting jobs above which new ones are refused")
    max_streams: int = Field(default=200, ge=1, description="event streams open at once in one API process")
    dispatch_interval_s: float = Field(default=0.5, gt=0, description="pause between two rounds of the dispatcher")
    cancel_grace_s: float = Field(default=6.0, ge=0, description="time a driver has to end itself after a cancel")
    driver_start_s: float = Field(
        default=180.0, gt=0, description="time a submitted driver has to report itself before its job fails"
    )
    stale_after_s: float = Field(
        default=10.0, gt=0, description="silence of a driver after which what it last said is called stale"
    )

    @field_validator("home", "cache", "data_root", mode="after")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser().absolute()

    @field_validator("database_url", mode="after")
    @classmethod
    def _absolute_file(cls, url: str) -> str:
        """A driver starts in another folder than the API, so both must mean the same file."""
        dialect, separator, file = url.partition(":///")
        is_path = separator and file and not file.startswith((":", "file:"))
        if not dialect.startswith("sqlite") or not is_path:
            return url
        return f"{dialect}:///{Path(file).expanduser().absolute()}"

    @field_validator("storage", mode="after")
    @classmethod
    def _usable_storage(cls, storage: str) -> str:
        return _storage_place(storage)

    def job_uri(self, job_id: str) -> str:
        """Where everything lies that one job leaves behind: ``checkpoints/``, ``export/``, ``logs/``."""
        return f"{self.storage.rstrip('/')}/jobs/{job_id}"

    @property
    def api_key_file(self) -> Path:
        """Where the embedded mode keeps its key; only its owner can read it."""
        return self.home / "api_key"

    def environment(self) -> dict[str, str]:
        """The variables that make a driver read these same settings; no secret of the API among them."""
        values: dict[str, Any] = self.model_dump(mode="json", include=_OF_DRIVERS, exclude_none=True)
        return {f"{ENV_PREFIX}{name.upper()}": str(value) for name, value in values.items()}


def load_settings(**given: Any) -> Settings:
    """Read the environment; ``given`` values go before it. Raises ``SettingsInvalidError`` that names every fault."""
    _refuse_misspelt(os.environ)
    try:
        return Settings(**given)
    except ValidationError as error:
        faults = "; ".join(
            f"{ENV_PREFIX}{str(item['loc'][0]).upper()}: {item['msg']}"
            for item in error.errors()
            if item["type"] != _NOT_REACHED
        )
        raise SettingsInvalidError(f"the settings have faults: {faults}") from error


def _refuse_misspelt(environment: Iterable[str]) -> None:
    """A variable that is nearly one of ours would be silently nothing; others with our prefix may be anyone's."""
    ours = {f"{ENV_PREFIX}{name.upper()}" for name in Settings.model_fields}
    for name in environment:
        near = get_close_matches(name, ours, n=1, cutoff=_MISSPELT) if name.startswith(ENV_PREFIX) else []
        if near and name not in ours:
            raise SettingsInvalidError(f"there is no setting {name}; did you mean {near[0]}?", name=name)


def check_serving(settings: Settings) -> None:
    """Refuse a database that the cluster cannot share. Raises ``SettingsInvalidError``."""
    if settings.ray_dashboard is not None and settings.database_url.startswith("sqlite"):
        raise SettingsInvalidError(
            f"{ENV_PREFIX}RAY_DASHBOARD names an external cluster ({settings.ray_dashboard}), whose nodes cannot see"
            f" the SQLite file of this machine ({settings.database_url}); set {ENV_PREFIX}DATABASE_URL to a PostgreSQL"
            " database that both reach (postgresql+psycopg://user@host/name), or leave the cluster to Graphmill",
            database_url=settings.database_url,
            ray_dashboard=settings.ray_dashboard,
        )


def _storage_place(storage: str) -> str:
    """An absolute path, or the URI of a file system that fsspec can speak to here."""
    parts = urlsplit(storage)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return unquote(parts.path)
    if "://" not in storage:
        return str(Path(storage).expanduser().absolute())
    try:
        fsspec.get_filesystem_class(parts.scheme)
    except (ImportError, ValueError) as error:
        raise ValueError(
            f"{storage!r} cannot be reached from here: {error}; install that package on every node (s3fs for s3://,"
            " gcsfs for gs://), or give a path that API and cluster share"
        ) from error
    return storage
