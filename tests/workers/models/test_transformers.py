"""What holds of every transformer: ragged graphs in one micro-batch do not meet, and units are named and used."""

import pytest
import torch

from tests.distributed.odd_graphs import odd_set
from workers.comm.axis import Axis
from workers.megagraph.batches import ShardedBatches
from workers.model_specs import GraphGPSSpec, GTSpec, SGFormerSpec, TransformerSpec
from workers.models.registry import build_model
from workers.models.units import GraphTransformer

SIZES = {"hidden_size": 8, "dropout": 0.0, "input_dropout": 0.0}
SPECS = (
    SGFormerSpec(**SIZES),
    SGFormerSpec(**SIZES, num_heads=2, pooling="mean"),
    GraphGPSSpec(**SIZES, norm="layer"),
    GraphGPSSpec(**SIZES, message_passing="gine", pooling="sum"),
    GTSpec(**SIZES, laplacian_size=0),
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
    together = model(source.batch(graphs, draw=0).inputs)
    alone = torch.cat([model(source.batch((graph,), draw=0).inputs) for graph in graphs])
    assert together.isfinite().all()
    assert len(together) == (len(graphs) if spec.pooling != "none" else odd_set().num_nodes)
    torch.testing.assert_close(together, alone, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.name}-{spec.pooling}")
def test_units_are_those_of_the_spec_and_each_parameter_learns(spec: TransformerSpec) -> None:
    model = build(spec).train()
    assert tuple(model.units()) == spec.units
    held = {parameter for unit in model.units().values() for parameter in unit.parameters()}
    assert held == set(model.parameters())
    model(batches(spec).batch(range(7), draw=1).inputs).square().sum().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
