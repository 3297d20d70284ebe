"""The ranks of a plan as a mesh of two axes, and the process groups along them.

``cp`` runs over the ranks that share a replica's rows, ``dp`` over the replicas; cp is the fastest in a stage's list of
ranks, and within it ``ulysses``.
"""

from collections.abc import Sequence
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


def build_mesh(stage: Stage, *, rank: int, others: tuple[int, ...] = ()) -> Mesh:
    """The axes of ``rank`` in ``stage``. Collective: groups are made by all ranks in the same order.

    ``others`` are the ranks that do not serve the stage; one of them gets axes of itself alone.
    """
    cp_lines = stage.cp_groups
    dp_lines = tuple(zip(*cp_lines, strict=True))
    elsewhere = tuple((other,) for other in others)

    def open_lines(lines: tuple[tuple[int, ...], ...]) -> Axis:
        return open_axis((*lines, *elsewhere), rank=rank)

    world, dp, cp = (open_lines(lines) for lines in ((stage.ranks,), dp_lines, cp_lines))
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
        ulysses=open_lines(tuple(run for line in runs for run in line)),
        ring=open_lines(tuple(tuple(ring) for line in runs for ring in zip(*line, strict=True))),
    )


def build_meshes(stages: Sequence[Stage], *, rank: int) -> dict[int, Mesh]:
    """The mesh of every stage that ``rank`` serves; stages of equal ranks and degrees share one. Collective."""
    everyone = sorted({member for stage in stages for member in stage.ranks})
    shapes = [(stage.ranks, stage.cp_degree, stage.ulysses_degree) for stage in stages]
    found: dict[tuple[tuple[int, ...], int, int], Mesh] = {}
    for stage, shape in zip(stages, shapes, strict=True):
        if shape not in found:
            others = tuple(other for other in everyone if other not in stage.ranks)
            found[shape] = build_mesh(stage, rank=rank, others=others)
    return {index: found[shape] for index, shape in enumerate(shapes) if rank in shape[0]}
