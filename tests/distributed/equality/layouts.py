"""The table of layouts: pp x dp x cp and uneven stages; and its cells, with a model, an exchange and sharding each."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import combinations
from typing import Any

from tests.distributed.equality.cases import Case, Width
from tests.distributed.equality.models import MODELS, Model, a_single_graph, many_graphs

NUM_STEPS = 3
Properties = set[tuple[object, ...]]


@dataclass(frozen=True)
class Layout:
    """The ranks of each stage: (replicas, shards)."""

    stages: tuple[tuple[int, int], ...]

    @property
    def world_size(self) -> int:
        """Ranks of all stages."""
        return sum(dp * cp for dp, cp in self.stages)

    @property
    def num_replicas(self) -> int:
        """The most of any stage."""
        return max(dp for dp, _ in self.stages)

    @property
    def num_shards(self) -> int:
        """The most of any stage."""
        return max(cp for _, cp in self.stages)

    @property
    def axes(self) -> tuple[bool, ...]:
        """Whether it has several stages, replicas, shards."""
        return len(self.stages) > 1, self.num_replicas > 1, self.num_shards > 1


def uniform(most_ranks: int) -> dict[str, Layout]:
    """Every pp x dp x cp of up to so many ranks."""
    sizes = range(1, most_ranks + 1)
    return {
        f"pp {pp} dp {dp} cp {cp}": Layout(((dp, cp),) * pp)
        for pp in sizes
        for dp in sizes
        for cp in sizes
        if pp * dp * cp <= most_ranks
    }


UP_TO_FOUR = uniform(4)
UNEVEN = {
    "one rank, then two shards": Layout(((1, 1), (1, 2))),
    "two shards, then one rank": Layout(((1, 2), (1, 1))),
    "one rank, then two replicas": Layout(((1, 1), (2, 1))),
    "two replicas, then one rank": Layout(((2, 1), (1, 1))),
    "two shards, then two replicas": Layout(((1, 2), (2, 1))),
    "two replicas, then two shards": Layout(((2, 1), (1, 2))),
    "three shards, then one rank": Layout(((1, 3), (1, 1))),
    "one rank, then three replicas": Layout(((1, 1), (3, 1))),
    "one rank, one rank, then two shards": Layout(((1, 1), (1, 1), (1, 2))),
}
SIX_AND_EIGHT = {
    "six shards": Layout(((1, 6),)),
    "three replicas of two shards": Layout(((3, 2),)),
    "one, two and three ranks": Layout(((1, 1), (2, 1), (1, 3))),
    "eight shards": Layout(((1, 8),)),
    "two replicas of four shards": Layout(((2, 4),)),
    "two stages of two replicas of two shards": Layout(((2, 2), (2, 2))),
    "four shards, then four replicas": Layout(((1, 4), (4, 1))),
    "three stages of two, two and four": Layout(((1, 2), (2, 1), (2, 2))),
}
LAYOUTS = UP_TO_FOUR | UNEVEN | SIX_AND_EIGHT


@dataclass(frozen=True, order=True)
class Cell:
    """One cell of the table, by name. ``ulysses``: ranks that share heads; ``sharding``: whole, sharded, two levels."""

    model: str
    layout: str
    exchange: str
    ulysses: int
    sharding: str
    graphs: str  # many, one

    @property
    def name(self) -> str:
        """As tests and benchmarks print it."""
        heads = f" {self.ulysses}" if self.exchange == "ulysses_ring" else ""
        return f"{self.model}, {self.layout}, {self.exchange}{heads}, {self.sharding}, {self.graphs}"

    def case(self, **changes: Any) -> Case:
        """What is run; ``changes`` are fields of ``Case``."""
        model, layout = MODELS[self.model], LAYOUTS[self.layout]
        units = share_units(len(model.spec.units), len(layout.stages))
        stages = tuple(self._width(count, dp=dp, cp=cp) for count, (dp, cp) in zip(units, layout.stages, strict=True))
        fields = {
            "dataset": a_single_graph() if self.graphs == "one" else many_graphs(model),
            "stages": stages,
            "num_micro_batches": 1 if self.graphs == "one" else 1 + len(stages),
            "sharded": () if self.sharding == "whole" else model.spec.units,
            "shard_degree": 2 if self.sharding == "two levels" else None,
            "spec": model.spec,
            "steps": NUM_STEPS,
        }
        return Case(**{**fields, **changes})

    def _width(self, units: int, *, dp: int, cp: int) -> Width:
        ulysses = {"ulysses": cp, "ulysses_ring": self.ulysses}.get(self.exchange, 1)
        return Width(units, dp=dp, cp=cp, exchange=self.exchange, ulysses=ulysses if cp > 1 else 1)


def share_units(num_units: int, num_stages: int) -> tuple[int, ...]:
    """Units of each stage, about equal, the later ones with more: embeddings come first and are light."""
    return tuple((place + 1) * num_units // num_stages - place * num_units // num_stages for place in range(num_stages))


def all_cells() -> list[Cell]:
    """All cells of up to four ranks; of six and eight those that hold every pair of properties."""
    return [*cells([*UP_TO_FOUR, *UNEVEN]), *covering(cells(SIX_AND_EIGHT))]


def cells(layouts: Iterable[str]) -> Iterator[Cell]:
    """All cells of ``layouts``: every model x exchange x sharding x graphs that fit each other and the layout."""
    for layout in layouts:
        for name, model in MODELS.items():
            if len(LAYOUTS[layout].stages) > len(model.spec.units):
                continue
            for exchange, ulysses in _exchanges(model, LAYOUTS[layout]):
                for sharding in _shardings(LAYOUTS[layout]):
                    for graphs in _graphs(model, LAYOUTS[layout]):
                        yield Cell(name, layout, exchange, ulysses, sharding, graphs)


def singles(cell: Cell) -> Properties:
    """Each property of ``cell`` by itself."""
    names = ("model", "layout", "sharding", "graphs")
    return {("exchange", cell.exchange, cell.ulysses), *((name, getattr(cell, name)) for name in names)}


def pairs(cell: Cell) -> Properties:
    """Pairs of properties of ``cell``; of layouts, a model meets every combination of axes, all else every layout."""
    how = (("exchange", cell.exchange), ("sharding", cell.sharding), ("graphs", cell.graphs))
    model = (("model", cell.model), *how, ("axes", *LAYOUTS[cell.layout].axes))
    return {*combinations(model, 2), *(("layout", cell.layout, cell.ulysses, *each) for each in how)}


def meetings(cell: Cell) -> Properties:
    """What meets in ``cell``: its model every exchange, sharding and kind of graphs; its layout the first two."""
    exchange, sharding = ("exchange", cell.exchange, cell.ulysses), ("sharding", cell.sharding)
    model, layout = ("model", cell.model), ("layout", cell.layout)
    return {(model, exchange), (model, sharding), (model, cell.graphs), (layout, exchange), (layout, sharding)}


def covering(found: Iterable[Cell], *, of: Callable[[Cell], Properties] = pairs) -> list[Cell]:
    """A few of the cells ``found`` that hold every property, or ``pairs`` of them, that all of them hold.

    Of equals the fewest ranks win.
    """
    held = {cell: of(cell) for cell in found}
    missing = set().union(*held.values())
    chosen = []
    # by what a cell would add; that only shrinks as others are chosen, so it is looked at again for the first one alone
    waiting = [(-len(properties), LAYOUTS[cell.layout].world_size, cell) for cell, properties in held.items()]
    heapify(waiting)
    while missing:
        promised, size, cell = heappop(waiting)
        adds = len(missing & held[cell])
        if adds < -promised:
            heappush(waiting, (-adds, size, cell))
            continue
        chosen.append(cell)
        missing -= held[cell]
    return chosen


def _exchanges(model: Model, layout: Layout) -> Iterator[tuple[str, int]]:
    """(exchange, ranks that share heads) that fit; where no stage has shards, nothing is exchanged."""
    degrees = {cp for _, cp in layout.stages if cp > 1}
    if not degrees:
        yield "none", 1
        return
    for exchange in model.exchanges:
        if exchange == "ulysses_ring":
            for ulysses in range(2, min(degrees)):
                if all(cp % ulysses == 0 and cp > ulysses for cp in degrees) and _divides(model, ulysses):
                    yield exchange, ulysses
        elif exchange != "ulysses" or all(_divides(model, cp) for cp in degrees):
            yield exchange, 1


def _divides(model: Model, ranks: int) -> bool:
    """Whether the heads can be shared by so many ranks."""
    num_heads = getattr(model.spec, "num_heads", None) or model.spec.arguments["num_heads"]
    return num_heads % ranks == 0


def _shardings(layout: Layout) -> Iterator[str]:
    """Whole units everywhere; sharded over each stage with several ranks; in two levels where pairs of ranks divide."""
    widths = [dp * cp for dp, cp in layout.stages]
    yield "whole"
    if max(widths) > 1:
        yield "sharded"
    if all(width % 2 == 0 and width > 2 for width in widths):
        yield "two levels"


def _graphs(model: Model, layout: Layout) -> Iterator[str]:
    """Many graphs; one, too, where nodes are predicted and no stage deals graphs to replicas."""
    yield "many"
    if model.level == "node" and layout.num_replicas == 1:
        yield "one"
