"""Stored profiles give stored plans: a change of the planner that moves a real decision must show itself here.

The profiles are answers of real probes on two cores, clocked in processor seconds because the machine was shared.
Two are of a model whose embedding was one unit: to the planner a unit is a name and its samples.
``python -m tests.planner.test_golden`` writes the plans anew; look at the difference before you keep it.
"""

import json
from pathlib import Path

import pytest

from planner.cluster import ClusterSpec, NodeSpec
from planner.plan import PLAN_ADAPTER
from planner.planner import make_plan
from planner.profiles import Profile

GOLDEN = Path(__file__).parent / "golden"
NAMES = sorted(path.name.removesuffix(".profile.json") for path in GOLDEN.glob("*.profile.json"))
CLUSTER = ClusterSpec(
    nodes=(NodeSpec(node_id="a", address="10.0.0.1", num_cpus=8, physical_cores=2, memory_bytes=16 * 2**30),)
)


def plan_of(name: str) -> dict:
    profile = Profile.model_validate_json((GOLDEN / f"{name}.profile.json").read_text())
    plan = make_plan(profile.key.shape, cluster=CLUSTER, profile=profile, num_ranks=profile.key.num_ranks)
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
    PLAN_ADAPTER.validate_python(stored)
    assert rounded(plan_of(name)) == rounded(stored)


if __name__ == "__main__":
    for golden in NAMES:
        (GOLDEN / f"{golden}.plan.json").write_text(json.dumps(rounded(plan_of(golden)), indent=1) + "\n")
