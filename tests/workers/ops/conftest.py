"""Property tests check truths, not speed: the machine may be shared, so examples have no deadline."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small cases only wait for a second one; tests that are about threads set their number themselves."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
