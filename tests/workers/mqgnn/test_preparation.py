import numpy as np
import torch

from tests.workers.mqgnn.graphs import clustered_graph
from tests.workers.mqgnn.runs import CPU
from workers.data.graph import TRAIN
from workers.mqgnn.minibatch import MiniBatch
from workers.mqgnn.preparation import build_stages
from workers.mqgnn.seed_order import BatchTask, SeedOrder

GRAPH = clustered_graph(300)
TRAIN_NODES = np.flatnonzero(GRAPH.split == TRAIN)


def prepare(task: BatchTask, *, dtype: torch.dtype = torch.float32, world_size: int = 1, rank: int = 0) -> MiniBatch:
    order = SeedOrder(TRAIN_NODES, 32, seed=0, world_size=world_size)
    sample, prepare = build_stages(GRAPH, order=order, fanouts=(3, 2), rank=rank, device=CPU, dtype=dtype)
    return prepare.make_worker()(sample.make_worker()(task))


def test_a_mini_batch_holds_the_features_of_its_nodes_and_the_labels_of_its_seeds():
    batch = prepare(BatchTask(epoch=1, batch=0))
    assert torch.equal(batch.node_ids[:32].long(), batch.seeds)
    np.testing.assert_array_equal(batch.x.numpy(), GRAPH.features.gather(batch.node_ids.numpy()))
    np.testing.assert_array_equal(batch.y.numpy(), GRAPH.y[batch.seeds.numpy()])
    assert (GRAPH.split[batch.seeds.numpy()] == TRAIN).all()


def test_a_mini_batch_counts_the_bytes_of_all_that_it_holds():
    batch = prepare(BatchTask(epoch=1, batch=0))
    tensors = [batch.seeds, batch.node_ids, batch.degrees, batch.x, batch.y, batch.indptr, batch.indices]
    assert batch.nbytes == sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert prepare(BatchTask(epoch=1, batch=0), dtype=torch.float64).nbytes == batch.nbytes + batch.x.nbytes


def test_a_mini_batch_knows_how_many_neighbours_its_nodes_have_in_the_whole_graph():
    batch = prepare(BatchTask(epoch=1, batch=0))
    assert batch.degrees.tolist() == np.diff(GRAPH.indptr)[batch.node_ids.numpy()].tolist()


def test_epochs_sample_other_neighbours_of_the_same_seed():
    def neighbors_of_first_seed(epoch: int) -> set[int]:
        for number in range(-(-len(TRAIN_NODES) // 32)):
            batch = prepare(BatchTask(epoch, number))
            found = (batch.seeds == TRAIN_NODES[0]).nonzero()
            if len(found):
                row = int(found)
                return set(batch.node_ids[batch.indices[batch.indptr[row] : batch.indptr[row + 1]]].tolist())
        raise AssertionError("every seed is in every epoch")

    assert len({frozenset(neighbors_of_first_seed(epoch)) for epoch in range(1, 8)}) > 1


def test_an_empty_part_of_a_batch_is_an_empty_mini_batch_of_the_same_step():
    last = BatchTask(epoch=1, batch=len(TRAIN_NODES) // 32)
    size = len(TRAIN_NODES) % 32
    batches = [prepare(last, world_size=size + 1, rank=rank) for rank in range(size + 1)]
    assert sorted(len(batch.seeds) for batch in batches) == [0] + [1] * size
    assert {batch.num_seeds_all for batch in batches} == {size}


def test_stages_are_named_as_the_queues_of_a_plan_must_be():
    order = SeedOrder(TRAIN_NODES, batch_size=32, seed=5)
    on_cpu, on_cuda = (
        build_stages(GRAPH, order=order, fanouts=(3, 2), rank=0, device=device)
        for device in (CPU, torch.device("cuda"))
    )
    assert [stage.name for stage in on_cpu] == ["sample", "prepare"]
    assert [stage.name for stage in on_cuda] == ["sample", "prepare", "transfer"]
