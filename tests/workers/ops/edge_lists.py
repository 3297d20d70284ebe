"""Edges into some rows, as a shard holds them: random ones, with rows that have none and sources that come twice."""

import torch

from workers.ops.row_edges import Halo, RowEdges


def random_edges(*, num_rows: int, num_halo: int, num_edges: int, seed: int = 0) -> RowEdges:
    """``num_edges`` edges from own and halo rows into ``num_rows`` rows, the last of which has none."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(max(1, num_rows - 1), (num_edges,), generator=generator).sort().values
    counts = torch.bincount(targets, minlength=num_rows)
    return RowEdges(
        indptr=torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]),
        sources=torch.randint(num_rows + num_halo, (num_edges,), generator=generator),
        halo=Halo(send=(torch.empty(0, dtype=torch.int64),) * 2, receive=(0, num_halo)) if num_halo else None,
    )
