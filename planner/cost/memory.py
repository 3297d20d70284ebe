"""Memory of one rank, in bytes over the bare process. Each term is a sum that can be checked by hand.

R = rows of the rank, N nodes, d hidden size, F features, b bytes per element. The total is never meant to lie below
what is measured: curves of saved and peak bytes lie on or above their samples, beyond these they grow as fast as they
can (``Curve.bound_at``), and ``with_margin`` is added last.
"""

from collections.abc import Sequence
from itertools import pairwise

from planner.fitting import UnitCurves, Work
from planner.sync import SyncRule

# Chosen: allocators round up and fragment, and glibc keeps up to 64 MiB that were freed (27 MiB seen on a small job). A
# refused plan costs less than a killed job.
MARGIN_FRACTION = 0.10
MARGIN_BYTES = 32 * 2**20
_ADAM_MOMENTS = 2
MEAN_TENSORS = 1 + _ADAM_MOMENTS  # of a mean of RaCoM: weights and moments
_NEAR_PAIR_BYTES, _NEAR_ROW_BYTES = 4 + 1, 8
_ROW_EDGE_BYTES = 6 * 8  # int64: source, type, target; the same edge by its source
_ROW_BYTES = 3 * 8 + 1  # degree, number and label as int64, split as int8
# As in workers.mqgnn.evaluation: rows of one chunk, matrices of that size, and bytes of an edge while it is sampled.
EVALUATION_CHUNK_BYTES = 16 * 2**20
_CHUNK_MATRICES = 5
_EDGE_BYTES = 48
_SAMPLER_NODE_BYTES = 8  # a sampler's table of local numbers
# Of a layer-wise sampler: two tables, weights, importance of all nodes, and of those met while it is computed.
_LAYER_SAMPLER_NODE_BYTES = 2 * 8 + 4 + 16 + 16
_EVALUATOR_NODE_BYTES = 8 + _SAMPLER_NODE_BYTES  # work before each node; its own sampler
# Training nodes and the orders of two epochs stay; while a third is made, its hashes and positions are there, too.
_SEED_BYTES = 6 * 8
# A checkpoint holds parameters, two moments and the best parameters so far; it is serialised and then copied once.
_CHECKPOINT_COPIES = 2 * (1 + _ADAM_MOMENTS + 1)


def model_state_bytes(parameter_bytes: int) -> int:
    """Parameters, gradients, two moments of Adam (Kingma & Ba, ICLR 2015) and the best parameters kept aside."""
    return (1 + 1 + _ADAM_MOMENTS + 1) * parameter_bytes


def gradient_bucket_bytes(parameter_bytes: int, *, num_ranks: int) -> int:
    """The flat copy of the gradients that is summed over the ranks; one rank needs none."""
    return parameter_bytes if num_ranks > 1 else 0


def sync_bytes(parameter_bytes: int, *, rule: SyncRule, num_ranks: int) -> int:
    """What replicas that step by themselves keep beside their state: nothing where gradients are summed every step.

    A message holds parameters and two moments; while one is packed or taken in, two more of its size are there. RaCoM
    also keeps the reference, what it would go back to, and what it gave to the mean that is on its way; with pushes,
    the sum, what is sent (packed in two steps), and per peer what arrives and its damped form.
    """
    if num_ranks == 1 or rule.every_step:
        return 0
    state = MEAN_TENSORS * parameter_bytes
    if rule.name == "local_sgd":
        return 3 * state + parameter_bytes
    pushes = (3 + 3 * (num_ranks - 1)) * parameter_bytes if rule.push else 0
    return 5 * state + 2 * parameter_bytes + pushes


def checkpoint_bytes(parameter_bytes: int) -> int:
    """What writing a checkpoint takes for a moment between steps, when no activation is alive."""
    return _CHECKPOINT_COPIES * parameter_bytes


def input_bytes(work: Work, *, num_features: int, element_bytes: int) -> float:
    """What lies ready of all rows that the rank will meet: R rows of the features, degree, number, label and split.

    The features count twice: the pages of the file that were read, and the tensor made of them.
    """
    return work.num_rows * (2 * num_features * element_bytes + _ROW_BYTES)


def joined_input_bytes(work: Work, *, num_features: int, element_bytes: int, graphs_per_step: int) -> float:
    """Inputs of a micro-batch of several graphs, copied into one; a single graph is used where it lies."""
    if graphs_per_step == 1:
        return 0.0
    return work.num_rows * (num_features * element_bytes + _ROW_BYTES)


def pair_index_bytes(work: Work, *, pair_bytes: int) -> float:
    """Distance index and paths of (row, column) pairs, once for all layers: N²/P of every graph that a rank meets."""
    return pair_bytes * work.num_pairs


def near_index_bytes(work: Work, *, near_pairs: Sequence[int], cp_degree: int) -> float:
    """Distance index of near pairs, R rows: a column (int32), a bucket and, for each row, its end (int64).

    ``near_pairs[k]`` are those of the heaviest ⌈N/2^k⌉ rows, so a shard of ⌈N/cp⌉ rows has no more than those of the
    largest 2^k ≤ cp, however nodes are ordered.
    """
    if not near_pairs:
        return 0.0
    halvings = min(cp_degree.bit_length(), len(near_pairs)) - 1
    return _NEAR_PAIR_BYTES * near_pairs[halvings] + _NEAR_ROW_BYTES * work.num_rows


