"""The engine of a driver on a real cluster: Ray Core for probes and planner, Ray Train (V2) for the ranks."""

import logging
import signal
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import ray
from ray._private.state import available_resources_per_node
from ray.exceptions import GetTimeoutError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from planner.actor import PlannerActor
from planner.cluster import ClusterSpec
from planner.errors import GraphmillError
from planner.profiles import JobShape, ProbeRequest, Profile
from service.admission import Amount, actors_of, ranks_of
from service.driver import AnyPlan, RunOrder
from service.nodes import spec_of_ray_node
from service.placement import set_apart
from service.spec import JobSpec
from workers.data.paths import DataPaths

_log = logging.getLogger(__name__)

PLAN_TIMEOUT_S = 300.0  # starting the actor takes a few seconds, the search of a large space a minute


class PlanTimeoutError(GraphmillError):
    """The planner actor gave no answer in time."""

    code = "plan_timeout"


class RayEngine:
    """See ``service.driver.Engine``. ``gcs_address``: the cluster, as Ray told this driver; None finds a local one."""

    def __init__(self, *, gcs_address: str | None) -> None:
        self._gcs_address = gcs_address
        self._planner: Any = None

    def connect(self) -> None:
        """Join the cluster and let the planner's process start while this one imports Ray Train (seconds each)."""
        # Ray Train's own helpers ask for the cluster by this variable; without it they look in Ray's default folder,
        # where no cluster or another one is, and every end of a run waits 12 s for an answer.
        switches = {"RAY_ADDRESS": self._gcs_address} if self._gcs_address else {}
        ray.init(runtime_env={"env_vars": switches}, logging_level=logging.WARNING)
        # On this node it runs what is installed here, so it needs no check of versions.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._planner = ray.remote(PlannerActor).options(num_cpus=0, scheduling_strategy=here).remote()
        import service.ray_training  # noqa: F401

    def shape(self) -> ClusterSpec:
        """The live nodes; what is free is not asked: the dispatcher has admitted this job."""
        return ClusterSpec(
            nodes=tuple(spec_of_ray_node(node) for node in ray.nodes() if node["Alive"]),
            ray_version=ray.__version__,
            observed_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )

    def measure(self, request: ProbeRequest, *, spec: JobSpec, data: DataPaths) -> Profile:
        """Run the probes on ranks like those that will train."""
        from workers.probe.actor import measure_on_cluster

        resources = spec.resources
        profile: Profile = measure_on_cluster(
            request,
            spec=spec.train_spec(),
            data=data,
            cpus_per_rank=resources.cpus_per_worker,
            gpus_per_rank=resources.gpus_per_worker,
        )
        return profile

    def plan(self, shape: JobShape, *, cluster: ClusterSpec, profiles: Sequence[Profile], most_ranks: int) -> AnyPlan:
        """Ask the planner actor, once; it ends with the answer."""
        asked = self._planner.choose_plan.remote(shape, cluster=cluster, profiles=profiles, most_ranks=most_ranks)
        try:
            plan: AnyPlan = ray.get(asked, timeout=PLAN_TIMEOUT_S)
        except RayTaskError as error:
            raise error.cause from None
        except GetTimeoutError:
            raise PlanTimeoutError(
                f"the planner did not answer within {PLAN_TIMEOUT_S:g} s for {most_ranks} ranks; look on the dashboard"
                " whether its actor could start, or ask for fewer ranks, which makes its search smaller"
            ) from None
        ray.kill(self._planner)
        self._planner = None
        return plan

    def train(self, order: RunOrder) -> dict[str, float]:
        """Run the ranks to their end; where actors sample for them, these have their places before ranks ask."""
        from workers.ray_loop import samples_elsewhere

        if not samples_elsewhere(order.spec, order.plan):
            return self._run(order)
        from workers.mqgnn.remote.actor import sampling_actors

        assert order.plan.kind == "mqgnn", "no other plan has actors"
        apart = set_apart(
            free_per_node(), ranks=ranks_of(order.spec, num_ranks=order.plan.world_size), actors=actors_of(order.spec)
        )
        spec = order.spec.train_spec()
        with sampling_actors(spec, plan=order.plan, paths=order.data, not_on=apart.for_ranks) as who:
            _log.info("%d sampling actors are ready: %s", len(who), ", ".join(who))
            return self._run(order, not_on=apart.for_actors)

    def _run(self, order: RunOrder, *, not_on: frozenset[str] = frozenset()) -> dict[str, float]:
        from service.ray_training import build_trainer

        trainer = build_trainer(order, not_on=not_on)
        before = signal.getsignal(signal.SIGINT)
        try:
            return dict(trainer.fit().return_value)  # replaces the handler: SIGINT takes the run apart first
        except KeyboardInterrupt:
            before = signal.SIG_IGN
            raise
        finally:
            signal.signal(signal.SIGINT, before)

    def close(self) -> None:
        """Leave the cluster; what this driver still has there ends with its connection."""
        ray.shutdown()
        self._planner = None


def free_per_node() -> dict[str, Amount]:
    """What no job has reserved, by id of the node."""
    nodes = available_resources_per_node()
    return {node: Amount(free.get("CPU", 0.0), free.get("GPU", 0.0)) for node, free in nodes.items()}
