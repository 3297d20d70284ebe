"""Edges and halos of shards, against the shards that ranks cut."""

import numpy as np
import pytest

from tests.distributed.odd_graphs import odd_set
from workers.data.partition import NodeCuts
from workers.data.shard_counts import count_shards
from workers.data.shard_edges import shard_edges


@pytest.mark.parametrize("num_shards", [1, 2, 3, 4])
def test_counts_are_those_of_the_shards_that_ranks_cut(num_shards: int) -> None:
    graphs = odd_set().graphs
    cuts = NodeCuts(graphs, num_parts=num_shards)
    for index, graph in enumerate(graphs):
        cut = cuts.cut(index, num_shards)
        shards = [shard_edges(graph, cut=cut, shard=shard) for shard in range(num_shards)]
        halos = [0 if shard.halo is None else int(np.sum(shard.halo.receive)) for shard in shards]
        found = count_shards(graph, num_shards=num_shards)
        assert found == (max(len(shard.sources) for shard in shards), max(halos))
