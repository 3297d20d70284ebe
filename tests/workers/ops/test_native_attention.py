"""The compiled attention kernel in every form that this machine can run, against the textbook and the plain form."""

import ctypes
import math
import mmap
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.workers.ops.attention_cases import Case, assert_near, compute, dense, kept_weights, merged
from workers.ops.attention_dropout import PairDropout
from workers.ops.attention_kernels import PLAIN, native_kernel
from workers.ops.native import native_library

pytestmark = [
    pytest.mark.skipif(native_library() is None, reason="no native library is installed"),
    pytest.mark.usefixtures("one_thread"),
]
INSTRUCTION_SETS = tuple(library.instruction_sets) if (library := native_library()) else ()
# Of the largest number. A gradient may be a difference of sums over thousands of numbers around one, each rounded.
TOLERANCE = {torch.float32: 5e-5, torch.float64: 1e-12}

each_form = pytest.mark.parametrize("form", INSTRUCTION_SETS)
each_dtype = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)


@each_form
@each_dtype
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    case=st.builds(
        Case,
        rows=st.integers(0, 150),
        keys=st.integers(0, 150),
        heads=st.integers(1, 17),
        head_size=st.integers(1, 40),
        buckets=st.integers(1, 256),
        p=st.sampled_from([0.0, 0.3]),
        seed=st.integers(0, 5),
    )
)
def test_any_shape_equals_the_textbook_form(form: str, dtype: torch.dtype, case: Case) -> None:
    assert_near(compute(native_kernel(form), case, dtype), dense(case), tolerance=TOLERANCE[dtype])


@each_form
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("buckets", [16, 32, 33, 64, 256])
def test_many_tiles_and_every_kind_of_table_equal_the_textbook_form(form: str, buckets: int, p: float) -> None:
    case = Case(rows=300, keys=517, heads=2, head_size=16, buckets=buckets, p=p)
    for dtype, tolerance in TOLERANCE.items():
        assert_near(compute(native_kernel(form), case, dtype), dense(case), tolerance=tolerance)


@each_form
@each_dtype
def test_native_and_plain_are_alike(form: str, dtype: torch.dtype) -> None:
    case = Case(p=0.2)
    plain = tuple(x.double() for x in compute(PLAIN, case, dtype))
    assert_near(compute(native_kernel(form), case, dtype), plain, tolerance=TOLERANCE[dtype])


@each_form
def test_rows_without_any_key_give_zeros(form: str) -> None:
    out, lse, *gradients = compute(native_kernel(form), Case(keys=0), torch.float32)
    assert not out.any()
    assert (lse == -math.inf).all()
    assert not any(gradient.any() for gradient in gradients)


@each_form
@each_dtype
def test_scores_far_from_zero_neither_overflow_nor_vanish(form: str, dtype: torch.dtype) -> None:
    values = Case(heads=3).values(dtype)
    values["table"] = values["table"] + torch.tensor([[4000.0], [-4000.0], [0.0]], dtype=dtype)
    for ours, plain in zip(native_kernel(form).attend_block(**values), PLAIN.attend_block(**values), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-3, atol=1e-3)  # 4000 in float32 has a step of 2e-4


@each_form
def test_a_nan_in_one_row_reaches_that_row_alone(form: str) -> None:
    values = Case().values(torch.float32)
    values["q"][4, 1, 0] = math.nan
    out, lse = native_kernel(form).attend_block(**values)
    assert out[4, 1].isnan().all()
    assert lse[4, 1].isnan()
    out[4, 1] = lse[4, 1] = 0
    assert not out.isnan().any()
    assert not lse.isnan().any()


@each_form
@pytest.mark.parametrize("cut", [0, 1, 64, 100, 130])
def test_merging_two_ranges_of_keys_equals_one(form: str, cut: int) -> None:
    case = Case(p=0.3)
    for ours, exact in zip(merged(native_kernel(form), case, torch.float64, cut=cut), dense(case), strict=False):
        torch.testing.assert_close(ours, exact, rtol=1e-12, atol=1e-12)