def edge_bytes(num_edges: int) -> int:
    """Source, type, target and kind of every edge, and its place among those of its source."""
    return _ROW_EDGE_BYTES * num_edges


def saved_bytes(curves: UnitCurves, work: Work) -> float:
    """What a unit keeps between its forward and its backward."""
    return curves.saved_bytes.bound_at(work)


def hidden_bytes(work: Work, *, hidden_size: int, element_bytes: int) -> float:
    """Input of a block, R·d elements: all that a recomputed one keeps (Chen et al., Sublinear Memory Cost, 2016)."""
    return work.num_rows * hidden_size * element_bytes


def workspace_bytes(curves: UnitCurves, work: Work, *, recompute: bool) -> float:
    """What a unit needs beyond what it keeps: its peak less its saved bytes; all of its peak when recomputed."""
    peak = curves.peak_bytes.bound_at(work)
    return peak if recompute else max(0.0, peak - saved_bytes(curves, work))


def ring_shard_bytes(work: Work, *, hidden_size: int, element_bytes: int) -> float:
    """K and V of the rank's rows: 2·R·d elements."""
    return 2 * work.num_rows * hidden_size * element_bytes


def ring_buffer_bytes(shard_bytes: float, *, cp_degree: int) -> float:
    """Shards in flight in backward, where most are: K/V and dK/dV, each one in use and one arriving."""
    return 4 * shard_bytes if cp_degree > 1 else 0.0


def halo_bytes(work: Work, *, halo_rows: float, num_columns: int, element_bytes: int) -> float:
    """Own rows and halo rows in one tensor, which edge attention and message passing keep for backward."""
    return (work.num_rows + halo_rows) * num_columns * element_bytes


def sampled_graph_bytes(
    *, graph_bytes: int, num_nodes: int, num_train: int, num_samplers: int, sampler: str = "uniform"
) -> int:
    """What lies there of a sampled job's graph: its pages, tables of samplers and evaluation, the order of seeds."""
    by_layers = sampler.startswith(("fastgcn", "ladies"))
    node_bytes = _LAYER_SAMPLER_NODE_BYTES if by_layers else _SAMPLER_NODE_BYTES
    per_node = num_samplers * node_bytes + _EVALUATOR_NODE_BYTES
    return graph_bytes + per_node * num_nodes + _SEED_BYTES * num_train


def layerwise_evaluation_bytes(
    *, model: str, num_nodes: int, largest_degree: int, widths: Sequence[int], element_bytes: int, num_heads: int = 1
) -> int:
    """Exact evaluation of a sampled GNN, layer by layer over all nodes; ``widths`` are F, d, …, d, classes.

    The terms are those that ``workers.mqgnn.evaluation`` promises: two hidden matrices of all nodes at most, and the
    dearest layer's chunk, its rows and its edges.
    """
    layers = list(pairwise(widths))
    hidden = min(len(layers) - 1, 2) * num_nodes * max(widths[1:-1], default=0) * element_bytes
    return hidden + max(
        _chunk_bytes(
            model,
            width_in=width_in,
            width_out=width_out,
            num_nodes=num_nodes,
            largest_degree=largest_degree,
            element_bytes=element_bytes,
            num_heads=num_heads,
        )
        for width_in, width_out in layers
    )


def _chunk_bytes(
    model: str,
    *,
    width_in: int,
    width_out: int,
    num_nodes: int,
    largest_degree: int,
    element_bytes: int,
    num_heads: int,
) -> int:
    """Rows and edges of one chunk of a layer: nodes and their edges are at most ``visits``, a single node's always.

    GraphSAGE holds inputs and sums, then three outputs. GCN takes sum and product in the cheaper order, so all of its
    matrices may be as wide as the wider end. GAT sums whole rows for every head; GATv2, as PyG wrote it, also holds a
    row of all heads for every edge, five times at most.
    """
    name, is_hetero = model.removesuffix(" hetero"), model.endswith(" hetero")
    row_bytes = max(width_in, width_out) * element_bytes
    wide = 2 * width_in + 3 * width_out if model == "graphsage" else _CHUNK_MATRICES * max(width_in, width_out)
    edge_bytes = _EDGE_BYTES
    if name == "pna":
        wide += 16 * width_in  # four aggregations, three scales of each, side by side with the own row
        edge_bytes += 6 * width_in * element_bytes
    if is_hetero:
        edge_bytes += 24  # while the edges of one relation are cut out
        wide += 0 if name == "graphsage" else 2 * width_in  # rows of its targets, and of all that it may hear from
    if name in ("gat", "gatv2"):
        wide += num_heads * max(width_in, width_out)
        edge_bytes += num_heads * (2 if name == "gat" else _CHUNK_MATRICES * width_out) * element_bytes
    dearest = edge_bytes if num_nodes * row_bytes <= EVALUATION_CHUNK_BYTES else max(row_bytes, edge_bytes)
    visits = max(EVALUATION_CHUNK_BYTES // dearest, largest_degree + 1)
    return min(num_nodes, visits) * wide * element_bytes + visits * edge_bytes


def with_margin(num_bytes: float) -> int:
    """The estimate that a plan promises: ``MARGIN_FRACTION`` and ``MARGIN_BYTES`` above the sum of the terms."""
    return round(num_bytes * (1 + MARGIN_FRACTION)) + MARGIN_BYTES


def without_margin(num_bytes: float) -> float:
    """The sum of the terms behind a promise of ``num_bytes``."""
    return max(0.0, num_bytes - MARGIN_BYTES) / (1 + MARGIN_FRACTION)
