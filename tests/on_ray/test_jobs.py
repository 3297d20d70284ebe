"""Whole jobs of either kind on a real cluster, seen through the store and through Ray's own API."""

from typing import Any

import pytest

from planner.plan import MegaGraphPlan, MQGNNPlan
from service.cluster import RunState
from service.spec import JobState
from tests.kit.ray_cluster import LiveCluster
from tests.on_ray.jobs import sampled, transformer

pytestmark = pytest.mark.ray

WAY = ["PENDING", "PROFILING", "PLANNING", "SCHEDULING", "RUNNING", "FINISHED"]


def finish(cluster: LiveCluster, job_id: str) -> dict[str, Any]:
    job = cluster.wait_for(job_id, JobState.FINISHED)
    assert [move.target for move in cluster.store.transitions(job_id)] == WAY
    assert job.result is not None
    return job.result


def test_a_transformer_is_profiled_planned_trained_and_exported_on_two_ranks(cluster: LiveCluster) -> None:
    job_id = cluster.submit(transformer())
    cluster.wait_for(job_id, JobState.RUNNING)

    (driver,) = (job for job in cluster.ask("/api/jobs/") if job["submission_id"] == job_id)
    assert driver["status"] == "RUNNING"
    (run,) = (run for run in cluster.ask("/api/train/v2/runs/v1")["train_runs"] if run["name"] == job_id)
    assert run["job_details"]["submission_id"] == job_id
    assert len(run["attempts"][0]["workers"]) == 2

    result = finish(cluster, job_id)
    plan = cluster.store.get_plan(job_id)
    assert plan is not None
    assert plan.world_size == 2
    assert result["predicted_step_time_s"] == plan.predicted.step_time_s  # type: ignore[union-attr]
    assert result["step_time_s"] > 0
    assert set(result["peak_memory_bytes"]) == {"0", "1"}
    assert {"export/config.json", "export/model.safetensors"} <= set(result["files"])
    assert result["checkpoint"].endswith("step-00000020")
    assert {point.rank for point in cluster.store.metrics(job_id, names=("loss",)).points} == {0, 1}
    assert "epoch 20, step 20 of 20" in cluster.log(job_id)
    cluster.wait_until_clean(timeout_s=30)
    assert cluster.client.status(job_id).state is RunState.SUCCEEDED


def test_a_sampled_network_is_trained_by_two_replicas(cluster: LiveCluster) -> None:
    job_id = cluster.submit(sampled())
    result = finish(cluster, job_id)
    assert result["items_per_s"] > 0
    assert 0 <= result["test_accuracy"] <= 1
    assert {point.rank for point in cluster.store.metrics(job_id, names=("loss",)).points} == {0, 1}
    cluster.wait_until_clean(timeout_s=30)


def test_replicas_deal_out_their_features_and_use_samples_again(cluster: LiveCluster) -> None:
    training = {"epochs": 20, "batch_size": 8, "features": "remote", "cache": {"reuse": 2}}
    job_id = cluster.submit(sampled(training=training))
    result = finish(cluster, job_id)
    plan = cluster.store.get_plan(job_id)
    assert isinstance(plan, MQGNNPlan)
    assert plan.features == "remote"
    assert plan.cache.is_settled
    assert plan.predicted is not None
    assert max(result["peak_memory_bytes"].values()) <= max(plan.predicted.memory_bytes)
    for name in ("features_received_bytes", "cache_feature_hits", "cache_subgraph_hits"):
        assert {point.rank for point in cluster.store.metrics(job_id, names=(name,)).points if point.value} == {0, 1}
    cluster.wait_until_clean(timeout_s=30)


def test_links_and_rows_for_each_node_are_learned_by_two_replicas(cluster: LiveCluster) -> None:
    dataset = {"name": "karate", "links": {"num_val": 0.1, "num_test": 0.2, "eval_negatives": 10}}
    model = {"name": "graphsage", "hidden_size": 16, "fanouts": [5, 5], "node_embedding_size": 4}
    job_id = cluster.submit(sampled(dataset=dataset, model=model))
    result = finish(cluster, job_id)
    assert 0 < result["test_mrr"] <= 1
    assert 0 <= result["test_hits_at_10"] <= 1
    plan = cluster.store.get_plan(job_id)
    assert plan is not None
    assert plan.predicted is not None
    assert max(result["peak_memory_bytes"].values()) <= max(plan.predicted.memory_bytes)
    cluster.wait_until_clean(timeout_s=30)


def test_a_module_of_ones_own_is_found_by_its_path_trained_by_two_replicas_and_used(cluster: LiveCluster) -> None:
    model = {
        "name": "custom_gnn",
        "module": "tests.workers.mqgnn.own.modules:own_module",
        "arguments": {"convolution": "GATConv", "norm": True},
        "fanouts": [5, 5],
    }
    job_id = cluster.submit(sampled(model=model))
    result = finish(cluster, job_id)
    assert {"export/config.json", "export/model.safetensors"} <= set(result["files"])
    plan = cluster.store.get_plan(job_id)
    assert plan is not None
    assert plan.predicted is not None
    assert max(result["peak_memory_bytes"].values()) <= max(plan.predicted.memory_bytes)
    used = finish(cluster, cluster.submit(sampled(model=model, task="predict", from_job=job_id)))
    assert used["test_accuracy"] == result["test_accuracy"]
    wrong = cluster.submit(sampled(model=model | {"arguments": {"depth": 3}}))
    job = cluster.wait_for(wrong, JobState.FAILED)
    assert job.reason is not None
    assert job.reason.code == "model_invalid"
    assert "was called with ['depth', 'num_classes', 'num_features']" in job.reason.text
    cluster.wait_until_clean(timeout_s=30)


def test_edges_and_sums_of_one_graph_are_priced_and_shared_out_over_two_ranks(cluster: LiveCluster) -> None:
    model = {"name": "sgformer", "num_layers": 2, "hidden_size": 16}
    job_id = cluster.submit(transformer(model=model))
    result = finish(cluster, job_id)
    plan = cluster.store.get_plan(job_id)
    assert isinstance(plan, MegaGraphPlan)
    (stage,) = plan.stages
    assert (stage.cp_degree, stage.exchange) == (2, "halo")
    assert plan.predicted is not None
    assert {"halo_forward", "sums_backward"} <= set(plan.predicted.terms_s)
    assert max(result["peak_memory_bytes"].values()) <= max(plan.predicted.memory_bytes)
    cluster.wait_until_clean(timeout_s=30)


def test_ranks_of_another_version_are_refused_at_once(cluster: LiveCluster) -> None:
    job_id = cluster.submit(sampled(), module="tests.on_ray.other_version")
    job = cluster.wait_for(job_id, JobState.FAILED)
    assert job.reason is not None
    assert job.reason.code == "version_mismatch"
    assert "the driver runs graphmill 0.0.1" in job.reason.text
    assert job.restarts == 0
    cluster.wait_until_clean(timeout_s=30)
    assert cluster.client.status(job_id).state is RunState.FAILED
