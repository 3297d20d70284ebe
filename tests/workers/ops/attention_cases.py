"""Blocks of attention with drawn numbers, by the textbook in float64 and by a kernel; on any device, without pytest."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.ops.attend_block import merge, sum_type
from workers.ops.attention_dropout import AttentionDropout, PairDropout
from workers.ops.attention_kernels import AttentionKernel


@dataclass(frozen=True)
class Case:
    """A block of attention and the gradient of its output; ``node_ids`` of its keys, the first of them its rows'."""

    rows: int = 70
    keys: int = 130
    heads: int = 3
    head_size: int = 5
    buckets: int = 6
    p: float = 0.0
    seed: int = 0
    device: str = "cpu"

    def values(self, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
        """As the callers have them: slices of wider tensors."""
        generator = torch.Generator().manual_seed(self.seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(self.device, dtype)

        kv = normal(self.keys, 2, self.heads, self.head_size)
        pairs = torch.randint(self.buckets, (self.rows, self.keys + 5), generator=generator, dtype=torch.uint8)
        pairs = pairs.to(self.device)
        return {
            "q": normal(self.rows, self.heads, self.head_size + 2)[..., 2:],
            "k": kv[:, 0],
            "v": kv[:, 1],
            "buckets": pairs[:, 3 : self.keys + 3],
            "table": normal(self.heads, self.buckets),
        }

    def grad_out(self, dtype: torch.dtype = torch.float64) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed + 100)
        by_head = torch.randn(self.heads, self.rows, self.head_size, generator=generator, dtype=torch.float64)
        return by_head.to(self.device, dtype).transpose(0, 1)

    def dropout(self, rows: slice | None = None, columns: slice | None = None) -> PairDropout | None:
        if not self.p:
            return None
        ids = torch.arange(max(self.rows, self.keys), device=self.device) * 7 + 1
        whole = AttentionDropout(self.p, site=3, draw=11, node_ids=[ids])
        return whole.of_pairs(
            0, rows=rows or slice(self.rows), columns=columns or slice(self.keys), heads=range(self.heads)
        )


def dense(case: Case, *, rounded_to: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """Output, log-sum-exp and the gradients of q, k, v, table by autograd, in float64, of numbers in ``rounded_to``."""
    values, grad_out = case.values(rounded_to), case.grad_out(rounded_to).double()
    leaves = [values[name].double().requires_grad_() for name in ("q", "k", "v", "table")]
    q, k, v, table = leaves
    scores = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(case.head_size) + table[:, values["buckets"].long()]
    weights = scores.softmax(dim=2)
    if dropout := case.dropout():
        weights = weights * dropout.factors(slice(None), dtype=weights.dtype)
    out = torch.einsum("hij,jhd->ihd", weights, v)
    gradients = torch.autograd.grad(out, leaves, grad_out)
    return tuple(x.detach() for x in (out, scores.logsumexp(dim=2).t(), *gradients))


def compute(kernel: AttentionKernel, case: Case, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The same by a kernel."""
    values, grad_out, dropout = case.values(dtype), case.grad_out(dtype), case.dropout()
    out, lse = kernel.attend_block(**values, dropout=dropout)
    delta, sums = (grad_out * out).sum(dim=2), sum_type(dtype)
    gradients = {"grad_" + name: torch.full_like(values[name], float(name == "q"), dtype=sums) for name in "qkv"}
    dtable = kernel.attend_block_backward(grad_out, **values, lse=lse, delta=delta, dropout=dropout, **gradients)
    gradients["grad_q"] -= 1  # it is added to
    return out, lse, *gradients.values(), dtable


def merged(kernel: AttentionKernel, case: Case, dtype: torch.dtype, *, cut: int) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp over the keys before ``cut`` and those from there on, merged."""
    values = case.values(dtype)
    (out, lse), (other_out, other_lse) = (
        kernel.attend_block(
            values["q"],
            k=values["k"][keys],
            v=values["v"][keys],
            buckets=values["buckets"][:, keys],
            table=values["table"],
            dropout=case.dropout(columns=keys),
        )
        for keys in (slice(0, cut), slice(cut, case.keys))
    )
    return merge(out, lse, other_out=other_out, other_lse=other_lse)


def assert_near(ours: tuple[Tensor, ...], exact: tuple[Tensor, ...], *, tolerance: float) -> None:
    for name, found, expected in zip(("out", "lse", "dq", "dk", "dv", "dtable"), ours, exact, strict=True):
        scale = max([1.0, *expected[expected.isfinite()].abs().flatten().tolist()])
        torch.testing.assert_close(
            found.double(), expected, rtol=0, atol=tolerance * scale, msg=lambda text, name=name: f"{name}: {text}"
        )


def kept_weights(kernel: AttentionKernel, case: Case, dtype: torch.dtype, **cut: slice) -> Tensor:
    """Bool [rows, heads, keys]: values that are unit vectors make the output the weights themselves."""
    rows, columns = cut.get("rows", slice(case.rows)), cut.get("columns", slice(case.keys))
    values = case.values(dtype)
    units = torch.eye(case.keys, dtype=dtype, device=case.device).unsqueeze(1).expand(-1, case.heads, -1)
    wide = torch.zeros(case.keys, case.heads, case.keys, dtype=dtype, device=case.device)
    out, _ = kernel.attend_block(
        wide[: case.rows][rows],
        k=wide[columns],
        v=units[columns],
        buckets=values["buckets"][rows, columns],
        table=values["table"],
        dropout=case.dropout(rows, columns),
    )
    return out[..., columns] != 0
