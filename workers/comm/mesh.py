"""The ranks of a plan as a mesh of two axes, and the process groups along them.

``cp`` runs over the ranks that share a replica's rows, ``dp`` over the replicas; cp is the fastest in a stage's list of
ranks.
"""

from dataclasses import dataclass

from planner.plan import Stage
from workers.comm.axis import Axis, open_axis


@dataclass(frozen=True)
class Mesh:
    """Where a rank stands: in the world of its stage, in its replica (``cp``), among the replicas (``dp``)."""

    world: Axis
    dp: Axis
    cp: Axis

    def close(self) -> None:
        """Free the groups of all axes."""
        for axis in (self.world, self.dp, self.cp):
            axis.close()


def build_mesh(stage: Stage, *, rank: int) -> Mesh:
    """The axes of ``rank`` in ``stage``. Collective: groups are made by all ranks in the same order."""
    cp_lines = stage.cp_groups
    dp_lines = tuple(zip(*cp_lines, strict=True))
    return Mesh(
        world=open_axis((stage.ranks,), rank=rank),
        dp=open_axis(dp_lines, rank=rank),
        cp=open_axis(cp_lines, rank=rank),
    )
