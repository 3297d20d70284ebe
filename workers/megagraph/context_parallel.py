"""Context parallelism: the rows of every graph are cut over ranks, and whatever mixes rows gets its distributed form.

    exchange    dense attention: a ring of shards, heads shared out, or both in two dimensions
    neighbours  attention and messages along edges: the halo
    sums        linear attention, pooling: sums over the shards of each graph
    batch_sums  norms over a micro-batch: sums over all shards and replicas

A module asks for one of them by an attribute of that name, which holds the form of one process; beside ``exchange`` it
tells ``num_heads``. Nothing else of a model mixes rows. The gradients that a rank ends with are its rows' share (of a
distance table: its heads' share); ``workers.comm.reduce.sum_gradients`` completes them.
"""

from torch import nn

from planner.errors import PlanInvalidError
from planner.plan import Stage, check_heads
from workers.comm.halo import HaloExchange
from workers.comm.mesh import Mesh
from workers.comm.ring import RingExchange
from workers.comm.sums import AxisSums
from workers.comm.ulysses import HeadShards
from workers.ops.biased_attention import LocalExchange
from workers.ops.exchanges import LocalNeighbours, LocalSums

_DENSE = ("ring", "ulysses", "ulysses_ring")
_WITH_EDGES = (*_DENSE, "halo")


def apply_context_parallel(model: nn.Module, *, stage: Stage, mesh: Mesh) -> None:
    """Give every module of ``model`` that mixes rows its form for ``stage`` on ``mesh``; one rank has all rows here.

    Raises ``PlanInvalidError`` where the exchange of the stage does not carry what a module does, or where heads
    cannot be shared out as it says.
    """
    batch_sums = AxisSums(mesh.world)
    for _, module in _asking(model, "batch_sums", LocalSums):
        module.batch_sums = batch_sums
    if mesh.cp.size == 1:
        return
    heads = HeadShards(mesh.ulysses) if mesh.ulysses.size > 1 else None
    exchange, neighbours, sums = RingExchange(mesh.ring, heads=heads), HaloExchange(mesh.cp), AxisSums(mesh.cp)
    for name, module in _asking(model, "exchange", LocalExchange):
        _check_carries(stage, name=name, what="dense attention", by=_DENSE)
        check_heads(stage, num_heads=module.num_heads)
        module.exchange = exchange
    for name, module in _asking(model, "neighbours", LocalNeighbours):
        _check_carries(stage, name=name, what="edges", by=_WITH_EDGES)
        module.neighbours = neighbours
    for _, module in _asking(model, "sums", LocalSums):
        module.sums = sums


def _asking(model: nn.Module, attribute: str, local: type) -> list[tuple[str, nn.Module]]:
    """The modules, by name, whose ``attribute`` holds the form of one process."""
    modules = model.named_modules()
    return [(name, module) for name, module in modules if isinstance(getattr(module, attribute, None), local)]


def _check_carries(stage: Stage, *, name: str, what: str, by: tuple[str, ...]) -> None:
    if stage.exchange not in by:
        raise PlanInvalidError(
            f"the stage's exchange {stage.exchange!r} carries no {what}, which {name or 'its unit'} needs: choose"
            f" {', '.join(by[:-1])} or {by[-1]}"
        )
