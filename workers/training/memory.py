"""The peak-memory meter of one process: resident bytes on CPU, allocated bytes on CUDA, over a baseline."""

import ctypes
from contextlib import suppress
from pathlib import Path

import torch

_CLEAR = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_KEPT_BYTES = 1 << 30


class PeakMemory:
    """Highest point since ``start``, over the level at ``start``.

    On Linux the kernel keeps the exact high-water mark of a process (``VmHWM``); writing 5 to ``clear_refs`` resets it
    to the present level. The mark belongs to the process: one meter at a time.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self._cuda = device if device is not None and device.type == "cuda" else None
        self._baseline_bytes = 0

    def start(self) -> None:
        """Take the present level as zero, without what was freed: work that reuses it would look free of charge."""
        if self._cuda is not None:
            torch.cuda.reset_peak_memory_stats(self._cuda)
            self._baseline_bytes = torch.cuda.memory_allocated(self._cuda)
            return
        _return_freed_memory()
        with suppress(OSError):  # a read-only /proc; the mark then also covers what came before, and never too little
            _CLEAR.write_text("5")
        self._baseline_bytes = _status_bytes("VmRSS")

    def peak_bytes(self) -> int:
        """Bytes of the highest point since ``start`` over the level then; never negative."""
        if self._cuda is not None:
            return max(0, torch.cuda.max_memory_allocated(self._cuda) - self._baseline_bytes)
        return max(0, _status_bytes("VmHWM") - self._baseline_bytes)


def keep_freed_memory() -> None:
    """Ask glibc to keep what is freed for what is asked for next, in blocks of up to 1 GiB.

    Steps that make and drop tensors of tens of megabytes otherwise spend a third of their time on fetching pages from
    the system and giving them back. For processes of a rank; other C libraries go on as they do.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        for option in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
            set_option(option, _KEPT_BYTES)


def _status_bytes(field: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{_STATUS} has no field {field}; the memory meter needs Linux")


def _return_freed_memory() -> None:
    """Ask glibc to return the pages of freed memory; other C libraries have no such call, and peaks may read lower."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
