from collections.abc import Callable

import pytest

from tests.workers.mqgnn.sampling.forms import ALL_KERNELS
from workers.data.graph import Graph
from workers.mqgnn.sampling.csc import csc_of
from workers.mqgnn.sampling.memory import Kernels
from workers.mqgnn.sampling.neighbors import NeighborSampler


@pytest.fixture(params=ALL_KERNELS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """Every form of the inner loops."""
    return ALL_KERNELS[request.param]


@pytest.fixture
def sampler_of(kernels: Kernels) -> Callable[..., NeighborSampler]:
    """Builds a sampler of a graph."""

    def build(graph: Graph, **options) -> NeighborSampler:
        return NeighborSampler(csc_of(graph), kernels=kernels, **options)

    return build
