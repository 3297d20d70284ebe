"""A rank of the probe, as the plain class that it is before a cluster makes an actor of it."""

from pathlib import Path

import pytest

from planner.planner import probes_for
from tests.planner.made_up import cluster
from tests.workers.probe.test_describe import transformer_spec
from workers.data.datasets import load_dataset
from workers.data.paths import DataPaths
from workers.errors import DatasetNotFoundError, ProbeFailedError, VersionMismatchError
from workers.probe import actor
from workers.probe.actor import ProbeActor
from workers.probe.describe import describe_job, profile_key
from workers.probe.ranks import Meeting
from workers.spec import DatasetSpec
from workers.versions import installed_version

SPEC = transformer_spec(hidden_size=16, num_heads=2)


def test_the_data_set_is_opened_before_the_clock_of_the_measurement_starts(tmp_path: Path, monkeypatch) -> None:
    data = DataPaths(root=None, cache=tmp_path)
    shape = describe_job(SPEC, load_dataset(SPEC.dataset, paths=data))
    key = profile_key(shape, cluster=cluster(), num_ranks=1)
    request = probes_for(shape, key=key, cluster=cluster()).model_copy(update={"budget_s": 0.1})
    rank = ProbeActor(0, 1)
    rank.prepare(SPEC, data=data, drivers_version=installed_version())
    monkeypatch.setattr(actor, "load_dataset", None)  # no more of it
    assert rank.measure(request, meeting=Meeting(host="nowhere", port=1)).units


def test_a_data_set_that_is_not_there_is_told_before_anybody_waits(tmp_path: Path) -> None:
    missing = SPEC.model_copy(update={"dataset": DatasetSpec(path=str(tmp_path / "absent"))})
    with pytest.raises(DatasetNotFoundError):
        ProbeActor(0, 1).prepare(
            missing, data=DataPaths(root=None, cache=tmp_path), drivers_version=installed_version()
        )


def test_a_rank_of_another_version_measures_nothing(tmp_path: Path) -> None:
    with pytest.raises(VersionMismatchError, match=r"the driver runs graphmill 0\.0\.1"):
        ProbeActor(0, 1).prepare(SPEC, data=DataPaths(root=None, cache=tmp_path), drivers_version="0.0.1")


class NoPlace:
    """A placement group on a cluster that has no room for it."""

    def wait(self, _: float) -> bool:
        return False


def test_a_probe_without_a_place_says_what_it_asked_for_and_gives_its_request_back(monkeypatch) -> None:
    places, removed = NoPlace(), []
    monkeypatch.setattr(actor, "placement_group", lambda *_, **__: places)
    monkeypatch.setattr(actor, "remove_placement_group", removed.append)
    shape = describe_job(SPEC, load_dataset(SPEC.dataset, paths=DataPaths(root=None, cache=Path("/nowhere"))))
    request = probes_for(shape, key=profile_key(shape, cluster=cluster(), num_ranks=3), cluster=cluster())
    with pytest.raises(ProbeFailedError, match=r"3 ranks of 2 CPUs and 0 GPUs found no place within 1 s") as caught:
        actor.measure_on_cluster(
            request, spec=SPEC, data=DataPaths(root=None, cache=Path("/nowhere")), cpus_per_rank=2.0, timeout_s=1.0
        )
    assert caught.value.code == "probe_failed"
    assert removed == [places]


def test_a_probe_whose_ranks_stay_silent_counts_them(monkeypatch) -> None:
    asked = ["first", "second", "third"]
    answers = iter([(["first"], ["second", "third"]), ([], ["second", "third"])])
    monkeypatch.setattr(actor.ray, "wait", lambda *_, **__: next(answers))
    monkeypatch.setattr(actor.ray, "get", lambda found: found)
    with pytest.raises(ProbeFailedError, match="2 of 3 ranks of the probe did not answer within 5 s"):
        actor._answers(asked, timeout_s=5.0)
