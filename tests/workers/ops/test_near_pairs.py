"""An index of near pairs is the dense index in fewer bytes: the same tiles, the same bits from every kernel."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from workers.ops.attention_dropout import AttentionDropout
from workers.ops.attention_kernels import PLAIN, AttentionKernel, native_kernel
from workers.ops.biased_attention import LocalExchange, biased_attention
from workers.ops.native import native_library
from workers.ops.near_pairs import NearPairs, among_columns, dense_rows
from workers.ops.row_layout import whole

NATIVE = tuple(library.instruction_sets) if (library := native_library()) else ()
pytestmark = pytest.mark.usefixtures("one_thread")
each_form = pytest.mark.parametrize("form", ["plain", *NATIVE])


def kernel_of(form: str) -> AttentionKernel:
    return PLAIN if form == "plain" else native_kernel(form)


def near_form(buckets: Tensor, *, far: int) -> NearPairs:
    """The near pairs of a dense index."""
    rows, columns = (buckets != far).nonzero(as_tuple=True)
    counts = torch.bincount(rows, minlength=len(buckets))
    return NearPairs(
        indptr=torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]),
        columns=columns.int(),
        buckets=buckets[rows, columns],
        far=far,
        num_columns=buckets.shape[1],
    )


@dataclass(frozen=True)
class Case:
    """An index of ``rows`` and ``columns`` of which a share is ``near``, and some of its columns as keys."""

    rows: int = 70
    columns: int = 260
    keys: tuple[int, int] = (0, 260)
    heads: int = 3
    head_size: int = 5
    num_buckets: int = 6
    near: float = 0.1
    p: float = 0.0
    seed: int = 0

    def index(self) -> Tensor:
        """Dense; some rows have no near pair, some have nothing else."""
        generator = torch.Generator().manual_seed(self.seed)
        buckets = torch.randint(self.num_buckets, (self.rows, self.columns), generator=generator, dtype=torch.uint8)
        share = torch.full((self.rows, 1), self.near)
        share[::7], share[3::11] = 0, 1
        is_near = torch.rand(self.rows, self.columns, generator=generator) < share
        return torch.where(is_near, buckets, self.num_buckets - 1)

    def values(self, dtype: torch.dtype) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        num_keys = self.keys[1] - self.keys[0]
        sizes = {"q": self.rows, "k": num_keys, "v": num_keys, "grad_out": self.rows}
        values = {
            name: torch.randn(size, self.heads, self.head_size, generator=generator, dtype=torch.float64).to(dtype)
            for name, size in sizes.items()
        }
        return values | {"table": torch.randn(self.heads, self.num_buckets, generator=generator).to(dtype)}


def compute(kernel: AttentionKernel, case: Case, buckets: Tensor | NearPairs, dtype: torch.dtype) -> list[Tensor]:
    """Output, log-sum-exp and all gradients."""
    values = case.values(dtype)
    grad_out = values.pop("grad_out")
    ids = torch.arange(max(case.rows, case.columns))
    dropout = AttentionDropout(case.p, site=1, draw=2, node_ids=[ids]).of_pairs(
        0, rows=slice(case.rows), columns=slice(*case.keys), heads=range(case.heads)
    )
    asked = {**values, "buckets": among_columns(buckets, slice(*case.keys)), "dropout": dropout if case.p else None}
    out, lse = kernel.attend_block(**asked)
    gradients = {"grad_" + name: torch.zeros_like(values[name]) for name in "qkv"}
    delta = (grad_out * out).sum(dim=2)
    dtable = kernel.attend_block_backward(grad_out, **asked, lse=lse, delta=delta, **gradients)
    return [out, lse, *gradients.values(), dtable]


def cases() -> st.SearchStrategy[Case]:
    """Shapes of no, one and several tiles; keys from anywhere in the index."""
    columns = st.integers(0, 300)
    return columns.flatmap(
        lambda columns: st.builds(
            Case,
            rows=st.integers(0, 130),
            columns=st.just(columns),
            keys=st.tuples(st.integers(0, columns), st.integers(0, columns)).map(lambda ends: tuple(sorted(ends))),
            heads=st.integers(1, 9),
            num_buckets=st.integers(1, 256),
            near=st.sampled_from([0.0, 0.02, 0.5, 1.0]),
            p=st.sampled_from([0.0, 0.3]),
            seed=st.integers(0, 5),
        )
    )


@settings(max_examples=40)
@given(case=cases(), rows=st.tuples(st.integers(0, 130), st.integers(0, 130)))
def test_any_rows_and_columns_of_either_form_are_the_same_tile(case: Case, rows: tuple[int, int]) -> None:
    dense, some = case.index(), slice(*sorted(rows))
    near = near_form(dense, far=case.num_buckets - 1)
    assert near.shape == dense.shape
    keys = slice(*case.keys)
    twice = among_columns(among_columns(near, slice(case.keys[0], None)), slice(0, case.keys[1] - case.keys[0]))
    for part in (among_columns(near, keys), twice):
        assert torch.equal(dense_rows(part, some), dense[some, keys])


@each_form
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases(), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_near_pairs_give_the_bits_of_the_dense_index(form: str, case: Case, dtype: torch.dtype) -> None:
    dense = case.index()
    near = near_form(dense, far=case.num_buckets - 1)
    found, expected = (compute(kernel_of(form), case, index, dtype) for index in (near, dense))
    for name, ours, exact in zip(("out", "lse", "dq", "dk", "dv", "dtable"), found, expected, strict=True):
        assert torch.equal(ours, exact), name


@each_form
def test_many_tiles_on_several_threads_give_the_bits_of_the_dense_index(form: str) -> None:
    torch.set_num_threads(3)
    case = Case(rows=300, columns=1300, keys=(130, 1270), heads=9, head_size=8, num_buckets=16, near=0.03, p=0.1)
    dense = case.index()
    found, expected = (
        compute(kernel_of(form), case, index, torch.float32) for index in (near_form(dense, far=15), dense)
    )
    assert all(torch.equal(ours, exact) for ours, exact in zip(found, expected, strict=True))


@each_form
def test_near_pairs_equal_the_textbook_form(form: str) -> None:
    case = Case(rows=40, columns=40, keys=(0, 40))
    dense, values = case.index(), case.values(torch.float64)
    grad_out = values.pop("grad_out")
    leaves = [values[name].requires_grad_() for name in ("q", "k", "v", "table")]
    q, k, v, table = leaves
    scores = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(case.head_size) + table[:, dense.long()]
    exact = torch.einsum("hij,jhd->ihd", scores.softmax(dim=2), v)
    ours = biased_attention(
        q,
        k=k,
        v=v,
        table=table,
        buckets=[near_form(dense, far=case.num_buckets - 1)],
        layout=whole((40,)),
        exchange=LocalExchange(),
        kernel=kernel_of(form),
    )
    torch.testing.assert_close(ours, exact, rtol=1e-10, atol=1e-10)
    found, expected = (torch.autograd.grad(out, leaves, grad_out) for out in (ours, exact))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@each_form
@pytest.mark.parametrize("place", ["far", "near"])
def test_a_bucket_past_the_table_is_an_error(form: str, place: str) -> None:
    case = Case(num_buckets=6)
    near = near_form(case.index(), far=5)
    if place == "near":
        near.buckets[-1] = 6
    else:
        near = replace(near, far=6)
    with pytest.raises((IndexError, RuntimeError)):
        compute(kernel_of(form), case, near, torch.float32)
