"""Search gives what brute force gives, prices no more than it must, and names the nearest miss."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import NoPlanFitsError
from planner.search import Price, find_best, list_runners_up

PRICES = st.tuples(st.integers(1, 20), st.integers(0, 20), st.integers(0, 20))


def search(space, *, limit, priced=None):
    """``space``: (seconds, memory, memory bound) per candidate; candidates are their numbers."""

    def price(index):
        if priced is not None:
            priced.append(index)
        return Price(step_time_s=float(space[index][0]), memory_bytes=space[index][1])

    return find_best(
        range(len(space)),
        price=price,
        memory_bound_bytes=lambda index: min(space[index][1:]),
        limit_bytes=limit,
        describe=lambda index: f"candidate {index}",
    )


@given(space=st.lists(PRICES, min_size=1, max_size=12), limit=st.none() | st.integers(0, 20))
def test_search_equals_brute_force(space, limit):
    fitting = [index for index, (_, memory, _) in enumerate(space) if limit is None or memory <= limit]
    if not fitting:
        with pytest.raises(NoPlanFitsError) as caught:
            search(space, limit=limit)
        assert caught.value.details["missing_bytes"] == min(memory for _, memory, _ in space) - limit
        return
    best = min(fitting, key=lambda index: (space[index][0], space[index][1], index))
    assert search(space, limit=limit).best.candidate == best


@given(space=st.lists(PRICES, min_size=1, max_size=12), limit=st.integers(0, 20), more=st.integers(0, 20))
def test_more_memory_never_gives_a_worse_plan(space, limit, more):
    try:
        tight = search(space, limit=limit).best.price.step_time_s
    except NoPlanFitsError:
        return
    assert search(space, limit=limit + more).best.price.step_time_s <= tight


def test_candidates_beyond_their_bound_are_not_priced():
    priced = []
    search([(1, 100, 100), (2, 5, 5), (3, 5, 5)], limit=10, priced=priced)
    assert priced == [1, 2]


def test_runners_up_say_what_they_lack():
    mib = 2**20
    found = search([(10, mib, 0), (15, 0, 0), (10, 3 * mib, 0), (1, 50 * mib, 0)], limit=10 * mib)
    runners_up = list_runners_up(found, limit_bytes=10 * mib, describe=str)
    assert [(entry.choice, entry.lacks) for entry in runners_up] == [
        ("2", "is as fast, and takes 2 MiB more per rank"),
        ("1", "is 50 % slower"),
        ("3", "needs 40 MiB more per rank than there is"),
    ]


def test_the_nearest_miss_is_named_with_its_bytes():
    with pytest.raises(NoPlanFitsError, match=r"\(candidate 1\) needs 120 bytes, 20 bytes too many"):
        search([(1, 500, 500), (9, 120, 0), (2, 130, 130)], limit=100)
