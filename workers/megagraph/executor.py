"""Plays a rank's list of actions for one optimiser step. What runs, and in which order, is the plan's alone.

    F   rows from the stage before ─▶ units ─▶ rows to the stage after (the last stage: the loss)
    B   gradient from the stage after ─▶ backward ─▶ gradient to the stage before
    I   as B, but weight gradients are put off;  W   makes them

Micro-batches are ragged: how many rows come is known from the cuts (``Dealing``), so only rows travel. What the next
action waits for is asked for before this one works (not over NCCL), and sends keep nobody waiting.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from planner.plan import Action
from planner.schedule import Handover, handed_over, hands_over
from workers.comm.handover import Expected, Links, Route
from workers.megagraph.batches import LabelledBatch, ShardedBatches
from workers.megagraph.dealing import Dealing
from workers.megagraph.split_backward import Owed, WeightLedger, settle
from workers.megagraph.unit_outputs import check_output


@dataclass(frozen=True)
class OwnStage:
    """A stage that this rank serves: its units in order, and where its rows of a graph come from."""

    units: Mapping[str, nn.Module]
    batches: ShardedBatches


@dataclass(frozen=True)
class Round:
    """What is computed: the graphs of every micro-batch over all ranks, and the drawing of dropout."""

    micro_batches: Sequence[tuple[int, ...]]
    draw: int


class Executor:
    """Runs the stages of one rank. ``like`` [0, d] is a hidden state without rows: width, dtype, device."""

    def __init__(
        self, stages: Mapping[int, OwnStage], *, dealing: Dealing, links: Links, ledger: WeightLedger, like: Tensor
    ) -> None:
        self._stages = stages
        self._dealing = dealing
        self.links = links
        self.ledger = ledger
        self._like = like

    @property
    def device(self) -> torch.device:
        """Where the units are."""
        return self._like.device

    def is_last(self, stage: int) -> bool:
        """Whether ``stage`` gives the predictions."""
        return self._dealing.is_last(stage)

    def settle(self) -> None:
        """Wait until everything that was sent has left."""
        self.links.settle()

    def play(
        self, actions: Sequence[Action], *, work: Round, loss: Callable[[Tensor, LabelledBatch], Tensor]
    ) -> Tensor:
        """Run ``actions``; gradients are added to those of the parameters. Returns the sum of this rank's losses.

        ``loss(output of the last stage, batch)`` is a number, its part of the loss of the step. Between F and B or W
        what a micro-batch saved stays alive, and no longer.
        """
        return _Play(self, work=work, loss=loss).run(actions)

    @torch.no_grad()
    def predict(self, work: Round) -> Iterator[tuple[Tensor, LabelledBatch]]:
        """Forward only: the output of the last stage for each micro-batch, on the ranks that serve it. Collective."""
        for micro_batch in range(len(work.micro_batches)):
            for stage in sorted(self._stages):
                action = Action(stage, "F", micro_batch)
                expected = self.expect(action, work)
                h = None if expected is None else self.take(action, work, expected)
                batch = self.batch(action, work)
                output = self.run_units(stage, h, batch)
                if self.is_last(stage):
                    yield output, batch
                else:
                    self.give(action, work, output)
            self.settle()

    def prepare(self, micro_batches: Sequence[tuple[int, ...]]) -> None:
        """Cut this rank's rows of ``micro_batches`` now, so that a step that is being timed finds them ready."""
        for index, stage in self._stages.items():
            for turn, graphs in enumerate(micro_batches):
                stage.batches.prepare(self._dealing.own_graphs(index, graphs, turn=turn))

    def batch(self, action: Action, work: Round) -> LabelledBatch:
        """This rank's rows of the micro-batch, as its stage cuts them."""
        graphs = self._dealing.own_graphs(action.stage, work.micro_batches[action.micro_batch], turn=action.micro_batch)
        return self._stages[action.stage].batches.batch(graphs, draw=work.draw)

    def run_units(self, stage: int, h: Tensor | None, batch: LabelledBatch) -> Tensor:
        """``h`` through the units of ``stage``. Raises ``ModelInvalidError`` for a unit that gives something else."""
        own = self._stages[stage]
        hidden = {
            "shape": (len(batch.inputs.x), self._like.shape[1]),
            "dtype": self._like.dtype,
            "what": "the hidden state of its rows",
        }
        predictions = hidden | {
            "shape": (len(batch.y), own.batches.num_outputs),
            "what": f"predictions for its {own.batches.level}s",
        }
        last = next(reversed(own.units)) if self.is_last(stage) else None
        for name, unit in own.units.items():
            output = unit(h, batch=batch.inputs)
            h = check_output(output, unit=name, **(predictions if name == last else hidden))
        assert h is not None, f"stage {stage} has no units"
        return h

    def expect(self, action: Action, work: Round) -> Expected | None:
        """Ask for what ``action`` waits for; None when it waits for nothing."""
        source = handed_over(action, num_stages=self._dealing.num_stages)
        if source is None:
            return None
        return self.links.expect(route=self._route(source, work), tag=_tag(source, work), like=self._like)

    def take(self, action: Action, work: Round, expected: Expected) -> Tensor:
        """What ``action`` waits for, when it is here."""
        source = handed_over(action, num_stages=self._dealing.num_stages)
        assert source is not None, "nothing is expected from nobody"
        rows = self.links.receive(expected, tag=_tag(source, work))
        if action.kind != "F":  # a gradient is the answer to what F sent
            self.links.confirm(tag=_tag((action.stage, "forward", action.micro_batch), work))
        return rows

    def give(self, action: Action, work: Round, rows: Tensor) -> None:
        """Send what ``action`` made to the neighbour that waits for it."""
        made = hands_over(action)
        assert made is not None, "W hands on nothing"
        self.links.send(rows, route=self._route(made, work), tag=_tag(made, work))

    def _route(self, handover: Handover, work: Round) -> Route:
        stage, direction, micro_batch = handover
        first = stage if direction == "forward" else stage - 1
        return self._dealing.route(
            first, work.micro_batches[micro_batch], turn=micro_batch, back=direction == "backward"
        )


