"""The meter sees what a region allocates."""

import gc
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from workers.training import memory
from workers.training.memory import PeakMemory


@pytest.fixture(autouse=True)
def _no_garbage_of_other_tests() -> None:
    """Else its end, at any time, would lower the level under a meter that has started."""
    gc.collect()


def peak_of_a_block() -> int:
    """What the meter says of 64 MiB, the most of three times: a kernel may take pages of files back at any moment."""
    peaks = []
    for _ in range(3):
        meter = PeakMemory()
        meter.start()
        block = np.ones(64 << 20, dtype=np.uint8)
        del block
        peaks.append(meter.peak_bytes())
    return max(peaks)


def test_the_peak_counts_memory_that_was_freed_again() -> None:
    assert 60 << 20 <= peak_of_a_block() <= 96 << 20


def test_starting_again_forgets_the_old_peak() -> None:
    meter = PeakMemory()
    block = np.ones(64 << 20, dtype=np.uint8)
    del block
    meter.start()
    assert meter.peak_bytes() <= 16 << 20


def test_where_the_mark_cannot_be_reset_the_peak_is_never_too_low(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_CLEAR", Path("/proc/self/no-such-file"))
    assert peak_of_a_block() >= 60 << 20


TWO_BLOCKS = """
import resource
import numpy as np
from workers.training.memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(12 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

{first}
print(faults(), faults())
"""


@pytest.mark.parametrize(("first", "is_kept"), [("keep_freed_memory()", True), ("", False)])
def test_memory_that_is_kept_is_not_fetched_again(first: str, is_kept: bool) -> None:
    """Of two blocks of 96 MiB, one after the other."""
    command = [sys.executable, "-c", TWO_BLOCKS.format(first=first)]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    once, again = (int(count) for count in found.stdout.split())
    assert (again < once / 4) == is_kept
