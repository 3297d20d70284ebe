"""Who may start, and what the others are told."""

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cluster import ClusterSpec
from service.admission import Admission, Amount, admit, promised_to
from service.spec import JobSpec, JobState
from service.store.records import JobRecord
from tests.kit.builders import cluster_spec, job_document, job_spec

NOW = datetime(2026, 11, 29, tzinfo=UTC)


def waiting_job(name: str, spec: JobSpec) -> JobRecord:
    return JobRecord(id=name, spec=spec, state=JobState.PENDING, created_at=NOW, updated_at=NOW)


def queue(*specs: JobSpec) -> list[JobRecord]:
    return [waiting_job(f"j{place}", spec) for place, spec in enumerate(specs)]


def started(admission: Admission) -> list[str]:
    return [job.id for job in admission.start]


def test_jobs_start_in_their_order_until_the_cluster_is_full() -> None:
    admission = admit(queue(*[job_spec(workers=2)] * 3), promised=[], cluster=cluster_spec((4, 0)))
    assert started(admission) == ["j0", "j1"]
    reason = admission.waiting["j2"]
    assert reason.code == "resources_busy"
    assert reason.reason == "asked 2 CPUs; 0 of 4 CPUs are not promised to running jobs"
    assert reason.asked == {"cpus": 2.0, "gpus": 0.0}
    assert reason.available == {"cpus": 0.0, "gpus": 0.0}


def test_what_is_promised_counts_as_taken() -> None:
    promised = [waiting_job("running", job_spec(workers=3))]
    admission = admit(queue(job_spec(workers=2)), promised=promised, cluster=cluster_spec((4, 0)))
    assert started(admission) == []
    assert admission.waiting["j0"].reason == "asked 2 CPUs; 1 of 4 CPUs are not promised to running jobs"


def test_ranks_that_a_plan_does_not_use_are_free_for_others() -> None:
    planned = waiting_job("running", job_spec(workers=3)).model_copy(update={"world_size": 2})
    assert started(admit(queue(job_spec(workers=2)), promised=[planned], cluster=cluster_spec((4, 0)))) == ["j0"]


def test_a_job_that_never_fits_says_what_the_cluster_lacks_and_blocks_nobody() -> None:
    admission = admit(queue(job_spec(workers=2, gpus=4), job_spec()), promised=[], cluster=cluster_spec((4, 0)))
    assert started(admission) == ["j1"]
    assert admission.waiting["j0"].code == "never_fits"
    assert admission.waiting["j0"].reason == "asked 8 GPUs, the cluster has 0"


def test_a_small_job_does_not_overtake_a_big_one_that_waits_for_room() -> None:
    promised = [waiting_job("running", job_spec(workers=1))]
    jobs = queue(job_spec(workers=4), job_spec(workers=1))
    admission = admit(jobs, promised=promised, cluster=cluster_spec((4, 0)))
    assert started(admission) == []
    assert admission.waiting["j1"].code == "older_job_first"


def test_a_worker_must_fit_into_one_node() -> None:
    admission = admit(queue(job_spec(workers=2, cpus=3)), promised=[], cluster=cluster_spec((4, 0), (2, 0)))
    assert admission.waiting["j0"].code == "never_fits"
    assert "the 2 nodes of the cluster can hold 1" in admission.waiting["j0"].reason


def test_what_is_free_in_pieces_is_no_room_for_a_worker() -> None:
    promised = [waiting_job("running", job_spec(workers=2, cpus=3))]
    admission = admit(queue(job_spec(workers=1, cpus=2)), promised=promised, cluster=cluster_spec((4, 0), (4, 0)))
    assert started(admission) == []
    assert admission.waiting["j0"].code == "resources_busy"
    assert admission.waiting["j0"].reason == (
        "asked 1 worker of 2 CPUs, each within one node; 2 CPUs are free, in pieces that hold 0"
    )


def packs(workers: list[Amount], nodes: list[Amount]) -> bool:
    """Whether any layout holds all: every node is tried for every worker."""
    if not workers:
        return True
    first, rest = workers[0], workers[1:]
    return any(
        first.fits(node) and packs(rest, [*nodes[:place], node - first, *nodes[place + 1 :]])
        for place, node in enumerate(nodes)
    )


def test_a_worker_needs_its_cpus_and_gpus_on_the_same_node() -> None:
    spec = job_spec(workers=1, cpus=4, gpus=1)
    apart = admit(queue(spec), promised=[], cluster=cluster_spec((4, 0), (2, 1)))
    together = admit(queue(spec), promised=[], cluster=cluster_spec((4, 1)))
    assert (started(apart), started(together)) == ([], ["j0"])


def test_a_busy_gpu_is_named() -> None:
    promised = [waiting_job("running", job_spec(workers=1, gpus=1))]
    admission = admit(queue(job_spec(workers=1, gpus=1)), promised=promised, cluster=cluster_spec((8, 1)))
    assert admission.waiting["j0"].reason == "asked 1 CPU and 1 GPU; 0 of 1 GPU are not promised to running jobs"


def test_gpus_that_died_with_their_node_are_no_debt_of_jobs_that_want_none() -> None:
    promised = [waiting_job("running", job_spec(workers=1, gpus=1))]
    admission = admit(queue(job_spec(workers=1)), promised=promised, cluster=cluster_spec((8, 0)))
    assert started(admission) == ["j0"]


def test_tenths_of_a_cpu_add_up() -> None:
    assert started(admit(queue(job_spec(workers=3, cpus=0.1)), promised=[], cluster=cluster_spec((0.3, 0)))) == ["j0"]


