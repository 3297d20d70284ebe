"""Attention over ragged micro-batches: each graph sees itself only, and no N x N float ever exists."""

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from tests.workers.ops.largest_float import LargestFloat
from workers.ops.attention_dropout import AttentionDropout
from workers.ops.attention_kernels import PLAIN, AttentionKernel
from workers.ops.biased_attention import LocalExchange, biased_attention
from workers.ops.row_layout import RowLayout, whole

HEADS, HEAD_SIZE, BUCKETS = 2, 4, 5


def inputs(*sizes: int, dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    torch.manual_seed(0)
    rows = sum(sizes)
    leaves = [torch.randn(rows, HEADS, HEAD_SIZE, dtype=dtype) for _ in range(3)] + [
        torch.randn(HEADS, BUCKETS, dtype=dtype)
    ]
    buckets = tuple(torch.randint(BUCKETS, (size, size), dtype=torch.uint8) for size in sizes)
    return [leaf.requires_grad_() for leaf in leaves], buckets


def attend(
    leaves: list[Tensor],
    buckets: tuple[Tensor, ...],
    layout: RowLayout,
    *,
    dropout: AttentionDropout | None = None,
    kernel: AttentionKernel | None = None,
) -> Tensor:
    q, k, v, table = leaves
    return biased_attention(
        q,
        k=k,
        v=v,
        table=table,
        buckets=buckets,
        layout=layout,
        exchange=LocalExchange(),
        dropout=dropout,
        kernel=kernel,
    )


def dropping(*sizes: int) -> AttentionDropout:
    ids = torch.arange(sum(sizes)) + 100
    return AttentionDropout(0.4, site=2, draw=5, node_ids=ids.split(sizes))


each_kernel = pytest.mark.parametrize("kernel", [None, PLAIN], ids=["chosen", "plain"])


@each_kernel
@pytest.mark.parametrize("dropout", [None, dropping(4, 1, 3)], ids=["", "dropout"])
def test_gradients_agree_with_finite_differences(
    kernel: AttentionKernel | None, dropout: AttentionDropout | None
) -> None:
    leaves, buckets = inputs(4, 1, 3)
    options = {"kernel": kernel, "dropout": dropout}
    assert torch.autograd.gradcheck(lambda *leaves: attend(list(leaves), buckets, whole((4, 1, 3)), **options), leaves)


@each_kernel
def test_dropout_follows_the_nodes_not_the_batch(kernel: AttentionKernel | None) -> None:
    leaves, buckets = inputs(4, 0, 3)
    dropout = dropping(4, 0, 3)
    together = attend(leaves, buckets, whole((4, 0, 3)), dropout=dropout, kernel=kernel)
    assert not torch.equal(together, attend(leaves, buckets, whole((4, 0, 3)), kernel=kernel))
    order = torch.tensor([2, 0, 1])
    q, k, v, table = leaves
    moved = AttentionDropout(0.4, site=2, draw=5, node_ids=(dropout.node_ids[2][order],))
    last = [x[4:][order] for x in (q, k, v)]
    alone = attend([*last, table], (buckets[2][order][:, order],), whole((3,)), dropout=moved, kernel=kernel)
    torch.testing.assert_close(alone, together[4:][order])


class AllShards(LocalExchange):
    """As a ring would bring them: the blocks of all shards, one after the other."""

    def __init__(self, blocks: Sequence[Tensor]) -> None:
        self.blocks = blocks

    def visit(self, block: Tensor, *, layout: RowLayout, visitor: Callable[[int, Tensor], None]) -> None:
        for shard, other in enumerate(self.blocks):
            visitor(shard, other)


@each_kernel
def test_shards_drop_what_one_process_drops(kernel: AttentionKernel | None) -> None:
    (q, k, v, table), (buckets,) = inputs(9)
    dropout = dropping(9)
    whole_out = attend([q, k, v, table], (buckets,), whole((9,)), dropout=dropout, kernel=kernel)
    blocks = torch.stack((k, v), dim=1).split((4, 0, 5))
    for shard, rows in enumerate((slice(0, 4), slice(4, 4), slice(4, 9))):
        out = biased_attention(
            q[rows],
            k=k[rows],
            v=v[rows],
            table=table,
            buckets=(buckets[rows],),
            layout=RowLayout(sizes=((4,), (0,), (5,)), shard=shard),
            exchange=AllShards(blocks),
            dropout=dropout,
            kernel=kernel,
        )
        torch.testing.assert_close(out, whole_out[rows])


def test_a_graph_in_a_batch_gets_what_it_gets_alone() -> None:
    leaves, buckets = inputs(4, 0, 3)
    together = attend(leaves, buckets, whole((4, 0, 3)))
    q, k, v, table = leaves
    alone = attend([q[4:], k[4:], v[4:], table], buckets[2:], whole((3,)))
    assert torch.equal(together[4:], alone)


def test_a_micro_batch_without_graphs_is_fine() -> None:
    q = torch.zeros(0, HEADS, HEAD_SIZE, requires_grad=True)
    out = attend([q, q, q, torch.zeros(HEADS, BUCKETS)], (), whole(()))
    out.sum().backward()
    assert out.shape == q.shape


def test_running_twice_gives_the_same_bits() -> None:
    def run() -> list[Tensor]:
        leaves, buckets = inputs(70, 30, dtype=torch.float32)
        attend(leaves, buckets, whole((70, 30))).square().sum().backward()
        return [leaf.grad for leaf in leaves]

    for first, second in zip(run(), run(), strict=True):
        assert torch.equal(first, second)


def test_no_tensor_of_all_scores_exists_forward_or_backward() -> None:
    size = 2500
    leaves, buckets = inputs(size, dtype=torch.float32)
    with LargestFloat() as largest:
        attend(leaves, buckets, whole((size,)), kernel=PLAIN).sum().backward()
    one_hot_of_a_tile = (1 << 19) * BUCKETS // HEADS
    assert one_hot_of_a_tile / 2 < largest.num_elements <= one_hot_of_a_tile < HEADS * size * size / 9


def test_memory_for_backward_grows_with_rows_not_with_pairs() -> None:
    saved = []
    for size in (200, 400):
        leaves, buckets = inputs(size, dtype=torch.float32)
        floats: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor, floats=floats: floats.append(tensor.numel() * tensor.is_floating_point()) or tensor,
            lambda tensor: tensor,
        ):
            attend(leaves, buckets, whole((size,)))
        saved.append(sum(floats) - HEADS * BUCKETS)
    assert saved[1] == 2 * saved[0]
    assert saved[0] == 200 * HEADS * (4 * HEAD_SIZE + 1)  # q, k, v, out and the log-sum-exp


def test_log_scores_of_a_single_key_are_irrelevant() -> None:
    leaves, _ = inputs(1)
    out = attend(leaves, (torch.zeros(1, 1, dtype=torch.uint8),), whole((1,)))
    torch.testing.assert_close(out, leaves[2])
    out.sum().backward()
    assert math.isclose(float(leaves[3].grad.abs().sum()), 0.0, abs_tol=1e-12)
