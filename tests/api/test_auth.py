"""The API key: who needs it, where it lies, who may read it."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from api.auth import KeyCheck, KeyFileError, ensure_api_key, read_api_key
from service.settings import Settings
from tests.kit.live_api import LiveApi

OPEN = {"/livez", "/readyz"}


@pytest.mark.parametrize("key", [None, "wrong", "gmk_", "ключ"])
def test_every_route_but_health_needs_the_key(api: LiveApi, key: str | None) -> None:
    paths = api.backend and [path for path in create_paths(api) if path not in OPEN]
    assert len(paths) > 8
    with api.http(key=None) as http:
        headers = {} if key is None else {"Authorization": f"Bearer {key}".encode()}
        for path in paths:
            method = "POST" if path.endswith("/cancel") else "GET"
            answer = http.request(method, path.replace("{job_id}", "job-x").replace("{path}", "x"), headers=headers)
            assert answer.status_code == 401, path
            assert answer.json()["code"] == "unauthorized"
            assert answer.headers["www-authenticate"] == "Bearer"


def create_paths(api: LiveApi) -> list[str]:
    with api.http(key=None) as http:
        return list(http.get("/openapi.json").json()["paths"])


def test_health_needs_no_key(api: LiveApi) -> None:
    with api.http(key=None) as http:
        assert http.get("/livez").status_code == 200
        assert http.get("/readyz").status_code in (200, 503)


def test_the_key_file_is_its_owners_alone(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "new")
    key = ensure_api_key(settings)
    assert stat.S_IMODE(settings.api_key_file.stat().st_mode) == 0o600
    assert read_api_key(settings) == key == ensure_api_key(settings)
    assert len(key) > 40
    assert [path.name for path in settings.home.iterdir()] == ["api_key"]


def test_processes_that_make_the_key_at_once_agree(tmp_path: Path) -> None:
    code = (
        "from api.auth import ensure_api_key; from service.settings import Settings; from pathlib import Path;"
        f"print(ensure_api_key(Settings(home=Path({str(tmp_path)!r}))))"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(4)]
    assert len({process.communicate(timeout=60)[0] for process in processes}) == 1


def test_a_key_that_others_can_read_is_refused_with_the_way_out(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    ensure_api_key(settings)
    settings.api_key_file.chmod(0o644)
    with pytest.raises(KeyFileError, match="chmod 600"):
        read_api_key(settings)


def test_an_empty_key_file_lets_nobody_in(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    settings.api_key_file.touch(mode=0o600)
    with pytest.raises(KeyFileError, match="is empty"):
        ensure_api_key(settings)


def test_a_given_key_goes_before_the_file(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, api_key="a-key-of-my-own-making")
    assert ensure_api_key(settings) == "a-key-of-my-own-making"
    assert not settings.api_key_file.exists()


def test_a_key_is_checked_as_a_whole() -> None:
    check = KeyCheck("the-right-key")
    assert check.accepts("the-right-key")
    for wrong in ("", "the-right-ke", "the-right-key ", "The-right-key", "\udcff"):
        assert not check.accepts(wrong)
