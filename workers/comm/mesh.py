"""The ranks of a plan as a mesh of two axes, and the process groups along them.

``cp`` runs over the ranks that share a replica's rows, ``dp`` over the replicas; cp is the fastest in a stage's list of
ranks. One rank needs no process group at all, so everything here works where ``torch.distributed`` was never started.
"""

from dataclasses import dataclass

import torch.distributed as dist

from planner.plan import Stage


@dataclass(frozen=True)
class Axis:
    """The line of ranks through this one along one axis. ``ranks`` are global, this rank is ``ranks[index]``.

    ``group`` is None when the line is this rank alone.
    """

    ranks: tuple[int, ...]
    index: int
    group: dist.ProcessGroup | None = None

    @property
    def size(self) -> int:
        """How many ranks share the line: the degree of the axis."""
        return len(self.ranks)

    def neighbour(self, offset: int) -> int:
        """Global rank of the one ``offset`` places further round the line."""
        return self.ranks[(self.index + offset) % self.size]

    def barrier(self) -> None:
        """Wait until all ranks of the line are here."""
        if self.group is not None:
            dist.barrier(group=self.group)


@dataclass(frozen=True)
class Mesh:
    """Where a rank stands: in the world of its stage, in its replica (``cp``), among the replicas (``dp``)."""

    world: Axis
    dp: Axis
    cp: Axis


def build_mesh(stage: Stage, *, rank: int) -> Mesh:
    """The axes of ``rank`` in ``stage``. Collective: groups are made by all ranks in the same order."""
    cp_lines = stage.cp_groups
    dp_lines = tuple(zip(*cp_lines, strict=True))
    return Mesh(
        world=_axis((stage.ranks,), rank),
        dp=_axis(dp_lines, rank),
        cp=_axis(cp_lines, rank),
    )


def _axis(lines: tuple[tuple[int, ...], ...], rank: int) -> Axis:
    """The line that holds ``rank``; every rank takes part in making the groups of all lines."""
    found = None
    for ranks in lines:
        group = dist.new_group(list(ranks)) if len(ranks) > 1 else None
        if rank in ranks:
            found = Axis(ranks=ranks, index=ranks.index(rank), group=group)
    assert found is not None, f"rank {rank} is on no line of {lines}"
    return found
