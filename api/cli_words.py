"""Small words of the command line: states, sizes, times; and the console that they are written to."""

from datetime import timedelta

from rich.console import Console
from rich.text import Text

from api.schemas.jobs import JobView
from service.spec import JobState

STATE_STYLES: dict[JobState, str] = {
    JobState.PENDING: "yellow",
    JobState.PROFILING: "cyan",
    JobState.PLANNING: "cyan",
    JobState.SCHEDULING: "cyan",
    JobState.RUNNING: "blue",
    JobState.RESTARTING: "magenta",
    JobState.FINISHED: "green",
    JobState.FAILED: "bold red",
    JobState.CANCELLED: "dim",
}


def open_console(*, stderr: bool = False) -> Console:
    """A console that takes no text for markup: names and messages come from users.

    Without a terminal, or with NO_COLOR set, rich leaves colours out by itself.
    """
    return Console(stderr=stderr, markup=False, highlight=False)


def state_text(job: JobView) -> Text:
    """The state in its colour; a question mark says that it may be out of date."""
    return Text(f"{job.state}{' ?' if job.stale else ''}", style=STATE_STYLES[job.state])


def format_bytes(number: int | None) -> str:
    """``1.5 MiB``."""
    if number is None:
        return "-"
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("the loop ends with the largest unit")


def format_score(name: str, value: float) -> str:
    """``81.20%``, or ``0.1234`` for an error, which has the unit of the labels."""
    return f"{value:.4g}" if name.endswith(("_mae", "_rmse")) else f"{value:.2%}"


def format_seconds(seconds: float | None) -> str:
    """``12.3 ms`` or ``1.25 s``."""
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def format_duration(time: timedelta) -> str:
    """``3:05`` or ``1:02:09``."""
    minutes, seconds = divmod(max(0, int(time.total_seconds())), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def format_age(time: timedelta) -> str:
    """``40 s``, ``3 min``, ``2 h``, ``5 d``."""
    seconds = max(0.0, time.total_seconds())
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"
