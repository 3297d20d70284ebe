"""The Ray shell of the planner: a plain class that a driver turns into an actor at the call site."""

from planner.cluster import ClusterSpec
from planner.plan import MegaGraphPlan, MQGNNPlan
from planner.planner import make_plan
from planner.profiles import JobShape, Profile


class PlannerActor:
    """Answers ``make_plan`` in a process of its own, so that a large search never blocks a driver.

    ``ray.remote(PlannerActor).options(num_cpus=0).remote()`` starts one; errors come back as the cause of Ray's.
    """

    def make_plan(
        self, shape: JobShape, *, cluster: ClusterSpec, profile: Profile, num_ranks: int
    ) -> MegaGraphPlan | MQGNNPlan:
        """See ``planner.planner.make_plan``."""
        return make_plan(shape, cluster=cluster, profile=profile, num_ranks=num_ranks)
