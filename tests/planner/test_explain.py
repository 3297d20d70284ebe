"""Plans read as sentences, with every number that decided."""

import pytest

from planner.explain import describe_plan, explain_choice, explain_threads, format_bytes
from planner.plan import MegaGraphPlan, Partition, Stage, parse_plan
from planner.planner import make_plan
from planner.schedule import actions_by_rank, one_f_one_b_actions
from tests.planner.made_up import (
    cluster,
    sampled_profile,
    sampled_shape,
    transformer_profile,
    transformer_shape,
)


def test_a_transformer_plan_says_what_runs_why_and_what_lost():
    shape = transformer_shape()
    plan = make_plan(shape, cluster=cluster(), profile=transformer_profile(shape, num_ranks=2), num_ranks=2)
    text = describe_plan(plan)
    assert "Graph transformer on 2 ranks, 1 thread each." in text
    assert "1 replica of 2 ranks: 2 ranks share the nodes of a graph; keys and values go round a ring." in text
    assert all(reason in text for reason in plan.reasons)
    assert f"Predicted: {plan.predicted.step_time_s:.4f} s per optimiser step" in text
    told = {term for term, seconds in plan.predicted.terms_s.items() if f"  {term.replace('_', ' ')}: " in text}
    assert told == {term for term, seconds in plan.predicted.terms_s.items() if f"{seconds:.4f}" != "0.0000"}
    assert "0.0000" not in text
    assert all(entry.choice in text and entry.lacks in text for entry in plan.runners_up)


def test_a_sampled_plan_names_its_queues():
    shape = sampled_shape()
    plan = make_plan(shape, cluster=cluster(cores=16), profile=sampled_profile(shape, num_ranks=2), num_ranks=2)
    text = describe_plan(plan)
    assert "Sampled GNN on 2 replicas" in text
    assert "its stages overlap in threads" in text
    assert all(f"{queue.name} {queue.max_items} items" in text for queue in plan.queues)


def test_a_plan_from_the_store_reads_like_a_fresh_one():
    shape = transformer_shape()
    plan = make_plan(shape, cluster=cluster(), profile=transformer_profile(shape, num_ranks=2), num_ranks=2)
    assert describe_plan(parse_plan(plan.model_dump_json())) == describe_plan(plan)


def test_a_plan_written_by_hand_needs_no_prediction():
    shape = transformer_shape()
    plan = make_plan(shape, cluster=cluster(), profile=transformer_profile(shape, num_ranks=1), num_ranks=1)
    bare = plan.model_copy(update={"predicted": None, "reasons": (), "runners_up": ()})
    assert describe_plan(bare).count("\n") == 2


def test_no_sentence_is_left_without_its_end():
    shape = transformer_shape(graph_sizes=(200, 300, 400) * 10, graphs_per_step=8)
    plan = make_plan(shape, cluster=cluster(), profile=transformer_profile(shape, num_ranks=4), num_ranks=4)
    assert all(reason[0].isupper() or reason[0].isdigit() for reason in plan.reasons)
    assert all(reason.endswith(".") for reason in plan.reasons)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1 KiB"), (93 * 2**20, "93 MiB"), (1000 * 2**20, "1000 MiB")],
)
def test_bytes_are_told_as_people_read_them(num_bytes, text):
    assert format_bytes(num_bytes) == text


def test_choices_tell_how_many_could_not_be_taken():
    assert "all of which fit" in explain_choice("x", num_candidates=4, num_fitting=4)
    assert "of which 3 fit" in explain_choice("x", num_candidates=4, num_fitting=3)
    assert "nothing else was possible" in explain_choice("x", num_candidates=1, num_fitting=1)


def test_threads_are_explained_by_cores():
    assert explain_threads(1, num_cores=0.5, tried=(1,)).startswith("2 ranks share a physical core")
    assert "A rank has 4 physical cores to itself; of [1, 4] threads, 4 was" in explain_threads(
        4, num_cores=4, tried=(1, 4)
    )


@pytest.mark.parametrize(
    ("exchange", "ulysses", "words"),
    [
        ("ulysses", 4, "they share the heads of attention"),
        ("ulysses_ring", 2, "runs of 2 ranks share the heads, keys and values go round a ring of 2 runs"),
        ("halo", 1, "rows travel where an edge leads to another rank"),
        ("reduce", 1, "only sums over nodes travel"),
    ],
)
def test_a_plan_written_by_hand_says_how_the_rows_of_its_ranks_meet(exchange, ulysses, words):
    stage = Stage(
        units=("head",), ranks=(0, 1, 2, 3), dp_degree=1, cp_degree=4, exchange=exchange, ulysses_degree=ulysses
    )
    plan = MegaGraphPlan(
        world_size=4,
        stages=(stage,),
        actions=actions_by_rank((stage,), one_f_one_b_actions(num_stages=1, num_micro_batches=1)),
        partition=Partition(order="metis", balance="edges"),
    )
    assert f"4 ranks share the nodes of a graph (metis order, equal edges); {words}." in describe_plan(plan)
