"""From an exception to the reason that a user reads: one code, and a text that names ranks, nodes and what they said.

When one rank dies the others fail as well, of a closed connection, often a moment earlier. So the failures of all ranks
are looked at together, the root is told apart from its echoes, and equal ones are named once with all their ranks.
Ray's exceptions are recognised by their fields and class names: nothing here needs Ray.
"""

import builtins
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from planner.errors import GraphmillError
from service.store.records import Reason
from workers.errors import RankUnresponsiveError, StageFailedError

_LONGEST_CAUSE = 400
# What gloo, NCCL and sockets say to the survivors when a peer's process is gone.
_ECHO = re.compile(
    r"connection (was )?(closed|reset|refused)|broken pipe|peer|socket|remote process exited|timed out", re.IGNORECASE
)
_OUT_OF_MEMORY = re.compile(r"out[ _]of[ _]memory|OOM|memory monitor", re.IGNORECASE)
_WORKER_EXIT = re.compile(r"Worker exit type:.*", re.DOTALL)
_LOST_WORKER = "Worker unexpectedly exits with a connection error"
_KILLED = "its process ended without a word: it was killed (SIGKILL, by a person or by the kernel's memory killer)"

# Most telling first: the first kind found among the ranks is the root.
_ROOTS = ("out_of_memory", "worker_died", "training_crashed", "worker_unresponsive", "peer_lost")
# What wrong code raises on every attempt. Devices, files and peers fail with RuntimeError and OSError instead.
_FAULTS_OF_CODE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    TypeError,
    ValueError,
)
# A stage hands on only the name of what it met.
_NAMES_OF_FAULTS = {
    name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, _FAULTS_OF_CODE)
}
_DIED = {"ActorDiedError", "RayActorError", "ActorUnavailableError", "WorkerCrashedError", "NodeDiedError"}
_CONTROLLER_CODES = {
    "InsufficientClusterResourcesError": "insufficient_resources",
    "WorkerGroupStartupTimeoutError": "worker_start_timeout",
    "WorkerGroupStartupFailedError": "worker_start_failed",
}


class RunFailedError(GraphmillError):
    """The ranks of a run failed for good. The ``code`` of an instance says what the root was (see ``_ROOTS``)."""

    code = "run_failed"

    def __init__(self, message: str, *, code: str | None = None, **details: Any) -> None:
        super().__init__(message, **details)
        self.code = code or type(self).code

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.message, self.code, self.details)


def _rebuild(message: str, code: str, details: dict[str, Any]) -> RunFailedError:
    return RunFailedError(message, code=code, **details)


@dataclass(frozen=True)
class RankPlace:
    """Where a rank ran; ``trace`` is what it left behind when a signal ended it."""

    pid: int
    node: str
    trace: str = ""


@dataclass(frozen=True)
class RankFailures:
    """All failures of one attempt. ``is_final``: the root is a fault of the job itself, not of a process or a machine.

    Such are errors of our own tree and those that Python raises for wrong code (``_FAULTS_OF_CODE``): the same code on
    the same data would fail again, so no restart helps.
    """

    reason: Reason
    is_final: bool


@dataclass(frozen=True)
class _Failure:
    code: str
    text: str
    is_typed: bool = False
    is_of_code: bool = False
    verb: str = "failed"


def explain(error: BaseException) -> Reason:
    """The reason that stands for any exception of a driver."""
    if isinstance(error, GraphmillError):
        return Reason(code=error.code, text=error.message)
    by_rank = getattr(error, "worker_failures", None)
    if isinstance(by_rank, Mapping) and by_rank:
        return explain_ranks(by_rank).reason
    inner = getattr(error, "controller_failure", None)
    if isinstance(inner, BaseException):
        return _explain_controller(inner)
    failure = _classify(error)
    if failure.code in ("worker_died", "out_of_memory"):
        return Reason(code=failure.code, text=f"a process that worked for the driver: {failure.text}")
    return Reason(code="driver_crashed", text=_one_line(f"{type(error).__name__}: {error}"))


