"""Answers of Ray's actors, waited for together."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import RayTaskError


def all_answers(asked: Sequence[ray.ObjectRef], *, timeout_s: float, late: Callable[[int], Exception]) -> list[Any]:
    """All answers, in the order of ``asked``, within ``timeout_s`` seconds.

    The first failure ends the waiting, because the other actors may wait for the failed one: what it raised is raised
    here. ``late`` makes the error of so many answers that have not come.
    """
    deadline, pending = time.monotonic() + timeout_s, list(asked)
    while pending:
        done, pending = ray.wait(pending, timeout=max(0.0, deadline - time.monotonic()))
        if not done:
            raise late(len(pending))
        try:
            ray.get(done)
        except RayTaskError as error:
            raise error.cause from None
    return ray.get(list(asked))
