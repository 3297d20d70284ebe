"""What is checked on a GPU, section by section; each raises where something is wrong and returns what it saw.

Torch and Triton are all that most sections need (no Ray, no pytest); what needs more says so by its ``ImportError``.
"""

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tests.workers.ops.attention_cases import Case, assert_near, compute, dense, kept_weights
from workers.ops.attention_kernels import PLAIN, AttentionKernel, kernel_for, named_kernel
from workers.ops.biased_attention import LocalExchange, biased_attention
from workers.ops.row_layout import whole

CUDA = torch.device("cuda")
TOLERANCE = {torch.float32: 5e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
ROUNDS = 20


def _triton(dtype: torch.dtype = torch.float32) -> AttentionKernel:
    kernel = named_kernel("triton", device=CUDA, dtype=dtype)
    assert kernel is not None
    return kernel


def kernel_against_float64() -> dict[str, Any]:
    """Outputs, log-sum-exp and all gradients of the Triton kernel against the textbook in float64."""
    cases = [
        Case(rows=257, keys=391, head_size=head_size, buckets=buckets, p=p, device="cuda")
        for head_size, buckets, p in ((8, 16, 0.0), (16, 16, 0.2), (20, 5, 0.0), (64, 256, 0.1), (128, 33, 0.0))
    ]
    cases += [Case(rows=1, keys=1, device="cuda"), Case(rows=2048, keys=2047, head_size=16, device="cuda")]
    for case in cases:
        assert_near(compute(_triton(), case, torch.float32), dense(case), tolerance=TOLERANCE[torch.float32])
    for dtype in (torch.bfloat16, torch.float16):
        case = Case(rows=257, keys=391, head_size=64, buckets=16, p=0.1, device="cuda")
        assert_near(compute(_triton(dtype), case, dtype), dense(case, rounded_to=dtype), tolerance=TOLERANCE[dtype])
    return {"cases": len(cases) + 2}


def same_bits_and_masks() -> dict[str, Any]:
    """Two runs give the same bits, and weights are dropped as the plain form drops them on a CPU."""
    case = Case(rows=1500, keys=1400, head_size=16, buckets=16, p=0.1, device="cuda")
    first, second = (compute(_triton(), case, torch.float32) for _ in range(2))
    assert all(torch.equal(ours, other) for ours, other in zip(first, second, strict=True))
    small = {"rows": 60, "keys": 75, "p": 0.3}
    ours = kept_weights(_triton(), Case(**small, device="cuda"), torch.float32)
    assert torch.equal(ours.cpu(), kept_weights(PLAIN, Case(**small), torch.float32))
    assert kernel_for(torch.empty(0, device="cuda")) == _triton()
    return {"share kept": round(ours.double().mean().item(), 3)}


def nccl_on_one_rank() -> dict[str, Any]:
    """Sums, broadcasts and barriers of a line of one rank, over NCCL."""
    from workers.comm.axis import Axis
    from workers.comm.sums import AxisSums

    torch.cuda.set_device(0)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            axis = Axis(group=dist.group.WORLD)
            assert axis.is_ordered
            axis.barrier()
            x = torch.randn(1000, 8, device="cuda", requires_grad=True)
            total = AxisSums(axis).sum(x)
            (gradient,) = torch.autograd.grad(total.square().sum(), x)
            assert torch.equal(total, x)
            assert torch.equal(gradient, 2 * x)
            assert axis.first_says(7, device=CUDA) == 7
            for dtype in (torch.int64, torch.float64, torch.bfloat16):
                summed = torch.arange(5, device="cuda").to(dtype)
                axis.sum_in_place(summed)
                assert summed.tolist() == [0, 1, 2, 3, 4]
        finally:
            dist.destroy_process_group()
    return {"nccl": ".".join(map(str, torch.cuda.nccl.version()))}


def training_equals_the_cpu() -> dict[str, Any]:
    """A Graphormer trained on the GPU as on the CPU: losses in float64, and in float32 with the Triton kernel."""
    exact = _losses(torch.device("cpu"), dtype="float64", kernel="auto")
    seen = {}
    for dtype, kernel, bar in (("float64", "auto", 1e-9), ("float32", "triton", 1e-3), ("float32", "plain", 1e-3)):
        ours = _losses(CUDA, dtype=dtype, kernel=kernel)
        error = max(abs(a - b) / abs(b) for a, b in zip(ours, exact, strict=True))
        assert error <= bar, (dtype, kernel, error)
        seen[f"{dtype}, {kernel}"] = error
    return seen


def _losses(device: torch.device, *, dtype: str, kernel: str) -> list[float]:
    """Of ten steps on one graph, all on one rank."""
    from planner.plan import MegaGraphPlan, Stage
    from planner.schedule import actions_by_rank, gpipe_actions
    from workers.data.paths import DataPaths
    from workers.runtime import run_rank
    from workers.spec import DatasetSpec, GraphormerSpec, TrainingSpec, TrainSpec
    from workers.training.folder import Folder
    from workers.training.run import RankRun, Report

    model = GraphormerSpec(num_layers=2, hidden_size=32, num_heads=4, dropout=0.2, input_dropout=0.2)
    stage = Stage(units=model.units, ranks=(0,), dp_degree=1, cp_degree=1, exchange="none")
    plan = MegaGraphPlan(
        world_size=1,
        stages=(stage,),
        num_micro_batches=1,
        actions=actions_by_rank([stage], gpipe_actions(num_stages=1, num_micro_batches=1)),
        report_every_steps=1,
    )
    training = TrainingSpec(epochs=10, dtype=dtype, attention_kernel=kernel)
    reports: list[Report] = []
    with tempfile.TemporaryDirectory() as folder:
        run_rank(
            RankRun(
                spec=TrainSpec(kind="megagraph", dataset=DatasetSpec(name="sbm"), model=model, training=training),
                plan=plan,
                rank=0,
                world_size=1,
                device=device,
                data=DataPaths(root=None, cache=Path(folder) / "cache"),
                job_dir=Folder(Path(folder) / "job"),
                report=reports.append,
            )
        )
    return [report.values["loss"] for report in reports if "loss" in report.values]


def attention_table(*, num_rows: int = 4096, head_size: int = 16) -> dict[str, Any]:
    """Milliseconds and peak bytes of attention, forward and backward: ours, dense, and fused without any bias.

    The sides of ``tests.benchmarks.attention``: dense is the faster of two ways to gather the bias; the floor is what
    PyTorch takes for its fused attention with no bias at all, which is less than we compute. 8 heads, 16 buckets.
    """
    from tests.benchmarks.baselines.dense_attention import embedded_bias, fused, selected_bias

    return {
        str(dtype): _sides(num_rows, head_size, dtype, fused=fused, gathers=(embedded_bias, selected_bias))
        for dtype in (torch.float32, torch.bfloat16)
    }


def _sides(
    num_rows: int,
    head_size: int,
    dtype: torch.dtype,
    *,
    fused: Callable[..., Tensor],
    gathers: tuple[Callable[..., Tensor], ...],
) -> dict[str, Any]:
    torch.manual_seed(0)
    rows = [torch.randn(num_rows, 8, head_size, device="cuda", dtype=dtype) for _ in range(4)]
    table = torch.randn(8, 16, device="cuda", dtype=dtype, requires_grad=True)
    buckets = torch.randint(16, (num_rows, num_rows), device="cuda", dtype=torch.uint8)
    index = buckets.flatten().int()
    by_head = [x.transpose(0, 1).contiguous().unsqueeze(0).requires_grad_(place < 3) for place, x in enumerate(rows)]
    for leaf in rows[:3]:
        leaf.requires_grad_()

    def ours() -> None:
        q, k, v, grad_out = rows
        options = {"layout": whole((num_rows,)), "exchange": LocalExchange()}
        out = biased_attention(q, k=k, v=v, table=table, buckets=(buckets,), **options)
        torch.autograd.grad(out, (q, k, v, table), grad_out)

    def with_bias(gather: Callable[..., Tensor]) -> Callable[[], None]:
        def run() -> None:
            q, k, v, grad_out = by_head
            bias = gather(table, index, num_rows=num_rows).contiguous()
            torch.autograd.grad(fused(q, k, v, bias), (q, k, v, table), grad_out)

        return run

    def floor() -> None:
        q, k, v, grad_out = by_head
        torch.autograd.grad(scaled_dot_product_attention(q, k, v), (q, k, v), grad_out)

    sides: dict[str, Callable[[], None]] = {"ours": ours, "floor": floor}
    sides |= {f"dense {gather.__name__}": with_bias(gather) for gather in gathers}
    times = {name: _milliseconds(side) for name, side in sides.items()}
    peaks = {name: _peak_bytes(side) for name, side in sides.items()}
    dense_ms = min(value for name, value in times.items() if name.startswith("dense"))
    dense_bytes = min(value for name, value in peaks.items() if name.startswith("dense"))
    return {
        "ms": {name: round(value, 3) for name, value in times.items()},
        "peak bytes": peaks,
        "speedup_vs_dense": round(dense_ms / times["ours"], 2),
        "time_vs_floor": round(times["ours"] / times["floor"], 2),
        "memory_vs_dense": round(peaks["ours"] / dense_bytes, 4),
    }


def _milliseconds(side: Callable[[], None]) -> float:
    """Median of ``ROUNDS``, after three that compile and warm up."""
    for _ in range(3):
        side()
    found = []
    for _ in range(ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        side()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end))
    return statistics.median(found)


def _peak_bytes(side: Callable[[], None]) -> int:
    """Over what is there already: Q, K, V, the index, the gradient of the output."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    side()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def flex_on_request() -> dict[str, Any]:
    """FlexAttention behind the same functions, against the textbook in float64."""
    kernel = named_kernel("flex", device=CUDA, dtype=torch.float32)
    assert kernel is not None
    case = Case(rows=256, keys=384, head_size=16, buckets=16, device="cuda")
    torch.set_float32_matmul_precision("highest")
    found = [x.cpu() for x in compute(kernel, case, torch.float32)]
    exact = [x.cpu() for x in dense(case)]
    # it multiplies in TF32 where torch lets it: looser than our own kernels
    assert_near(tuple(found), tuple(exact), tolerance=2e-3)
    return {"largest error of dtable": float((found[-1] - exact[-1]).abs().max())}


SECTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    section.__name__: section
    for section in (
        kernel_against_float64,
        same_bits_and_masks,
        nccl_on_one_rank,
        training_equals_the_cpu,
        attention_table,
        flex_on_request,
    )
}
