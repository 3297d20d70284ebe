"""One reason out of the failures of many ranks. The exceptions stand in for Ray's, with the fields that Ray gives."""

import pickle
from typing import Any

import pytest

from planner.errors import NoPlanFitsError
from service.failures import RankPlace, RunFailedError, explain, explain_ranks, has_only_echoes
from workers.errors import RankUnresponsiveError, StageFailedError, TrainingDivergedError

KILLED = (
    "The actor died unexpectedly before finishing this task. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker"
    " unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) the process was"
    " killed by the OOM killer due to high memory usage, (2) ray stop --force was called"
)
ECHO = RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [192.0.2.2]:9612")


class ActorDiedError(Exception):
    pass


class OutOfMemoryError(Exception):
    pass


class WrappedError(Exception):
    """What Ray Train makes of an exception of the training function."""

    def __init__(self, inner: BaseException) -> None:
        self._base_exc = inner


class GroupError(Exception):
    def __init__(self, failures: dict[int, BaseException]) -> None:
        self.worker_failures = failures


class ControllerError(Exception):
    def __init__(self, inner: BaseException) -> None:
        self.controller_failure = inner


class InsufficientClusterResourcesError(Exception):
    pass


class WorkerHealthCheckTimeoutError(Exception):
    pass


class WorkerGroupStartupTimeoutError(Exception):
    pass


class WorkerGroupStartupFailedError(Exception):
    pass


def code_of(errors: dict[int, Any]) -> str:
    return explain_ranks(errors).reason.code


def test_an_error_of_ours_keeps_its_code_and_message() -> None:
    reason = explain(NoPlanFitsError("asked 8 ranks, found 2 heads"))
    assert (reason.code, reason.text) == ("no_plan_fits", "asked 8 ranks, found 2 heads")


def test_any_other_exception_of_the_driver_is_named() -> None:
    reason = explain(KeyError("split"))
    assert (reason.code, reason.text) == ("driver_crashed", "KeyError: 'split'")


def test_a_helper_of_the_driver_that_died_is_told_apart_from_its_own_faults() -> None:
    assert explain(ActorDiedError(KILLED)).code == "worker_died"


def test_the_rank_that_died_is_the_root_and_the_others_its_echoes() -> None:
    places = {rank: RankPlace(pid=100 + rank, node="10.0.0.2") for rank in range(3)}
    failures = {0: WrappedError(ECHO), 1: ActorDiedError(KILLED), 2: WrappedError(ECHO)}
    reason = explain_ranks(failures, places=places).reason
    assert reason.code == "worker_died"
    assert reason.text.startswith("rank 1 (pid 101 on 10.0.0.2) died: its process ended without a word")
    assert "rank 0 (pid 100 on 10.0.0.2), 2 (pid 102 on 10.0.0.2) lost a peer" in reason.text


def test_a_death_that_only_the_cluster_knows_of_is_the_root() -> None:
    assert has_only_echoes({0: WrappedError(ECHO)})
    found = explain_ranks({0: WrappedError(ECHO)}, deaths={1: KILLED})
    assert found.reason.code == "worker_died"
    assert found.reason.text.startswith("rank 1 died")


def test_rays_guess_about_the_memory_killer_proves_nothing() -> None:
    assert code_of({0: ActorDiedError(KILLED)}) == "worker_died"


def test_want_of_memory_is_told_apart() -> None:
    assert code_of({0: WrappedError(MemoryError("12 GB"))}) == "out_of_memory"
    assert code_of({0: OutOfMemoryError("CUDA out of memory")}) == "out_of_memory"
    assert (
        code_of({0: ActorDiedError("Worker exit type: NODE_OUT_OF_MEMORY Worker exit detail: killed")})
        == "out_of_memory"
    )


def test_the_trace_of_a_signal_says_more_than_ray() -> None:
    places = {0: RankPlace(pid=7, node="n", trace="Fatal Python error: Segmentation fault")}
    text = explain_ranks({0: ActorDiedError(KILLED)}, places=places).reason.text
    assert text == "rank 0 (pid 7 on n) died: Fatal Python error: Segmentation fault"


