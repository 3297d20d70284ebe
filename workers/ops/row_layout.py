"""How the rows of the graphs of one micro-batch are cut into shards. Plain integers, the same on every rank.

A micro-batch holds one or many graphs of uneven size. Each graph's rows (its nodes) are cut into ``num_shards`` runs of
neighbouring rows; a rank holds one shard of *every* graph, its rows of graph 0 first, then those of graph 1, and so on.
One process holds everything: a single shard. Shards may be empty.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate


@dataclass(frozen=True)
class RowLayout:
    """``sizes[shard][graph]`` rows; ``shard`` is the one that lies here."""

    sizes: tuple[tuple[int, ...], ...]
    shard: int = 0

    @property
    def num_shards(self) -> int:
        """Into how many runs of rows each graph is cut."""
        return len(self.sizes)

    @property
    def num_graphs(self) -> int:
        """Graphs in the micro-batch."""
        return len(self.sizes[0])

    def num_rows(self, shard: int) -> int:
        """Rows that ``shard`` holds, over all graphs."""
        return self._starts[shard][-1]

    def rows(self, shard: int, graph: int) -> slice:
        """Where the rows of ``graph`` lie among the rows that ``shard`` holds."""
        starts = self._starts[shard]
        return slice(starts[graph], starts[graph + 1])

    def columns(self, shard: int, graph: int) -> slice:
        """Which nodes of ``graph``, counted within the graph, ``shard`` holds."""
        start = sum(sizes[graph] for sizes in self.sizes[:shard])
        return slice(start, start + self.sizes[shard][graph])

    def joined(self, width: int) -> "RowLayout":
        """The layout in which each run of ``width`` neighbouring shards is one, graph by graph.

        Ranks that share the heads of their attention (``workers.comm.ulysses``) attend with all rows of their run: for
        these they need distance buckets, while everything else of the model sees only own rows.
        """
        assert self.num_shards % width == 0, f"{self.num_shards} shards make no runs of {width}"
        runs = [self.sizes[first : first + width] for first in range(0, self.num_shards, width)]
        return RowLayout(
            sizes=tuple(tuple(map(sum, zip(*run, strict=True))) for run in runs), shard=self.shard // width
        )

    @cached_property
    def _starts(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(accumulate(sizes, initial=0)) for sizes in self.sizes)


def whole(graph_sizes: tuple[int, ...]) -> RowLayout:
    """The layout of one process: every graph in one piece."""
    return RowLayout(sizes=(graph_sizes,))


def even_cut(num_rows: int, num_shards: int) -> tuple[int, ...]:
    """Sizes of ``num_shards`` shards of ``num_rows`` rows; they differ by one at most, the longer ones come first.

    With every pair of nodes scored, a row costs the same wherever it lies, so equal rows are equal work.
    """
    quotient, remainder = divmod(num_rows, num_shards)
    return tuple(quotient + (shard < remainder) for shard in range(num_shards))