@each_form
@each_dtype
def test_any_number_of_threads_gives_the_same_bits(form: str, dtype: torch.dtype) -> None:
    case = Case(rows=600, keys=600, heads=9, head_size=8, p=0.1)
    results = []
    for num_threads in (1, 2, 3, 7):
        torch.set_num_threads(num_threads)
        results.append(compute(native_kernel(form), case, dtype))
    for other in results[1:]:
        assert all(torch.equal(ours, first) for ours, first in zip(other, results[0], strict=True))


@each_form
@pytest.mark.parametrize("num_buckets", [6, 16, 40, 255])
@each_dtype
def test_a_bucket_past_the_table_is_an_error(form: str, num_buckets: int, dtype: torch.dtype) -> None:
    case, kernel = Case(buckets=num_buckets), native_kernel(form)
    values = case.values(dtype)
    values["buckets"][-1, -1] = num_buckets
    lse = torch.zeros(case.rows, case.heads, dtype=dtype)
    with pytest.raises(IndexError, match=f"bucket {num_buckets} is past the end of a table of {num_buckets} buckets"):
        kernel.attend_block(**values)
    gradients = {"grad_" + name: torch.zeros_like(values[name]) for name in "qkv"}
    with pytest.raises(IndexError, match="past the end"):
        kernel.attend_block_backward(case.grad_out(dtype), **values, lse=lse, delta=lse, **gradients)
    with pytest.raises((IndexError, RuntimeError)):  # as torch likes
        PLAIN.attend_block(**values)


@each_form
@each_dtype
def test_the_mask_of_dropout_is_that_of_the_plain_form_bit_for_bit(form: str, dtype: torch.dtype) -> None:
    case = Case(rows=60, keys=75, heads=9, p=0.3)
    mask = kept_weights(native_kernel(form), case, dtype)
    assert torch.equal(mask, kept_weights(PLAIN, case, dtype))
    assert mask.double().mean().item() == pytest.approx(0.7, abs=0.02)


@each_form
@pytest.mark.parametrize("rows", [slice(0, 60), slice(13, 40)])
@pytest.mark.parametrize("columns", [slice(0, 75), slice(0, 1), slice(30, 75)])
def test_the_mask_of_dropout_is_the_same_for_any_cut(form: str, rows: slice, columns: slice) -> None:
    case, kernel = Case(rows=60, keys=75, p=0.5), native_kernel(form)
    whole = kept_weights(kernel, case, torch.float32)
    assert torch.equal(kept_weights(kernel, case, torch.float32, rows=rows, columns=columns), whole[rows][..., columns])


def guarded(x: Tensor) -> Tensor:
    """A copy of ``x`` that ends where a page begins that no one may touch."""
    size = x.numel() * x.element_size()
    end = (size // mmap.PAGESIZE + 1) * mmap.PAGESIZE
    memory = mmap.mmap(-1, end + mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    no_access = 0
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + end), mmap.PAGESIZE, no_access) == 0
    return torch.frombuffer(memory, dtype=x.dtype, count=x.numel(), offset=end - size).view(x.shape).copy_(x)


@each_form
@each_dtype
@pytest.mark.parametrize(
    "case", [Case(7, 11), Case(63, 65, 17, 1, 255), Case(129, 257, 9, 33, 33), Case(64, 64, 8, 16)]
)
def test_nothing_past_the_end_of_a_tensor_is_touched(form: str, dtype: torch.dtype, case: Case) -> None:
    kernel = native_kernel(form)
    values = {name: guarded(x.contiguous()) for name, x in case.values(dtype).items()}
    gradients = {f"grad_{name}": guarded(torch.zeros_like(values[name])) for name in ("q", "k", "v")}
    mask = replace(case, p=0.3).dropout()
    for dropout in (None, PairDropout(mask.p, guarded(mask.row_bits), guarded(mask.column_bits))):
        out, lse = kernel.attend_block(**values, dropout=dropout)
        lse = guarded(lse)
        kernel.attend_block_backward(guarded(out), **values, lse=lse, delta=lse, dropout=dropout, **gradients)
        assert out.isfinite().all()
