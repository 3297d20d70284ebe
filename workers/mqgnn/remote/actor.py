"""The Ray shell around remote sampling: the actor, its reservation by the driver of a job, and calls from the ranks.

    driver   sampling_actors: a placement group, an actor in each bundle, all ready ─▶ Ray Train asks for its ranks
    rank     connect: finds the actors by name, in the namespace of the job

Group and actors belong to the driver, so both end with it, whatever ends it. An actor that dies Ray starts anew, in its
bundle; what it had been asked is lost, and asked again by who wants it (``asking``).
"""

import os
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
import torch
from ray.exceptions import GetTimeoutError, ObjectLostError, RayActorError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from planner.plan import MQGNNPlan
from planner.sampling import SamplingRule
from workers import versions
from workers.data.paths import DataPaths
from workers.errors import SamplingActorsError
from workers.mqgnn.remote.batch_maker import BatchMaker, BatchRequest
from workers.mqgnn.remote.packing import PackedBatch
from workers.ray_answers import all_answers
from workers.spec import TrainSpec
from workers.training.remote_calls import ActorLostError

PLACE_S = 120.0
# A node may have to make a large data set ready first; as long as probes wait for that.
READY_S = 1800.0
# A process that runs answers at once; longer would take from the time in which a hanging one is to be named.
WHERE_S = 2.0
_WATCH = "watch"
_NODE_LABEL = "ray.io/node-id"


@dataclass(frozen=True, eq=False)
class Answer:
    """What an actor says: the mini-batch, and who made it, in words."""

    packed: PackedBatch
    made_by: str


class SamplingActor:
    """Makes mini-batches for all ranks of a job, one at a time."""

    def __init__(self, spec: TrainSpec, *, plan: MQGNNPlan, paths: DataPaths, drivers_version: str) -> None:
        """Open the data. What goes wrong with it is told to whoever asks: Ray would only say that the actor died."""
        node = ray.util.get_node_ip_address()
        self._who = f"pid {os.getpid()} on {node}"
        self._fault: Exception | None = None
        self._works_in: int | None = None  # the thread that makes, while it does
        try:
            versions.check_version(drivers_version, node=node)
            self._maker = BatchMaker(spec, plan=plan, paths=paths)
        except Exception as error:
            self._fault = error

    def ready(self) -> str:
        """Who this is, in words, once its data are open."""
        if self._fault is not None:
            raise self._fault
        return self._who

    def make(self, request: BatchRequest) -> Answer:
        """The mini-batch that is asked for. Raises ``StageFailedError``."""
        self.ready()
        torch.set_num_threads(1)  # of the thread that Ray has this run in
        self._works_in = threading.get_ident()
        try:
            return Answer(self._maker.make(request), made_by=self._who)
        finally:
            self._works_in = None

    @ray.method(concurrency_group=_WATCH)  # type: ignore[misc]  # Ray has no types here
    def where(self) -> str:
        """The stack of the request that is worked on, told from another thread."""
        frame = None if self._works_in is None else sys._current_frames().get(self._works_in)
        return "".join(traceback.format_stack(frame)).rstrip() if frame else "no request: it waits for one"


