"""Sharded units: parameters, gradients and moments cut over the ranks of a stage (FSDP2, ``fully_shard``).

Source: Zhao et al., "PyTorch FSDP", VLDB 2023. A sharded unit gathers its parameters when it works and sums its
gradients over the ranks as they come, each rank keeping its part. In two levels (HSDP) runs of ``shard_degree``
neighbouring ranks cut a unit, and the runs hold the same: gathering stays within a run, sums cross all of them.

Who sums what is said here once: a sharded parameter's gradient is summed by its unit, over all ranks of its stage, rows
and graphs alike; every other one by ``pipeline_parallel.GradientSums``. A parameter that several units use stays whole.

Where products are of bfloat16, weights of linear layers travel as bfloat16 (``rounded_weights``): they are rounded
before they are gathered and not after, which is the same number. All else that is gathered, and every gradient, is
float32.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from planner.plan import MegaGraphPlan
from planner.profiles import Precision
from workers.megagraph.linear_layers import plain_linear_layers
from workers.megagraph.rounded_weights import gather_rounded


def open_shard_meshes(plan: MegaGraphPlan, *, device: torch.device) -> dict[int, DeviceMesh]:
    """The mesh over which each stage with sharded units cuts them, by index of the stage. Collective, on all ranks."""
    return {
        index: DeviceMesh(
            device.type,
            torch.tensor(stage.ranks).view(-1, plan.shard_degree or len(stage.ranks)),
            mesh_dim_names=("replicate", "shard"),
        )
        for index, stage in enumerate(plan.stages)
        if len(stage.ranks) > 1 and set(stage.units) & set(plan.sharded)
    }


def find_shared(units: Iterable[nn.Module]) -> set[nn.Parameter]:
    """The parameters that more than one of ``units`` uses."""
    uses = Counter(parameter for unit in units for parameter in unit.parameters())
    return {parameter for parameter, count in uses.items() if count > 1}


def apply_sharding(
    units: Sequence[nn.Module], *, mesh: DeviceMesh, whole: Collection[nn.Parameter], precision: Precision = "float32"
) -> None:
    """Shard ``units`` over ``mesh``, except the parameters that stay ``whole``. Names stay as they are."""
    for unit in units:
        if set(unit.parameters()) <= set(whole):
            continue
        unit.forward = partial(_reach_all_parameters, unit, unit.forward)
        axes = mesh if mesh.size(0) > 1 else mesh["shard"]
        sharded = fully_shard(unit, mesh=axes, reshard_after_forward=True, ignored_params=set(whole))
        sharded.set_gradient_divide_factor(1.0)  # losses are divided by all targets already
        sharded.set_force_sum_reduction_for_comms(True)
        if precision == "bfloat16":
            gather_rounded(plain_linear_layers(unit))


def _reach_all_parameters(unit: nn.Module, forward: Callable[..., Tensor], h: Tensor | None, *, batch: Any) -> Tensor:
    """``unit``'s output. Without rows some of its parameters may stay unused, and ranks must sum the same gradients."""
    output = forward(h, batch=batch)
    if len(batch.x) or not isinstance(output, Tensor):  # what is no tensor is refused (``unit_outputs``)
        return output
    return output + 0 * sum(parameter.sum() for parameter in unit.parameters())


def counts_in_norm(tensor: DTensor) -> bool:
    """Whether this rank is the one, of those that hold this part of ``tensor``, that counts it."""
    mesh = tensor.device_mesh
    return mesh.ndim == 1 or mesh.get_local_rank("replicate") == 0
