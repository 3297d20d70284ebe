"""Who holds which rows of which graph, in every stage. Pure decisions, the same on every rank.

A micro-batch is the same graphs in all stages; each stage deals them to its replicas and cuts them over its cp ranks in
its own way. Every rank knows all hands and cuts, so rows can move between stages without a word about who has them.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from planner.plan import Stage
from workers.comm.handover import Holding, Route, find_route
from workers.comm.lanes import stream_of
from workers.megagraph.data_parallel import GraphDealer
from workers.ops.row_layout import RowLayout

Cut = Callable[[int, int], tuple[int, ...]]  # (position of a graph, number of shards) → rows of every shard


class Dealing:
    """The hands of all ``stages``, as ``rank`` asks for them. ``cut`` says how a graph's rows are cut."""

    def __init__(self, stages: Sequence[Stage], *, dealer: GraphDealer, cut: Cut, rank: int) -> None:
        self._stages = stages
        self._dealer = dealer
        self._cut = cut
        self._rank = rank

    @property
    def num_stages(self) -> int:
        """How many stages there are on all ranks."""
        return len(self._stages)

    def is_last(self, stage: int) -> bool:
        """Whether ``stage`` gives the predictions."""
        return stage == len(self._stages) - 1

    def own_graphs(self, stage: int, graphs: Sequence[int], *, turn: int) -> tuple[int, ...]:
        """Which of a micro-batch's ``graphs`` this rank's replica of ``stage`` holds; ``turn`` is its number."""
        replica = self._stages[stage].ranks.index(self._rank) // self._stages[stage].cp_degree
        return self._dealer.hands(graphs, num_replicas=self._stages[stage].dp_degree, turn=turn)[replica]

    def route(self, stage: int, graphs: Sequence[int], *, turn: int, back: bool) -> Route:
        """How rows of a micro-batch move from ``stage`` to the next one, or ``back``."""
        route = find_route(
            self._holdings(stage, graphs, turn), self._holdings(stage + 1, graphs, turn), rank=self._rank
        )
        return replace(route.reversed() if back else route, stream=stream_of(stage, back=back))

    def _holdings(self, index: int, graphs: Sequence[int], turn: int) -> tuple[Holding, ...]:
        stage = self._stages[index]
        hands = self._dealer.hands(graphs, num_replicas=stage.dp_degree, turn=turn)
        return tuple(
            Holding(ranks=ranks, graphs=hand, layout=self._layout(hand, stage.cp_degree))
            for ranks, hand in zip(stage.cp_groups, hands, strict=True)
        )

    def _layout(self, hand: Sequence[int], num_shards: int) -> RowLayout:
        cuts = [self._cut(graph, num_shards) for graph in hand]
        return RowLayout(sizes=tuple(tuple(cut[shard] for cut in cuts) for shard in range(num_shards)))
