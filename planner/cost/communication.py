"""Communication of one rank: elements sent (exact), and seconds by α-β lines measured between the ranks.

N nodes, d hidden size, P = cp_degree ranks of the ring. Every rank holds N/P rows; one shift hands the 2·(N/P)·d
elements of a K/V shard to the next rank.
"""

from planner.fitting import Link
from planner.plan import Exchange
from planner.profiles import Mixing, TransformerShape


def exchange_of(shape: TransformerShape) -> Exchange | None:
    """How shards of a graph meet in plans made here; None where what travels between them has no price.

    Dense attention goes round a ring, and whatever meets along edges or in sums goes beside it; edges without it ask
    for a halo; for sums, and for rows that never meet, ``reduce`` stands. No price: modules of a user's own, which do
    not tell what travels, and edges of many graphs, whose halos nobody has counted.
    """
    if shape.mixes and shape.traffic is None:
        return None
    if "edges" in shape.mixes and len(shape.graph_sizes) + len(shape.other_graph_sizes) > 1:
        return None
    exchanges: dict[Mixing, Exchange] = {"dense": "ring", "edges": "halo", "sums": "reduce"}
    return next((exchange for way, exchange in exchanges.items() if way in shape.mixes), "reduce")


def ring_forward_elements(*, num_nodes: int, hidden_size: int, cp_degree: int) -> float:
    """Elements that a rank sends per layer in forward: 2(Nd/P)(P−1) (Liu et al., Ring Attention, ICLR 2024)."""
    return 2 * (num_nodes * hidden_size / cp_degree) * (cp_degree - 1)


def ring_backward_elements(*, num_nodes: int, hidden_size: int, cp_degree: int) -> float:
    """Elements that a rank sends per layer in backward: K and V again, and dK and dV all the way home.

    K and V take P−1 shifts; dK and dV follow in messages of their own, P of them: 2(Nd/P)(2P−1), or 0 for one rank.
    """
    if cp_degree == 1:
        return 0.0
    return 2 * (num_nodes * hidden_size / cp_degree) * (2 * cp_degree - 1)


def ulysses_elements(*, num_nodes: int, hidden_size: int, cp_degree: int) -> float:
    """Elements that a rank sends per layer, forward or backward: 4(Nd/P)(P−1)/P.

    Q, K, V and the output change from own rows of all heads to all rows of own heads, or back, and P−1 of P parts of
    each go to others (Jacobs et al., DeepSpeed Ulysses, 2023).
    """
    return 4 * (num_nodes * hidden_size / cp_degree) * (cp_degree - 1) / cp_degree


def most_halo_rows(*, num_nodes: int, num_edges: int, cp_degree: int) -> int:
    """A bound on the halo of a shard of ⌊N/P⌋ rows and more: every row elsewhere, of no more than edges lead to."""
    return min(num_nodes - num_nodes // cp_degree, num_edges)


def halo_elements(*, halo_rows: int, hidden_size: int) -> float:
    """Elements that come to a rank per layer of edge attention, forward or backward: K and V, 2·d·halo."""
    return 2 * hidden_size * halo_rows


def linear_reduce_elements(*, num_heads: int, head_size: int) -> int:
    """Elements that a rank puts into the sum of linear attention: H·d_h² + d, and two for the norms of Q and K."""
    return num_heads * head_size**2 + num_heads * head_size + 2


def estimate_ring_forward_s(link: Link, *, shard_bytes: float, cp_degree: int, hidden_s: float = 0.0) -> float:
    """P−1 shifts of a K/V shard of ``shard_bytes`` to the next rank, all ranks at once.

    A shift runs beside the work on the shard before it, of which ``hidden_s`` seconds can hide it: 0 where the cores
    that compute are the ones that copy.
    """
    return (cp_degree - 1) * max(0.0, link.seconds(shard_bytes) - hidden_s)


def estimate_ring_backward_s(link: Link, *, shard_bytes: float, cp_degree: int, hidden_s: float = 0.0) -> float:
    """2P−1 messages of a shard: P−1 of K/V and, each one step behind, P of dK/dV.

    The first and the last work step have one message beside them, those between two; beside the last dK/dV nothing
    runs.
    """
    if cp_degree == 1:
        return 0.0
    message_s = link.seconds(shard_bytes)
    ends_s = 2 * max(0.0, message_s - hidden_s)
    between_s = (cp_degree - 2) * max(0.0, 2 * message_s - hidden_s)
    return ends_s + between_s + message_s


def estimate_halo_s(link: Link, *, num_bytes: float, cp_degree: int) -> float:
    """A halo of ``num_bytes`` comes to a rank, or its gradients leave it: a message for each of P−1 peers.

    What it hides behind is left out: queries, which are computed meanwhile, are a small part of a block.
    """
    peers = cp_degree - 1
    return 0.0 if peers == 0 else peers * link.seconds(num_bytes / peers)


def estimate_all_reduce_s(link: Link, *, num_bytes: float) -> float:
    """Sum of ``num_bytes`` over the ranks on which the line was measured."""
    return link.seconds(num_bytes)


def estimate_handover_s(link: Link, *, num_rows: float, hidden_size: int, element_bytes: int) -> float:
    """Hidden states of ``num_rows`` rows from one pipeline stage to the next: one message of rows·d elements."""
    return link.seconds(num_rows * hidden_size * element_bytes)
