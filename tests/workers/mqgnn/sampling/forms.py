"""The forms of the samplers' inner loops that run here."""

from workers.mqgnn.sampling import numba_kernels

ALL_KERNELS = {"numba": numba_kernels}
