"""What a plan asks of a model, applied from outside, in one order. The model itself knows nothing of it.

    1. context parallelism   attention asks a ring for the keys of other ranks' rows
    2. recomputation         around whole units, so that a recomputed unit runs its ring again

Data parallelism needs nothing in the model: graphs are dealt (``data_parallel``), gradients are summed over all ranks.
"""

from collections.abc import Iterable

from planner.errors import PlanInvalidError
from planner.plan import MegaGraphPlan, describe_partition
from planner.schedule import check_actions
from workers.comm.mesh import Mesh
from workers.megagraph.context_parallel import apply_context_parallel
from workers.megagraph.recompute import apply_recompute
from workers.models.units import GraphTransformer


def parallelize(model: GraphTransformer, *, plan: MegaGraphPlan, mesh: Mesh) -> None:
    """Apply ``plan``, which ``check_runnable`` has passed, to ``model`` in place."""
    apply_context_parallel(model, axis=mesh.cp)
    apply_recompute(model, units=plan.recompute)


def check_runnable(plan: MegaGraphPlan, *, units: tuple[str, ...]) -> None:
    """Hold ``plan`` against what runs here: one stage with all ``units`` of the model, parameters on every rank.

    Also proves the action lists free of deadlock. Raises ``PlanInvalidError``.
    """
    if len(plan.stages) != 1:
        raise PlanInvalidError(f"this runtime runs plans of one stage; found {len(plan.stages)}: merge their units")
    if plan.stages[0].units != units:
        raise PlanInvalidError(f"the stage must hold the model's units {units} in order; found {plan.stages[0].units}")
    if plan.sharded:
        raise PlanInvalidError(f"this runtime keeps parameters whole on every rank; found sharded {plan.sharded}")
    if plan.bias != "rebuild":
        raise PlanInvalidError(f"this runtime rebuilds the bias in every tile; found bias {plan.bias!r}")
    unknown = sorted(set(plan.recompute) - set(units))
    if unknown:
        raise PlanInvalidError(f"recompute names units that the model has not: {unknown}; it has {units}")
    check_actions(plan)


def check_partition(plan: MegaGraphPlan, *, graph_sizes: Iterable[int]) -> None:
    """Hold the cut that ``plan`` names, if it does, against the graphs that are here. Raises ``PlanInvalidError``."""
    here = describe_partition(graph_sizes, cp_degree=plan.stages[0].cp_degree)
    if plan.partition.fingerprint and plan.partition != here:
        raise PlanInvalidError(
            f"the plan was made for graphs that are cut otherwise: it names {plan.partition!r}, the graphs here give"
            f" {here!r}; plan again for this data set"
        )
