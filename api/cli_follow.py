"""Following a job on the terminal: a line for each state, a bar for its training. Ctrl-C leaves the job alone."""

import json
import sys
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from api.cli_words import STATE_STYLES, format_score, open_console
from api.client import GraphmillClient
from api.following import FollowedEvent
from service.spec import JobState

_SHOWN_VALUES = (("loss", "loss {:.4f}"), ("items_per_s", "{:,.0f}/s"))


def follow_with_progress(client: GraphmillClient, job_id: str, *, as_json: bool) -> JobState:
    """Tell what happens until the job has ended; gives back the terminal state."""
    return _follow_as_json(client, job_id) if as_json else _follow_for_people(client, job_id)


def _follow_as_json(client: GraphmillClient, job_id: str) -> JobState:
    for event in client.follow(job_id):
        line = {"id": event.id, "type": event.type, "job_id": job_id, "data": event.data}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
        if event.final_state is not None:
            return event.final_state
    return client.job(job_id).state


def _follow_for_people(client: GraphmillClient, job_id: str) -> JobState:
    console = open_console()
    columns = (
        TextColumn("[progress.description]{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[facts]}"),
        TimeElapsedColumn(),
    )
    console.print(job_id, style="bold")
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("waiting", total=None, facts="")
        story = _Story(console, progress, bar)
        for event in client.follow(job_id):
            story.tell(event)
            if event.final_state is not None:
                return event.final_state
    return client.job(job_id).state


class _Story:
    """What was told so far; the same sentence is not told twice."""

    def __init__(self, console: Console, progress: Progress, bar: TaskID) -> None:
        self._console = console
        self._progress = progress
        self._bar = bar
        self._last_reason = ""
        self._last_epoch = 0

    def tell(self, event: FollowedEvent) -> None:
        """Print an event, or move the bar."""
        if event.type == "state":
            self._tell_state(event.data)
        elif event.type == "waiting":
            self._tell_waiting(event.data)
        elif event.type == "progress":
            self._move_bar(event.data)

    def _tell_state(self, data: dict[str, Any]) -> None:
        state = JobState(data["state"])
        line = Text(f"  {state}", style=STATE_STYLES[state])
        if data.get("reason"):
            line.append(f"  {data['reason']['text']} ({data['reason']['code']})", style="default")
        self._console.print(line, soft_wrap=True)
        self._progress.update(self._bar, description=state.lower())

    def _tell_waiting(self, data: dict[str, Any]) -> None:
        if data["reason"] == self._last_reason or data["code"] == "accepted":
            return
        self._last_reason = data["reason"]
        place = f"number {data['position']} in the queue; " if data.get("position") else ""
        self._console.print(Text(f"  {place}{data['reason']}", style="dim"), soft_wrap=True)

    def _move_bar(self, data: dict[str, Any]) -> None:
        facts = [words.format(data[name]) for name, words in _SHOWN_VALUES if isinstance(data.get(name), int | float)]
        facts[1:1] = [
            f"{name.replace('_', ' ')} {format_score(name, data[name])}" for name in data if name.startswith("val_")
        ]
        epoch, step, total = data.get("epoch"), data.get("step"), data.get("total_steps")
        place = f"epoch {epoch} step {step}/{total}" if total else ""
        self._progress.update(self._bar, completed=step, total=total, facts="  ".join([place, *facts]))
        if self._progress.disable and epoch is not None and epoch > self._last_epoch:
            self._last_epoch = epoch  # no terminal, no bar: a line for each epoch that is reported
            self._console.print(f"  {'  '.join([place, *facts])}", soft_wrap=True)
