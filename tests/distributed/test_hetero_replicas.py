"""Replicas of a hetero model against one process, where batches lack types and a replica has seeds of few relations."""

import pytest
import torch

from tests.workers.mqgnn.graphs import typed_dataset
from tests.workers.mqgnn.runs import Settings, train_by_hand
from workers.comm.axis import open_axis
from workers.model_specs.sampled import SampledGNNSpec
from workers.mqgnn.sampling.sampled_graph import graph_to_sample
from workers.training.model_fit import resolve_model

DATASET = typed_dataset()
SPEC = resolve_model(SampledGNNSpec(name="graphsage", fanouts=(2, 2), hetero=True), DATASET)
GRAPH = graph_to_sample(DATASET.graphs[0], SPEC)
SETTINGS = Settings(fanouts=(2, 2), batch_size=4, dropout=0.5, types=SPEC.types)


def train_replica(rank: int, world_size: int) -> tuple[dict[str, torch.Tensor], list[float]]:
    return train_by_hand(GRAPH, SETTINGS, axis=open_axis((tuple(range(world_size)),), rank=rank))


def test_g38_replicas_of_which_some_use_no_weight_of_a_relation_equal_one_process(pool):
    """Case G38: parameters that a replica does not use broke the sum of gradients."""
    weights, losses = train_by_hand(GRAPH, SETTINGS)
    for found, found_losses in pool.run(train_replica, world_size=3):
        assert found_losses == pytest.approx(losses, rel=0, abs=1e-10)
        for name in weights:
            torch.testing.assert_close(found[name], weights[name], rtol=0, atol=1e-10)
