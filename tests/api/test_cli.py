"""The command line: what it prints, and its exit codes."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from api.cli import app, main
from api.cli_errors import ExitCode
from api.cli_words import format_age, format_bytes, format_duration, format_seconds
from api.client import GraphmillClient
from service.spec import JobState
from service.store.records import Reason
from tests.kit.builders import job_document, job_spec, metric, two_rank_plan
from tests.kit.live_api import LiveApi, wait_until


@pytest.fixture(autouse=True)
def _environment(api: LiveApi, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GRAPHMILL_HOME", str(api.settings.home))
    monkeypatch.setenv("GRAPHMILL_URL", api.url)
    monkeypatch.setenv("COLUMNS", "160")
    return


def graphmill(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin)


def spec_file(folder: Path, **changes: object) -> str:
    file = folder / "spec.yaml"
    file.write_text(json.dumps(job_document(**changes)))
    return str(file)


def running_job(api: LiveApi) -> str:
    job_id = api.store.create_job(job_spec())[0].id
    wait_until(lambda: job_id in api.cluster.submitted)
    return job_id


def play_when_submitted(api: LiveApi, *, fail: bool = False) -> None:
    """Let the fake cluster be a driver from now on: it plays each job as it is submitted."""
    plain = api.cluster.submit

    def submit(job_id: str, **rest: object) -> None:
        plain(job_id, **rest)  # type: ignore[arg-type]
        if fail:
            api.store.move(
                job_id, JobState.FAILED, reason=Reason(code="out_of_memory", text="rank 1 [of 2] had no memory")
            )
        else:
            api.cluster.play(api.store, job_id)

    api.cluster.submit = submit  # type: ignore[method-assign,assignment]


def test_submit_prints_the_id(api: LiveApi, tmp_path: Path) -> None:
    result = graphmill("submit", spec_file(tmp_path))
    assert result.exit_code == ExitCode.DONE
    assert api.store.list_jobs().items[0].id in result.stdout


def test_submit_reads_yaml_from_stdin(api: LiveApi) -> None:
    text = "name: 2026-11-29\nkind: mqgnn\ndataset: {name: karate}\nmodel: {name: gcn}\n"
    result = graphmill("submit", "-", "--json", stdin=text)
    assert json.loads(result.stdout)["spec"]["name"] == "2026-11-29"


def test_the_same_key_makes_one_job(api: LiveApi, tmp_path: Path) -> None:
    file = spec_file(tmp_path)
    first, second = (json.loads(graphmill("submit", file, "--key", "k", "--json").stdout)["id"] for _ in range(2))
    assert first == second


def test_faults_of_a_spec_are_listed_with_pointers_and_cures(tmp_path: Path) -> None:
    result = graphmill("submit", spec_file(tmp_path, name="-", training={"epocs": 3}))
    assert result.exit_code == ExitCode.BAD_INPUT
    for text in ("/name", "/training/epocs", 'did you mean "epochs"?', "2 to mend"):
        assert text in result.stderr


def test_faults_are_json_for_programs(tmp_path: Path) -> None:
    result = graphmill("submit", spec_file(tmp_path, name="-"), "--json")
    assert json.loads(result.stderr)["errors"][0]["pointer"] == "/name"


@pytest.mark.parametrize(
    "content",
    ["a: [", "\x00", "2026-11-29: 1", "&a [*a]", "a: 2026-13-45", "[" * 5_000],
    ids=["open", "nul", "date as key", "circle", "no date", "nested"],
)
def test_a_file_that_is_no_yaml_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "bad.yaml").write_text(content)
    result = graphmill("submit", str(tmp_path / "bad.yaml"))
    assert result.exit_code == ExitCode.BAD_INPUT
    assert "bad.yaml" in result.stderr


def test_a_folder_that_cannot_be_written_is_told(api: LiveApi, tmp_path: Path) -> None:
    job_id = running_job(api)
    file = Path(api.settings.job_uri(job_id)) / "export" / "config.json"
    file.parent.mkdir(parents=True)
    file.touch()
    (tmp_path / "out").touch()
    result = graphmill("artifacts", job_id, "--download", str(tmp_path / "out"))
    assert (result.exit_code, "file_unusable" in result.stderr) == (ExitCode.BAD_INPUT, True)


def test_a_fault_of_the_program_is_not_taken_for_a_failed_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["graphmill", "jobs"])
    monkeypatch.setattr(GraphmillClient, "jobs", lambda *_, **__: 1 / 0)
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == ExitCode.FAULT != ExitCode.JOB_FAILED
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    result = graphmill("submit", str(tmp_path / "none.yaml"))
    assert (result.exit_code, "none.yaml" in result.stderr) == (ExitCode.BAD_INPUT, True)


def test_following_tells_the_life_and_its_outcome(api: LiveApi, tmp_path: Path) -> None:
    play_when_submitted(api)
    result = graphmill("submit", spec_file(tmp_path), "--follow")
    assert result.exit_code == ExitCode.DONE
    places = [result.stdout.index(state) for state in ("PROFILING", "PLANNING", "SCHEDULING", "RUNNING", "FINISHED")]
    assert places == sorted(places)
    assert "80.00%" in result.stdout


def test_a_failed_job_is_a_failed_command_that_says_why(api: LiveApi, tmp_path: Path) -> None:
    play_when_submitted(api, fail=True)
    result = graphmill("submit", spec_file(tmp_path), "--follow")
    assert result.exit_code == ExitCode.JOB_FAILED
    assert "rank 1 [of 2] had no memory (out_of_memory)" in result.stdout


def test_following_as_json_is_a_line_for_each_event(api: LiveApi, tmp_path: Path) -> None:
    play_when_submitted(api)
    lines = [json.loads(line) for line in graphmill("submit", spec_file(tmp_path), "-f", "--json").stdout.splitlines()]
    states = [line["data"]["state"] for line in lines if line["type"] == "state"]
    assert (states[0], states[-1]) == ("PENDING", "FINISHED")
    assert {line["job_id"] for line in lines} == {api.store.list_jobs().items[0].id}


def test_without_a_terminal_progress_is_a_line_for_each_epoch(api: LiveApi, tmp_path: Path) -> None:
    job_id = json.loads(graphmill("submit", spec_file(tmp_path), "--key", "k", "--json").stdout)["id"]
    wait_until(lambda: job_id in api.cluster.submitted)
    api.cluster.play(api.store, job_id, to=JobState.RUNNING)
    api.store.set_progress(job_id, {"epoch": 3, "step": 30, "total_steps": 100, "loss": 0.5, "val_accuracy": 0.75})

    def end_when_followed() -> None:
        wait_until(lambda: api.backend.streams)
        api.store.move(job_id, JobState.FINISHED)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(end_when_followed)
        result = graphmill("submit", spec_file(tmp_path), "--key", "k", "--follow")  # the same key attaches again
    assert result.exit_code == ExitCode.DONE
    assert "epoch 3 step 30/100  loss 0.5000  val accuracy 75.00%" in result.stdout


def test_jobs_are_a_table_or_json(api: LiveApi) -> None:
    assert "No jobs." in graphmill("jobs").stdout
    ids = [api.store.create_job(job_spec(name=f"job {n}", workers=99))[0].id for n in range(3)]
    api.store.request_cancel(ids[0])
    table = graphmill("jobs").stdout
    assert all(job_id in table for job_id in ids)
    assert "job 1" in table
    listed = json.loads(graphmill("jobs", "--json", "-n", "2").stdout)
    assert [job["id"] for job in listed] == ids[:0:-1]
    cancelled = json.loads(graphmill("jobs", "--json", "--state", "cancelled").stdout)
    assert [job["id"] for job in cancelled] == ids[:1]


def test_a_waiting_job_shows_its_place_and_the_numbers(api: LiveApi) -> None:
    job_id = api.store.create_job(job_spec(workers=99))[0].id
    wait_until(lambda: (waiting := api.store.get_job(job_id).waiting) and waiting.code == "never_fits")
    result = graphmill("show", job_id)
    assert "number 1 in the queue; asked 99 CPUs, the cluster has 4" in result.stdout


def test_show_puts_predicted_beside_measured(api: LiveApi) -> None:
    job_id = running_job(api)
    api.store.save_plan(job_id, two_rank_plan())
    api.store.add_metrics(job_id, [metric(1, name="step_time_s", value=0.025)])
    api.store.add_metrics(job_id, [metric(1, name="peak_memory_bytes", value=2 * 2**20, rank=1)])
    api.cluster.play(api.store, job_id)
    text = graphmill("show", job_id).stdout
    assert "20 ms" in text
    assert "25 ms" in text
    assert "2.0 MiB" in text
    assert "The graph is one" in text
    whole = json.loads(graphmill("show", "last", "--json").stdout)
    assert (whole["job"]["id"], whole["plan"]["measured"]["step_time_s"]) == (job_id, 0.025)


def test_the_last_of_no_jobs_is_an_error_for_programs_too(api: LiveApi) -> None:
    result = graphmill("show", "last", "--json")
    assert (result.exit_code, json.loads(result.stderr)["code"]) == (2, "no_jobs")


def test_a_key_that_stands_twice_in_a_spec_is_refused_with_its_line(api: LiveApi, tmp_path: Path) -> None:
    file = tmp_path / "twice.yaml"
    file.write_text("name: x\ntraining: &t\n  epochs: 3\n  epochs: 4\n")
    result = graphmill("submit", str(file), "--json")
    assert result.exit_code == 2
    assert "'epochs' stands here twice" in json.loads(result.stderr)["detail"]
    assert "line 4" in json.loads(result.stderr)["detail"]


def test_logs_are_printed_as_they_are(api: LiveApi) -> None:
    job_id = running_job(api)
    log = Path(api.settings.job_uri(job_id)) / "logs" / "driver.log"
    log.parent.mkdir(parents=True)
    log.write_text("one [bold]\ntwo\n")
    assert graphmill("logs", job_id).stdout == "one [bold]\ntwo\n"
    assert graphmill("logs", job_id, "--tail", "1").stdout == "two\n"


@pytest.mark.parametrize(
    ("state", "code"),
    [(JobState.FAILED, ExitCode.JOB_FAILED), (JobState.CANCELLED, ExitCode.JOB_CANCELLED)],
)
def test_following_logs_ends_with_the_jobs_own_exit_code(api: LiveApi, state: JobState, code: ExitCode) -> None:
    job_id = running_job(api)
    api.store.move(job_id, state)
    assert graphmill("logs", job_id, "-f").exit_code == code


def test_cancel_says_what_happens(api: LiveApi) -> None:
    waiting = api.store.create_job(job_spec(workers=99))[0].id
    assert "is cancelled" in graphmill("cancel", waiting).stdout
    running = running_job(api)
    api.cluster.play(api.store, running, to=JobState.RUNNING)
    assert "will end within seconds" in graphmill("cancel", running).stdout
    api.store.move(running, JobState.FINISHED)
    late = graphmill("cancel", running)
    assert (late.exit_code, "job_ended" in late.stderr) == (ExitCode.REFUSED, True)


def test_artifacts_are_listed_and_downloaded(api: LiveApi, tmp_path: Path) -> None:
    job_id = running_job(api)
    assert "nothing yet" in graphmill("artifacts", job_id).stdout
    file = Path(api.settings.job_uri(job_id)) / "export" / "config.json"
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    assert "export/config.json" in graphmill("artifacts", job_id).stdout
    result = graphmill("artifacts", job_id, "--download", str(tmp_path / "out"), "--json")
    assert json.loads(result.stdout) == [str(tmp_path / "out" / "config.json")]


def test_data_sets_are_listed() -> None:
    assert "digits-knn" in graphmill("data", "ls").stdout
    assert "karate" in [item["name"] for item in json.loads(graphmill("data", "ls", "--json").stdout)]


def test_an_unknown_job_is_refused() -> None:
    result = graphmill("show", "job-none")
    assert (result.exit_code, "job_not_found" in result.stderr) == (ExitCode.REFUSED, True)


def test_a_wrong_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHMILL_API_KEY", "not-the-right-key-at-all")
    result = graphmill("jobs")
    assert (result.exit_code, "unauthorized" in result.stderr) == (ExitCode.REFUSED, True)


def test_no_service_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHMILL_URL", "http://127.0.0.1:9")
    defaults = {**(GraphmillClient.__init__.__kwdefaults__ or {}), "patience_s": 0.1}
    monkeypatch.setattr(GraphmillClient.__init__, "__kwdefaults__", defaults)
    result = graphmill("jobs")
    assert (result.exit_code, "graphmill serve" in result.stderr) == (ExitCode.UNREACHABLE, True)


def test_bad_settings_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHMILL_PORT", "many")
    result = graphmill("jobs")
    assert (result.exit_code, "GRAPHMILL_PORT" in result.stderr) == (ExitCode.BAD_INPUT, True)


def test_wrong_usage_has_its_own_code() -> None:
    assert graphmill("jobs", "--nonsense").exit_code == ExitCode.BAD_INPUT
    assert "Exit codes" in graphmill("--help").stdout


def test_nothing_is_coloured_without_a_terminal(api: LiveApi) -> None:
    running_job(api)
    assert "\x1b" not in graphmill("jobs").stdout


def test_words_for_sizes_and_times() -> None:
    assert [format_bytes(n) for n in (None, 0, 1023, 1536, 3 * 2**30, 5 * 2**40)] == [
        "-",
        "0 B",
        "1023 B",
        "1.5 KiB",
        "3.0 GiB",
        "5120.0 GiB",
    ]
    assert [format_seconds(s) for s in (None, 0.0125, 1.5)] == ["-", "12.5 ms", "1.5 s"]
    assert [format_duration(timedelta(seconds=s)) for s in (5, 185, 3729)] == ["0:05", "3:05", "1:02:09"]
    assert [format_age(timedelta(seconds=s)) for s in (-1, 40, 200, 7200, 5 * 86_400)] == [
        "0 s",
        "40 s",
        "3 min",
        "2 h",
        "5 d",
    ]