class _Play:
    """One run through a list: what was asked for, and what backward still needs."""

    def __init__(self, executor: Executor, *, work: Round, loss: Callable[[Tensor, LabelledBatch], Tensor]) -> None:
        self._executor = executor
        self._work = work
        self._loss = loss
        self._expected: dict[Action, Expected | None] = {}
        self._saved: dict[tuple[int, int], tuple[Tensor | None, Tensor]] = {}  # input and output of a stage
        self._owed: dict[tuple[int, int], list[Owed]] = {}
        self._total = torch.zeros((), dtype=torch.float64, device=executor.device)

    def run(self, actions: Sequence[Action]) -> Tensor:
        """See ``Executor.play``."""
        steps = {"F": self._forward, "B": self._backward, "I": self._backward_to_input, "W": self._weights}
        for position, action in enumerate(actions):
            self._ask_for(action)
            if position + 1 < len(actions) and self._executor.links.may_ask_ahead:
                self._ask_for(actions[position + 1])
            steps[action.kind](action)
        self._executor.settle()
        return self._total

    def _ask_for(self, action: Action) -> None:
        if action not in self._expected:
            self._expected[action] = self._executor.expect(action, self._work)

    def _take(self, action: Action) -> Tensor | None:
        expected = self._expected.pop(action)
        return None if expected is None else self._executor.take(action, self._work, expected)

    def _forward(self, action: Action) -> None:
        h = self._take(action)
        if h is not None:
            h.requires_grad_()
        batch = self._executor.batch(action, self._work)
        output = self._executor.run_units(action.stage, h, batch)
        if self._executor.is_last(action.stage):
            output = self._loss(output, batch)
            self._total += output.detach()
        else:
            self._executor.give(action, self._work, output.detach())
        self._saved[action.stage, action.micro_batch] = h, output

    def _backward(self, action: Action) -> None:
        gradient = self._take(action)
        h, output = self._saved.pop((action.stage, action.micro_batch))
        if output.requires_grad:  # units without parameters in a first stage have nothing to learn
            output.backward(gradient)
        if h is not None:  # units may make nothing of it
            self._executor.give(action, self._work, torch.zeros_like(h) if h.grad is None else h.grad)

    def _backward_to_input(self, action: Action) -> None:
        with self._executor.ledger.collect() as owed:
            self._backward(action)
        self._owed[action.stage, action.micro_batch] = owed

    def _weights(self, action: Action) -> None:
        self._expected.pop(action)
        settle(self._owed.pop((action.stage, action.micro_batch)))


def _tag(handover: Handover, work: Round) -> int:
    """A number for what is handed over that no other message of the round has."""
    stage, direction, micro_batch = handover
    return 2 * (stage * len(work.micro_batches) + micro_batch) + (direction == "backward")
