from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.kit.live_api import LiveApi


@pytest.fixture
def api(tmp_path: Path) -> Iterator[LiveApi]:
    api = LiveApi(tmp_path)
    yield api
    api.close()


@pytest.fixture
def http(api: LiveApi) -> Iterator[httpx.Client]:
    with api.http() as client:
        yield client
