"""The ranks of a plan as a mesh of two axes, and the process groups along them.

``cp`` runs over the ranks that share a replica's rows, ``dp`` over the replicas; cp is the fastest in a stage's list of
ranks, and within it ``ulysses``.
"""

from dataclasses import dataclass

from planner.plan import Stage
from workers.comm.axis import Axis, open_axis


@dataclass(frozen=True)
class Mesh:
    """Where a rank stands: in the world of its stage, in its replica (``cp``), among the replicas (``dp``).

    A replica's ranks are ``ulysses`` (a run of neighbours that share heads) times ``ring`` (one of every run).
    """

    world: Axis
    dp: Axis
    cp: Axis
    ulysses: Axis
    ring: Axis

    def close(self) -> None:
        """Free the groups of all axes."""
        axes = {id(axis.group): axis for axis in (self.world, self.dp, self.cp, self.ulysses, self.ring)}
        for axis in axes.values():
            axis.close()


def build_mesh(stage: Stage, *, rank: int) -> Mesh:
    """The axes of ``rank`` in ``stage``. Collective: groups are made by all ranks in the same order."""
    cp_lines = stage.cp_groups
    dp_lines = tuple(zip(*cp_lines, strict=True))
    world, dp, cp = (open_axis(lines, rank=rank) for lines in ((stage.ranks,), dp_lines, cp_lines))
    alone = Axis(ranks=(rank,))
    if stage.ulysses_degree == 1:
        return Mesh(world=world, dp=dp, cp=cp, ulysses=alone, ring=cp)
    if stage.ulysses_degree == stage.cp_degree:
        return Mesh(world=world, dp=dp, cp=cp, ulysses=cp, ring=alone)
    width = stage.ulysses_degree
    runs = [[line[first : first + width] for first in range(0, len(line), width)] for line in cp_lines]
    return Mesh(
        world=world,
        dp=dp,
        cp=cp,
        ulysses=open_axis(tuple(run for line in runs for run in line), rank=rank),
        ring=open_axis(tuple(tuple(ring) for line in runs for ring in zip(*line, strict=True)), rank=rank),
    )
