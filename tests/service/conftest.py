from collections.abc import Iterator
from pathlib import Path

import pytest

from service.store.job_store import JobStore
from tests.kit.builders import fresh_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    store = fresh_store(tmp_path)
    yield store
    store.close()
