"""Reading plans, also those written by hand: what is wrong with one comes as ``plan_invalid``, whatever it is."""

import json

import pytest

from planner.errors import PlanInvalidError
from planner.plan import parse_plan
from tests.kit.builders import two_rank_plan


def document(**changes: object) -> dict:
    return {**json.loads(two_rank_plan().model_dump_json()), **changes}


def stage(**changes: object) -> dict:
    return {**document()["stages"][0], **changes}


def test_a_plan_is_read_from_text_bytes_and_values():
    text = two_rank_plan().model_dump_json()
    assert parse_plan(text) == parse_plan(text.encode()) == parse_plan(document()) == two_rank_plan()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"world_size": 3}, "must hold each of the ranks 0 to 2 once; found \\[\\(0, 1\\)\\]"),
        ({"stages": [stage(dp_degree=2)]}, "dp_degree 2 x cp_degree 2 = 4 ranks, but it lists 2"),
        ({"stages": [stage(exchange="none")]}, "needs an exchange, found 'none'"),
        ({"actions": []}, "one action list per rank: 2 ranks, 0 lists"),
    ],
)
def test_a_broken_law_is_told_in_its_own_words(changes, message):
    with pytest.raises(PlanInvalidError, match=f"{message}") as caught:
        parse_plan(document(**changes))
    assert caught.value.code == "plan_invalid"


def test_faults_of_fields_are_named_all_at_once():
    with pytest.raises(PlanInvalidError, match=r"/num_threads: .*greater.*; /megagraph/colour: ") as caught:
        parse_plan(document(num_threads=0, colour="red"))
    assert "pydantic" not in caught.value.message


@pytest.mark.parametrize("text", ["", "{", "[]", '{"kind": "other"}'])
def test_what_is_no_plan_at_all_is_refused_alike(text):
    with pytest.raises(PlanInvalidError, match="this is no plan: "):
        parse_plan(text)
