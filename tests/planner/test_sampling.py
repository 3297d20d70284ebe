"""Plans for jobs whose mini-batches are made by actors."""

import pytest

from planner.errors import PlanInvalidError
from planner.explain import describe_plan
from planner.plan import MQGNNPlan, parse_plan
from planner.planner import make_plan
from planner.sampling import SamplingRule
from tests.planner.made_up import cluster, sampled_profile, sampled_shape


def plan_of(sampling: SamplingRule, *, cores: int = 2, **stages: float) -> MQGNNPlan:
    shape = sampled_shape(sampling=sampling)
    profile = sampled_profile(shape, num_ranks=2, **stages)
    plan = make_plan(shape, cluster=cluster(cores=cores), profile=profile, num_ranks=2)
    assert isinstance(plan, MQGNNPlan)
    return plan


def test_a_bare_name_is_a_rule_with_the_usual_rest():
    assert SamplingRule.model_validate("remote") == SamplingRule(placement="remote", num_actors=2, cpus_per_actor=1.0)
    assert not SamplingRule().is_remote


def test_a_remote_plan_has_one_queue_for_what_actors_make():
    plan = plan_of(SamplingRule(placement="remote", num_actors=4))
    assert plan.sampling.num_actors == 4
    assert plan.pipelined
    assert [queue.name for queue in plan.queues] == ["remote"]
    assert plan.num_sampling_workers == 4
    assert plan.predicted.terms_s.keys() == {"remote", "compute", "exchange"}


def test_actors_are_of_use_where_ranks_have_one_core_and_sampling_is_slow():
    slow = {"sample_s": 30e-3, "prepare_s": 10e-3}
    alone = plan_of(SamplingRule(), **slow).predicted.step_time_s
    helped = plan_of(SamplingRule(placement="remote", num_actors=8), **slow).predicted.step_time_s
    assert helped < alone / 3


def test_more_actors_never_lower_throughput():
    steps = [
        plan_of(SamplingRule(placement="remote", num_actors=count), sample_s=30e-3).predicted.step_time_s
        for count in (1, 2, 4, 8, 16)
    ]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > 2 * steps[-1]


def test_a_remote_plan_says_who_samples():
    text = describe_plan(plan_of(SamplingRule(placement="remote", num_actors=3)))
    assert "Mini-batches are made by 3 actors; each replica asks for 4 ahead" in text
    assert "3 actors outside of the ranks sample and prepare" in text
    assert "sampling worker" not in text


def test_remote_sampling_wants_a_pipeline():
    plan = {"kind": "mqgnn", "world_size": 1, "batch_size": 8, "fanouts": [2], "pipelined": False, "sampling": "remote"}
    with pytest.raises(PlanInvalidError, match="found a plan that is not pipelined"):
        parse_plan(plan)
