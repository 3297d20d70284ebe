"""Which nodes are set aside for the actors that sample for a job."""

from hypothesis import given
from hypothesis import strategies as st

from service.admission import Amount, Part, lay_out
from service.placement import Apart, set_apart


def ranks(count: int, cpus: float = 1.0, gpus: float = 0.0) -> Part:
    return Part(Amount(cpus, gpus), count, "worker")


def actors(count: int, cpus: float = 1.0) -> Part:
    return Part(Amount(cpus), count, "sampling actor")


def test_actors_have_a_node_of_their_own_where_the_others_hold_all_ranks() -> None:
    found = set_apart({"a": Amount(8), "b": Amount(4)}, ranks=ranks(4), actors=actors(2))
    assert found == Apart(for_actors=frozenset({"b"}), for_ranks=frozenset({"a"}))


def test_nodes_with_gpus_are_kept_for_ranks() -> None:
    found = set_apart({"a": Amount(2, 1), "b": Amount(16)}, ranks=ranks(1, gpus=1), actors=actors(2))
    assert found.for_actors == {"b"}


def test_as_many_nodes_are_set_aside_as_the_actors_need() -> None:
    free = {name: Amount(2) for name in "abcd"}
    found = set_apart(free, ranks=ranks(2), actors=actors(4))
    assert (len(found.for_actors), len(found.for_ranks)) == (2, 2)


def test_where_ranks_need_every_node_none_is_set_aside() -> None:
    assert set_apart({"a": Amount(8), "b": Amount(8)}, ranks=ranks(2, cpus=5), actors=actors(1)) == Apart()


def test_one_node_serves_both() -> None:
    assert set_apart({"a": Amount(8)}, ranks=ranks(2), actors=actors(2)) == Apart()


@given(
    st.dictionaries(st.sampled_from("abcde"), st.builds(Amount, st.integers(0, 6), st.integers(0, 1)), max_size=5),
    st.integers(1, 6),
    st.integers(1, 4),
)
def test_either_side_holds_what_it_is_for(free: dict[str, Amount], num_ranks: int, num_actors: int) -> None:
    found = set_apart(free, ranks=ranks(num_ranks), actors=actors(num_actors))
    if found == Apart():
        return
    assert found.for_actors | found.for_ranks == set(free)
    assert not found.for_actors & found.for_ranks
    assert lay_out(Amount(1), num_actors, [free[node] for node in found.for_actors]) is not None
    assert lay_out(Amount(1), num_ranks, [free[node] for node in found.for_ranks]) is not None
