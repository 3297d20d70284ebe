"""The one door to both runtimes: a plan's kind decides which of them trains.

Comes in: a ``RankRun`` (spec, plan, rank, data, where to write, how to report). Goes out: the figures of the run, equal
on all ranks. Knows nothing of Ray: a rank started by ``torchrun`` or by a test goes through the same door.
"""

import torch
from torch.optim import Optimizer

from workers.training.run import RankRun


def run_rank(run: RankRun) -> dict[str, float]:
    """Train as ``run.plan`` says, on this rank. Collective. Raises the errors of ``workers.errors``."""
    torch.set_num_threads(run.plan.num_threads)
    leave_the_compiler_out()
    if run.plan.kind == "megagraph":
        from workers.megagraph.train import train as train_megagraph

        return train_megagraph(run)
    from workers.mqgnn.train import train as train_mqgnn

    return train_mqgnn(run)


def leave_the_compiler_out() -> None:
    """Let optimisers work without ``torch._dynamo``, whose import takes over a second of every rank's start.

    torch marks a few methods of ``Optimizer`` as not to be compiled, and imports its compiler at their first call only
    to hear that. The mark is a cache on the function; here it is filled with the function itself. Nothing that we run
    is compiled; whoever compiles a whole step with its optimiser must not call this.
    """
    for method in vars(Optimizer).values():
        function = getattr(method, "__wrapped__", None)
        if function is not None and function.__module__ == Optimizer.__module__:
            function.__dict__.setdefault("__dynamo_disable", function)
