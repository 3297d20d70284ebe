"""A cluster in a dict: the ``ClusterClient`` that service tests use, with failures that a test can order.

Drivers are played by the test: ``play`` moves a job through its states as a driver would, ``end`` says how the cluster
saw the driver's end. The fake keeps its runs when it is unreachable, as a real cluster does.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from planner.cluster import ClusterSpec
from planner.errors import GraphmillError
from service.cluster import ClusterRefusedError, ClusterUnreachableError, RunState, RunStatus
from service.spec import JobState
from service.store.job_store import JobStore
from tests.kit.builders import cluster_spec

_PATH = (JobState.PROFILING, JobState.PLANNING, JobState.SCHEDULING, JobState.RUNNING)


@dataclass
class FakeCluster:
    """``runs`` holds the drivers by submission id, ``stopped`` the ids that were asked to stop.

    Questions about an id in ``complaints`` are answered with that error.
    """

    spec: ClusterSpec = field(default_factory=cluster_spec)
    runs: dict[str, RunStatus] = field(default_factory=dict)
    submitted: list[str] = field(default_factory=list)
    entrypoints: dict[str, str] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)
    complaints: dict[str, GraphmillError] = field(default_factory=dict)
    refusal: str | None = None
    answers_lost: int = 0
    questions: int = 0
    _cut: bool = False

    dashboard_url = "http://fake-dashboard"

    def shape(self) -> ClusterSpec:
        self._ask()
        return self.spec

    def submit(self, job_id: str, *, submission_id: str, entrypoint: str, metadata: Mapping[str, str]) -> None:
        self._ask()
        self._complain_about(submission_id)
        if self.refusal is not None:
            raise ClusterRefusedError(self.refusal)
        if submission_id not in self.runs:
            self.runs[submission_id] = RunStatus(state=RunState.PENDING)
            self.submitted.append(submission_id)
            self.entrypoints[submission_id] = entrypoint
        if self.answers_lost:
            self.answers_lost -= 1
            raise ClusterUnreachableError("the answer was lost on its way")

    def status(self, submission_id: str) -> RunStatus:
        self._ask()
        self._complain_about(submission_id)
        return self.runs.get(submission_id, RunStatus(state=RunState.MISSING))

    def stop(self, submission_id: str) -> None:
        self._ask()
        self._complain_about(submission_id)
        self.stopped.append(submission_id)

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        """Nothing can be asked inside the block."""
        self._cut = True
        try:
            yield
        finally:
            self._cut = False

    def end(self, submission_id: str, state: RunState, message: str = "") -> None:
        """The driver is gone."""
        self.runs[submission_id] = RunStatus(state=state, message=message)

    def forget(self) -> None:
        """The head was replaced and lost its memory."""
        self.runs.clear()

    def play(self, store: JobStore, job_id: str, *, to: JobState = JobState.FINISHED) -> None:
        """Do what a driver does until the job is in state ``to``; a driver that finishes ends well."""
        self.runs[job_id] = RunStatus(state=RunState.RUNNING)
        store.observe(job_id)
        for state in (*_PATH, JobState.FINISHED):
            if state is JobState.FINISHED:
                store.set_result(job_id, {"test_accuracy": 0.8})
                self.end(job_id, RunState.SUCCEEDED)
            store.move(job_id, state)
            if state is to:
                return

    def _complain_about(self, submission_id: str) -> None:
        if submission_id in self.complaints:
            raise self.complaints[submission_id]

    def _ask(self) -> None:
        self.questions += 1
        if self._cut:
            raise ClusterUnreachableError("the fake cluster is cut off")