def test_an_empty_cluster_holds_nothing() -> None:
    assert started(admit(queue(job_spec()), promised=[], cluster=ClusterSpec(nodes=()))) == []


def remote_spec(*, workers: int = 2, cpus: float = 1.0, actors: int = 2, actor_cpus: float = 1.0) -> JobSpec:
    """A job that has actors sample for its ranks."""
    sampling = {"placement": "remote", "num_actors": actors, "cpus_per_actor": actor_cpus}
    document = job_document(
        kind="mqgnn",
        model={"name": "graphsage"},
        training={"sampling": sampling},
        resources={"num_workers": workers, "cpus_per_worker": cpus},
    )
    return JobSpec.model_validate(document)


def test_ranks_and_their_actors_are_one_request() -> None:
    admission = admit(queue(remote_spec(), job_spec(workers=1)), promised=[], cluster=cluster_spec((5, 0)))
    assert started(admission) == ["j0", "j1"]
    assert started(admit(queue(remote_spec(), job_spec()), promised=[], cluster=cluster_spec((5, 0)))) == ["j0"]


def test_actors_that_find_no_room_keep_the_whole_job_waiting_in_numbers() -> None:
    promised = [waiting_job("running", job_spec(workers=1))]
    admission = admit(queue(remote_spec()), promised=promised, cluster=cluster_spec((4, 0)))
    assert started(admission) == []
    assert admission.waiting["j0"].code == "resources_busy"
    assert admission.waiting["j0"].reason == (
        "asked 4 CPUs for 2 workers of 1 CPU and 2 sampling actors of 1 CPU; 3 of 4 CPUs are not promised to running"
        " jobs"
    )
    assert admission.waiting["j0"].asked == {"cpus": 4.0, "gpus": 0.0}


def test_a_cluster_that_can_never_hold_ranks_and_actors_together_says_so() -> None:
    admission = admit(queue(remote_spec(actors=3)), promised=[], cluster=cluster_spec((4, 0)))
    assert admission.waiting["j0"].code == "never_fits"
    assert admission.waiting["j0"].reason == (
        "asked 5 CPUs for 2 workers of 1 CPU and 3 sampling actors of 1 CPU, the cluster has 4"
    )


def test_actors_must_fit_into_what_ranks_leave_of_each_node() -> None:
    spec = remote_spec(workers=1, cpus=3, actors=1, actor_cpus=2)
    never = admit(queue(spec), promised=[], cluster=cluster_spec((4, 0), (1, 0)))
    assert never.waiting["j0"].reason == (
        "asked 1 worker of 3 CPUs and 1 sampling actor of 2 CPUs each, which must lie within one node; the 2 nodes of"
        " the cluster can hold 1 worker and 0 sampling actors"
    )
    assert started(admit(queue(spec), promised=[], cluster=cluster_spec((4, 0), (2, 0)))) == ["j0"]


def test_whichever_is_laid_out_first_a_job_that_fits_starts() -> None:
    spec = remote_spec(workers=1, cpus=2, actors=1, actor_cpus=3)
    assert started(admit(queue(spec), promised=[], cluster=cluster_spec((3, 0), (2, 0)))) == ["j0"]


def test_promises_to_actors_stay_when_the_plan_uses_fewer_ranks() -> None:
    planned = waiting_job("running", remote_spec(workers=3)).model_copy(update={"world_size": 1})
    assert promised_to(planned) == Amount(3.0)
    assert started(admit(queue(job_spec(workers=1)), promised=[planned], cluster=cluster_spec((4, 0)))) == ["j0"]
    assert started(admit(queue(job_spec(workers=2)), promised=[planned], cluster=cluster_spec((4, 0)))) == []


SPECS = st.builds(job_spec, workers=st.integers(1, 4), cpus=st.sampled_from([0.5, 1, 2]), gpus=st.sampled_from([0, 1]))


@given(
    specs=st.lists(SPECS, max_size=8),
    nodes=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2)), min_size=1, max_size=4),
)
def test_nobody_is_promised_more_than_there_is_and_everybody_hears_something(
    specs: Sequence[JobSpec], nodes: list[tuple[float, float]]
) -> None:
    cluster, jobs = cluster_spec(*nodes), queue(*specs)
    admission = admit(jobs, promised=[], cluster=cluster)
    resources = [job.spec.resources for job in admission.start]
    workers = [Amount(r.cpus_per_worker, r.gpus_per_worker) for r in resources for _ in range(r.num_workers)]
    assert packs(workers, [Amount(cpus, gpus) for cpus, gpus in nodes])
    assert {job.id for job in jobs} == set(started(admission)) | set(admission.waiting)
    assert not set(started(admission)) & set(admission.waiting)


@given(specs=st.lists(SPECS, min_size=1, max_size=8))
def test_on_an_idle_cluster_the_first_job_that_can_ever_fit_starts(specs: Sequence[JobSpec]) -> None:
    admission = admit(queue(*specs), promised=[], cluster=cluster_spec((8, 4)))
    assert started(admission)[0] == "j0"


@pytest.mark.parametrize(("number", "text"), [(1, "1 CPU;"), (2, "2 CPUs;"), (1.5, "1.5 CPUs;")])
def test_numbers_read_well(number: float, text: str) -> None:
    promised = [waiting_job("running", job_spec(workers=1, cpus=4))]
    admission = admit(queue(job_spec(workers=1, cpus=number)), promised=promised, cluster=cluster_spec((4, 0)))
    assert text in admission.waiting["j0"].reason