@contextmanager
def sampling_actors(
    spec: TrainSpec, *, plan: MQGNNPlan, paths: DataPaths, not_on: frozenset[str] = frozenset()
) -> Iterator[tuple[str, ...]]:
    """The actors of ``plan``, ready, for as long as the block runs; gives who they are. Needs a connected driver.

    They are spread over nodes other than ``not_on`` (ids); where that names none they lie together, so that ranks find
    room. Raises ``SamplingActorsError``, and what an actor raised when it opened its data.
    """
    rule = plan.sampling
    places = _reserve(rule, not_on=not_on)
    actors: list[Any] = []
    try:
        if not places.wait(PLACE_S):
            raise SamplingActorsError(
                f"{rule.num_actors} sampling actors of {rule.cpus_per_actor:g} CPUs found no place within {PLACE_S:g}"
                " s; look on the dashboard what holds the CPUs, or ask for fewer by training.sampling"
            )
        for number in range(rule.num_actors):
            options = {
                "name": _name_of(number),
                "num_cpus": rule.cpus_per_actor,
                "max_restarts": -1,
                "scheduling_strategy": PlacementGroupSchedulingStrategy(places, placement_group_bundle_index=number),
            }
            made = ray.remote(concurrency_groups={_WATCH: 1})(SamplingActor).options(**options)
            actors.append(made.remote(spec, plan=plan, paths=paths, drivers_version=versions.installed_version()))
        yield tuple(_all_ready(actors))
    finally:
        for actor in actors:
            ray.kill(actor)
        remove_placement_group(places)


def _reserve(rule: SamplingRule, *, not_on: frozenset[str]) -> PlacementGroup:
    bundles = [{"CPU": rule.cpus_per_actor}] * rule.num_actors
    if not not_on:
        return placement_group(bundles, strategy="PACK")
    return placement_group(bundles, strategy="SPREAD", bundle_label_selector=[elsewhere_than(not_on)] * len(bundles))


def elsewhere_than(nodes: frozenset[str]) -> dict[str, str]:
    """What Ray calls any node but ``nodes`` (ids)."""
    return {_NODE_LABEL: f"!in({', '.join(sorted(nodes))})"}


def _all_ready(actors: Sequence[Any]) -> list[str]:
    def late(num_pending: int) -> SamplingActorsError:
        return SamplingActorsError(
            f"{num_pending} of {len(actors)} sampling actors did not open their data within {READY_S:g} s; look on"
            " the dashboard what they do"
        )

    try:
        return all_answers([actor.ready.remote() for actor in actors], timeout_s=READY_S, late=late)
    except RayActorError as error:
        raise SamplingActorsError(f"a sampling actor died while it started: {error}") from None


class ActorCalls:
    """``RemoteCalls`` of a rank to the sampling actors of its job."""

    def __init__(self, actors: Sequence[Any]) -> None:
        self._actors, self.num_actors = actors, len(actors)
        self._seen: dict[int, str] = {}

    def name(self, actor: int) -> str:
        """Number, and as its newest answer said, process and node."""
        return f"sampling actor {actor}" + (f" ({self._seen[actor]})" if actor in self._seen else "")

    def ask(self, actor: int, request: BatchRequest) -> tuple[int, Any]:
        """Its number, and the reference."""
        return actor, self._actors[actor].make.remote(request)

    def has_come(self, asked: tuple[int, Any], *, within_s: float) -> bool:
        """Once the answer lies on this node."""
        return bool(ray.wait([asked[1]], timeout=within_s)[0])

    def answer(self, asked: tuple[int, Any]) -> PackedBatch:
        """Arrays lie where Ray received them."""
        actor, reference = asked
        try:
            answer: Answer = ray.get(reference)
        except RayTaskError as error:
            raise error.cause from None
        except (RayActorError, ObjectLostError) as error:
            raise ActorLostError(str(error)) from None
        self._seen[actor] = answer.made_by
        return answer.packed

    def where(self, actor: int) -> str:
        """As it says itself, from another thread."""
        try:
            return str(ray.get(self._actors[actor].where.remote(), timeout=WHERE_S))
        except (GetTimeoutError, RayActorError) as error:
            return f"a place that {self.name(actor)} did not tell within {WHERE_S:g} s ({type(error).__name__})"

    def restart(self, actor: int) -> None:
        """Ray starts it anew, as after any death."""
        ray.kill(self._actors[actor], no_restart=False)


def connect(rule: SamplingRule) -> ActorCalls:
    """The actors of this rank's job."""
    return ActorCalls([ray.get_actor(_name_of(number)) for number in range(rule.num_actors)])


def _name_of(number: int) -> str:
    return f"sampling-{number}"
