"""The plain model: what it sees, what it shares, and where its bias starts."""

from collections import Counter

import pytest
import torch

from workers.models.graph_batch import GraphBatch
from workers.models.graphormer import MAX_DEGREE, Graphormer
from workers.models.units import find_ties
from workers.ops.row_layout import whole
from workers.spec import GraphormerSpec

SPEC = GraphormerSpec(num_layers=2, hidden_size=8, num_heads=2, max_distance=3)


def build(**changes: object) -> Graphormer:
    torch.manual_seed(0)
    return Graphormer(SPEC.model_copy(update=changes), num_features=4, num_classes=3)


def line_batch(num_nodes: int = 6, *, draw: int = 1) -> GraphBatch:
    """Nodes on a line: the distance of i and j is |i - j|."""
    place = torch.arange(num_nodes)
    hops = (place[:, None] - place[None, :]).abs().clamp(max=SPEC.max_distance + 1)
    generator = torch.Generator().manual_seed(1)
    return GraphBatch(
        x=torch.randn(num_nodes, 4, generator=generator),
        degree=torch.tensor([1] + [2] * (num_nodes - 2) + [1]),
        node_ids=place,
        buckets=(hops.to(torch.uint8),),
        layout=whole((num_nodes,)),
        draw=draw,
    )


def with_changed(batch: GraphBatch, **changes: object) -> GraphBatch:
    return GraphBatch(**{**vars(batch), **changes})


def test_units_cover_every_parameter_and_share_the_distance_table_only() -> None:
    model = build(num_layers=3)
    assert list(model.units()) == ["features", "degree", "distance", "block.0", "block.1", "block.2", "head"]
    held = Counter(parameter for unit in model.units().values() for parameter in unit.parameters())
    assert held.keys() == set(model.parameters())
    assert {parameter for parameter, count in held.items() if count > 1} == {model.distance.table}
    assert all(block.attention.distance is model.distance for block in model.blocks)


def test_a_tied_parameter_has_one_name_in_the_state_and_loads_into_every_place() -> None:
    model, other = build(), build()
    with torch.no_grad():
        model.distance.table.normal_()
    state = model.state_dict()
    assert list(state) == [name for name, _ in model.named_parameters()]
    other.load_state_dict(state)
    assert torch.equal(other.blocks[1].attention.distance.table, model.distance.table)
    assert find_ties(other) == {f"blocks.{index}.attention.distance.table": "distance.table" for index in range(2)}


def test_every_parameter_gets_a_gradient() -> None:
    model = build(dropout=0.0, input_dropout=0.0)
    model(line_batch()).square().sum().backward()
    assert [name for name, parameter in model.named_parameters() if not parameter.grad.any()] == []


def test_the_bias_starts_with_near_above_far() -> None:
    table = build().distance.table
    assert table.shape == (2, SPEC.max_distance + 2)
    assert (table.diff(dim=1) < 0).all()


@pytest.mark.parametrize("max_distance", [1, 7, 8, 250])
def test_no_hop_starts_below_the_far_bucket(max_distance: int) -> None:
    table = build(max_distance=max_distance).distance.table
    assert (table >= table[:, -1:]).all()


@pytest.mark.parametrize("change", ["x", "degree", "buckets"])
def test_outputs_depend_on_features_degree_and_distance(change: str) -> None:
    model, batch = build().eval(), line_batch()
    changed = {
        "x": batch.x + 1 * torch.arange(4),
        "degree": batch.degree + 1,
        "buckets": (torch.zeros_like(batch.buckets[0]),),
    }[change]
    assert not torch.allclose(model(batch), model(with_changed(batch, **{change: changed})), atol=1e-4)


def test_renaming_the_nodes_renames_the_outputs() -> None:
    model, batch = build().eval(), line_batch()
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    renamed = with_changed(
        batch, x=batch.x[order], degree=batch.degree[order], buckets=(batch.buckets[0][order][:, order].contiguous(),)
    )
    torch.testing.assert_close(model(renamed), model(batch)[order])


def test_degrees_beyond_the_last_embedding_share_it() -> None:
    model, batch = build().eval(), line_batch()
    degrees = [torch.full_like(batch.degree, degree) for degree in (MAX_DEGREE, MAX_DEGREE + 1000)]
    first, second = (model(with_changed(batch, degree=degree)) for degree in degrees)
    assert torch.equal(first, second)


def test_the_scale_of_a_nodes_features_does_not_matter() -> None:
    """Bags of words come raw or divided by their sum; both must train from the first step on."""
    model, batch = build().double().eval(), line_batch()
    small, large = (with_changed(batch, x=batch.x.double() * scale) for scale in (1.0, 100.0))
    torch.testing.assert_close(model(small), model(large), rtol=1e-3, atol=1e-3)


def test_training_drops_by_draw_and_evaluation_does_not() -> None:
    model = build()
    first, again, other = (model(line_batch(draw=draw)) for draw in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    model.eval()
    assert torch.equal(model(line_batch(draw=1)), model(line_batch(draw=2)))
