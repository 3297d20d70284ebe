"""Summed gradients sent to peers between synchronisations, without waiting: one under way, never a second queued.

What a replica has computed since its last push adds up until the way is free again. A push is announced on the board;
the receiver then fetches it when it next comes by, and mixes it into its own gradient, damped by age. One that is too
old, or from before the receiver's reference (whose mean holds it already), is dropped.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from workers.comm.axis import Axis
from workers.mqgnn.racom.board import Line
from workers.mqgnn.racom.rules import damping

_NUM_FIGURES = 3  # clock, version, seeds; behind the gradient in a message


@dataclass(frozen=True)
class Push:
    """A peer's gradient summed over ``num_seeds`` seeds, flat, as of its step ``clock`` on reference ``version``."""

    gradient: Tensor
    clock: int
    version: int
    num_seeds: float


class _Message:
    """A tensor on its way to or from one peer. A thread waits for it: gloo tells of such an end only who waits."""

    def __init__(self, tensor: Tensor, works: Sequence[dist.Work]) -> None:
        self.tensor = tensor
        self._works = works
        self._error: Exception | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._wait, name="racom-push", daemon=True).start()

    def has_ended(self) -> bool:
        """Whether it has come, or left. Raises what the communicator met."""
        if self._error is not None:
            raise self._error
        return self._ended.is_set()

    def _wait(self) -> None:
        try:
            for work in self._works:
                work.wait()
            if self.tensor.is_cuda:
                torch.cuda.current_stream(self.tensor.device).synchronize()
        except Exception as error:  # a peer is gone
            self._error = error
        self._ended.set()


class Pushes:
    """The pushes from and to the replica at ``axis.index``; ``gradients`` is where its own gradients lie.

    Lines of the board are given by place on the axis.
    """

    def __init__(self, gradients: Sequence[Tensor], *, axis: Axis) -> None:
        self._gradients = list(gradients)
        self._sum = [torch.zeros_like(gradient) for gradient in gradients]
        self._num_seeds = 0
        self.bytes_sent = self.num_dropped = self.num_mixed = self.age_sum = 0
        self.go_over(axis)

    def go_over(self, axis: Axis) -> None:
        """Push over ``axis`` from now on, beginning anew: whatever is under way is dropped."""
        self._axis = axis
        self._peers = [place for place in range(axis.size) if place != axis.index]
        self._sending: _Message | None = None
        self._receiving: dict[int, _Message] = {}
        self._num_received = dict.fromkeys(self._peers, 0)
        self.num_pushed = 0
        self.forget()

    def add(self, num_seeds: int) -> None:
        """Add the present gradients, means over ``num_seeds`` seeds, to what will be pushed."""
        torch._foreach_add_(self._sum, self._gradients, alpha=num_seeds)
        self._num_seeds += num_seeds

    def forget(self) -> None:
        """Drop what has not left yet: a synchronisation takes it along."""
        torch._foreach_zero_(self._sum)
        self._num_seeds = 0

    def start(self, *, clock: int, version: int) -> bool:
        """Send what has added up, if the way is free and there is something. True when sent; announce it then."""
        if self._num_seeds == 0 or not self.has_left():
            return False
        flat = torch.cat([part.reshape(-1) for part in self._sum])
        message = torch.cat((flat, flat.new_tensor([clock, version, self._num_seeds])))
        assert self._axis.group is not None
        self._sending = _Message(message, [self._axis.group.send([message], peer, 0) for peer in self._peers])
        self.bytes_sent += message.nbytes * len(self._peers)
        self.num_pushed += 1
        self.forget()
        return True

    def has_left(self) -> bool:
        """Whether nothing of ours is under way."""
        return self._sending is None or self._sending.has_ended()

    def fetch(self, lines: Sequence[Line]) -> list[Push]:
        """What has arrived since the last call; starts to receive what the lines announce."""
        arrived = []
        for peer, message in list(self._receiving.items()):
            if message.has_ended():
                del self._receiving[peer]
                self._num_received[peer] += 1
                gradient, figures = message.tensor[:-_NUM_FIGURES], message.tensor[-_NUM_FIGURES:]
                clock, version, num_seeds = figures.tolist()
                arrived.append(Push(gradient, clock=int(clock), version=int(version), num_seeds=num_seeds))
        for peer in self._peers:
            if peer not in self._receiving and lines[peer].num_pushed > self._num_received[peer]:
                size = sum(part.numel() for part in self._sum) + _NUM_FIGURES
                place = self._sum[0].new_empty(size)
                assert self._axis.group is not None
                self._receiving[peer] = _Message(place, [self._axis.group.recv([place], peer, 0)])
        return arrived

    def is_drained(self, lines: Sequence[Line]) -> bool:
        """Whether nothing is under way from or to this replica."""
        heard = all(lines[peer].num_pushed == self._num_received[peer] for peer in self._peers)
        return heard and not self._receiving and self.has_left()

    def figures(self) -> dict[str, float]:
        """Pushes so far: those mixed in, their mean age in steps, and those dropped."""
        return {
            "pushes_mixed": float(self.num_mixed),
            "push_age": self.age_sum / max(1, self.num_mixed),
            "pushes_dropped": float(self.num_dropped),
        }

    def mix(self, arrived: Sequence[Push], *, clock: int, version: int, num_seeds: int, staleness: int) -> None:
        """Make the gradients the damped mean of this replica's, over ``num_seeds`` seeds, and those that arrived."""
        weight, parts = float(num_seeds), []
        for push in arrived:
            age = max(0, clock - push.clock)
            factor = damping(age, staleness=staleness) if push.version >= version else 0.0
            if factor == 0.0:
                self.num_dropped += 1
                continue
            self.num_mixed += 1
            self.age_sum += age
            weight += factor * push.num_seeds
            parts.append(push.gradient * factor)
        if not parts:
            return
        summed = torch.stack(parts).sum(0).split([gradient.numel() for gradient in self._gradients])
        torch._foreach_mul_(self._gradients, num_seeds / weight)
        torch._foreach_add_(
            self._gradients,
            [part.view_as(gradient) for part, gradient in zip(summed, self._gradients, strict=True)],
            alpha=1 / weight,
        )
