"""The learning rate by hand, and a plateau that a checkpoint remembers."""

import pytest
import torch

from workers.spec import ScheduleSpec
from workers.training.schedules import Schedule


def rates(spec: ScheduleSpec, *, total_steps: int = 10) -> list[float]:
    schedule = Schedule(spec, peak=1.0, steps_per_epoch=2, total_steps=total_steps)
    return [schedule.rate(step) for step in range(1, total_steps + 1)]


def test_warm_up_rises_in_a_line_and_reaches_the_peak_at_its_last_step() -> None:
    assert rates(ScheduleSpec(warmup_epochs=2)) == [0.25, 0.5, 0.75] + [1.0] * 7


def test_cosine_falls_from_the_peak_to_near_zero_after_the_warm_up() -> None:
    found = rates(ScheduleSpec(name="cosine", warmup_epochs=1))
    assert found[:3] == [0.5, 1.0, 1.0]
    assert found[2:] == sorted(found[2:], reverse=True)
    assert found[6] == pytest.approx(0.5)
    assert 0 < found[-1] < 0.05


def test_plateau_cuts_after_its_patience_and_goes_on_from_a_checkpoint() -> None:
    spec = ScheduleSpec(name="plateau", patience=2, factor=0.1)
    schedule = Schedule(spec, peak=1.0, steps_per_epoch=1, total_steps=100)
    for is_better in (True, False, True, False, False, False):
        schedule.scored(is_better=is_better)
    again = Schedule(spec, peak=1.0, steps_per_epoch=1, total_steps=100)
    again.load_state_dict(schedule.state_dict())
    assert again.rate(7) == schedule.rate(7) == pytest.approx(0.1)
    again.scored(is_better=False)
    assert again.rate(8) == pytest.approx(0.01)


def test_applying_sets_the_rate_of_every_group() -> None:
    groups = [{"params": [torch.nn.Parameter(torch.ones(1))]} for _ in range(2)]
    optimizer = torch.optim.Adam(groups, lr=5.0)
    schedule = Schedule(ScheduleSpec(warmup_epochs=1), peak=1.0, steps_per_epoch=4, total_steps=8)
    schedule.apply(optimizer, step=1)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]
