"""A driver whose planner thinks for a minute: ``python -m tests.on_ray.slow_planner JOB_ID``."""

import sys
import time
from typing import Any

import service.ray_engine
from planner.actor import PlannerActor
from service.driver_main import main

PLANNING_S = 60


class SlowPlanner(PlannerActor):
    """Answers at last."""

    def choose_plan(self, *arguments: Any, **named: Any) -> Any:
        time.sleep(PLANNING_S)
        return super().choose_plan(*arguments, **named)


if __name__ == "__main__":
    service.ray_engine.PlannerActor = SlowPlanner
    sys.exit(main(sys.argv[1:]))
