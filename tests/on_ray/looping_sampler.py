"""A driver whose actors go round and round after some answers: ``python -m tests.on_ray.looping_sampler JOB_ID``."""

import sys
from typing import Any

import workers.mqgnn.remote.actor
from service.driver_main import main
from workers.mqgnn.remote.actor import SamplingActor

BEFORE = 20


class LoopingActor(SamplingActor):
    """Answers so often, then no more."""

    num_made = 0

    def make(self, request: Any) -> Any:
        self.num_made += 1
        if self.num_made > BEFORE:
            self._maker.make = loop_for_ever
        return super().make(request)


def loop_for_ever(request: Any) -> None:
    while True:
        pass


if __name__ == "__main__":
    workers.mqgnn.remote.actor.SamplingActor = LoopingActor
    sys.exit(main(sys.argv[1:]))
