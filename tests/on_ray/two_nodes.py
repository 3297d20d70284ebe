"""A job on a cluster of two nodes in two network namespaces; run inside the head's one, prints what it saw as JSON.

ip netns exec HEAD python -m tests.on_ray.two_nodes HOME NAMESPACE_OF_THE_SECOND_NODE ranks | actors

``ranks``: two of them, of which neither node holds both; ``actors``: as many may lie anywhere, and two sample for them.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from service import embedded
from service.embedded import OBJECT_STORE_BYTES, node_environment
from service.spec import JobState
from tests.kit.ray_cluster import LiveCluster, live_cluster
from tests.kit.unwinding import unwind_when_asked
from tests.on_ray.jobs import sampled

CPUS_PER_NODE = 8  # as the embedded head advertises on small machines
MORE_THAN_HALF_A_NODE = 5


@contextmanager
def second_node(cluster: LiveCluster, namespace: str) -> Iterator[None]:
    """Another node joins from its namespace, with the same settings and token."""
    info = cluster.info
    command = [
        *("ip", "netns", "exec", namespace, str(Path(sys.executable).with_name("ray")), "start", "--block"),
        *(
            f"--address={info.address_file.read_text().strip()}",
            f"--num-cpus={CPUS_PER_NODE}",
            f"--object-store-memory={OBJECT_STORE_BYTES}",
        ),
        *("--min-worker-port=0", "--max-worker-port=0", f"--temp-dir={info.temp_dir / 'second'}"),
    ]
    with (cluster.settings.home / "second.log").open("wb") as log:
        node = subprocess.Popen(
            command, env=node_environment(cluster.settings), stdout=log, stderr=log, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 60
        while len(cluster.client.shape().nodes) < 2:
            assert node.poll() is None, (cluster.settings.home / "second.log").read_text()
            assert time.monotonic() < deadline, (cluster.settings.home / "second.log").read_text()
            time.sleep(0.2)
        yield
    finally:
        node.terminate()
        node.wait(timeout=30)


@contextmanager
def _reachable_head() -> Iterator[None]:
    """An embedded cluster listens on the loopback interface; let this one have the address of its namespace."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(embedded._NODE_ENVIRONMENT, embedded.LOOPBACK_SWITCH, "1")
        yield


JOBS = {
    "ranks": sampled(resources={"num_workers": 2, "cpus_per_worker": MORE_THAN_HALF_A_NODE}),
    "actors": sampled(
        training={"epochs": 300, "batch_size": 8, "eval_every_epochs": 100, "sampling": {"placement": "remote"}},
        resources={"num_workers": 2},
    ),
}


def main(home: str, namespace: str, job: str) -> None:
    """Train on both nodes. Whoever asks this program to end gets the cluster ended, too."""
    unwind_when_asked()
    with _reachable_head(), live_cluster(Path(home)) as cluster, second_node(cluster, namespace):
        job_id = cluster.submit(JOBS[job])
        cluster.wait_for(job_id, JobState.RUNNING, timeout_s=240)
        samplers = [each["node_id"] for each in cluster.actors() if each["class_name"] == "SamplingActor"]
        address = {node.node_id: node.address for node in cluster.client.shape().nodes}
        ended = cluster.wait_for(job_id, JobState.FINISHED, timeout_s=240)
        (run,) = cluster.ask("/api/train/v2/runs/v1")["train_runs"]
        seen = {
            "nodes": sorted(each["node_ip"] for each in run["attempts"][0]["workers"]),
            "samplers": sorted(address[node] for node in samplers),
            "result": ended.result,
        }
        print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
