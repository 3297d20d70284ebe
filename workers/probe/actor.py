"""The Ray shell of the probe: one actor per rank, placed as the ranks of the job will be, gone when the probe ends.

Ray Train is not needed for a few seconds of measuring: the actors build a process group of their own over a key-value
store that the first of them opens.
"""

import time
from typing import Any

import ray
import torch.distributed as dist
from ray.exceptions import RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from planner.profiles import ProbeRequest, Profile
from workers.data.datasets import load_dataset
from workers.data.paths import DataPaths
from workers.errors import ProbeFailedError
from workers.probe.measure import run_probe
from workers.probe.ranks import Meeting, open_group
from workers.spec import TrainSpec


class ProbeActor:
    """One rank of a probe."""

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank, self._world_size = rank, world_size

    def meet(self) -> Meeting:
        """Open the store through which all ranks find each other; asked of rank 0."""
        host = ray.util.get_node_ip_address()
        self._store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        return Meeting(host=host, port=self._store.port)

    def measure(self, request: ProbeRequest, *, spec: TrainSpec, data: DataPaths, meeting: Meeting) -> Profile:
        """Join the others and measure together. Every rank returns the same samples."""
        dataset = load_dataset(spec.dataset, paths=data)
        group = open_group(
            meeting,
            rank=self._rank,
            world_size=self._world_size,
            address=ray.util.get_node_ip_address(),
            device_kind=request.key.device_kind,
        )
        return run_probe(request, spec=spec, dataset=dataset, rank=self._rank, world_size=self._world_size, group=group)


def measure_on_cluster(
    request: ProbeRequest,
    *,
    spec: TrainSpec,
    data: DataPaths,
    cpus_per_rank: float,
    gpus_per_rank: float = 0.0,
    timeout_s: float = 120.0,
) -> Profile:
    """Run the probe on ``request.key.num_ranks`` actors and end them, whatever happens. Needs a connected Ray driver.

    Raises ``ProbeFailedError`` when the ranks have not answered in time, and what a rank raised.
    """
    num_ranks = request.key.num_ranks
    resources = {"CPU": cpus_per_rank, "GPU": gpus_per_rank}
    places = placement_group([resources] * num_ranks, strategy="PACK")  # as Ray Train places its ranks
    actors = []
    try:
        for rank in range(num_ranks):
            strategy = PlacementGroupSchedulingStrategy(places, placement_group_bundle_index=rank)
            options = {"num_cpus": cpus_per_rank, "num_gpus": gpus_per_rank, "scheduling_strategy": strategy}
            actors.append(ray.remote(ProbeActor).options(**options).remote(rank, num_ranks))
        deadline = time.monotonic() + timeout_s
        (meeting,) = _answers([actors[0].meet.remote()], deadline=deadline)
        asked = [actor.measure.remote(request, spec=spec, data=data, meeting=meeting) for actor in actors]
        return _answers(asked, deadline=deadline)[0]
    finally:
        for actor in actors:
            ray.kill(actor)
        remove_placement_group(places)


def _answers(asked: list[ray.ObjectRef], *, deadline: float) -> list[Any]:
    """All answers; the first failure ends the waiting, because the other ranks then wait for the failed one."""
    pending = asked
    while pending:
        done, pending = ray.wait(pending, timeout=max(0.0, deadline - time.monotonic()))
        if not done:
            raise ProbeFailedError(
                f"{len(pending)} of {len(asked)} ranks of the probe did not answer in time; look at the dashboard"
                " whether the cluster has the CPUs and GPUs that the job asks for"
            )
        try:
            ray.get(done)
        except RayTaskError as error:
            raise error.cause from None
    return ray.get(asked)
