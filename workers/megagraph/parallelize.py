"""What a plan asks of a model, applied from outside, in one order. The model itself knows nothing of it.

    1. stages                only the units of this rank's stages keep their parameters
    2. context parallelism   whatever mixes rows asks other ranks for theirs
    3. products              linear layers multiply in bfloat16, where the job asks for it, and can put their weight
                             gradients off, where the plan splits B into I and W
    4. recomputation         around whole units, so that a recomputed unit runs its exchange again
    5. sharding              parameters of whole units, gathered around everything above

Data parallelism needs nothing in the model: graphs are dealt (``dealing``), gradients are summed over all ranks that
hold a parameter (``pipeline_parallel``).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from planner.errors import PlanInvalidError
from planner.plan import MegaGraphPlan
from planner.profiles import Precision
from planner.schedule import check_actions, check_in_step
from workers.comm import lanes
from workers.comm.axis import Axis, open_axis
from workers.comm.handover import Links
from workers.comm.mesh import Mesh, build_meshes
from workers.comm.reduce import copy_from_first
from workers.data.partition import NodeCuts
from workers.megagraph.batches import ShardedBatches
from workers.megagraph.context_parallel import apply_context_parallel
from workers.megagraph.dealing import Dealing
from workers.megagraph.executor import Executor, OwnStage
from workers.megagraph.linear_layers import apply_products
from workers.megagraph.pipeline_parallel import GradientSums, check_one_order, drop_other_units, find_holders
from workers.megagraph.recompute import apply_recompute
from workers.megagraph.sharding import apply_sharding, find_shared, open_shard_meshes
from workers.megagraph.split_backward import WeightLedger
from workers.models.attention import keep_bias
from workers.models.units import GraphTransformer


@dataclass(frozen=True)
class ParallelModel:
    """One rank's part of a model. Parameters of ``model`` that other ranks hold are on the meta device."""

    model: GraphTransformer
    executor: Executor
    gradients: GradientSums
    world: Axis  # the ranks of all stages
    meshes: dict[int, Mesh]  # of this rank's stages

    def close(self) -> None:
        """Free all groups."""
        self.executor.links.close()
        self.gradients.close()
        for mesh in {id(mesh): mesh for mesh in self.meshes.values()}.values():
            mesh.close()
        self.world.close()


def parallelize(
    model: GraphTransformer,
    *,
    plan: MegaGraphPlan,
    rank: int,
    dealing: Dealing,
    batches: Callable[[Mesh], ShardedBatches],
    row_width: int,
    precision: Precision = "float32",
) -> ParallelModel:
    """Apply ``plan``, which ``check_runnable`` has passed, to ``model`` in place. Collective over its ranks.

    ``batches(mesh)`` gives the rows of the rank there, ``dealing`` which graphs they are of; hidden states that
    stages hand on have ``row_width`` columns. Raises ``PlanInvalidError``.
    """
    example = next(model.parameters())
    _check_batch_sums(model, plan=plan)
    meshes = build_meshes(plan.stages, rank=rank)
    world = open_axis((tuple(range(plan.world_size)),), rank=rank)
    copy_from_first(model.state_dict().values(), axis=world)
    links = Links(world)
    if lanes.are_needed(world):
        check_one_order(plan)
        links = Links(world, lanes=lanes.open_lanes([stage.ranks for stage in plan.stages], world=world))
    holders = find_holders(model, stages=plan.stages)
    units, ledger = model.units(), WeightLedger()
    shared = find_shared(units.values())
    shard_meshes = open_shard_meshes(plan, device=example.device)
    drop_other_units(model, units=[name for index in meshes for name in plan.stages[index].units])
    split = {action.stage for action in plan.actions[rank] if action.kind == "I"}
    sources = {id(mesh): batches(mesh) for mesh in meshes.values()}
    stages = {}
    for index, mesh in meshes.items():
        own = {name: units[name] for name in plan.stages[index].units}
        for unit in own.values():
            apply_context_parallel(unit, stage=plan.stages[index], mesh=mesh)
        apply_products(own.values(), precision=precision, ledger=ledger if index in split else None)
        for unit in own.values():
            keep_bias(unit, keep=plan.bias == "per_stage")
        apply_recompute(unit for name, unit in own.items() if name in plan.recompute)
        if index in shard_meshes:
            sharded = [unit for name, unit in own.items() if name in plan.sharded]
            apply_sharding(sharded, mesh=shard_meshes[index], whole=shared, precision=precision)
        stages[index] = OwnStage(units=own, batches=sources[id(mesh)])
    executor = Executor(
        stages,
        dealing=dealing,
        links=links,
        ledger=ledger,
        like=torch.empty(0, row_width, dtype=example.dtype, device=example.device),
    )
    gradients = GradientSums(model, holders=holders, world=world, device=example.device)
    return ParallelModel(model=model, executor=executor, gradients=gradients, world=world, meshes=meshes)


def _check_batch_sums(model: GraphTransformer, *, plan: MegaGraphPlan) -> None:
    """What looks at all rows of a micro-batch meets those of all replicas. Raises ``PlanInvalidError``."""
    units = model.units()
    for index, stage in enumerate(plan.stages):
        counting = [
            name for name in stage.units if any(hasattr(module, "batch_sums") for module in units[name].modules())
        ]
        if counting:
            check_in_step(plan, stage=index, why=f"count the rows of a micro-batch for {counting}")


def check_runnable(plan: MegaGraphPlan, *, units: tuple[str, ...]) -> None:
    """Hold ``plan`` against what runs here: its stages hold all ``units`` of the model, once and in order.

    Also proves the action lists free of deadlock. Raises ``PlanInvalidError``.
    """
    placed = tuple(name for stage in plan.stages for name in stage.units)
    if placed != units:
        raise PlanInvalidError(f"the stages must hold the model's units {units} in order; found {placed}")
    if empty := [index for index, stage in enumerate(plan.stages) if not stage.units]:
        raise PlanInvalidError(f"a stage needs at least one unit; stages {empty} have none")
    if plan.bias == "per_stage":
        _check_kept_bias(plan, units=units)
    for field, named in (("recompute", plan.recompute), ("sharded", plan.sharded)):
        if unknown := sorted(set(named) - set(units)):
            raise PlanInvalidError(f"{field} names units that the model has not: {unknown}; it has {units}")
    check_actions(plan)


def _check_kept_bias(plan: MegaGraphPlan, *, units: tuple[str, ...]) -> None:
    """A bias that is built once has one backward: that of the stage's only pass."""
    if "edge_path" not in units:
        raise PlanInvalidError("bias 'per_stage' is for models with edge paths; all others rebuild it in each tile")
    if again := [name for name in plan.recompute if name.startswith("block.")]:
        raise PlanInvalidError(f"bias 'per_stage' is kept for backward, so blocks cannot be recomputed; found {again}")
    if len({stage.ranks for stage in plan.stages}) < len(plan.stages):
        raise PlanInvalidError("bias 'per_stage' takes stages with ranks of their own; here ranks serve several")


def check_partition(plan: MegaGraphPlan, *, cuts: NodeCuts) -> None:
    """Hold the cut that ``plan`` names, if it does, against the graphs that are here. Raises ``PlanInvalidError``."""
    if plan.partition.fingerprint and plan.partition != (here := cuts.describe()):
        raise PlanInvalidError(
            f"the plan was made for graphs that are cut otherwise: it names {plan.partition!r}, the graphs here give"
            f" {here!r}; plan again for this data set"
        )
