"""Process groups that stand alone: built of a store by their members, without a default group, left without asking.

``torch.distributed`` makes groups inside a default one, all ranks together, and lives and dies with it. These are for
ranks that come and go.
"""

import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist

from workers.comm.axis import COLLECTIVE_TIMEOUT_S, Axis


def open_loose_axis(
    store: dist.Store, *, ranks: tuple[int, ...], rank: int, device: torch.device, connect_s: float
) -> Axis:
    """The line of ``ranks``, this one being ``rank``, that sends from ``device``. ``store`` is for this line alone.

    Called by all of them. Raises ``RuntimeError`` when another does not connect within ``connect_s``.
    """
    place, size = ranks.index(rank), len(ranks)
    if size == 1:
        return Axis(ranks=ranks, index=place)
    timeout = timedelta(seconds=connect_s)
    if device.type == "cuda":
        group = dist.ProcessGroupNCCL(store, place, size, timeout)
    else:
        group = dist.ProcessGroupGloo(store, place, size, timeout)
    group.set_timeout(timedelta(seconds=COLLECTIVE_TIMEOUT_S))
    return Axis(ranks=ranks, index=place, group=group)


def abandon(axis: Axis, *, pending: Sequence[dist.Work]) -> None:
    """Leave a line of ``open_loose_axis`` without waiting for ``pending``, which may never end.

    Gloo can end neither an operation nor a group that has one before its time is out: a thread holds both until then.
    """
    if axis.group is None:
        return
    axis.group.abort()
    left = [work for work in pending if not work.is_completed()]
    if left:
        threading.Thread(target=_hold, args=(axis.group, left), name="left-group", daemon=True).start()


def _hold(group: dist.ProcessGroup, works: Sequence[dist.Work]) -> None:
    for work in works:
        with suppress(RuntimeError):
            work.wait()
