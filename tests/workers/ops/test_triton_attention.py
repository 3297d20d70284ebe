"""The Triton kernel against the textbook and the plain form: on a GPU as it is, elsewhere interpreted, same checks.

The interpreter computes with numpy what the kernel says, slowly: cases are small, with two tiles in each direction. It
cannot show whether the kernel compiles (``test_triton_compiles.py``), how fast it is, nor products of bfloat16.
"""

import math

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from tests.workers.ops.attention_cases import Case, assert_near, compute, dense, kept_weights, merged
from workers.ops import triton_attention
from workers.ops.attention_dropout import AttentionDropout
from workers.ops.attention_kernels import PLAIN, AttentionKernel
from workers.ops.biased_attention import LocalExchange, biased_attention
from workers.ops.row_layout import whole

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TRITON = AttentionKernel(triton_attention.attend_block, triton_attention.attend_block_backward)
# Of the largest number. Halves: weights and score gradients are rounded to 8 (11) bits before they are multiplied.
TOLERANCE = {torch.float32: 5e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def case(rows: int = 66, keys: int = 71, heads: int = 2, **others: float) -> Case:
    return Case(rows=rows, keys=keys, heads=heads, device=DEVICE, **others)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("head_size", "p"), [(8, 0.3), (20, 0.0), (64, 0.3), (100, 0.0)], ids=lambda value: f"{value:g}"
)
def test_every_head_size_equals_the_textbook_form(head_size: int, p: float) -> None:
    asked = case(head_size=head_size, p=p) if head_size < 64 else case(rows=33, keys=40, head_size=head_size, p=p)
    assert_near(compute(TRITON, asked, torch.float32), dense(asked), tolerance=TOLERANCE[torch.float32])


@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (1, 65), (64, 64), (129, 3)])
def test_any_number_of_rows_and_keys_equals_the_textbook_form(rows: int, keys: int) -> None:
    asked = case(rows=rows, keys=keys, heads=1, p=0.2)
    assert_near(compute(TRITON, asked, torch.float32), dense(asked), tolerance=TOLERANCE[torch.float32])


@pytest.mark.parametrize("buckets", [1, 33, 256])
def test_tables_of_any_size_equal_the_textbook_form(buckets: int) -> None:
    asked = case(rows=20, keys=30, heads=1, buckets=buckets)
    assert_near(compute(TRITON, asked, torch.float32), dense(asked), tolerance=TOLERANCE[torch.float32])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_halves_are_summed_in_float32(dtype: torch.dtype) -> None:
    if DEVICE == "cpu" and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies bfloat16 as if its bits were integers; needs a GPU")
    asked = case(head_size=16, p=0.1)
    found = compute(TRITON, asked, dtype)
    assert {x.dtype for x in found} == {torch.float32, torch.float64}  # the last is the table's gradient
    assert_near(found, dense(asked, rounded_to=dtype), tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize(("rows", "keys"), [(0, 7), (7, 0), (0, 0)])
def test_no_rows_or_no_keys_give_zeros(rows: int, keys: int) -> None:
    out, lse, *gradients = compute(TRITON, case(rows=rows, keys=keys), torch.float32)
    assert not out.any()
    assert (lse == -math.inf).all()
    assert not any(gradient.any() for gradient in gradients)


def test_scores_far_from_zero_neither_overflow_nor_vanish() -> None:
    values = case(heads=3).values(torch.float32)
    values["table"] = values["table"] + torch.tensor([[4000.0], [-4000.0], [0.0]], device=DEVICE)
    for ours, plain in zip(TRITON.attend_block(**values), PLAIN.attend_block(**values), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-3, atol=1e-3)  # 4000 in float32 has a step of 2e-4


@pytest.mark.filterwarnings("ignore:All-NaN slice encountered")  # numpy's, in the interpreter
def test_a_nan_in_one_row_reaches_that_row_alone() -> None:
    values, row = case().values(torch.float32), 65
    values["q"][row, 1, 0] = math.nan
    out, lse = TRITON.attend_block(**values)
    assert out[row, 1].isnan().all()
    assert lse[row, 1].isnan()
    out[row, 1] = lse[row, 1] = 0
    assert not out.isnan().any()
    assert not lse.isnan().any()


def test_a_bucket_past_the_table_gives_nan_and_reads_nothing_past_it() -> None:
    values = case(buckets=6).values(torch.float32)
    wide = torch.zeros(3, 6, device=DEVICE)
    wide[:2] = values["table"]
    values["table"] = wide[:2]  # what lies past the last head's end is a number
    values["buckets"][5, -1] = 6
    out, _ = TRITON.attend_block(**values)
    assert out[5].isnan().all()
    assert not out[:5].isnan().any()
    assert not out[6:].isnan().any()


@pytest.mark.parametrize("cut", [1, 64])
def test_merging_two_ranges_of_keys_equals_one(cut: int) -> None:
    asked = case(p=0.3)
    for ours, exact in zip(merged(TRITON, asked, torch.float32, cut=cut), dense(asked), strict=False):
        torch.testing.assert_close(ours.double(), exact, rtol=0, atol=5e-5)


def test_the_mask_of_dropout_is_that_of_the_plain_form_bit_for_bit() -> None:
    asked = case(rows=60, keys=75, p=0.3)
    mask = kept_weights(TRITON, asked, torch.float32)
    assert torch.equal(mask, kept_weights(PLAIN, asked, torch.float32))
    assert mask.double().mean().item() == pytest.approx(0.7, abs=0.02)
    cut = {"rows": slice(13, 40), "columns": slice(30, 75)}
    assert torch.equal(kept_weights(TRITON, asked, torch.float32, **cut), mask[13:40][..., 30:75])


def test_running_twice_gives_the_same_bits() -> None:
    asked = case(heads=1, p=0.1)
    first, second = (compute(TRITON, asked, torch.float32) for _ in range(2))
    assert all(torch.equal(ours, other) for ours, other in zip(first, second, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_graphs_of_a_batch_get_what_the_plain_form_gives_them(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    sizes = (20, 0, 1, 40)
    ids = torch.arange(sum(sizes), device=DEVICE).split(sizes)
    dropout = AttentionDropout(0.2, site=2, draw=5, node_ids=ids)
    buckets = tuple(torch.randint(5, (size, size), dtype=torch.uint8).to(DEVICE) for size in sizes)
    drawn = [torch.randn(sum(sizes), 2, 8) for _ in range(3)] + [torch.randn(2, 5)]
    gradients = []
    for kernel in (TRITON, PLAIN):
        q, k, v, table = leaves = [x.to(DEVICE, dtype).requires_grad_() for x in drawn]
        out = biased_attention(
            q,
            k=k,
            v=v,
            table=table,
            buckets=buckets,
            layout=whole(sizes),
            exchange=LocalExchange(),
            dropout=dropout,
            kernel=kernel,
        )
        assert out.dtype == dtype
        gradients.append((out.detach(), *torch.autograd.grad(out.float().square().sum(), leaves)))
    for ours, plain in zip(*gradients, strict=True):
        assert ours.dtype == dtype
        scale = max(1.0, plain.abs().max().item())
        torch.testing.assert_close(ours.float(), plain.float(), rtol=0, atol=2 * TOLERANCE[dtype] * scale)
