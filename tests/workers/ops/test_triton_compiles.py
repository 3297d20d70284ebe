"""The Triton kernels compile for real GPUs, which needs none: Triton brings the assembler along.

Interpreted kernels are plain functions, so this runs in a process of its own that does not interpret.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed")

# What a block of threads may use of shared memory: 163 KiB with compute capability 8.0 (A100), 99 KiB with 8.6 and 8.9.
SHARED_BYTES = 99 * 1024

COMPILE = """
import json, sys
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from workers.ops import triton_attention, triton_kernels

head_size, dtype, drops = json.loads(sys.argv[1])
names = {"float32": "fp32", "bfloat16": "bf16"}
tiles = triton_attention._tiles(torch.empty(0, 1, head_size, dtype=getattr(torch, dtype)))
options = {name: tiles.pop(name) for name in ("num_warps", "num_stages")}
constants = {**tiles, "DROPS": drops, "GROUP": 32}
types = {"buckets": "*u8", "row_bits": "*i32", "column_bits": "*i32", "partial_sums": "*fp64"}
types |= {name: "*" + names[dtype] for name in ("q", "k", "v", "table", "grad_out")}
types |= {name: "*fp32" for name in ("out", "lse", "delta", "grad_q", "grad_k", "grad_v")}
types |= {name: "fp32" for name in ("scale", "keep_scale")}
shared = {}
for name in ("forward_kernel", "query_gradient_kernel", "key_gradient_kernel"):
    kernel = getattr(triton_kernels, name)
    given = {place: constants[place] for place in kernel.arg_names if place in constants}
    if not drops:
        given |= {place: None for place in ("row_bits", "column_bits")}
    signature = {place: "constexpr" if place in given else types.get(place, "i32") for place in kernel.arg_names}
    built = triton.compile(
        ASTSource(kernel, signature, constexprs=given), target=GPUTarget("cuda", 80, 32), options=options
    )
    assert built.asm["cubin"]
    shared[name] = built.metadata.shared
print(json.dumps(shared))
"""


def test_all_kernels_compile_for_cuda_and_fit_its_shared_memory(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, json.dumps([16, "float32", True])],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert max(json.loads(done.stdout.splitlines()[-1]).values()) <= SHARED_BYTES
