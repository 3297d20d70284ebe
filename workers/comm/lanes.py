"""A communicator for every stream of messages between stages, where messages are told apart by their order alone: NCCL.

gloo matches messages by their tags, and a send waits for nobody. NCCL has no tags: between two ranks the first send
meets the first receive, a send waits on the device until its receive is there, and what is put on the same communicator
later waits behind it. So the rows that cross one border one way get a pair of ranks and a communicator for each sender
and receiver. Within such a lane messages keep the order of the action lists, which must be the same at both ends
(``workers.megagraph.pipeline_parallel.check_one_order``).

Limit: between stages of many ranks there are as many lanes as pairs, and each communicator takes memory of the GPU;
lanes for the pairs that really meet would do, but ragged graphs decide that anew in every step.
"""

from collections.abc import Sequence
from itertools import pairwise, product

from workers.comm.axis import Axis, open_axis
from workers.comm.wire import Wire

Lanes = dict[tuple[int, int, int], Wire]  # by (stream, sender, receiver); the sender is place 0, the receiver 1


def are_needed(axis: Axis) -> bool:
    """Whether the ranks of ``axis`` tell messages apart by their order alone."""
    return axis.is_ordered


def stream_of(border: int, *, back: bool) -> int:
    """The number of the stream from stage ``border`` to the next one, or ``back``."""
    return 2 * border + back


def open_lanes(groups: Sequence[tuple[int, ...]], *, world: Axis) -> Lanes:
    """The lanes of this rank between stages on ``groups`` of ranks, in their order. Collective over ``world``."""
    rank, lanes = world.ranks[world.index], Lanes()
    for border, (before, after) in enumerate(pairwise(groups)):
        for back, (senders, receivers) in enumerate(((before, after), (after, before))):
            for sender, receiver in product(senders, receivers):
                if sender == receiver:
                    continue
                alone = tuple((other,) for other in world.ranks if other not in (sender, receiver))
                axis = open_axis(((sender, receiver), *alone), rank=rank)
                if axis.size > 1:
                    lanes[stream_of(border, back=bool(back)), sender, receiver] = Wire(axis)
    return lanes
