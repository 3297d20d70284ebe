"""Settings: where they come from, and what they refuse."""

import sys
from pathlib import Path

import pytest

from service.settings import Settings, SettingsInvalidError, check_serving, load_settings


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("GRAPHMILL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_everything_lies_in_the_home_unless_told_otherwise(tmp_path: Path) -> None:
    settings = Settings()
    assert settings.home == tmp_path / ".graphmill"
    assert settings.database_url == f"sqlite:///{tmp_path}/.graphmill/graphmill.db"
    assert settings.storage == str(tmp_path / ".graphmill" / "storage")
    assert settings.cache == tmp_path / ".graphmill" / "cache"
    assert settings.job_uri("job-1") == str(tmp_path / ".graphmill" / "storage" / "jobs" / "job-1")


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GRAPHMILL_HOME", str(tmp_path / "other"))
    monkeypatch.setenv("GRAPHMILL_PORT", "9000")
    assert Settings().cache == tmp_path / "other" / "cache"
    assert Settings().port == 9000


def test_a_driver_reads_the_same_settings_and_no_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mine = Settings(
        home=tmp_path / "h", data_root=tmp_path, port=9001, api_key="a-secret-of-mine-1", ray_token="another-secret"
    )
    environment = mine.environment()
    assert "GRAPHMILL_PORT" not in environment  # no driver listens
    assert not any("secret" in value for value in environment.values())
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert Settings() == mine.model_copy(update={"api_key": None, "ray_token": None, "port": Settings().port})


def test_secrets_are_not_printed() -> None:
    database = "postgresql+psycopg://graphmill:pony@db/graphmill"
    shown = repr(Settings(api_key="correct horse battery", ray_token="staple", database_url=database))
    assert not [secret for secret in ("horse", "staple", "pony") if secret in shown]


def test_a_database_file_is_the_same_from_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Settings(database_url="sqlite:///own/jobs.db").database_url == f"sqlite:///{tmp_path}/own/jobs.db"
    assert Settings(database_url="sqlite:///~/jobs.db").database_url == f"sqlite:///{Path.home()}/jobs.db"
    for as_it_is in (f"sqlite:///{tmp_path}/jobs.db", "sqlite://", "sqlite:///:memory:", "postgresql+psycopg:///jobs"):
        assert Settings(database_url=as_it_is).database_url == as_it_is


@pytest.mark.parametrize("name", ["HOME", "DATA_ROOT", "PORT", "API_KEY", "DATABASE_URL"])
def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    plain = Settings()
    monkeypatch.setenv(f"GRAPHMILL_{name}", "")
    assert Settings() == plain


def test_storage_may_be_a_file_uri(tmp_path: Path) -> None:
    assert Settings(storage=f"file://{tmp_path}/a%20b").storage == str(tmp_path / "a b")


def test_storage_may_be_any_uri_that_can_be_spoken_to() -> None:
    assert Settings(storage="memory://bucket/folder").job_uri("job-1") == "memory://bucket/folder/jobs/job-1"


def test_storage_that_needs_a_package_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(SettingsInvalidError, match=r"GRAPHMILL_STORAGE: .*Install s3fs"):
        load_settings(storage="s3://bucket/folder")
    with pytest.raises(SettingsInvalidError, match=r"GRAPHMILL_STORAGE: .*Protocol not known: nothing"):
        load_settings(storage="nothing://bucket/folder")


def test_all_faults_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHMILL_PORT", "many")
    monkeypatch.setenv("GRAPHMILL_MAX_STREAMS", "0")
    with pytest.raises(SettingsInvalidError) as caught:
        load_settings()
    assert "GRAPHMILL_PORT" in caught.value.message
    assert "GRAPHMILL_MAX_STREAMS" in caught.value.message


def test_what_follows_from_a_fault_is_not_called_one() -> None:
    with pytest.raises(SettingsInvalidError) as caught:
        load_settings(storage="nothing://bucket/folder")
    assert "GRAPHMILL_STORAGE" in caught.value.message
    assert "GRAPHMILL_CACHE" not in caught.value.message


def test_sqlite_does_not_serve_an_external_cluster() -> None:
    with pytest.raises(SettingsInvalidError, match="PostgreSQL"):
        check_serving(Settings(ray_dashboard="http://head:8265"))
    check_serving(Settings(ray_dashboard="http://head:8265", database_url="postgresql+psycopg://db/graphmill"))
    check_serving(Settings())


def test_a_misspelt_setting_is_not_silently_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHMILL_CLUSTER", "a mark, no setting")
    load_settings()
    monkeypatch.setenv("GRAPHMILL_STORGE", "/data")
    with pytest.raises(SettingsInvalidError, match=r"no setting GRAPHMILL_STORGE; did you mean GRAPHMILL_STORAGE\?"):
        load_settings()
