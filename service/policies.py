"""What to do about a submitted job: retry, stop, give up, or leave it alone. Pure decisions; the dispatcher acts.

Four laws hold everywhere. *Cannot reach is not failed*: without an answer of the cluster nothing is decided about a
run. *The heartbeat outranks the cluster*: a driver that spoke a moment ago is alive, whatever the cluster's records say
after a hiccup. *Silence does not outlast the limits*: a driver that hangs cannot end its job in time, so it is stopped.
*The end of a driver is not its last word*: a driver writes its result before it exits, so the dispatcher reads the job
again before it believes in a loss.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from service.cluster import RunState, RunStatus
from service.spec import JobState
from service.store.records import JobRecord, Reason, Waiting

_FIRST_RETRY_S, _LAST_RETRY_S = 0.5, 10.0


@dataclass(frozen=True)
class Patience:
    """How long to wait for what, in seconds. ``silence_s`` is several heartbeats of a driver."""

    cancel_grace_s: float = 6.0
    driver_start_s: float = 180.0
    silence_s: float = 3.0


DEFAULT_PATIENCE = Patience()


@dataclass(frozen=True)
class Verdict:
    """What follows from one look at one job. The move happens only if the job is still in the state that was judged."""

    submit: bool = False
    stop: bool = False
    target: JobState | None = None
    reason: Reason | None = None
    waiting: Waiting | None = None


LEAVE_ALONE = Verdict()


def why_unreadable(job: JobRecord) -> Reason | None:
    """Why a job cannot be run by this version at all, if so."""
    if job.spec_fault is None:
        return None
    text = f"its spec was written by another version, this one cannot read it whole; submit it anew: {job.spec_fault}"
    return Reason(code="spec_unreadable", text=text)


def retry_delay_s(failures: int) -> float:
    """Pause before the cluster is asked again after ``failures`` in a row: doubling, at most ``_LAST_RETRY_S``."""
    return 0.0 if failures == 0 else min(_FIRST_RETRY_S * 2.0 ** min(failures - 1, 10), _LAST_RETRY_S)


def needs_status(job: JobRecord, *, now: datetime, patience: Patience) -> bool:
    """Whether the cluster must be asked about this submitted job: not while its driver speaks for itself."""
    if job.state is JobState.PENDING:
        return job.cancel_requested_at is None
    return is_silent(job, now=now, patience=patience) or _is_overdue(job, now=now, patience=patience)


def is_silent(job: JobRecord, *, now: datetime, patience: Patience) -> bool:
    """Whether the driver has said nothing for ``silence_s``."""
    return job.observed_at is None or now - job.observed_at > timedelta(seconds=patience.silence_s)


def judge(
    job: JobRecord, run: RunStatus | None, *, now: datetime, patience: Patience, reachable_since: datetime
) -> Verdict:
    """Decide about a submitted job that has not ended. ``run`` is None if the cluster was not asked or did not answer.

    ``reachable_since``: the time that a driver has for its start counts only while the cluster can be asked.
    """
    if job.state is JobState.PENDING:
        if job.cancel_requested_at is not None:
            return Verdict(stop=True, target=JobState.CANCELLED, reason=_cancelled("before its driver took it up"))
        return LEAVE_ALONE if run is None else _judge_start(job, run, now=now, patience=patience, since=reachable_since)
    if run is None:
        return LEAVE_ALONE
    silent, over_time = is_silent(job, now=now, patience=patience), _is_over_time(job, now=now, patience=patience)
    overdue = _is_overdue(job, now=now, patience=patience)
    if run.state.is_over and (silent or overdue):  # overdue: we had it stopped, and its user waits
        return _judge_end(job, run, over_time=over_time)
    if overdue or (silent and over_time):
        return Verdict(stop=True)
    return LEAVE_ALONE


def _judge_start(job: JobRecord, run: RunStatus, *, now: datetime, patience: Patience, since: datetime) -> Verdict:
    """The driver was submitted and has not taken up the job."""
    if run.state.is_over and run.state is not RunState.MISSING:
        if job.observed_at is not None and not is_silent(job, now=now, patience=patience):
            return LEAVE_ALONE
        text = f"the driver ended before it took up the job; the cluster says {_say(run)}"
        return Verdict(target=JobState.FAILED, reason=Reason(code="driver_not_started", text=text))
    waited_s = (now - max(job.submitted_at or now, since)).total_seconds()
    if waited_s > patience.driver_start_s:
        text = (
            f"the driver did not report itself within {patience.driver_start_s:g} s of its submission;"
            f" the cluster says {_say(run)}"
        )
        return Verdict(stop=True, target=JobState.FAILED, reason=Reason(code="driver_start_timeout", text=text))
    if run.state is RunState.MISSING:
        return Verdict(submit=True)
    text = f"submitted to the cluster, where its driver is {run.state.lower()}"
    return Verdict(waiting=Waiting(code="driver_starting", reason=text))


def _judge_end(job: JobRecord, run: RunStatus, *, over_time: bool) -> Verdict:
    """The driver is gone and left the job open."""
    if job.cancel_requested_at is not None:
        return Verdict(target=JobState.CANCELLED, reason=_cancelled("its driver was stopped"))
    if over_time:
        limit = job.spec.limits.max_runtime_s
        text = f"ran beyond its limit max_runtime_s of {limit:g} s while {job.state}; its silent driver was stopped"
        return Verdict(target=JobState.FAILED, reason=Reason(code="max_runtime", text=text))
    text = f"the driver ended without a result while the job was {job.state}; the cluster says {_say(run)}"
    return Verdict(target=JobState.FAILED, reason=Reason(code="driver_lost", text=text))


def _is_overdue(job: JobRecord, *, now: datetime, patience: Patience) -> bool:
    asked = job.cancel_requested_at
    return asked is not None and now - asked > timedelta(seconds=patience.cancel_grace_s)


def _is_over_time(job: JobRecord, *, now: datetime, patience: Patience) -> bool:
    """Whether the driver should have ended the job itself a while ago, because it runs too long."""
    limit_s = job.spec.limits.max_runtime_s + patience.cancel_grace_s
    return job.started_at is not None and (now - job.started_at).total_seconds() > limit_s


def _cancelled(how: str) -> Reason:
    return Reason(code="cancelled", text=f"cancelled by its user; {how}")


def _say(run: RunStatus) -> str:
    return f"{run.state}: {run.message}" if run.message else str(run.state)
