"""The table of legal moves between job states. Terminal states are final; everything else may fail or be cancelled."""

from planner.errors import GraphmillError
from service.spec import JobState

TERMINAL = frozenset({JobState.FINISHED, JobState.FAILED, JobState.CANCELLED})
_ENDS = frozenset({JobState.FAILED, JobState.CANCELLED})

LEGAL_MOVES: dict[JobState, frozenset[JobState]] = {
    JobState.PENDING: frozenset({JobState.PROFILING}) | _ENDS,
    JobState.PROFILING: frozenset({JobState.PLANNING}) | _ENDS,
    JobState.PLANNING: frozenset({JobState.SCHEDULING}) | _ENDS,
    JobState.SCHEDULING: frozenset({JobState.RUNNING}) | _ENDS,
    JobState.RUNNING: frozenset({JobState.RESTARTING, JobState.FINISHED}) | _ENDS,
    JobState.RESTARTING: frozenset({JobState.RUNNING}) | _ENDS,
    JobState.FINISHED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
}


class IllegalMoveError(GraphmillError):
    """A job was asked to move where its state does not lead."""

    code = "illegal_state"


def check_move(source: JobState, target: JobState) -> None:
    """Raise ``IllegalMoveError`` unless the table allows ``source`` → ``target``."""
    if target not in LEGAL_MOVES[source]:
        allowed = ", ".join(sorted(LEGAL_MOVES[source])) or "nothing: the state is final"
        raise IllegalMoveError(f"cannot move a job from {source} to {target}; from {source} it may go to {allowed}")
