"""Stored profiles give stored plans: a change of the planner that moves a real decision must show itself here.

The profiles are answers of real probes on two cores, clocked in processor seconds because the machine was shared. A
plan may be made from several of them, one for each number of ranks that its job allows. Two are of a model whose
embedding was one unit: to the planner a unit is a name and its samples.
``python -m tests.planner.test_golden`` writes the plans anew; look at the difference before you keep it.
"""

import json
from pathlib import Path

import pytest

from planner.cluster import ClusterSpec, NodeSpec
from planner.plan import parse_plan
from planner.planner import choose_plan
from planner.profiles import Profile

GOLDEN = Path(__file__).parent / "golden"
PROFILES = {
    "cora-2-ranks": ("cora-2-ranks",),
    "cora-1-to-2-ranks": ("cora-1-rank", "cora-2-ranks"),
    "photo-2-replicas": ("photo-2-replicas",),
    "photo-1-to-2-replicas": ("photo-1-rank", "photo-2-replicas"),
    "sbm-graphs-4-ranks": ("sbm-graphs-4-ranks",),
}
NAMES = sorted(PROFILES)
CLUSTER = ClusterSpec(
    nodes=(NodeSpec(node_id="a", address="10.0.0.1", num_cpus=8, physical_cores=2, memory_bytes=16 * 2**30),)
)


def plan_of(name: str) -> dict:
    files = [GOLDEN / f"{profile}.profile.json" for profile in PROFILES[name]]
    profiles = [Profile.model_validate_json(file.read_text()) for file in files]
    most = max(profile.key.num_ranks for profile in profiles)
    plan = choose_plan(profiles[0].key.shape, cluster=CLUSTER, profiles=profiles, most_ranks=most)
    return json.loads(plan.model_dump_json())


def rounded(value):
    """Floats to six digits: the last bits of a least-squares fit depend on the machine."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    return [rounded(entry) for entry in value] if isinstance(value, list) else value


def test_there_are_golden_plans_of_both_kinds():
    kinds = {json.loads((GOLDEN / f"{name}.plan.json").read_text())["kind"] for name in NAMES}
    assert kinds == {"megagraph", "mqgnn"}


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_profile_gives_the_stored_plan(name):
    stored = json.loads((GOLDEN / f"{name}.plan.json").read_text())
    parse_plan(stored)
    assert rounded(plan_of(name)) == rounded(stored)


if __name__ == "__main__":
    for golden in NAMES:
        (GOLDEN / f"{golden}.plan.json").write_text(json.dumps(rounded(plan_of(golden)), indent=1) + "\n")
