"""The run that Ray Train is given; what it relies on inside Ray is checked here, so that an upgrade is noticed."""

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest
from ray import cloudpickle
from ray.train.v2._internal.callbacks.backend_setup import BackendSetupCallback
from ray.train.v2._internal.execution.worker_group import WorkerGroup

from planner.plan import MQGNNPlan
from service.driver import RunOrder
from service.ray_train_callback import JobCallback, ReplicaReports
from service.ray_training import MOST_START_FAILURES, build_trainer
from service.spec import JobSpec
from tests.kit.builders import job_document, two_rank_plan
from workers.data.paths import DataPaths
from workers.ray_backend import RankGroupConfig, ReplicasBackend, ReplicasConfig
from workers.ray_loop import LoopConfig


def order(tmp_path: Path, **resources: float) -> RunOrder:
    limits = {"max_restarts": 3}
    return RunOrder(
        job_id="job-1",
        spec=JobSpec.model_validate(job_document(resources={"num_workers": 2, **resources}, limits=limits)),
        plan=two_rank_plan(),
        data=DataPaths(root=None, cache=tmp_path / "cache"),
        job_dir=str(tmp_path / "jobs" / "job-1"),
    )


def test_rays_folder_of_the_run_is_the_jobs_own(tmp_path: Path) -> None:
    run_config = build_trainer(order(tmp_path)).run_config
    assert Path(run_config.storage_path) / run_config.name == tmp_path / "jobs" / "job-1"


def test_behind_a_uri_ray_is_given_the_file_system_and_the_place_in_it(tmp_path: Path) -> None:
    behind = dataclasses.replace(order(tmp_path), job_dir="memory://bucket/jobs/job-1")
    run_config = build_trainer(behind).run_config
    assert (run_config.storage_path, run_config.name) == ("/bucket/jobs", "job-1")
    assert run_config.storage_filesystem.type_name == "py::fsspec+memory"


def test_restarts_are_bounded_in_every_way(tmp_path: Path) -> None:
    failures = build_trainer(order(tmp_path)).run_config.failure_config
    assert (failures.max_failures, failures.max_preemption_failures) == (3, 3)
    assert failures.controller_failure_limit == MOST_START_FAILURES


def test_as_many_ranks_run_as_the_plan_has(tmp_path: Path) -> None:
    trainer = build_trainer(order(tmp_path, num_workers=4, min_workers=1))
    assert trainer.scaling_config.num_workers == two_rank_plan().world_size


def test_ranks_keep_away_from_nodes_that_are_set_apart(tmp_path: Path) -> None:
    assert build_trainer(order(tmp_path)).scaling_config.label_selector is None
    apart = build_trainer(order(tmp_path), not_on=frozenset({"b1", "a0"}))
    assert apart.scaling_config.label_selector == {"ray.io/node-id": "!in(a0, b1)"}


def test_ranks_with_gpus_talk_nccl_and_others_gloo(tmp_path: Path) -> None:
    assert build_trainer(order(tmp_path)).backend_config.backend == "gloo"
    trainer = build_trainer(order(tmp_path, gpus_per_worker=1))
    assert trainer.backend_config.backend == "nccl"
    assert trainer.scaling_config.resources_per_worker == {"CPU": 1.0, "GPU": 1.0}
    assert isinstance(trainer.backend_config, RankGroupConfig)


@pytest.mark.parametrize(
    ("sync", "are_groups"),
    [("racom", True), ("ddp", False), ("local_sgd", False), ({"name": "racom", "drift": 0}, False)],
)
def test_ranks_that_step_by_themselves_are_groups_that_ray_replaces_one_by_one(
    tmp_path: Path, sync: Any, are_groups: bool
) -> None:
    document = job_document(
        kind="mqgnn",
        model={"name": "graphsage", "fanouts": [5, 5]},
        training={"sync": sync},
        resources={"num_workers": 2},
    )
    spec = JobSpec.model_validate(document)
    plan = MQGNNPlan(world_size=2, batch_size=512, fanouts=(5, 5), sync=spec.training.sync, pipelined=False)
    trainer = build_trainer(dataclasses.replace(order(tmp_path), spec=spec, plan=plan))
    assert trainer.backend_config.backend_cls.has_replica_groups is are_groups
    assert (trainer._replica_reports is not None) is are_groups


def test_on_the_controller_reports_are_read_from_the_store_that_the_backend_has_made_there() -> None:
    reports = ReplicaReports(JobCallback("job-1", max_restarts=1, num_apart=2), backend=ReplicasBackend())
    setup, travelled = cloudpickle.loads(cloudpickle.dumps([BackendSetupCallback(ReplicasConfig()), reports]))
    assert travelled._backend is setup._backend


def test_ray_hands_a_replaced_rank_to_the_backend_as_a_group_of_its_own() -> None:
    source = inspect.getsource(WorkerGroup._replace_replica_group_impl)
    assert "ReplicaGroup(" in source
    assert "starting_world_rank=replica_group_index" in source, "the new rank would not take the place of the dead one"


def test_the_ranks_are_told_the_plan(tmp_path: Path) -> None:
    told = LoopConfig.model_validate(build_trainer(order(tmp_path)).train_loop_config)
    assert told.plan == two_rank_plan()
    assert told.spec.kind == "megagraph"


def test_rays_helpers_without_use_for_us_are_left_out_and_no_others(tmp_path: Path) -> None:
    trainer = build_trainer(order(tmp_path))
    names = {type(callback).__name__ for callback in trainer._create_default_callbacks()}
    assert {"BackendSetupCallback", "UserCallbackHandler", "AcceleratorSetupCallback"} <= names
    assert not {"DatasetsCallback", "PlacementGroupCleanerCallback"} & names
    everything = {type(callback).__name__ for callback in super(type(trainer), trainer)._create_default_callbacks()}
    assert everything - names == {"DatasetsCallback", "PlacementGroupCleanerCallback"}
