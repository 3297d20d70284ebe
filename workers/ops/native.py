"""The compiled kernels: one library with a C interface (``csrc``), loaded with ctypes when it is first asked for.

setuptools builds it while the package is installed (``tool.setuptools.ext-modules`` in pyproject.toml). Where there is
none, because the machine had no compiler, or where it was built from other sources, the plain forms run in its place:
same results, slower. Which of the two runs is logged once per process.
"""

import ctypes
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

# Mirrors ``csrc/library.h``.
ABI_NUMBER = 5

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NativeLibrary:
    """``functions`` by name; the ``instruction_sets`` of this processor with their numbers, best first."""

    functions: ctypes.CDLL
    instruction_sets: Mapping[str, int]

    @property
    def best_instruction_set(self) -> str:
        """The name of the one to use."""
        return next(iter(self.instruction_sets))


@cache
def native_library() -> NativeLibrary | None:
    """The library of this installation, or None where the plain forms are to run."""
    try:
        library = open_library(library_path())
    except (OSError, ImportError) as error:
        _log.warning("kernels: plain torch (%s); install the package again on a machine with a C++20 compiler", error)
        return None
    _log.info("kernels: native, %s", library.best_instruction_set)
    return library


def kernel_form() -> str:
    """Which form of the kernels runs here, for the key of a profile: their speeds differ."""
    library = native_library()
    return f"native {library.best_instruction_set}" if library else "plain"


def library_path() -> Path:
    """Where the installation puts the library, whether it is there or not."""
    return Path(__file__).parent / "csrc" / f"_native{EXTENSION_SUFFIXES[0]}"


def open_library(path: Path) -> NativeLibrary:
    """Load ``path``. Raises OSError where that fails, ImportError where it was built from other sources than these."""
    functions = ctypes.CDLL(str(path))
    number = functions.graphmill_abi() if hasattr(functions, "graphmill_abi") else None
    if number != ABI_NUMBER:
        raise ImportError(f"{path.name} is stale: it has interface {number}, these sources have {ABI_NUMBER}")
    return NativeLibrary(functions, _instruction_sets(functions))


def _instruction_sets(functions: ctypes.CDLL) -> dict[str, int]:
    name_of = functions.graphmill_instruction_set
    name_of.argtypes, name_of.restype = (ctypes.c_int64, ctypes.POINTER(ctypes.c_int64)), ctypes.c_char_p
    found, number, runs_here = {}, 0, ctypes.c_int64()
    while name := name_of(number, runs_here):
        if runs_here.value:
            found[name.decode()] = number
        number += 1
    return found
