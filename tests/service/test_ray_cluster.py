"""What the dashboard's answers mean, with answers as Ray 2.60 gives them."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from service.cluster import ClusterRefusedError, ClusterTroubledError, ClusterUnreachableError, RunState
from service.driver_watch import OBEY_S
from service.policies import DEFAULT_PATIENCE
from service.ray_cluster import DRIVER_SWITCHES, RayCluster

Handler = Callable[[httpx.Request], httpx.Response]
NODE = {
    "node_id": "n1",
    "node_ip": "10.0.0.1",
    "state": "ALIVE",
    "resources_total": {"CPU": 8.0, "GPU": 2.0, "memory": 1e9},
    "labels": {"graphmill.io/physical-cores": "2", "ray.io/accelerator-type": "H200"},
}
USAGE = {"usage": {"CPU": [3.0, 8.0], "GPU": [0.0, 2.0]}}


def cluster(handler: Handler) -> RayCluster:
    return RayCluster("http://dashboard:8265/", token="secret", transport=httpx.MockTransport(handler))


def answers(status: int = 200, body: Any = "") -> Handler:
    text = body if isinstance(body, str) else json.dumps(body)
    return lambda request: httpx.Response(status, text=text)


def submit(client: RayCluster) -> None:
    client.submit("job-1", submission_id="sub-1", entrypoint="python -m x", metadata={})


def shape_answers(nodes: list[dict[str, Any]], report: Any) -> Handler:
    bodies = {
        "/api/v0/nodes": {"data": {"result": {"result": nodes}}},
        "/api/cluster_status": {"data": {"clusterStatus": {"loadMetricsReport": report}}},
        "/api/version": {"ray_version": "2.60.0"},
    }
    return lambda request: httpx.Response(200, json=bodies[request.url.path])


def test_the_shape_has_the_living_nodes_and_what_is_free() -> None:
    spec = cluster(shape_answers([NODE, {**NODE, "state": "DEAD"}], USAGE)).shape()
    assert [node.node_id for node in spec.nodes] == ["n1"]
    assert (spec.num_cpus, spec.free_cpus, spec.num_gpus, spec.free_gpus) == (8.0, 5.0, 2.0, 2.0)
    assert (spec.nodes[0].physical_cores, spec.nodes[0].device_name) == (2, "H200")


def test_before_the_first_usage_report_everything_counts_as_free() -> None:
    assert cluster(shape_answers([NODE], None)).shape().free_cpus == 8.0


def test_a_node_without_labels_is_believed() -> None:
    spec = cluster(shape_answers([{**NODE, "labels": None}], USAGE)).shape()
    assert (spec.nodes[0].physical_cores, spec.nodes[0].device_name) == (8, "cpu")


def test_every_request_carries_the_token() -> None:
    seen = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["authorization"])
        return httpx.Response(404)

    cluster(handler).status("sub-1")
    assert seen == ["Bearer secret"]


def test_a_submit_travels_with_switches_of_ray_only() -> None:
    sent: list[Any] = []

    def handler(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        return httpx.Response(200, json={"submission_id": "sub-1"})

    submit(cluster(handler))
    names = set(sent[0]["runtime_env"]["env_vars"])
    assert {"RAY_TRAIN_ENABLE_STATE_TRACKING", "RAY_JOB_STOP_SIGNAL"} <= names
    assert all(name.startswith("RAY_") for name in names)
    assert sent[0]["metadata"]["graphmill_job"] == "job-1"


def test_a_second_submit_under_one_name_is_no_error() -> None:
    asked: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request.method)
        if request.method == "POST":
            return httpx.Response(500, text="ValueError: Job with submission_id sub-1 already exists.")
        return httpx.Response(200, json={"status": "RUNNING", "message": None})

    submit(cluster(handler))
    assert asked == ["POST", "GET"], "that the run is there is asked, not taken from the error"


def test_a_cluster_without_a_job_agent_is_to_be_asked_again() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(404) if request.method == "GET" else httpx.Response(500, text="No available agent")

    with pytest.raises(ClusterTroubledError, match="No available agent"):
        submit(cluster(handler))


def test_a_submit_that_is_refused_says_why() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(404) if request.method == "GET" else httpx.Response(400, text="bad runtime_env")

    with pytest.raises(ClusterRefusedError, match="bad runtime_env"):
        submit(cluster(handler))


@pytest.mark.parametrize("state", sorted(set(RunState) - {RunState.MISSING, RunState.UNKNOWN}))
def test_the_status_is_the_clusters_own_word(state: RunState) -> None:
    run = cluster(answers(body={"status": state, "message": "as it is"})).status("sub-1")
    assert (run.state, run.message) == (state, "as it is")


def test_an_unknown_run_is_missing_and_not_an_error() -> None:
    client = cluster(answers(404, "Job sub-1 does not exist"))
    assert client.status("sub-1").state is RunState.MISSING
    client.stop("sub-1")


def test_a_wrong_token_is_a_refusal() -> None:
    with pytest.raises(ClusterRefusedError, match="another token"):
        cluster(answers(403, "Forbidden: Invalid authentication token")).status("sub-1")


def test_no_answer_is_told_apart_from_a_run_that_is_not_there() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(ClusterUnreachableError, match="did not answer GET /api/jobs/sub-1"):
        cluster(handler).status("sub-1")


def test_an_answer_that_is_no_dashboards_is_not_taken_for_one() -> None:
    with pytest.raises(ClusterTroubledError, match="Ray dashboard"):
        cluster(answers(200, "<html>welcome</html>")).status("sub-1")


@pytest.mark.parametrize(
    "body", [[], {"data": None}, {"data": {"result": {"result": [{"node_id": "n1"}]}, "clusterStatus": None}}]
)
def test_a_shape_of_an_unknown_form_is_trouble_and_no_crash(body: Any) -> None:
    with pytest.raises(ClusterTroubledError, match="does not know"):
        cluster(answers(body=body)).shape()


@pytest.mark.parametrize("body", [[], {}, {"status": "HIBERNATING"}, {"status": "RUNNING", "message": {"odd": 1}}])
def test_a_status_of_an_unknown_form_is_trouble_and_no_crash(body: Any) -> None:
    with pytest.raises(ClusterTroubledError, match="the status of sub-1"):
        cluster(answers(body=body)).status("sub-1")


def test_a_driver_that_does_not_obey_is_killed_before_the_ten_seconds_of_a_cancel_are_over() -> None:
    kill_after_s = DEFAULT_PATIENCE.cancel_grace_s + float(DRIVER_SWITCHES["RAY_JOB_STOP_WAIT_TIME_S"])
    assert DEFAULT_PATIENCE.cancel_grace_s > OBEY_S
    assert kill_after_s < 9
