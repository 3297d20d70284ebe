"""The engine of a driver, as far as it goes without a cluster."""

from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import GetTimeoutError

from service import ray_engine
from service.failures import explain
from service.ray_engine import PlanTimeoutError, RayEngine


class FakePlanner:
    """In place of ``ray`` and of the planner's actor; ``ray.get`` never has an answer."""

    def __init__(self) -> None:
        self.options_: dict[str, Any] = {}
        self.choose_plan = SimpleNamespace(remote=lambda *_, **__: "asked")

    def init(self, **_: object) -> None: ...

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "ab" * 28)

    def remote(self, *_: object) -> "FakePlanner":
        return self

    def options(self, **options: object) -> Any:
        self.options_ = options
        return SimpleNamespace(remote=lambda: self)

    def get(self, _: object, *, timeout: float) -> object:
        raise GetTimeoutError(f"nothing for {timeout} s")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakePlanner:
    made = FakePlanner()
    monkeypatch.setattr(ray_engine, "ray", made)
    return made


def test_the_planner_runs_where_its_driver_runs_and_thus_the_same_version(fake: FakePlanner) -> None:
    RayEngine(gcs_address=None).connect()
    strategy = fake.options_["scheduling_strategy"]
    assert (strategy.node_id, strategy.soft) == ("ab" * 28, False)


def test_a_planner_that_never_answers_ends_the_job_by_name(fake: FakePlanner) -> None:
    engine = RayEngine(gcs_address=None)
    engine.connect()
    with pytest.raises(PlanTimeoutError, match="within 300 s for 4 ranks") as caught:
        engine.plan(None, cluster=None, profiles=(), most_ranks=4)  # type: ignore[arg-type]
    assert explain(caught.value).code == "plan_timeout"
