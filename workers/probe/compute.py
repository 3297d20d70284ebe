"""Times the units of a graph transformer at a few sizes: the samples behind the planner's time and memory curves.

A rank holds some rows of every graph (``UnitSize``). The other rows are played by made-up shards of keys and values
that lie here already, so a block computes all that it would compute in a ring and communicates nothing; links are
measured apart (``collective``). Numbers are random, shapes are real.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from planner.profiles import ProbeRequest, UnitSample, UnitSize
from workers.data.graph import GraphDataset
from workers.data.partition import NodeCut
from workers.megagraph.encoded_rows import RowEncoder
from workers.megagraph.linear_layers import apply_products
from workers.model_specs.by_name import ModelSpec
from workers.model_specs.custom import CustomSpec
from workers.model_specs.sampled import SampledFields
from workers.models.attention import choose_kernel
from workers.models.registry import build_model
from workers.models.units import GraphTransformer, kind_of
from workers.ops.heads import AllHeads, Heads
from workers.ops.row_layout import RowLayout
from workers.probe.made_up_rows import MadeUpRows
from workers.probe.memory import count_saved_bytes, measure_peak_bytes
from workers.probe.ranks import Ranks, time_once_s
from workers.probe.toy_graph import ring_graph
from workers.spec import TrainSpec
from workers.training.model_fit import resolve_model
from workers.training.optimizer import build_optimizer, weight_matrices

# Runs of a size that are not timed: one for the peak, which also warms up, and half of one (forward) for saved bytes.
_UNTIMED_RUNS = 1.5
_REHEARSED_SIZE = UnitSize(num_rows=16, num_columns=32, num_shards=2)


def measure_units(
    request: ProbeRequest, *, spec: TrainSpec, dataset: GraphDataset, ranks: Ranks
) -> tuple[UnitSample, ...]:
    """One unit of each kind at the sizes and thread counts of ``request``, and the optimiser. Collective.

    Sizes come in ascending order, and each tells what the next can take at most: what does not fit into the budget is
    repeated less often, then shrunk, so that the largest size is as near to what plans need as time allows.
    """
    resolved = spec.model_copy(update={"model": resolve_model(spec.model, dataset)})
    bench = _Bench(resolved, dataset=dataset, ranks=ranks)
    samples: list[UnitSample] = []
    for num_threads in request.threads:
        torch.set_num_threads(num_threads)
        samples.append(bench.measure_optimizer(num_threads=num_threads, repeats=request.repeats))
        samples += _measure_sizes(request, bench=bench, ranks=ranks, num_threads=num_threads)
    return tuple(samples)


def rehearse_units(spec: TrainSpec, *, ranks: Ranks) -> None:
    """A toy model of the same family, once forward, backward and updated: everything that training uses, used once."""
    graph = ring_graph()
    needs, nodes = spec.model.needs, np.arange(graph.num_nodes)
    dataset = GraphDataset("ring", (graph,), num_features=graph.features.num_features, num_classes=2, fingerprint="")
    encoder = RowEncoder(dataset, needs=needs, dtype=torch.float32, device=ranks.device)
    encoder.encode(0, cut=NodeCut(nodes, (len(nodes),)), shard=0, attending=nodes[: _REHEARSED_SIZE.num_rows])
    bench = _Bench(spec.model_copy(update={"model": _toy(spec.model)}), dataset=dataset, ranks=ranks)
    bench.measure(_REHEARSED_SIZE, num_threads=torch.get_num_threads(), repeats=1)
    bench.measure_optimizer(num_threads=torch.get_num_threads(), repeats=1)
    if ranks.group is not None:
        ranks.group.allreduce([torch.ones(1024, device=ranks.device)]).wait()


def _toy(model: ModelSpec) -> ModelSpec:
    """A small model of the same family; a module of the user's own says itself how large it is."""
    if isinstance(model, CustomSpec):
        return model
    return model.model_copy(update={"hidden_size": 4 * model.num_heads, "num_layers": 1})


