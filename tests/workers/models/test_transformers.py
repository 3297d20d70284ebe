"""What holds of every transformer: ragged graphs in one micro-batch do not meet, and units are named and used."""

import pytest
import torch

from tests.distributed.odd_graphs import odd_set
from workers.comm.axis import Axis
from workers.errors import ModelInvalidError
from workers.megagraph.batches import ShardedBatches
from workers.model_specs.by_name import TransformerSpec
from workers.model_specs.custom import CustomSpec
from workers.model_specs.transformers import (
    ExphormerSpec,
    GraphGPSSpec,
    GraphormerSpec,
    GTSpec,
    NAGphormerSpec,
    SGFormerSpec,
)
from workers.models.graph_batch import GraphBatch, WideEdges
from workers.models.layers import Features, Head
from workers.models.registry import build_model
from workers.models.units import GraphTransformer
from workers.ops.row_edges import Halo, RowEdges
from workers.ops.row_layout import whole

SIZES = {"hidden_size": 8, "dropout": 0.0, "input_dropout": 0.0}
SPECS = (
    SGFormerSpec(**SIZES),
    SGFormerSpec(**SIZES, num_heads=2, pooling="mean"),
    GraphGPSSpec(**SIZES, norm="layer"),
    GraphGPSSpec(**SIZES, message_passing="gine", pooling="sum"),
    GTSpec(**SIZES, laplacian_size=2),
    ExphormerSpec(**SIZES, norm="layer", walk_length=3),
    ExphormerSpec(**SIZES, num_global=0, pooling="mean"),
    NAGphormerSpec(**SIZES),
    GraphormerSpec(**SIZES, edge_types=1),
)


def build(spec: TransformerSpec) -> GraphTransformer:
    torch.manual_seed(0)
    model = build_model(spec, num_features=odd_set().num_features, num_classes=3)
    assert isinstance(model, GraphTransformer)
    return model.double()


def batches(spec: TransformerSpec) -> ShardedBatches:
    alone = Axis(ranks=(0,), index=0)
    return ShardedBatches(odd_set(), axis=alone, needs=spec.needs, dtype=torch.float64, device=torch.device("cpu"))


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.name}-{spec.pooling}")
def test_graphs_of_one_micro_batch_equal_graph_by_graph(spec: TransformerSpec) -> None:
    model, source = build(spec).eval(), batches(spec)
    graphs = range(len(odd_set().graphs))
    model(source.batch((), draw=0).inputs)
    together = model(source.batch(graphs, draw=0).inputs)
    alone = torch.cat([model(source.batch((graph,), draw=0).inputs) for graph in graphs])
    assert together.isfinite().all()
    assert len(together) == (len(graphs) if spec.pooling else odd_set().num_nodes)
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.name}-{spec.pooling}")
def test_units_are_those_of_the_spec_and_each_parameter_learns(spec: TransformerSpec) -> None:
    model = build(spec).train()
    assert tuple(model.units()) == spec.units
    held = {parameter for unit in model.units().values() for parameter in unit.parameters()}
    assert held == set(model.parameters())
    model(batches(spec).batch(range(7), draw=1).inputs).square().sum().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def hand_made(**changes: object) -> GraphBatch:
    """Two graphs of three and two nodes, with everything that any model asks for."""
    generator = torch.Generator().manual_seed(1)
    options = {"generator": generator, "dtype": torch.float64}
    sizes, indptr = (3, 2), torch.tensor([0, 1, 3, 4, 5, 6])
    sources = torch.tensor([1, 0, 2, 1, 4, 3])
    wide = RowEdges(  # each row hears its neighbours and the global node of its graph, rows 5 and 6
        indptr=torch.tensor([0, 2, 5, 7, 9, 11]),
        sources=torch.tensor([1, 5, 0, 2, 5, 1, 5, 4, 6, 3, 6]),
        types=torch.tensor([0, 2, 0, 1, 2, 0, 2, 0, 2, 1, 2]),
        halo=Halo(send=(), receive=(2,)),
    )
    values = {
        "x": torch.randn(5, 6, **options),
        "degree": indptr.diff(),
        "node_ids": torch.arange(5),
        "layout": whole(sizes),
        "graph_ids": torch.arange(2),
        "buckets": tuple(torch.randint(4, (n, n), generator=generator, dtype=torch.uint8) for n in sizes),
        "paths": tuple(torch.randint(4, (n, n, 2), generator=generator, dtype=torch.uint8) for n in sizes),
        "edges": RowEdges(indptr=indptr, sources=sources),
        "wide_edges": WideEdges(edges=wide, halo=None),
        "laplacian": torch.randn(5, 3, **options),
        "hops": torch.randn(5, 4, 6, **options),
    }
    return GraphBatch(**{**values, **changes})