def explain_ranks(
    errors: Mapping[int, BaseException],
    *,
    places: Mapping[int, RankPlace] | None = None,
    deaths: Mapping[int, str] | None = None,
) -> RankFailures:
    """One reason for the failures of several ranks. ``deaths``: ranks known to have died, whatever others raised."""
    failures = {rank: _classify(error) for rank, error in errors.items()}
    for rank, detail in (deaths or {}).items():
        failures[rank] = _death_of(detail)
    typed = next((failure for failure in failures.values() if failure.is_typed), None)
    code = typed.code if typed else min((failure.code for failure in failures.values()), key=_ROOTS.index)
    text = "; ".join(_sentences(failures, root=code, places=places or {}))
    roots = [failure for failure in failures.values() if failure.code == code]
    is_final = any(failure.is_typed or failure.is_of_code for failure in roots)
    return RankFailures(reason=Reason(code=code, text=text), is_final=is_final)


def has_only_echoes(errors: Mapping[int, BaseException]) -> bool:
    """Whether every rank that failed merely lost a peer, so that the rank which died is not among them."""
    return all(_classify(error).code == "peer_lost" for error in errors.values())


def _explain_controller(error: BaseException) -> Reason:
    if isinstance(error, GraphmillError):
        return Reason(code=error.code, text=error.message)
    name = type(error).__name__
    return Reason(code=_CONTROLLER_CODES.get(name, "controller_failed"), text=_one_line(f"{name}: {error}"))


def _classify(error: BaseException) -> _Failure:
    cause = _innermost(error)
    name, text = type(cause).__name__, str(cause)
    if isinstance(cause, StageFailedError):
        code = "peer_lost" if _ECHO.search(text) else "training_crashed"
        return _Failure(code=code, text=_one_line(text), is_of_code=cause.details.get("error") in _NAMES_OF_FAULTS)
    if isinstance(cause, RankUnresponsiveError):  # typed, but of a process or a machine: a restart may help
        return _Failure(code=cause.code, text=cause.message, verb="gave up")
    if isinstance(cause, GraphmillError):
        return _Failure(code=cause.code, text=cause.message, is_typed=True)
    if isinstance(cause, MemoryError) or name == "OutOfMemoryError":
        return _Failure(code="out_of_memory", text=_one_line(f"{name}: {text}"))
    if name in _DIED:
        return _death_of(text)
    if name == "WorkerHealthCheckTimeoutError":
        return _Failure(code="worker_unresponsive", text=_one_line(text))
    is_echo = isinstance(cause, RuntimeError | OSError) and _ECHO.search(text)
    return _Failure(
        code="peer_lost" if is_echo else "training_crashed",
        text=_one_line(f"{name}: {text}"),
        is_of_code=isinstance(cause, _FAULTS_OF_CODE),
    )


def _innermost(error: BaseException) -> BaseException:
    """Unwrap what Ray put around the exception of a rank."""
    for field in ("_base_exc", "health_check_failure", "cause"):
        inner = getattr(error, field, None)
        if isinstance(inner, BaseException):
            return _innermost(inner)
    return error


def _death_of(detail: str) -> _Failure:
    """What Ray says of a process that is gone; for a lost connection it only guesses, so its guesses are left out."""
    if _LOST_WORKER in detail:
        return _Failure(code="worker_died", text=_KILLED)
    found = _WORKER_EXIT.search(detail)
    code = "out_of_memory" if _OUT_OF_MEMORY.search(detail) else "worker_died"
    return _Failure(code=code, text=_one_line(found.group(0) if found else detail))


def _sentences(failures: Mapping[int, _Failure], *, root: str, places: Mapping[int, RankPlace]) -> Iterator[str]:
    """The root first, then the echoes; ranks that say the same share a sentence."""
    groups: dict[tuple[bool, str, str, str], list[int]] = {}
    for rank, failure in sorted(failures.items()):
        groups.setdefault((failure.code != root, failure.code, failure.text, failure.verb), []).append(rank)
    for (_, code, text, said), ranks in sorted(groups.items(), key=lambda item: (item[0][0], item[1])):
        who = ", ".join(_name(rank, places.get(rank)) for rank in ranks)
        verb = {"worker_died": "died", "out_of_memory": "ran out of memory", "peer_lost": "lost a peer"}.get(code, said)
        traces = {places[rank].trace for rank in ranks if rank in places and places[rank].trace}
        yield f"rank {who} {verb}: {'; '.join(sorted(traces)) or text}"


def _name(rank: int, place: RankPlace | None) -> str:
    return str(rank) if place is None else f"{rank} (pid {place.pid} on {place.node})"


def _one_line(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _LONGEST_CAUSE else flat[: _LONGEST_CAUSE - 1] + "…"
