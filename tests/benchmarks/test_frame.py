"""The frame itself."""

import json
import os
import signal
from collections.abc import Sequence

import pytest

from tests.benchmarks.frame import Outcome, alternate, main, medians


def test_sides_take_turns() -> None:
    turns: list[str] = []

    def side(name: str) -> float:
        turns.append(name)
        return float(len(turns))

    values = alternate({"ours": lambda: side("ours"), "theirs": lambda: side("theirs")}, rounds=2)
    assert turns == ["ours", "theirs", "ours", "theirs"]
    assert values == {"ours": [1.0, 3.0], "theirs": [2.0, 4.0]}


def test_one_outlier_does_not_move_a_median() -> None:
    assert medians({"ours": [1.0, 1.2, 90.0]}) == {"ours": 1.2}


def noisy(*, good: bool) -> Outcome:
    print("round 1 of 3")
    return Outcome({"first_step_s": 12.5}, {"first_step_s": good}, {"values": [12.5]})


@pytest.mark.parametrize(("good", "code"), [(True, 0), (False, 1)])
def test_the_last_line_is_the_result_and_the_exit_code_the_verdict(
    good: bool, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main("first_step", lambda: noisy(good=good), arguments=[]) == code
    first, last = capsys.readouterr().out.splitlines()
    assert first == "round 1 of 3"
    line = json.loads(last)
    assert set(line) == {"name", "machine", "figures", "verdicts", "details"}
    assert (line["name"], line["figures"], line["verdicts"]) == (
        "first_step", {"first_step_s": 12.5}, {"first_step_s": good}
    )  # fmt: skip
    assert line["machine"]["cores"] >= 1


def test_with_json_nothing_else_is_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    main("first_step", lambda: noisy(good=True), arguments=["--json"])
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["name"] == "first_step"


def test_a_benchmark_that_is_told_to_end_ends_what_it_started() -> None:
    ended: list[str] = []

    def run() -> Outcome:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            return noisy(good=True)
        finally:
            ended.append("cluster")

    with pytest.raises(SystemExit) as left:
        main("first_step", run, arguments=["--json"])
    assert (left.value.code, ended) == (143, ["cluster"])


@pytest.mark.parametrize(("arguments", "asked"), [([], ["cora", "esol"]), (["--only", "esol"], ["esol"])])
def test_a_benchmark_of_parts_runs_those_that_are_asked_for(arguments: list[str], asked: list[str]) -> None:
    ran: list[str] = []

    def run(parts: Sequence[str]) -> Outcome:
        ran.extend(parts)
        return Outcome({}, {})

    main("accuracy", run, parts=["cora", "esol"], arguments=arguments)
    assert ran == asked
