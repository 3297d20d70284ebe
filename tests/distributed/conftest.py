"""One pool of long-lived ranks for all files of this folder: to start a rank takes seconds, to use it milliseconds."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.distributed.equality import Judge
from tests.kit.gloo_pool import GlooPool


@pytest.fixture(scope="package")
def pool() -> Iterator[GlooPool]:
    """Ranks start when a run first asks for so many."""
    with closing(GlooPool(8)) as pool:
        yield pool


@pytest.fixture(scope="package")
def judge(pool: GlooPool) -> Judge:
    """Holds cases on the pool against one process."""
    return Judge(pool)
