"""The Ray shell of the probe: one actor per rank, placed as the ranks of the job will be, gone when the probe ends.

Ray Train is not needed for a few seconds of measuring: the actors build a process group of their own over a key-value
store that the first of them opens.
"""

import platform
from typing import Any

import ray
import torch.distributed as dist
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from planner.profiles import ProbeRequest, Profile
from workers import versions
from workers.data.datasets import load_dataset
from workers.data.paths import DataPaths
from workers.errors import ProbeFailedError
from workers.probe.measure import run_probe
from workers.probe.ranks import Meeting, open_group
from workers.ray_answers import all_answers
from workers.spec import TrainSpec


class ProbeActor:
    """One rank of a probe."""

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank, self._world_size = rank, world_size
        self._node = platform.node()

    def prepare(self, spec: TrainSpec, *, data: DataPaths, drivers_version: str) -> None:
        """Open the data set, which a node that has not met it yet makes ready first.

        Raises ``VersionMismatchError``: a profile is kept under the driver's version, so no other may measure it.
        """
        versions.check_version(drivers_version, node=self._node)
        self._spec, self._dataset = spec, load_dataset(spec.dataset, paths=data)

    def meet(self) -> Meeting:
        """Open the store through which all ranks find each other; asked of rank 0."""
        host = ray.util.get_node_ip_address()
        self._store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        return Meeting(host=host, port=self._store.port)

    def measure(self, request: ProbeRequest, *, meeting: Meeting) -> Profile:
        """Join the others and measure together, all of them prepared. Every rank returns the same samples."""
        address = ray.util.get_node_ip_address()
        group = open_group(
            meeting,
            rank=self._rank,
            world_size=self._world_size,
            address=address,
            device_kind=request.key.device_kind,
        )
        return run_probe(
            request,
            spec=self._spec,
            dataset=self._dataset,
            rank=self._rank,
            world_size=self._world_size,
            group=group,
            address=address,
        )


def measure_on_cluster(
    request: ProbeRequest,
    *,
    spec: TrainSpec,
    data: DataPaths,
    cpus_per_rank: float,
    gpus_per_rank: float = 0.0,
    prepare_timeout_s: float = 1800.0,
    timeout_s: float = 120.0,
) -> Profile:
    """Run the probe on ``request.key.num_ranks`` actors and end them, whatever happens. Needs a connected Ray driver.

    Preparing has a time of its own: a node may have to make a large data set ready. Raises ``ProbeFailedError`` when
    the ranks find no place or do not answer in time, and what a rank raised.
    """
    num_ranks = request.key.num_ranks
    resources = {"CPU": cpus_per_rank, "GPU": gpus_per_rank}
    places = placement_group([resources] * num_ranks, strategy="PACK")  # as Ray Train places its ranks
    actors = []
    try:
        if not places.wait(timeout_s):
            raise ProbeFailedError(
                f"{num_ranks} ranks of {cpus_per_rank:g} CPUs and {gpus_per_rank:g} GPUs found no place within"
                f" {timeout_s:g} s; look at the dashboard whether the cluster has what the job asks for"
            )
        for rank in range(num_ranks):
            strategy = PlacementGroupSchedulingStrategy(places, placement_group_bundle_index=rank)
            options = {"num_cpus": cpus_per_rank, "num_gpus": gpus_per_rank, "scheduling_strategy": strategy}
            actors.append(ray.remote(ProbeActor).options(**options).remote(rank, num_ranks))
        ours = versions.installed_version()
        prepared = [actor.prepare.remote(spec, data=data, drivers_version=ours) for actor in actors]
        _answers(prepared, timeout_s=prepare_timeout_s)
        (meeting,) = _answers([actors[0].meet.remote()], timeout_s=timeout_s)
        return _answers([actor.measure.remote(request, meeting=meeting) for actor in actors], timeout_s=timeout_s)[0]
    finally:
        for actor in actors:
            ray.kill(actor)
        remove_placement_group(places)


def _answers(asked: list[ray.ObjectRef], *, timeout_s: float) -> list[Any]:
    def late(num_pending: int) -> ProbeFailedError:
        return ProbeFailedError(
            f"{num_pending} of {len(asked)} ranks of the probe did not answer within {timeout_s:g} s; look at the"
            " dashboard whether their nodes are overloaded or cannot reach each other"
        )

    return all_answers(asked, timeout_s=timeout_s, late=late)
