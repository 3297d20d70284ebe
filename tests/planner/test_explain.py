"""Plans read as sentences, with every number that decided."""

import pytest

from planner.explain import describe_plan, explain_choice, explain_threads, format_bytes
from planner.plan import parse_plan
from planner.planner import make_plan
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
    assert all(f"{term.replace('_', ' ')}: " in text for term in plan.predicted.terms_s)
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
