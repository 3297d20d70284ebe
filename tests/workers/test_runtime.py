"""The door to the runtimes, and what it keeps out."""

import subprocess
import sys

PROGRAM = """
import sys
import torch
from workers.runtime import leave_the_compiler_out
leave_the_compiler_out()
weight = torch.nn.Parameter(torch.ones(4))
for build in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD):
    optimizer = build([weight], lr=0.1)
    weight.sum().backward()
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad()
print(weight.detach().tolist()[0] < 1.0, "torch._dynamo" in sys.modules)
"""


def test_optimisers_work_without_the_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["True", "False"]
