"""Sums over neighbours, products and attention: the compiled form equals the plain one, on any number of threads."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from workers.ops import native_aggregation
from workers.ops.aggregation import (
    attend_rows,
    expanded,
    linear,
    linear_by_head,
    sum_and_project,
    sum_neighbours,
)
from workers.ops.native import native_library
from workers.ops.neighbours import Neighbours, SparseRows, plain_expanded, plain_sum

pytestmark = pytest.mark.skipif(native_library() is None, reason="no native library is installed")

WIDTHS = [1, 3, 7, 8, 16, 33, 100, 130]
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}


@pytest.fixture(autouse=True)
def _keep_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["avx512", "avx2", "generic"])
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs the kernels in the form for one instruction set."""
    library = native_library()
    assert library
    if request.param not in library.instruction_sets:
        pytest.skip(f"this processor has no {request.param}")
    monkeypatch.setattr(native_aggregation, "_best", lambda: library.instruction_sets[request.param])
    return request.param


def block(
    num_targets: int = 70, num_sources: int = 300, *, seed: int = 0, dtype: torch.dtype = torch.float64, **extras: bool
) -> Neighbours:
    """Rows of zero to nine edges, a hub among them; with all that may multiply a row, unless told otherwise."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 9, size=num_targets)
    counts[num_targets // 2] = 200
    number = np.int64 if extras.get("wide") else np.int32
    sources = torch.from_numpy(rng.integers(num_sources, size=counts.sum()).astype(number))
    scales = {
        "weights": torch.from_numpy(rng.random(len(sources))).to(dtype),
        "source_scale": torch.from_numpy(rng.random(num_sources)).to(dtype),
        "target_scale": torch.from_numpy(rng.random(num_targets)).to(dtype),
        "own_scale": torch.from_numpy(rng.random(num_targets)).to(dtype),
    }
    if extras.get("bare"):
        scales = {}
    if extras.get("elsewhere"):
        scales["own_rows"] = torch.from_numpy(rng.permutation(num_sources)[:num_targets].astype(number))
    indptr = torch.from_numpy(np.concatenate([[0], counts.cumsum()]).astype(np.int32))
    return Neighbours(indptr, sources, num_sources, **scales)


def numbers(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).to(dtype).requires_grad_()


def gap(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, over the largest number if that is above one."""
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    return ((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1)).item()


def widest_gap(ours: Tensor, theirs: Tensor, *inputs: Tensor) -> float:
    """Of the results, and of the gradients of ``inputs`` under the same weights; NaN if any of them is."""
    weights = numbers(*ours.shape, dtype=ours.dtype, seed=9).detach()
    found = (torch.autograd.grad(side, inputs, weights) for side in (ours, theirs))
    return torch.tensor([gap(ours, theirs), *map(gap, *found)]).max().item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("beside_own", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_sums_equal_the_plain_form(width: int, beside_own: bool, dtype: torch.dtype, instruction_set: str) -> None:
    for extras in ({}, {"bare": True}, {"wide": True}):
        neighbours, x = block(dtype=dtype, **extras), numbers(300, width, dtype=dtype)
        ours = sum_neighbours(x, neighbours=neighbours, beside_own=beside_own)
        theirs = plain_sum(x, neighbours=neighbours, beside_own=beside_own)
        assert widest_gap(ours, theirs, x) <= TOLERANCE[dtype]


@pytest.mark.parametrize("wide", [False, True])
def test_own_rows_may_be_anywhere_and_rows_may_be_strided(wide: bool) -> None:
    neighbours, wider = block(elsewhere=True, wide=wide), numbers(300, 40).detach()
    for beside_own in (False, True):
        ours = sum_neighbours(wider[:, 5:25], neighbours=neighbours, beside_own=beside_own)
        theirs = plain_sum(wider[:, 5:25], neighbours=neighbours, beside_own=beside_own)
        assert gap(ours, theirs) <= TOLERANCE[torch.float64]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize(("rows", "inner", "columns"), [(1, 1, 1), (97, 5, 47), (203, 100, 16), (2500, 33, 130)])
def test_products_equal_torch(
    rows: int, inner: int, columns: int, relu: bool, dtype: torch.dtype, instruction_set: str
) -> None:
    x, weight, bias = (numbers(*shape, dtype=dtype) for shape in ((rows, inner), (columns, inner), (columns,)))
    theirs = functional.linear(x, weight, bias)
    theirs = theirs.relu() if relu else theirs
    assert widest_gap(linear(x, weight, bias, relu=relu), theirs, x, weight, bias) <= TOLERANCE[dtype]
    assert widest_gap(linear(x, weight), functional.linear(x, weight), x, weight) <= TOLERANCE[dtype]
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(0)).int()
    inside = x.detach()
    theirs = functional.linear(inside[order.long()], weight, bias)
    assert widest_gap(linear(inside, weight, bias, rows=order), theirs, weight, bias) <= TOLERANCE[dtype]


@pytest.mark.parametrize("relu", [False, True])
def test_products_by_head_equal_torch(relu: bool, instruction_set: str) -> None:
    x, weight, bias = numbers(1100, 3, 20), numbers(3, 9, 20), numbers(3, 9)
    theirs = torch.einsum("mhk,hck->mhc", x, weight) + bias
    ours = linear_by_head(x, weight, bias, relu=relu)
    assert widest_gap(ours, theirs.relu() if relu else theirs, x, weight, bias) <= TOLERANCE[torch.float64]


