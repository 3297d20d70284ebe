"""What a job may say of its caches, and the bytes that the planner chooses for it."""

import pytest
import yaml
from pydantic import ValidationError

from planner import queues
from planner.caching import CACHE_MEMORY_FRACTION, NO_CACHE, CacheRule
from planner.errors import PlanInvalidError
from planner.explain import describe_plan
from planner.plan import MQGNNPlan, parse_plan
from planner.planner import make_plan
from tests.planner.made_up import MIB, cluster, sampled_profile, sampled_shape

DEALT = {"features": "remote", "feature_bytes": 4_000_000}


def plan_of(*, memory_bytes: int = 16 * 2**30, **shape: object) -> MQGNNPlan:
    asked = sampled_shape(**shape)
    plan = make_plan(
        asked, cluster=cluster(memory_bytes=memory_bytes), profile=sampled_profile(asked, num_ranks=1), num_ranks=1
    )
    assert isinstance(plan, MQGNNPlan)
    return plan


@pytest.mark.parametrize("said", ["cache: off", "cache: 'off'", "cache: {feature_bytes: 0, subgraph_bytes: 0}"])
def test_caches_can_be_switched_off_by_a_word(said):
    assert CacheRule.model_validate(yaml.safe_load(said)["cache"]) == NO_CACHE


def test_what_is_no_cache_is_refused():
    for wrong in ("of", {"feature_bytes": -1}, {"policy": "lru"}, {"prefer": 0.5}, {"reuse": 0}, {"reuse_growth": 0.5}):
        with pytest.raises(ValidationError):
            CacheRule.model_validate(wrong)


@pytest.mark.parametrize(
    ("reuse", "growth", "expected"),
    [
        (1, 1.0, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (3, 1.0, [1, 1, 1, 4, 4, 4, 7, 7, 7]),
        (1, 2.0, [1, 2, 2, 4, 4, 4, 4, 8, 8]),
        (2, 1.5, [1, 1, 3, 3, 3, 6, 6, 6, 6]),  # periods of 2, 3 and ⌊4.5⌋
    ],
)
def test_epochs_use_what_the_first_of_their_period_sampled(reuse, growth, expected):
    rule = CacheRule(reuse=reuse, reuse_growth=growth)
    assert [rule.sampled_in(epoch) for epoch in range(1, 10)] == expected
    assert rule.reuses == (expected != [*range(1, 10)])
    assert rule.sampled_in(1_000_000) <= 1_000_000


def test_budgets_left_open_share_what_there_is_among_those_of_use():
    def shares(features: str, **rule: object) -> tuple[int | None, int | None]:
        settled = CacheRule(**rule).settle(budget_bytes=100, features=features)
        assert settled.is_settled
        return settled.feature_bytes, settled.subgraph_bytes

    assert shares("remote") == (100, 0)
    assert shares("remote", reuse=2) == (75, 25)
    assert shares("local", reuse=2) == (0, 100)
    assert shares("local") == (0, 0)
    assert shares("remote", reuse=2, feature_bytes=7) == (7, 100)
    assert shares("remote", subgraph_bytes=3) == (100, 3)


def test_a_plan_names_all_bytes():
    with pytest.raises(PlanInvalidError, match="names the bytes of its caches"):
        parse_plan({"kind": "mqgnn", "world_size": 1, "batch_size": 8, "fanouts": [2], "cache": {}})


def test_a_job_that_holds_all_rows_caches_none():
    plan = plan_of()
    assert (plan.features, plan.cache) == ("local", NO_CACHE)


def test_the_cache_takes_a_twelfth_of_what_the_job_needs_without_it():
    plan, off = plan_of(**DEALT), plan_of(**DEALT, cache=NO_CACHE)
    (without,), (with_it,) = off.predicted.memory_bytes[:1], plan.predicted.memory_bytes[:1]
    assert plan.cache.feature_bytes == int(CACHE_MEMORY_FRACTION * (without - 32 * MIB) / 1.1)
    assert with_it - without == pytest.approx(1.1 * plan.cache.feature_bytes, abs=2)
    assert with_it <= 1.1 * without
    assert "hottest by inclusion" in describe_plan(plan)


def test_bytes_that_a_job_names_are_the_plans():
    assert plan_of(**DEALT, cache=CacheRule(feature_bytes=5 * MIB)).cache.feature_bytes == 5 * MIB


def test_a_cache_never_decides_whether_a_job_fits():
    needed = plan_of(**DEALT, cache=NO_CACHE).predicted.memory_bytes[0]
    assert queues.free_cache_bytes(needed, limit_bytes=needed) == 0
    tight = queues.free_cache_bytes(needed, limit_bytes=needed + MIB)
    assert 0 < tight <= MIB
    assert queues.free_cache_bytes(needed, limit_bytes=None) > MIB


def test_a_rank_of_two_holds_half_of_the_features():
    def needed(**shape: object) -> int:
        asked = sampled_shape(cache=NO_CACHE, **shape)
        profile = sampled_profile(asked, num_ranks=2)
        rates = queues.read_rates(profile, batch_size=256)
        serial = queues.QueueCandidate(pipelined=False, num_sampling_workers=1, num_threads=1)
        return queues.estimate_sampled_memory(serial, shape=asked, rates=rates, queues=(), profile=profile).model_bytes

    assert needed() - needed(**DEALT) == pytest.approx(1.1 * 2_000_000, abs=2)
