"""What the command line prints: rich tables for people, JSON for programs."""

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

from api.cli_words import (
    STATE_STYLES,
    format_age,
    format_bytes,
    format_duration,
    format_score,
    format_seconds,
    open_console,
    state_text,
)
from api.client import GraphmillClient
from api.client_errors import RequestRefusedError
from api.schemas.jobs import JobDetail, JobView
from api.schemas.parts import ArtifactListView, PlanView
from api.schemas.system import DatasetView
from service.states import TERMINAL

_WHOLE = frozenset({"job", "state", "when", "age", "ran", "size"})  # columns that are never broken
_CUT = frozenset({"what", "where"})  # columns that give way on a narrow terminal
_RESULT_WORDS = {
    "best_epoch": "{:.0f}",
    "items_per_s": "{:,.0f} (nodes or seeds)",
    "checkpoint": "{}",
    "export": "{}",
    "predictions": "{}",
}


def show_submitted(job: JobView, *, as_json: bool) -> None:
    """A job was accepted."""
    if as_json:
        _print_json(job)
        return
    console = open_console()
    console.print(Text.assemble("Submitted ", (job.id, "bold"), "."))
    console.print(f"Next: graphmill show {job.id}, graphmill logs {job.id} -f", style="dim", soft_wrap=True)


def show_jobs(jobs: Sequence[JobView], *, as_json: bool) -> None:
    """A table of jobs."""
    if as_json:
        _print_json(*jobs, many=True)
        return
    if not jobs:
        open_console().print("No jobs.")
        return
    table = _table("job", "name", "state", "age", "ran", "what")
    for job in jobs:
        ran = "" if job.started_at is None else format_duration((job.finished_at or _now()) - job.started_at)
        age = format_age(_now() - job.created_at)
        table.add_row(job.id, job.spec.name, state_text(job), age, ran, _remark(job))
    open_console().print(table)


def show_job(client: GraphmillClient, job: JobDetail, *, as_json: bool) -> None:
    """Everything about one job."""
    plan = _plan_or_none(client, job.id)
    if as_json:
        whole = {"job": job.model_dump(mode="json"), "plan": plan and plan.model_dump(mode="json")}
        sys.stdout.write(json.dumps(whole) + "\n")
        return
    console = open_console()
    _tell(console, "job", Text(job.id, style="bold"))
    _tell(console, "name", f"{job.spec.name} ({job.spec.kind}, {job.spec.model.name} on {_dataset_name(job)})")
    _tell(console, "state", state_text(job))
    if remark := _remark(job):
        _tell(console, "why", remark)
    if job.observed_at is not None and job.state not in TERMINAL:
        stale = " (stale: what is shown may be out of date)" if job.stale else ""
        _tell(console, "last heard of", f"{format_age(_now() - job.observed_at)} ago{stale}")
    if job.restarts:
        _tell(console, "restarts", f"{job.restarts} of at most {job.spec.limits.max_restarts}")
    console.print()
    console.print(_history(job))
    _show_plan(console, plan)
    _show_result(console, job)


def show_outcome(client: GraphmillClient, job: JobDetail) -> None:
    """How a followed job ended."""
    console = open_console()
    line = Text.assemble(state_text(job), f" {job.id}")
    if job.reason is not None:
        line.append(f": {job.reason.text} ({job.reason.code})")
    console.print(line, soft_wrap=True)
    _show_plan(console, _plan_or_none(client, job.id))
    _show_result(console, job)
    if job.state in TERMINAL and (listing := client.artifacts(job.id)).items:
        console.print(Text.assemble("Artifacts lie in ", (listing.directory, "bold")), soft_wrap=True)


def show_cancelled(job: JobView, *, as_json: bool) -> None:
    """A cancel was accepted."""
    if as_json:
        _print_json(job)
        return
    done = "is cancelled" if job.state in TERMINAL else "will end within seconds"
    open_console().print(Text.assemble((job.id, "bold"), f" {done}."))


def show_artifacts(listing: ArtifactListView, *, as_json: bool) -> None:
    """A table of files."""
    if as_json:
        _print_json(listing)
        return
    console = open_console()
    console.print(f"In {listing.directory}", soft_wrap=True)
    if not listing.items:
        console.print("nothing yet", style="dim")
        return
    table = _table("file", "size", "age")
    table.columns[1].justify = "right"
    for item in listing.items:
        table.add_row(item.path, format_bytes(item.size_bytes), format_age(_now() - item.modified_at))
    console.print(table)


def show_downloaded(files: Sequence[Path], *, as_json: bool) -> None:
    """Where the files are now."""
    if as_json:
        sys.stdout.write(json.dumps([str(file) for file in files]) + "\n")
        return
    console = open_console()
    for file in files:
        console.print(str(file), soft_wrap=True)
    if not files:
        console.print("The job has exported nothing (yet).", style="dim")


