"""A model taken apart into stages: which rank keeps what, and over which ranks each gradient is summed.

A parameter that units of several stages use (one object, such as the distance table that every block looks up) lives on
the ranks of all of them. Each stage finds its own part of the gradient; the sum over all these ranks is the whole.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from planner.errors import PlanInvalidError
from planner.plan import MegaGraphPlan, Stage
from planner.schedule import handed_over, hands_over
from workers.comm.axis import Axis, open_axis
from workers.comm.reduce import count_missing_as_zero, sum_gradients
from workers.megagraph.sharding import counts_in_norm
from workers.models.units import GraphTransformer


def find_holders(model: GraphTransformer, *, stages: Sequence[Stage]) -> dict[str, tuple[int, ...]]:
    """The ranks that hold each parameter of ``model`` (a name each, the first of tied ones): those of its stages."""
    units = model.units()
    stages_of: dict[nn.Parameter, set[int]] = {parameter: set() for parameter in model.parameters()}
    for stage in stages:
        for name in stage.units:
            for parameter in units[name].parameters():
                stages_of[parameter].update(stage.ranks)
    return {name: tuple(sorted(stages_of[parameter])) for name, parameter in model.named_parameters()}


def check_one_order(plan: MegaGraphPlan) -> None:
    """Hold the action lists of ``plan`` against what lanes ask (``workers.comm.lanes``). Raises ``PlanInvalidError``.

    All ranks that send or receive a stream between two stages must do so in one order of its micro-batches.
    """
    orders: defaultdict[tuple[int, str], set[tuple[int, ...]]] = defaultdict(set)
    for actions in plan.actions:
        for end in (hands_over, partial(handed_over, num_stages=len(plan.stages))):
            own: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
            for handover in filter(None, map(end, actions)):
                stage, direction, micro_batch = handover
                if stage + (1 if direction == "forward" else -1) in range(len(plan.stages)):
                    own[stage, direction].append(micro_batch)
            for stream, order in own.items():
                orders[stream].add(tuple(order))
    for (stage, direction), found in orders.items():
        if len(found) > 1:
            raise PlanInvalidError(
                f"ranks with GPUs send and receive what stage {stage} hands on ({direction}) in one order of"
                f" micro-batches, as NCCL knows no other; the plan's actions have {sorted(found)}: reorder them"
            )


def drop_other_units(model: GraphTransformer, *, units: Iterable[str]) -> None:
    """Keep on this rank only what ``units`` of ``model`` use; all else goes to the meta device, without memory."""
    own = model.units()
    kept = [own[name] for name in units]
    keep = {tensor for unit in kept for tensor in (*unit.parameters(), *unit.buffers())}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter not in keep:
                setattr(module, name, nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad))
        for name, buffer in module.named_buffers(recurse=False):
            if buffer not in keep:
                setattr(module, name, buffer.to("meta"))


def own_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that this rank trains, by name: not those of other stages, nor those that are frozen."""
    named = model.named_parameters()
    return {name: parameter for name, parameter in named if parameter.requires_grad and not parameter.is_meta}


class GradientSums:
    """Completes the gradients of this rank: each is summed over all ranks that hold its parameter.

    ``holders`` names them for every parameter of the model. Sharded units have summed their own already
    (``sharding``). What no row has reached counts as zero, on one rank as on many. Collective to make: groups are
    opened in one order.
    """

    def __init__(
        self, model: nn.Module, *, holders: dict[str, tuple[int, ...]], world: Axis, device: torch.device
    ) -> None:
        own = own_parameters(model)
        self._device = device
        self._sharded = [parameter for parameter in own.values() if isinstance(parameter, DTensor)]
        self._sums: list[tuple[Axis, list[nn.Parameter]]] = []
        for ranks in dict.fromkeys(holders.values()):
            alone = tuple((other,) for other in world.ranks if other not in ranks)
            axis = open_axis((ranks, *alone), rank=world.ranks[world.index])
            names = [name for name, held in holders.items() if held == ranks and name in own]
            self._sums.append((axis, [own[name] for name in names if not isinstance(own[name], DTensor)]))

    def sum(self) -> None:
        """Sum them all. Collective, in the same order on all ranks."""
        count_missing_as_zero(self._sharded)
        for axis, parameters in self._sums:
            sum_gradients(parameters, axis=axis)

    def norm(self, *, over: Axis) -> Tensor:
        """The norm of all completed gradients of the model, float64, the same bits on every rank. Collective.

        ``over`` is the line of all ranks; those that hold a parameter each bring an equal part of its
        square, of a sharded one that of their own part.
        """
        square = torch.zeros((), dtype=torch.float64, device=self._device)
        for axis, parameters in self._sums:
            for parameter in parameters:
                if parameter.grad is not None:
                    square += parameter.grad.double().square().sum() / axis.size
        for parameter in self._sharded:
            if parameter.grad is not None and counts_in_norm(parameter.grad):
                square += parameter.grad.to_local().double().square().sum()
        over.sum_in_place(square)
        return square.sqrt()

    def close(self) -> None:
        """Free the groups."""
        for axis, _ in self._sums:
            axis.close()