def test_an_error_of_ours_on_a_rank_is_final() -> None:
    found = explain_ranks({0: WrappedError(TrainingDivergedError("loss is NaN in step 3")), 1: WrappedError(ECHO)})
    assert found.is_final
    assert found.reason.code == "training_diverged"
    assert found.reason.text.startswith("rank 0 failed: loss is NaN in step 3; rank 1 lost a peer")


@pytest.mark.parametrize("error", [IndexError("9 of 4"), TypeError("no"), ValueError("bad"), ModuleNotFoundError("x")])
def test_a_fault_of_the_code_is_final(error: Exception) -> None:
    found = explain_ranks({0: WrappedError(error), 1: WrappedError(ECHO)})
    assert (found.reason.code, found.is_final) == ("training_crashed", True)
    stage = StageFailedError("stage 'sample' failed", stage="sample", error=type(error).__name__)
    assert explain_ranks({0: WrappedError(stage)}).is_final


@pytest.mark.parametrize("error", [RuntimeError("CUDA error"), OSError("disk"), StageFailedError("s", error="OSError")])
def test_a_fault_of_the_machine_may_be_tried_again(error: Exception) -> None:
    found = explain_ranks({0: WrappedError(error)})
    assert (found.reason.code, found.is_final) == ("training_crashed", False)


def test_a_fault_that_follows_from_a_death_may_be_tried_again() -> None:
    assert not explain_ranks({0: WrappedError(KeyError("step")), 1: ActorDiedError(KILLED)}).is_final


def test_a_stage_that_lost_its_peer_may_be_tried_again() -> None:
    stage = WrappedError(StageFailedError("stage exchange failed: Connection reset by peer"))
    found = explain_ranks({0: stage, 1: ActorDiedError(KILLED)})
    assert not found.is_final
    assert found.reason.code == "worker_died"


def test_ranks_that_say_the_same_share_a_sentence() -> None:
    found = explain_ranks({rank: WrappedError(ValueError("bad")) for rank in range(4)})
    assert (found.reason.code, found.reason.text) == ("training_crashed", "rank 0, 1, 2, 3 failed: ValueError: bad")


def test_a_group_error_of_ray_train_is_opened() -> None:
    assert explain(GroupError({0: ActorDiedError(KILLED)})).code == "worker_died"


def test_a_group_error_that_names_no_rank_is_told_as_it_is() -> None:
    assert explain(GroupError({})).code == "driver_crashed"


def test_a_rank_that_stopped_answering_and_a_start_that_failed_have_codes_of_their_own() -> None:
    assert code_of({0: WorkerHealthCheckTimeoutError("no answer for 600 s")}) == "worker_unresponsive"
    assert code_of({0: WrappedError(ECHO)}) == "peer_lost"
    assert explain(ControllerError(WorkerGroupStartupTimeoutError("2 of 4"))).code == "worker_start_timeout"
    assert explain(ControllerError(WorkerGroupStartupFailedError("2 of 4"))).code == "worker_start_failed"


def test_an_error_of_ours_is_found_inside_a_controller_error() -> None:
    assert explain(ControllerError(RunFailedError("rank 1 died", code="worker_died"))).code == "worker_died"


def test_a_cluster_that_is_too_small_is_told_apart() -> None:
    assert explain(ControllerError(InsufficientClusterResourcesError("8 GPU"))).code == "insufficient_resources"
    assert explain(ControllerError(KeyError("x"))).code == "controller_failed"


def test_the_code_of_a_failed_run_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(RunFailedError("rank 1 died", code="worker_died")))
    assert (error.code, error.message) == ("worker_died", "rank 1 died")


def test_ranks_that_gave_up_on_a_silent_one_share_a_sentence_and_may_be_restarted() -> None:
    text = "rank 1 (pid 11 on 10.0.0.1) has given no sign of life for more than 20 s"
    errors = {rank: WrappedError(RankUnresponsiveError(text)) for rank in (0, 2)} | {3: ECHO}
    failures = explain_ranks(errors, places={0: RankPlace(pid=10, node="10.0.0.1")})
    assert failures.reason.code == "worker_unresponsive"
    assert failures.reason.text.startswith(f"rank 0 (pid 10 on 10.0.0.1), 2 gave up: {text}")
    assert not failures.is_final