def _measure_sizes(request: ProbeRequest, *, bench: "_Bench", ranks: Ranks, num_threads: int) -> Iterator[UnitSample]:
    deadline = time.perf_counter() + request.budget_s / len(request.threads)
    before: tuple[UnitSize, float] | None = None
    for asked in sorted(request.unit_sizes, key=lambda size: (size.num_pairs, size.num_graphs, size.num_rows)):
        size, repeats = asked, request.repeats
        if before is not None:
            smaller, run_s = before
            (late_s,) = ranks.largest([time.perf_counter() - deadline])  # the same decision on every rank
            runs = -late_s / (run_s * growth(smaller, asked))
            size, repeats = fit_size(asked, affordable_runs=runs, repeats=request.repeats)
            if size.num_pairs < smaller.num_pairs:
                continue
        samples = bench.measure(size, num_threads=num_threads, repeats=repeats)
        before = size, sum(sample.forward_s + sample.backward_s for sample in samples)
        yield from samples


def growth(before: UnitSize, size: UnitSize) -> float:
    """How many times longer than at ``before`` a run at ``size`` can take: as its fastest growing term."""
    graphs = size.num_graphs / before.num_graphs
    visits = graphs * size.num_shards / before.num_shards
    return max(visits, graphs * size.num_rows / before.num_rows, size.num_pairs / before.num_pairs)


def fit_size(size: UnitSize, *, affordable_runs: float, repeats: int) -> tuple[UnitSize, int]:
    """``size`` and the repeats that so many runs allow; where not even one is, fewer graphs or a smaller one."""
    if affordable_runs >= _UNTIMED_RUNS + 1:
        return size, min(repeats, int(affordable_runs - _UNTIMED_RUNS))
    share = max(0.0, affordable_runs) / (_UNTIMED_RUNS + 1)
    if size.num_graphs > 1:
        return size.model_copy(update={"num_graphs": max(1, int(size.num_graphs * share))}), 1
    rows, columns = (max(1, int(length * math.sqrt(share))) for length in (size.num_rows, size.num_columns))
    return size.model_copy(update={"num_rows": rows, "num_columns": columns}), 1


class StandInExchange:
    """Plays the other ranks of a ring (see ``workers.ops.biased_attention.Exchange``) without any of them."""

    heads: Heads = AllHeads()

    def __init__(self, shards: Sequence[Tensor]) -> None:
        self._shards = shards  # keys and values per shard [rows, 2, H, d_h]; that of the own shard is not used

    def visit(self, block: Tensor, *, layout: RowLayout, visitor: Callable[[int, Tensor], None]) -> None:
        """Every shard in turn."""
        for shard, made_up in enumerate(self._shards):
            visitor(shard, block if shard == layout.shard else made_up)

    def visit_and_sum(self, block: Tensor, *, layout: RowLayout, visitor: Callable[[int, Tensor], Tensor]) -> Tensor:
        """Every shard in turn; the gradient of the own block, added up as often as a ring would."""
        total = torch.zeros_like(block)
        for shard, made_up in enumerate(self._shards):
            part = visitor(shard, block if shard == layout.shard else made_up)
            if shard == layout.shard:
                total += part
            else:
                part += part
        return total


@dataclass(frozen=True)
class _Unit:
    """One unit with its input; ``owned`` are tensors that exist whether or not it runs."""

    kind: str
    forward: Callable[[], Tensor]
    owned: tuple[Tensor, ...]


