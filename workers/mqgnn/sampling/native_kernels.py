"""The samplers' inner loops as C++ (``workers/ops/csrc/sampling``): the functions of ``numba_kernels``, bit for bit.

Where the library is missing or stale, ``sampler_kernels`` gives the numba form: the same samples, at half the speed.
"""

import ctypes
from functools import cache
from typing import Any

import numpy as np

from workers.mqgnn.sampling import numba_kernels
from workers.mqgnn.sampling.memory import Kernels
from workers.ops.native import NativeLibrary, native_library

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int64
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "count": (_POINTER, _INT, _POINTER, _INT, _INT),
    "draw": (_POINTER,),
    "draw_preferring": (_POINTER,),
    "relabel": (_POINTER, _INT, _POINTER, _POINTER, _INT, _INT, _POINTER, _POINTER),
    "find_columns": (_POINTER, _INT, _POINTER, _POINTER, _POINTER, _INT, _POINTER, _POINTER),
    "keep": (_POINTER, _INT, _POINTER, _POINTER, _POINTER, _INT, _POINTER, _POINTER),
    "race": (_POINTER, _INT, _POINTER, ctypes.c_uint64, _INT, _POINTER),
}


@cache
def sampler_kernels() -> Kernels:
    """The best form of the inner loops that this installation has."""
    library = native_library()
    return NativeKernels(library) if library else numba_kernels


class _Draw(ctypes.Structure):
    """Mirrors ``Draw`` of ``csrc/sampling/draw.h``, field by field."""

    _fields_ = [
        ("nodes", _POINTER),
        ("num_nodes", _INT),
        ("trees", _POINTER),
        ("streams", _POINTER),
        ("limits", _POINTER),
        ("indptr", _POINTER),
        ("indices", _POINTER),
        ("weights", _POINTER),
        ("times", _POINTER),
        ("fanout", _INT),
        ("rule", _INT),
        ("with_replacement", _INT),
        ("eligible", _POINTER),
        ("numbers", _POINTER),
        ("taken", _POINTER),
        ("offsets", _POINTER),
        ("positions", _POINTER),
    ]


class _PreferringDraw(ctypes.Structure):
    """Mirrors ``PreferringDraw`` of ``csrc/sampling/preference.h``, field by field."""

    _fields_ = [
        ("nodes", _POINTER),
        ("num_nodes", _INT),
        ("stream", ctypes.c_uint64),
        ("indptr", _POINTER),
        ("indices", _POINTER),
        ("preferred", _POINTER),
        ("factor", ctypes.c_double),
        ("fanout", _INT),
        ("places", _POINTER),
        ("taken", _POINTER),
        ("offsets", _POINTER),
        ("positions", _POINTER),
        ("weights", _POINTER),
    ]


