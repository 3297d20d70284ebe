"""Exit codes, and errors as people and programs read them."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import typer
from rich.table import Table
from rich.text import Text

from api.cli_words import open_console
from api.client_errors import RequestRefusedError, ServiceUnreachableError
from api.schemas.problems import Problem
from planner.errors import GraphmillError
from service.spec import JobState


class ExitCode(IntEnum):
    """How a command ended."""

    DONE = 0
    JOB_FAILED = 1
    BAD_INPUT = 2
    UNREACHABLE = 3
    JOB_CANCELLED = 4
    REFUSED = 5
    FAULT = 70  # as sysexits.h has it: an error of ours, no word about any job
    INTERRUPTED = 130


_BAD_INPUT_CODES = frozenset({"spec_invalid", "request_invalid", "malformed_json", "body_too_large"})
_OF_STATE = {JobState.FAILED: ExitCode.JOB_FAILED, JobState.CANCELLED: ExitCode.JOB_CANCELLED}


def exit_code_of_state(state: JobState) -> ExitCode:
    """What following a job to this state means for the exit code."""
    return _OF_STATE.get(state, ExitCode.DONE)


@contextmanager
def reporting_errors(*, as_json: bool) -> Iterator[None]:
    """Turn errors into a message on stderr (JSON if asked) and an exit code."""
    try:
        yield
    except RequestRefusedError as error:
        _report_problem(error.problem, as_json=as_json)
        bad = error.problem.code in _BAD_INPUT_CODES
        raise typer.Exit(ExitCode.BAD_INPUT if bad else ExitCode.REFUSED) from error
    except ServiceUnreachableError as error:
        _report(error.code, error.message, as_json=as_json)
        raise typer.Exit(ExitCode.UNREACHABLE) from error
    except GraphmillError as error:
        _report(error.code, error.message, as_json=as_json)
        raise typer.Exit(ExitCode.BAD_INPUT) from error
    except BrokenPipeError:  # the reader of our output has seen enough: `graphmill logs JOB | head`
        sys.stderr.close()
        raise typer.Exit(ExitCode.DONE) from None
    except OSError as error:
        _report("file_unusable", str(error), as_json=as_json)
        raise typer.Exit(ExitCode.BAD_INPUT) from error


def _report(code: str, message: str, *, as_json: bool) -> None:
    if as_json:
        sys.stderr.write(json.dumps({"code": code, "detail": message}) + "\n")
        return
    line = Text.assemble(("error", "bold red"), f" ({code}): {message}")
    open_console(stderr=True).print(line, soft_wrap=True)


def _report_problem(problem: Problem, *, as_json: bool) -> None:
    if as_json:
        sys.stderr.write(problem.model_dump_json(exclude_none=True) + "\n")
        return
    console = open_console(stderr=True)
    detail = f"{len(problem.errors)} to mend" if problem.errors else problem.detail
    console.print(Text.assemble((problem.title, "bold red"), f" ({problem.code}): {detail}"), soft_wrap=True)
    if problem.errors:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for heading, style in (("where", "bold"), ("what", ""), ("how to mend it", "green")):
            table.add_column(heading, style=style, overflow="fold")
        for fault in problem.errors:
            table.add_row(fault.pointer or "(the document)", fault.detail, fault.fix)
        console.print(table)