@pytest.mark.parametrize(
    "spec",
    [
        NAGphormerSpec(**SIZES),
        ExphormerSpec(**SIZES, norm="layer"),
        ExphormerSpec(**SIZES, pooling="mean", laplacian_size=3),
        GTSpec(**SIZES, laplacian_size=3),
        GraphormerSpec(**SIZES, edge_types=3),
    ],
    ids=lambda spec: spec.name,
)
def test_what_a_spec_asks_for_enters_the_outputs_and_every_parameter_learns(spec: TransformerSpec) -> None:
    model = build(spec).eval()
    assert tuple(model.units()) == spec.units
    first = model(hand_made())
    assert len(first) == (2 if spec.pooling == "mean" else 5)
    first.square().sum().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
    asked = {"num_hops": "hops", "laplacian_size": "laplacian"}
    for need, field in asked.items():
        if getattr(spec.needs, need):
            assert not torch.allclose(model(hand_made(**{field: 2 * getattr(hand_made(), field)})), first)


def test_a_global_node_hears_its_own_graph_only() -> None:
    model = build(ExphormerSpec(**SIZES, norm="layer")).eval()
    changed = hand_made()
    changed.x[0] += 1
    before, after = model(hand_made()), model(changed)
    assert not torch.allclose(before[2], after[2])
    torch.testing.assert_close(before[3:], after[3:])


def test_the_bias_of_a_path_is_the_mean_over_its_edges() -> None:
    model = build(GraphormerSpec(**SIZES, edge_types=3))
    paths = torch.tensor([[[0, 0], [2, 0]], [[1, 3], [0, 0]]], dtype=torch.uint8)
    batch = hand_made(buckets=(torch.zeros(2, 2, dtype=torch.uint8),), paths=(paths,), layout=whole((2,)))
    with torch.no_grad():
        model.distance.table.zero_()
    (bias,) = model.edge_path.bias(batch, distance=model.distance)
    table = model.edge_path.table
    torch.testing.assert_close(bias[:, 0, 1], table[0, 1])
    torch.testing.assert_close(bias[:, 1, 0], (table[0, 0] + table[1, 2]) / 2)
    assert not bias[:, 0, 0].any()


def test_a_bias_that_is_kept_is_built_once_for_all_blocks_and_gives_the_same() -> None:
    rebuilt, kept = (build(GraphormerSpec(**SIZES, edge_types=3)) for _ in range(2))
    kept.edge_path.keep = True
    batch = hand_made()
    outputs = [model(batch) for model in (rebuilt, kept)]
    torch.testing.assert_close(*outputs)
    for output in outputs:
        output.square().sum().backward()
    torch.testing.assert_close(rebuilt.edge_path.table.grad, kept.edge_path.table.grad)


class Tiny(torch.nn.Module):
    """A user's own model of two units, and a list of none."""

    def __init__(self, *, width: int, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.features = Features(num_features, width, dropout=0.0)
        self.block = torch.nn.ModuleList()
        self.head = Head(width, num_classes, pooling="none")


def test_a_module_of_ones_own_is_built_by_its_import_path() -> None:
    spec = CustomSpec(module=f"{__name__}:Tiny", arguments={"width": 4}, units=("features", "head"))
    assert build(spec)(hand_made()).shape == (5, 3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"module": "no.such:thing"}, "cannot be imported"),
        ({"arguments": {"depth": 1}}, "depth"),
        ({"units": ("encoder", "head")}, "encoder"),
        ({"units": ("head",)}, "in no unit"),
        ({"units": ("features", "block", "head")}, "'block' of .*:Tiny is a ModuleList, which computes nothing"),
    ],
)
def test_a_module_that_is_not_as_the_spec_says_is_refused(changes: dict[str, object], said: str) -> None:
    values = {"module": f"{__name__}:Tiny", "arguments": {"width": 4}, "units": ("features", "head"), **changes}
    with pytest.raises(ModelInvalidError, match=said):
        build(CustomSpec(**values))