class NativeKernels:
    """What ``numba_kernels`` offers to ``memory``, with the same arguments."""

    def __init__(self, library: NativeLibrary) -> None:
        self._enter = library.functions.graphmill_enter
        self._enter.argtypes, self._enter.restype = (_POINTER, _INT, _POINTER, _INT, _INT), _INT
        self._functions = {}
        for name, arguments in _ARGUMENTS.items():
            for bits, dtype in (("32", np.dtype(np.int32)), ("64", np.dtype(np.int64))):
                function = getattr(library.functions, f"graphmill_{name}_{bits}")
                function.argtypes, function.restype = arguments, _INT
                self._functions[name, dtype] = function

    def enter(self, nodes: np.ndarray, table: np.ndarray, generation: int) -> tuple[int, int]:
        """See ``numba_kernels.enter``."""
        fault = self._enter(_at(nodes), len(nodes), _at(table), len(table), generation)
        return fault >> 32, fault & 0xFFFFFFFF

    def count(self, nodes: np.ndarray, indptr: np.ndarray, fanout: int, with_replacement: bool) -> int:
        """See ``numba_kernels.count``."""
        return self._call("count", nodes, indptr, fanout, with_replacement)

    def draw(
        self,
        nodes: np.ndarray,
        trees: np.ndarray,
        streams: np.ndarray,
        limits: np.ndarray,
        indptr: np.ndarray,
        indices: np.ndarray,
        weights: np.ndarray,
        times: np.ndarray,
        fanout: int,
        rule: int,
        with_replacement: bool,
        eligible: np.ndarray,
        numbers: np.ndarray,
        taken: np.ndarray,
        offsets: np.ndarray,
        positions: np.ndarray,
    ) -> int:
        """See ``numba_kernels.draw``."""
        call = _Draw(
            _at(nodes),
            len(nodes),
            _at(trees) if len(trees) else None,
            _at(streams),
            _at(limits) if len(limits) else None,
            _at(indptr),
            _at(indices),
            _at(weights),
            _at(times),
            fanout,
            rule,
            with_replacement,
            _at(eligible),
            _at(numbers),
            _at(taken),
            _at(offsets),
            _at(positions),
        )
        return self._functions["draw", nodes.dtype](ctypes.addressof(call))

    def draw_preferring(
        self,
        nodes: np.ndarray,
        stream: np.uint64,
        indptr: np.ndarray,
        indices: np.ndarray,
        preferred: np.ndarray,
        factor: float,
        fanout: int,
        places: np.ndarray,
        taken: np.ndarray,
        offsets: np.ndarray,
        positions: np.ndarray,
        weights: np.ndarray,
    ) -> int:
        """See ``numba_kernels.draw_preferring``."""
        scratch, out = (_at(places), _at(taken)), (_at(offsets), _at(positions), _at(weights))
        arrays = (_at(indptr), _at(indices), _at(preferred))
        call = _PreferringDraw(_at(nodes), len(nodes), int(stream), *arrays, factor, fanout, *scratch, *out)
        return self._functions["draw_preferring", nodes.dtype](ctypes.addressof(call))

    def relabel(
        self,
        positions: np.ndarray,
        indices: np.ndarray,
        table: np.ndarray,
        generation: int,
        num_known: int,
        local: np.ndarray,
        fresh: np.ndarray,
    ) -> int:
        """See ``numba_kernels.relabel``; ``fresh`` has room for one node more than there are edges."""
        return self._call("relabel", positions, indices, table, generation, num_known, local, fresh)

    def find_columns(
        self,
        nodes: np.ndarray,
        indptr: np.ndarray,
        indices: np.ndarray,
        table: np.ndarray,
        generation: int,
        found: np.ndarray,
        sums: np.ndarray,
    ) -> int:
        """See ``numba_kernels.find_columns``."""
        return self._call("find_columns", nodes, indptr, indices, table, generation, found, sums)

    def keep(
        self,
        nodes: np.ndarray,
        indptr: np.ndarray,
        indices: np.ndarray,
        table: np.ndarray,
        generation: int,
        offsets: np.ndarray,
        positions: np.ndarray,
    ) -> int:
        """See ``numba_kernels.keep``."""
        return self._call("keep", nodes, indptr, indices, table, generation, offsets, positions)

    def race(
        self, nodes: np.ndarray, speeds: np.ndarray, stream: np.uint64, finish: np.ndarray, chosen: np.ndarray
    ) -> int:
        """See ``numba_kernels.race``; the scratch ``finish`` is not used."""
        return self._call("race", nodes, speeds, int(stream), len(chosen), chosen)

    def _call(self, name: str, first: np.ndarray, *others: np.ndarray | int) -> int:
        """The function of ``name`` for the dtype of ``first``, which goes with its length; arrays go by address."""
        arguments = (_at(other) if isinstance(other, np.ndarray) else other for other in others)
        return self._functions[name, first.dtype](_at(first), len(first), *arguments)


def _at(array: np.ndarray) -> int:
    assert array.flags.c_contiguous
    return array.__array_interface__["data"][0]