def sparse(num_rows: int, num_columns: int) -> tuple[SparseRows, Tensor]:
    """(rows, the same as a dense matrix)."""
    rng = np.random.default_rng(3)
    dense = rng.standard_normal((num_rows, num_columns)) * (rng.random((num_rows, num_columns)) < 0.1)
    rows, columns = dense.nonzero()
    begins = np.searchsorted(rows, np.arange(num_rows + 1))
    values = torch.from_numpy(dense[rows, columns].astype(np.float32))
    found = SparseRows(torch.from_numpy(begins), torch.from_numpy(columns.astype(np.int32)), values, num_columns)
    return found, torch.from_numpy(dense.astype(np.float32))


@pytest.mark.parametrize("beside_own", [False, True])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_sparse_rows_stay_sparse_and_give_what_dense_ones_do(beside_own: bool, elsewhere: bool) -> None:
    rows, dense = sparse(300, 50)
    neighbours = block(dtype=torch.float32, elsewhere=elsewhere)
    weight, bias = numbers(20, 50 * (1 + beside_own), dtype=torch.float32), numbers(20, dtype=torch.float32)
    options = {"neighbours": neighbours, "beside_own": beside_own, "relu": True}
    ours, theirs = (sum_and_project(side, weight, bias, **options) for side in (rows, dense))
    assert widest_gap(ours, theirs, weight, bias) <= TOLERANCE[torch.float32]
    ours = expanded(rows, neighbours=neighbours, beside_own=beside_own)
    theirs = plain_expanded(rows, neighbours=neighbours, beside_own=beside_own)
    assert torch.equal(ours.indptr, theirs.indptr)
    assert torch.equal(ours.sources, theirs.sources)
    assert gap(ours.weights, theirs.weights) <= TOLERANCE[torch.float32]


def attended(x: Tensor, vectors: Tensor, neighbours: Neighbours, *, with_self: bool) -> Tensor:
    """The definition, target by target."""
    out = []
    for target in range(neighbours.num_targets):
        own = target if neighbours.own_rows is None else int(neighbours.own_rows[target])
        begin, end = neighbours.indptr[target], neighbours.indptr[target + 1]
        rows = x[[*neighbours.sources[begin:end].tolist(), *([own] if with_self else [])]]
        scores = functional.leaky_relu(rows @ vectors[0].T + x[own] @ vectors[1].T, 0.2)
        out.append(torch.einsum("eh,ef->hf", scores.softmax(dim=0), rows))
    return torch.stack(out)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("width", "heads", "with_self"),
    [
        (3, 7, True),
        (3, 4, False),
        (8, 2, True),
        (21, 1, False),
        (21, 4, True),
        (100, 7, False),
        (100, 8, True),
        (100, 4, False),
    ],
)
def test_attention_equals_its_definition(
    width: int, heads: int, with_self: bool, dtype: torch.dtype, instruction_set: str
) -> None:
    neighbours = block(140, 220, bare=True)  # more than one unit of work
    x, vectors = numbers(220, width, dtype=dtype), numbers(2, heads, width, dtype=dtype)
    ours = attend_rows(
        x,
        neighbours=neighbours,
        source_vectors=vectors[0],
        target_vectors=vectors[1],
        negative_slope=0.2,
        with_self=with_self,
    )
    theirs = attended(x.double(), vectors.double(), neighbours, with_self=with_self)
    assert gap(ours, theirs.to(dtype)) <= TOLERANCE[dtype]
    weights = numbers(*ours.shape, seed=9).detach()
    found = torch.autograd.grad(ours, (x, vectors), weights.to(dtype))
    for mine, other in zip(found, torch.autograd.grad(theirs, (x, vectors), weights), strict=True):
        assert gap(mine, other) <= TOLERANCE[dtype]


def test_results_are_the_same_bits_for_any_number_of_threads() -> None:
    neighbours, x = block(3000, 5000, dtype=torch.float32), numbers(5000, 40, dtype=torch.float32)
    weight, vectors = numbers(30, 40, dtype=torch.float32), numbers(2, 4, 40, dtype=torch.float32)

    def everything(num_threads: int) -> list[Tensor]:
        torch.set_num_threads(num_threads)
        sums = attend_rows(
            linear(linear(sum_neighbours(x, neighbours=neighbours), weight, relu=True), weight.t()),
            neighbours=block(2000, 3000, bare=True),
            source_vectors=vectors[0],
            target_vectors=vectors[1],
            negative_slope=0.2,
            with_self=True,
        )
        return [sums, *torch.autograd.grad(sums.square().sum(), (x, weight, vectors))]

    for one, three in zip(everything(1), everything(3), strict=True):
        assert torch.equal(one, three)


def test_empty_blocks_give_empty_or_zero_rows() -> None:
    nothing = Neighbours(torch.zeros(1, dtype=torch.int32), torch.empty(0, dtype=torch.int32), 4)
    assert sum_neighbours(numbers(4, 9), neighbours=nothing).shape == (0, 9)
    isolated = Neighbours(torch.zeros(4, dtype=torch.int32), torch.empty(0, dtype=torch.int32), 4)
    assert not sum_neighbours(numbers(4, 9), neighbours=isolated).any()
    assert linear(numbers(0, 9), numbers(5, 9)).shape == (0, 5)
