"""The forms of the samplers' inner loops that run here."""

from workers.mqgnn.sampling import numba_kernels
from workers.mqgnn.sampling.native_kernels import NativeKernels
from workers.ops.native import native_library

_LIBRARY = native_library()
ALL_KERNELS = {"numba": numba_kernels} | ({"native": NativeKernels(_LIBRARY)} if _LIBRARY else {})
