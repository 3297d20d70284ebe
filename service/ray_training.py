"""From a planned job to a run of Ray Train (V2): the one place that speaks its configuration."""

import signal
from types import FrameType
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.callbacks import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2.api.config import LoggingConfig

from service.driver import RunOrder
from service.driver_watch import StopOrderedError
from service.ray_train_callback import JobCallback, ReplicaReports
from service.spec import ResourcesSpec
from workers import versions
from workers.mqgnn.remote.actor import elsewhere_than
from workers.ray_backend import RankGroupConfig, ReplicasBackend, ReplicasConfig
from workers.ray_loop import LoopConfig, outlive_each_other, train_loop
from workers.training.folder import Folder

# A group of ranks that could not be started (a node died meanwhile) is tried again this often; by default for ever.
MOST_START_FAILURES = 2
# How long a controller may take to take a run apart; the watch of the driver waits longer (``driver_watch.OBEY_S``).
ABORT_S = 2.0


class RankTrainer(TorchTrainer):  # type: ignore[misc]  # Ray has no types here
    """``TorchTrainer`` without two helper processes per run that ours have no use for.

    The dataset manager serves Ray Data, through which no training data of ours goes. The placement group cleaner is a
    detached actor, for scripts that live on after their run: our driver ends with its run, and its placement groups
    with it, whereas a cleaner whose controller is killed while it starts stays for ever.
    """

    _UNUSED = (DatasetsCallback, PlacementGroupCleanerCallback)

    def __init__(self, *args: Any, replica_reports: ReplicaReports | None = None, **options: Any) -> None:
        self._replica_reports = replica_reports
        super().__init__(*args, **options)

    def _create_default_callbacks(self) -> list[Any]:
        ours = [] if self._replica_reports is None else [self._replica_reports]
        return [each for each in super()._create_default_callbacks() if not isinstance(each, self._UNUSED)] + ours

    def _register_sigint_handler(self, controller: Any) -> None:
        """Have the first SIGINT take the run apart in order, or end the controller and with it all that it owns.

        While it starts ranks a controller waits inside a call and heeds nobody; Ray's own handler would wait with it.
        """

        def take_apart(signum: int, frame: FrameType | None) -> None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            try:
                ray.get(controller.abort.remote(), timeout=ABORT_S)
            except RayActorError:
                pass  # it has left
            except GetTimeoutError:
                ray.kill(controller)
            raise StopOrderedError

        signal.signal(signal.SIGINT, take_apart)


def build_trainer(order: RunOrder, *, not_on: frozenset[str] = frozenset()) -> RankTrainer:
    """The run of one job, named by its id; its ranks lie on any node but ``not_on`` (ids).

    Ray Train's folder of the run is the job's own, so that our checkpoints lie inside it and need not be copied.
    """
    restarts = order.spec.limits.max_restarts
    are_apart = outlive_each_other(order.spec, order.plan)
    num_apart = order.plan.world_size if are_apart else 0
    callback = JobCallback(order.job_id, max_restarts=restarts, num_apart=num_apart)
    backend = ReplicasConfig if are_apart else RankGroupConfig
    filesystem, place = Folder(order.job_dir).for_arrow()
    parent, _, name = place.rpartition("/")
    return RankTrainer(
        train_loop,
        train_loop_config=loop_config(order).model_dump(mode="json"),
        scaling_config=_scaling(order.spec.resources, num_ranks=order.plan.world_size, not_on=not_on),
        torch_config=backend(backend="nccl" if order.spec.resources.gpus_per_worker else "gloo"),
        run_config=RunConfig(
            name=name,
            storage_path=parent,
            storage_filesystem=filesystem,
            failure_config=FailureConfig(
                max_failures=restarts, max_preemption_failures=restarts, controller_failure_limit=MOST_START_FAILURES
            ),
            logging_config=LoggingConfig(log_level="WARNING"),  # the recorder tells what happens, in fewer words
            callbacks=[callback],
        ),
        replica_reports=ReplicaReports(callback, backend=ReplicasBackend()) if are_apart else None,
    )


def loop_config(order: RunOrder) -> LoopConfig:
    """What every rank is told."""
    return LoopConfig(
        graphmill_version=versions.installed_version(),
        spec=order.spec.train_spec(),
        plan=order.plan,
        data_root=order.data.root,
        data_cache=order.data.cache,
        job_dir=order.job_dir,
        model_from=order.model_from,
        max_rank_silence_s=order.spec.limits.max_rank_silence_s,
    )


def _scaling(resources: ResourcesSpec, *, num_ranks: int, not_on: frozenset[str]) -> ScalingConfig:
    each: dict[str, Any] = {"CPU": resources.cpus_per_worker}
    if resources.gpus_per_worker:
        each["GPU"] = resources.gpus_per_worker
    return ScalingConfig(
        num_workers=num_ranks,
        use_gpu=bool(resources.gpus_per_worker),
        resources_per_worker=each,
        label_selector=elsewhere_than(not_on) if not_on else None,
    )
