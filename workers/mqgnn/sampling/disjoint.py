"""Local numbers where every seed has a subgraph of its own: the same node in two of them is two local nodes.

Numbers come from sorting (tree, node) pairs, in numpy alone: a table like that of ``memory.Numbering`` would need a row
per seed. Sorting costs some 50 ns an edge; a hash table would lift that.
"""

import numpy as np

from workers.mqgnn.sampling.memory import seed_error
from workers.mqgnn.sampling.numba_kernels import OUT_OF_RANGE


class TreeNumbering:
    """The numbering of one disjoint subgraph after the other; ``trees`` int32 are those of the newest nodes."""

    def __init__(self, num_nodes: int) -> None:
        self._num_nodes = num_nodes
        self._pairs = np.empty(0, dtype=np.int64)
        self.trees = np.empty(0, dtype=np.int32)

    def begin(self, nodes: np.ndarray) -> None:
        """Forget everything and make each of ``nodes`` [n] int64 the root of tree 0 to n − 1, with that number."""
        wrong = np.flatnonzero((nodes < 0) | (nodes >= self._num_nodes))
        if len(wrong):
            raise seed_error(OUT_OF_RANGE, nodes, position=int(wrong[0]), num_nodes=self._num_nodes)
        self.trees = np.arange(len(nodes), dtype=np.int32)
        self._pairs = self.trees * np.int64(self._num_nodes) + nodes

    def relabel(
        self, positions: np.ndarray, indices: np.ndarray, *, num_known: int, offsets: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """(local numbers int32, the new nodes) of the sources ``indices[positions]`` of the newest nodes' edges.

        ``offsets`` [newest nodes + 1] says where each of those begins.
        """
        assert num_known == len(self._pairs)
        edge_trees = np.repeat(self.trees, np.diff(offsets))
        pairs = np.concatenate([self._pairs, edge_trees * np.int64(self._num_nodes) + indices[positions]])
        _, first, place = np.unique(pairs, return_index=True, return_inverse=True)
        in_order = np.argsort(first)  # of first sight
        numbers = np.empty(len(first), dtype=np.int32)
        numbers[in_order] = np.arange(len(first), dtype=np.int32)
        local = numbers[place[num_known:]]
        self._pairs = pairs[first[in_order]]
        trees, fresh = np.divmod(self._pairs[num_known:], max(1, self._num_nodes))
        self.trees = trees.astype(np.int32)
        return local, fresh.astype(indices.dtype)