def show_datasets(found: Sequence[DatasetView], *, as_json: bool) -> None:
    """A table of data sets."""
    if as_json:
        _print_json(*found, many=True)
        return
    table = _table("name", "from", "found", "graphs", "nodes", "edges", "features", "classes", "where")
    for item in found:
        sizes = (item.num_graphs, item.num_nodes, item.num_edges, item.num_features, item.num_classes)
        mark = Text("yes", style="green") if item.is_found else Text("no", style="dim")
        where = item.where or "downloaded when asked for"
        table.add_row(item.name, item.source, mark, *(f"{size:,}" if size is not None else "" for size in sizes), where)
    for column in table.columns[3:8]:
        column.justify = "right"
    console = open_console()
    console.print(table)
    console.print("Sizes are known once a set was prepared for the first time.", style="dim")


def show_stopped(stopped: dict[str, bool], *, as_json: bool) -> None:
    """What was ended."""
    if as_json:
        sys.stdout.write(json.dumps(stopped) + "\n")
        return
    ended = [name for name, was_running in stopped.items() if was_running]
    open_console().print(f"Ended: {', '.join(ended)}." if ended else "Nothing was running.")


def write_log(piece: str, *, as_json: bool) -> None:
    """A piece of a log, as it is."""
    sys.stdout.write(json.dumps({"text": piece}) + "\n" if as_json else piece)
    sys.stdout.flush()


def _remark(job: JobView) -> str:
    """The most useful sentence about the state."""
    if job.reason is not None:
        return f"{job.reason.text} ({job.reason.code})"
    if job.waiting is not None:
        place = f"number {job.waiting.position} in the queue; " if job.waiting.position else ""
        return place + job.waiting.reason
    if job.state not in TERMINAL and job.cancel_requested_at is not None:
        return "cancelling"
    scores = ((name, value) for name, value in (job.result or {}).items() if name.startswith("test_"))
    return ", ".join(f"{name.replace('_', ' ')} {format_score(name, value)}" for name, value in scores)


def _show_plan(console: Console, plan: PlanView | None) -> None:
    if plan is None:
        return
    console.print()
    console.print("Plan", style="bold")
    console.print(plan.words, soft_wrap=True)
    if plan.predicted is None:
        return
    table = _table("", "predicted", "measured")
    measured_s = plan.measured.step_time_s
    table.add_row("step time", format_seconds(plan.predicted.step_time_s), format_seconds(measured_s))
    for rank, predicted in enumerate(plan.predicted.memory_bytes):
        measured = plan.measured.memory_bytes.get(rank)
        table.add_row(f"peak memory of rank {rank}", format_bytes(predicted), format_bytes(measured))
    console.print(table)


def _show_result(console: Console, job: JobView) -> None:
    """The outcome; what stands in the plan's table already is left out."""
    if not job.result:
        return
    console.print()
    console.print("Result", style="bold")
    for name in (name for name in job.result if name.startswith(("test_", "val_"))):
        _tell(console, name.replace("_", " "), format_score(name, job.result[name]))
    for name, words in _RESULT_WORDS.items():
        if (value := job.result.get(name)) is not None:
            _tell(console, name.replace("_", " "), words.format(value))


def _history(job: JobDetail) -> Table:
    table = _table("when", "state", "why")
    for move in job.transitions:
        why = "" if move.reason is None else f"{move.reason.text} ({move.reason.code})"
        at = move.at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        table.add_row(at, Text(move.target, style=STATE_STYLES[move.target]), why)
    return table


def _plan_or_none(client: GraphmillClient, job_id: str) -> PlanView | None:
    try:
        return client.plan(job_id)
    except RequestRefusedError as error:
        if error.problem.code in ("not_planned", "plan_unreadable"):
            return None
        raise


def _dataset_name(job: JobView) -> str:
    return job.spec.dataset.name or str(job.spec.dataset.path)


def _table(*headings: str) -> Table:
    gives_way = bool(_CUT.intersection(headings))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", expand=gives_way)
    for heading in headings:
        if heading in _CUT:
            table.add_column(heading, ratio=1, no_wrap=True, overflow="ellipsis")
        else:
            table.add_column(heading, no_wrap=heading in _WHOLE, overflow="fold")
    return table


def _tell(console: Console, name: str, value: str | Text) -> None:
    """One fact on one line, however long: paths are there to be copied."""
    console.print(Text.assemble((f"{name:<15}", "dim"), value), soft_wrap=True)


def _print_json(*values: BaseModel, many: bool = False) -> None:
    items = [value.model_dump(mode="json") for value in values]
    sys.stdout.write(json.dumps(items if many else items[0]) + "\n")


def _now() -> datetime:
    return datetime.now(UTC)
