"""The Ray shell of the planner: a plain class that a driver turns into an actor at the call site."""

from collections.abc import Sequence

from planner.cluster import ClusterSpec
from planner.plan import MegaGraphPlan, MQGNNPlan
from planner.planner import choose_plan
from planner.profiles import JobShape, Profile


class PlannerActor:
    """Answers ``choose_plan`` in a process of its own, so that a large search never blocks a driver.

    ``ray.remote(PlannerActor).options(num_cpus=0).remote()`` starts one; errors come back as the cause of Ray's.
    """

    def choose_plan(
        self, shape: JobShape, *, cluster: ClusterSpec, profiles: Sequence[Profile], most_ranks: int
    ) -> MegaGraphPlan | MQGNNPlan:
        """See ``planner.planner.choose_plan``."""
        return choose_plan(shape, cluster=cluster, profiles=profiles, most_ranks=most_ranks)