class _Bench:
    """The real model with random inputs."""

    def __init__(self, spec: TrainSpec, *, dataset: GraphDataset, ranks: Ranks) -> None:
        assert not isinstance(spec.model, SampledFields), "measure_units takes graph transformers"
        self._spec, self._training, self._ranks = spec.model, spec.training, ranks
        self._made_up = MadeUpRows(self._spec.needs, dataset=dataset, dtype=spec.training.dtype, device=ranks.device)
        self._options = {"dtype": getattr(torch, spec.training.dtype), "device": ranks.device}
        model = build_model(self._spec, num_features=dataset.num_features, num_classes=dataset.num_classes)
        assert isinstance(model, GraphTransformer)
        self._model = model.to(**self._options).train()
        choose_kernel(self._model, name=self._training.attention_kernel)
        apply_products([self._model], precision=spec.training.precision)

    def measure(self, size: UnitSize, *, num_threads: int, repeats: int) -> list[UnitSample]:
        """One sample per unit at one size."""
        return [self._measure(unit, size=size, num_threads=num_threads, repeats=repeats) for unit in self._units(size)]

    def measure_optimizer(self, *, num_threads: int, repeats: int) -> UnitSample:
        """One update of all parameters; it has no backward and no size."""
        optimizer = build_optimizer(self._model, spec=self._training, decayed=weight_matrices)
        for parameter in self._model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        return UnitSample(
            unit="optimizer",
            num_rows=0,
            num_columns=0,
            num_threads=num_threads,
            forward_s=self._ranks.time_s(optimizer.step, repeats=repeats),
            backward_s=0.0,
            saved_bytes=0,
            peak_bytes=0,
        )

    def _measure(self, unit: _Unit, *, size: UnitSize, num_threads: int, repeats: int) -> UnitSample:
        device = self._ranks.device
        peak_bytes = measure_peak_bytes(lambda: _run_back(unit.forward()), device=device)  # warms up, too
        saved_bytes = count_saved_bytes(unit.forward, owned=(*unit.owned, *self._model.parameters()))
        seconds = [self._time(unit) for _ in range(repeats)]
        forward_s, backward_s, peak, saved = self._ranks.largest(
            [*(statistics.median(column) for column in zip(*seconds, strict=True)), peak_bytes, saved_bytes]
        )
        return UnitSample(
            unit=unit.kind,
            num_graphs=size.num_graphs,
            num_shards=size.num_shards,
            num_rows=size.num_rows,
            num_columns=size.num_columns if unit.kind == "block" and self._spec.needs.max_distance is not None else 0,
            num_threads=num_threads,
            forward_s=forward_s,
            backward_s=backward_s,
            saved_bytes=round(saved),
            peak_bytes=round(max(peak, saved)),
        )

    def _time(self, unit: _Unit) -> tuple[float, float]:
        """Seconds of one forward and of the backward behind it."""
        outputs: list[Tensor] = []
        self._ranks.barrier()
        forward_s = time_once_s(lambda: outputs.append(unit.forward()), device=self._ranks.device)
        return forward_s, time_once_s(lambda: _run_back(outputs.pop()), device=self._ranks.device)

    def _units(self, size: UnitSize) -> Iterator[_Unit]:
        """The first unit of every kind, one after the other, so that only one of them holds its inputs."""
        batch = self._made_up.batch(size)
        held = self._made_up.tensors(batch)
        hidden = torch.randn(len(batch.x), self._spec.row_width, requires_grad=True, **self._options)
        met: set[str] = set()
        for name, module in self._model.units().items():
            if kind_of(name) in met:
                continue
            h = hidden if met else None  # the first unit begins
            met.add(kind_of(name))
            for part in module.modules():
                if hasattr(part, "exchange"):
                    part.exchange = StandInExchange(self._made_up_shards(batch.layout))
            forward = partial(module, h, batch=batch)
            if name == "head":
                yield _Unit("head", partial(_loss, forward), owned=held)
            else:
                yield _Unit(kind_of(name), forward, owned=held)

    def _made_up_shards(self, layout: RowLayout) -> list[Tensor]:
        head_size = self._spec.hidden_size // self._spec.num_heads
        shape = (2, self._spec.num_heads, head_size)
        return [torch.randn(layout.num_rows(shard), *shape, **self._options) for shard in range(layout.num_shards)]


def _loss(head: Callable[[], Tensor]) -> Tensor:
    """Of whatever is predicted, rows or graphs; as dear as any loss of a data set."""
    outputs = head()
    return cross_entropy(outputs, outputs.detach().argmax(dim=1))


def _run_back(output: Tensor) -> None:
    output.backward(torch.ones_like(output))
