import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from planner.sync import SyncRule
from workers.mqgnn.racom.rules import (
    PARTS_PER_REPLICA,
    damping,
    deal_shares,
    flight_drift,
    must_wait,
    next_kappa,
    room,
    sync_period,
)
from workers.spec import TrainingSpec, TrainSpec

RULE = SyncRule(name="racom", base_period=4, first_period=16, growth_rate=0.02, max_period=64)


def period(rule: SyncRule = RULE, **changes: float) -> int:
    return sync_period(rule, **{"learning_rate": 0.01, "loss": 2.0, "first_loss": 2.0, "kappa": 1.0} | changes)


def test_the_period_is_the_less_of_what_rate_and_loss_allow():
    assert period() == 4  # (0.02 / 0.01)² = 4 steps, against 16 by the loss
    assert period(learning_rate=0.004) == 16  # 25 by the rate, 16 by the loss
    assert period(learning_rate=0.004, loss=0.5) == 8  # √(1/4) of 16
    assert period(learning_rate=1.0) == 4  # never below the base, by the rate


def test_the_period_is_a_whole_number_from_one_to_its_maximum():
    assert period(kappa=0.5) == 2
    assert period(kappa=0.6) == 2
    assert period(kappa=2**-10) == 1
    assert period(loss=0.0) == 1
    assert period(learning_rate=0.0, loss=200.0) == 64


def test_before_any_loss_is_known_the_first_period_holds():
    assert period(learning_rate=0.001, loss=0.0, first_loss=0.0) == 16
    assert period(learning_rate=0.001, loss=math.nan) == 16


def test_kappa_halves_near_the_bound_and_recovers_far_from_it():
    seen = [1.0]
    for drift in (0.9, 0.81, 0.8, 0.5, 0.3, 0.29, 0.1, 0.1):
        seen.append(next_kappa(seen[-1], drift_over_bound=drift))
    assert seen == [1.0, 0.5, 0.25, 0.25, 0.25, 0.25, 0.5, 1.0, 1.0]


def test_kappa_comes_back_however_long_the_drift_was_near_its_bound():
    kappa = 1.0
    for _ in range(2000):
        kappa = next_kappa(kappa, drift_over_bound=1.0)
    for _ in range(10):
        kappa = next_kappa(kappa, drift_over_bound=0.0)
    assert kappa == 1.0


def test_a_replica_waits_only_beyond_its_lead():
    assert not must_wait(12, [12, 4, 9], staleness=8)
    assert must_wait(13, [13, 4, 9], staleness=8)
    assert not must_wait(4, [4, 40], staleness=0)


def test_no_number_is_no_distance_within_the_drift():
    assert room(0.2, reference_norm=1.0, drift=0.2) == 0
    assert room(0.15, reference_norm=1.0, drift=0.2) == pytest.approx(0.05)
    assert room(0.2001, reference_norm=1.0, drift=0.2) < 0
    assert math.isnan(room(math.nan, reference_norm=1.0, drift=0.2))


@given(drift=st.floats(0.0, 0.999), norm=st.floats(1e-3, 1e3), moved=st.floats(0.0, 1.0))
def test_what_moves_during_a_flight_lies_within_the_drift_of_the_next_reference(drift, norm, moved):
    least_next_norm = norm - moved * drift * norm  # the next reference lies within the drift of the old one
    assert flight_drift(drift) * norm <= drift * least_next_norm * (1 + 1e-9)


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=16))
def test_shares_add_up_and_follow_the_rates(rates):
    shares = deal_shares(rates)
    assert sum(shares) == PARTS_PER_REPLICA * len(rates)
    assert min(shares) >= PARTS_PER_REPLICA // 16
    ranked = [share for _, share in sorted(zip(rates, shares, strict=True), key=lambda pair: pair[0])]
    assert all(later >= earlier - 1 for earlier, later in pairwise(ranked))


def test_a_replica_a_third_as_fast_takes_a_third_of_the_others_seeds():
    assert deal_shares([300.0, 100.0]) == (384, 128)
    assert deal_shares([100.0, 100.0, 100.0]) == (256, 256, 256)


def test_no_replica_takes_more_than_twice_an_equal_share():
    assert deal_shares([1000.0, 1.0, 1.0, 1.0]) == (512, 171, 171, 170)
    assert max(deal_shares([1000.0, 1.0])) == 512 - 16


def test_shares_are_equal_until_every_rate_is_known():
    assert deal_shares([300.0, 0.0]) == deal_shares([math.nan, 5.0]) == (256, 256)


@pytest.mark.parametrize("slowness", [3.0, 8.0])
def test_dealing_by_the_measured_rate_settles_where_all_take_equally_long(slowness):
    """A step takes a fixed part and one per seed, so rates change with the shares."""
    shares, seeds = (256, 256), 1000
    for _ in range(12):
        counts = [seeds * share / 512 for share in shares]
        times = [factor * (0.01 + 1e-4 * count) for factor, count in zip((1.0, slowness), counts, strict=True)]
        shares = deal_shares([count / spent for count, spent in zip(counts, times, strict=True)])
    assert max(times) / min(times) < 1.15 or min(shares) == PARTS_PER_REPLICA // 16


def test_a_push_weighs_less_with_age_and_nothing_past_the_lead():
    assert [damping(age, staleness=3) for age in (-2, 0, 1, 3, 4)] == [1.0, 1.0, 0.5, 0.25, 0.0]


@pytest.mark.parametrize("bounds", [{"staleness": 0}, {"drift": 0.0}])
def test_no_lead_or_no_drift_means_gradients_in_every_step(bounds):
    assert SyncRule(name="racom", **bounds).every_step
    assert SyncRule().every_step
    assert not SyncRule(name="racom").every_step
    assert not SyncRule(name="local_sgd", **bounds).every_step


def test_a_bare_name_is_a_rule():
    assert TrainingSpec(sync="racom").sync == SyncRule(name="racom")
    with pytest.raises(ValidationError, match="Input should be 'ddp', 'racom' or 'local_sgd'"):
        TrainingSpec(sync="hogwild")


def test_transformers_sum_gradients_in_every_step():
    with pytest.raises(ValidationError, match="is for kind mqgnn: graph transformers sum gradients"):
        TrainSpec(
            kind="megagraph",
            dataset={"name": "Cora"},
            model={"name": "graphormer"},
            training={"sync": {"name": "racom"}},
        )


def test_a_base_period_beyond_the_longest_is_refused():
    with pytest.raises(ValidationError, match=r"sync.base_period 200 must be at most sync.max_period 128"):
        SyncRule(name="racom", base_period=200)
