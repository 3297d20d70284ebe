"""The command line. It speaks to the service through ``api.client`` alone and imports no part of the server.

Exit codes: 0 done; 1 the job failed; 2 wrong usage, bad settings or a bad spec; 3 the service cannot be reached; 4 the
job was cancelled; 5 the service refused (no such job, it has ended, wrong key); 70 a fault of this program, which says
nothing about the job; 130 interrupted (the job goes on).
"""

import os
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from api import cli_output as output
from api.cli_errors import ExitCode, exit_code_of_state, reporting_errors
from api.cli_follow import follow_with_progress
from api.client import GraphmillClient
from api.server_stop import stop_everything
from api.spec_file import read_spec_file
from planner.errors import GraphmillError
from service.spec import JobState

app = typer.Typer(
    name="graphmill",
    help="Train graph transformers and sampled graph neural networks on a cluster.",
    epilog=(
        "Exit codes: 0 done; 1 the job failed; 2 wrong usage, bad settings or a bad spec; 3 the service cannot be"
        " reached; 4 the job was cancelled; 5 the service refused; 70 a fault of this program; 130 interrupted (the job"
        " goes on)."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="Id of the job, or `last` for the newest one.")]


_SHORT_PATIENCE_S = 5.0


class NoJobsError(GraphmillError):
    """``last`` was asked for, and there is no job."""

    code = "no_jobs"


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on (GRAPHMILL_HOST).")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on (GRAPHMILL_PORT); 0 chooses a free one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Serve the API here, on an embedded cluster unless GRAPHMILL_RAY_DASHBOARD names another. Ctrl-C ends both."""
    arguments = [sys.executable, "-P", "-m", "api.main"]  # -P: a folder of the user's named api is not ours
    arguments += [] if host is None else ["--host", host]
    arguments += [] if port is None else ["--port", str(port)]
    arguments += ["--json"] if as_json else []
    sys.stdout.flush()
    os.execv(sys.executable, arguments)  # the same process: signals and exit code are the server's own


@app.command()
def stop(as_json: AsJson = False) -> None:
    """End the API and the embedded cluster of this home, also after a crash."""
    with reporting_errors(as_json=as_json):
        output.show_stopped(stop_everything(), as_json=as_json)


@app.command()
def submit(
    spec: Annotated[Path, typer.Argument(metavar="SPEC.yaml", help="The job spec, as YAML or JSON; - for stdin.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Stay until the job has ended.")] = False,
    key: Annotated[str | None, typer.Option("--key", help="Idempotency key: the same key makes one job.")] = None,
    as_json: AsJson = False,
) -> None:
    """Submit a job."""
    with reporting_errors(as_json=as_json), _client(patient=follow) as client:
        job = client.submit(read_spec_file(spec), idempotency_key=key)
        if not follow:
            output.show_submitted(job, as_json=as_json)
            return
        state = follow_with_progress(client, job.id, as_json=as_json)
        if not as_json:
            output.show_outcome(client, client.job(job.id))
    raise typer.Exit(exit_code_of_state(state))


@app.command("jobs")
def list_jobs(
    state: Annotated[JobState | None, typer.Option(help="Only jobs in this state.", case_sensitive=False)] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most this many, newest first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    with reporting_errors(as_json=as_json), _client() as client:
        found = client.jobs(state=state, page_size=min(limit, 200))
        output.show_jobs([job for job, _ in zip(found, range(limit), strict=False)], as_json=as_json)


@app.command()
def show(job_id: JobId, as_json: AsJson = False) -> None:
    """Show a job: state, history, plan in words, predicted beside measured, result."""
    with reporting_errors(as_json=as_json), _client() as client:
        output.show_job(client, client.job(_resolve(client, job_id)), as_json=as_json)


@app.command()
def logs(
    job_id: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Stay until the job has ended.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", min=1, help="Only the last lines.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the log of a job. With --follow, the exit code tells how the job ended."""
    with reporting_errors(as_json=as_json), _client(patient=follow) as client:
        job_id = _resolve(client, job_id)
        for piece in client.logs(job_id, tail=tail, follow=follow):
            output.write_log(piece, as_json=as_json)
        state = client.job(job_id).state
    if follow:
        raise typer.Exit(exit_code_of_state(state))


@app.command()
def cancel(job_id: JobId, as_json: AsJson = False) -> None:
    """Cancel a job. Asking twice does no harm."""
    with reporting_errors(as_json=as_json), _client() as client:
        output.show_cancelled(client.cancel(_resolve(client, job_id)), as_json=as_json)


@app.command()
def artifacts(
    job_id: JobId,
    download: Annotated[Path | None, typer.Option("--download", help="Download the exported model here.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="With --download: checkpoints too.")] = False,
    as_json: AsJson = False,
) -> None:
    """List what a job left behind, or download it."""
    with reporting_errors(as_json=as_json), _client() as client:
        job_id = _resolve(client, job_id)
        if download is None:
            output.show_artifacts(client.artifacts(job_id), as_json=as_json)
        else:
            files = client.download(job_id, download, prefix="" if everything else "export/")
            output.show_downloaded(files, as_json=as_json)


@data_app.command("ls")
def list_data(as_json: AsJson = False) -> None:
    """List the data sets that can be asked for by name."""
    with reporting_errors(as_json=as_json), _client() as client:
        output.show_datasets(client.datasets(), as_json=as_json)


def _client(*, patient: bool = False) -> GraphmillClient:
    """Who follows a job waits for a service that restarts; who asks once wants to know soon that it is away."""
    return GraphmillClient() if patient else GraphmillClient(patience_s=_SHORT_PATIENCE_S)


def _resolve(client: GraphmillClient, job_id: str) -> str:
    if job_id != "last":
        return job_id
    newest = next(client.jobs(page_size=1), None)
    if newest is None:
        raise NoJobsError("there are no jobs yet; `graphmill submit SPEC.yaml` makes the first")
    return newest.id


def main() -> None:
    """Entry point of the ``graphmill`` command."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    except Exception:
        traceback.print_exc()
        sys.exit(ExitCode.FAULT)


if __name__ == "__main__":
    main()
