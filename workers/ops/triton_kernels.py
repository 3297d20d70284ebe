"""CUDA kernels of attention with a learned distance bias, in Triton; ``workers.ops.triton_attention`` launches them.

    forward_kernel          a block of rows: online softmax over tiles of keys            out, log-sum-exp
    query_gradient_kernel   a block of rows, scores computed anew                         dq, partial sums of dtable
    key_gradient_kernel     a block of keys, scores computed anew                         dk, dv

Sources: Dao, "FlashAttention-2", 2023, sections 3.1 and 3.2 (tiles, who owns which gradient); Milakov and Gimelshein,
"Online normalizer calculation for softmax", 2018. Every number is written by one program, and each program walks its
tiles in order, so results are the same bits in every run. Exponentials are of two: scores carry a factor log2(e).

Shapes: n rows, m keys, H heads, d_h head size, B buckets. A program has one head. Rows and heads are found by strides,
the numbers of one head lie side by side; ``WIDTH`` is d_h filled up to a power of two. Rows and keys past the end count
for nothing. A bucket past the table gives NaN, so the run ends with its first loss.
"""

import triton
import triton.language as tl

from workers.ops.counter_dropout import MIX32

_LOG2_E = tl.constexpr(1.4426950408889634)
_MIX_FIRST, _MIX_SECOND = (tl.constexpr(factor) for factor in MIX32)
# A kernel is compiled anew for sizes that are one or multiples of 16; graphs of a batch have every size.
_ANY_SIZE = ["num_rows", "num_keys", "threshold"]


@triton.jit
def _rows_of(x, rows, row_stride, head, head_stride, num_rows, HEAD_SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """[rows, WIDTH] of ``x``, zeros past the ends."""
    numbers = tl.arange(0, WIDTH)
    places = x + rows[:, None].to(tl.int64) * row_stride + head * head_stride + numbers[None, :]
    return tl.load(places, mask=(rows[:, None] < num_rows) & (numbers[None, :] < HEAD_SIZE), other=0.0)


@triton.jit
def _store_rows(x, values, rows, row_stride, head, head_stride, num_rows, HEAD_SIZE: tl.constexpr, WIDTH: tl.constexpr):
    numbers = tl.arange(0, WIDTH)
    places = x + rows[:, None].to(tl.int64) * row_stride + head * head_stride + numbers[None, :]
    tl.store(places, values, mask=(rows[:, None] < num_rows) & (numbers[None, :] < HEAD_SIZE))


@triton.jit
def _bucket_tile(buckets, rows, columns, row_stride, num_rows, num_keys):
    """int32 [rows, columns]."""
    places = buckets + rows[:, None].to(tl.int64) * row_stride + columns[None, :]
    return tl.load(places, mask=(rows[:, None] < num_rows) & (columns[None, :] < num_keys), other=0).to(tl.int32)


@triton.jit
def _scores(q, k, bucket, columns, table, head, scale, num_keys, num_buckets):
    """[rows, columns] in log2, -inf past the last key."""
    bias = tl.load(table + head * num_buckets + bucket, mask=bucket < num_buckets, other=float("nan")).to(tl.float32)
    scores = (tl.dot(q, tl.trans(k), input_precision="ieee") * scale + bias) * _LOG2_E
    return tl.where(columns[None, :] < num_keys, scores, float("-inf"))


@triton.jit
def _kept(rows, columns, row_bits, column_bits, head, num_rows, num_keys, threshold):
    """Bool [rows, columns]: ``counter_dropout.is_kept`` on int32, whose sums and products wrap around."""
    of_rows = tl.load(row_bits + head * num_rows + rows, mask=rows < num_rows, other=0)
    of_columns = tl.load(column_bits + columns, mask=columns < num_keys, other=0)
    bits = of_rows[:, None] + of_columns[None, :]
    bits = (bits ^ (bits >> 16)) * _MIX_FIRST
    bits = (bits ^ (bits >> 13)) * _MIX_SECOND
    return bits >= threshold


@triton.jit
def _row_sums(lse, delta, rows, head, num_rows, num_heads):
    """(log-sum-exp in log2, delta) of ``rows``; of those past the end such that no pair weighs anything."""
    of_rows = rows.to(tl.int64) * num_heads + head
    row_lse = tl.load(lse + of_rows, mask=rows < num_rows, other=float("inf")) * _LOG2_E
    return row_lse, tl.load(delta + of_rows, mask=rows < num_rows, other=0.0)


@triton.jit
def _pair_gradients(
    q,
    k,
    v,
    grad_out,
    row_lse,
    row_delta,
    bucket,
    rows,
    columns,
    table,
    row_bits,
    column_bits,
    head,
    num_rows,
    num_keys,
    num_buckets,
    scale,
    threshold,
    keep_scale,
    DROPS: tl.constexpr,
):
    """(weights that forward mixed values with, gradients of the scores), both [rows, columns], of one tile."""
    scores = _scores(q, k, bucket, columns, table, head, scale, num_keys, num_buckets)
    weights = tl.exp2(scores - row_lse[:, None])
    grad_weights = tl.dot(grad_out, tl.trans(v), input_precision="ieee")
    used = weights
    if DROPS:
        kept = _kept(rows, columns, row_bits, column_bits, head, num_rows, num_keys, threshold)
        used = tl.where(kept, weights * keep_scale, 0.0)
        grad_weights = tl.where(kept, grad_weights * keep_scale, 0.0)
    return used, weights * (grad_weights - row_delta[:, None])


@triton.jit
def _add_by_bucket(sums, values, bucket, first, GROUP: tl.constexpr):
    """Add the sum over each row of ``values`` to ``sums`` [rows, GROUP], for buckets from ``first`` on.

    Only buckets between the tile's lowest and highest are looked for: a tile of far pairs costs one pass.
    """
    lowest = tl.maximum(tl.min(bucket), first)
    highest = tl.minimum(tl.max(bucket), first + GROUP - 1)
    slots = tl.arange(0, GROUP) + first
    for number in range(lowest, highest + 1):
        of_rows = tl.sum(tl.where(bucket == number, values, 0.0), axis=1)
        sums += tl.where(slots[None, :] == number, of_rows[:, None], 0.0)
    return sums


@triton.jit(do_not_specialize=_ANY_SIZE)
def forward_kernel(
    q,
    k,
    v,
    buckets,
    table,
    row_bits,
    column_bits,
    out,
    lse,
    num_rows,
    num_keys,
    num_buckets,
    num_heads,
    q_row,
    q_head,
    k_row,
    k_head,
    v_row,
    v_head,
    out_row,
    out_head,
    buckets_row,
    scale,
    threshold,
    keep_scale,
    HEAD_SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    DROPS: tl.constexpr,
):
    """Program (block of rows, head): ``out`` [n, H, d_h] and ``lse`` [n, H] over all m > 0 keys."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1)
    own_q = _rows_of(q, rows, q_row, head, q_head, num_rows, HEAD_SIZE, WIDTH)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(0, num_keys, KEYS):
        columns = start + tl.arange(0, KEYS)
        tile_k = _rows_of(k, columns, k_row, head, k_head, num_keys, HEAD_SIZE, WIDTH)
        tile_v = _rows_of(v, columns, v_row, head, v_head, num_keys, HEAD_SIZE, WIDTH)
        bucket = _bucket_tile(buckets, rows, columns, buckets_row, num_rows, num_keys)
        scores = _scores(own_q, tile_k, bucket, columns, table, head, scale, num_keys, num_buckets)
        higher = tl.maximum(top, tl.max(scores, axis=1))
        weights = tl.exp2(scores - higher[:, None])
        shrinks = tl.exp2(top - higher)
        total = total * shrinks + tl.sum(weights, axis=1)
        if DROPS:
            kept = _kept(rows, columns, row_bits, column_bits, head, num_rows, num_keys, threshold)
            weights = tl.where(kept, weights * keep_scale, 0.0)
        mixed = mixed * shrinks[:, None] + tl.dot(weights.to(tile_v.dtype), tile_v, input_precision="ieee")
        top = higher
    _store_rows(out, mixed / total[:, None], rows, out_row, head, out_head, num_rows, HEAD_SIZE, WIDTH)
    of_rows = lse + rows.to(tl.int64) * num_heads + head
    tl.store(of_rows, (top + tl.log2(total)) / _LOG2_E, mask=rows < num_rows)


@triton.jit(do_not_specialize=_ANY_SIZE)
def query_gradient_kernel(
    grad_out,
    q,
    k,
    v,
    buckets,
    table,
    row_bits,
    column_bits,
    lse,
    delta,
    grad_q,
    partial_sums,
    num_rows,
    num_keys,
    num_buckets,
    num_heads,
    grad_out_row,
    grad_out_head,
    q_row,
    q_head,
    k_row,
    k_head,
    v_row,
    v_head,
    grad_q_row,
    grad_q_head,
    buckets_row,
    scale,
    threshold,
    keep_scale,
    HEAD_SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    GROUP: tl.constexpr,
    DROPS: tl.constexpr,
):
    """Program (block of rows, head, group of buckets): adds dq to ``grad_q`` (the first group's programs do).

    ``partial_sums`` float64 [blocks, H, B] gets the block's share of dtable.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1)
    group = tl.program_id(2)
    own_q = _rows_of(q, rows, q_row, head, q_head, num_rows, HEAD_SIZE, WIDTH)
    own_grad = _rows_of(grad_out, rows, grad_out_row, head, grad_out_head, num_rows, HEAD_SIZE, WIDTH)
    own_lse, own_delta = _row_sums(lse, delta, rows, head, num_rows, num_heads)
    total = tl.zeros([ROWS, WIDTH], tl.float32)
    sums = tl.zeros([ROWS, GROUP], tl.float32)
    for start in range(0, num_keys, KEYS):
        columns = start + tl.arange(0, KEYS)
        tile_k = _rows_of(k, columns, k_row, head, k_head, num_keys, HEAD_SIZE, WIDTH)
        tile_v = _rows_of(v, columns, v_row, head, v_head, num_keys, HEAD_SIZE, WIDTH)
        bucket = _bucket_tile(buckets, rows, columns, buckets_row, num_rows, num_keys)
        _, grad_scores = _pair_gradients(
            own_q,
            tile_k,
            tile_v,
            own_grad,
            own_lse,
            own_delta,
            bucket,
            rows,
            columns,
            table,
            row_bits,
            column_bits,
            head,
            num_rows,
            num_keys,
            num_buckets,
            scale,
            threshold,
            keep_scale,
            DROPS,
        )
        if group == 0:
            total += tl.dot(grad_scores.to(tile_k.dtype), tile_k, input_precision="ieee")
        sums = _add_by_bucket(sums, grad_scores, bucket, group * GROUP, GROUP)
    if group == 0:
        before = _rows_of(grad_q, rows, grad_q_row, head, grad_q_head, num_rows, HEAD_SIZE, WIDTH)
        _store_rows(grad_q, before + total * scale, rows, grad_q_row, head, grad_q_head, num_rows, HEAD_SIZE, WIDTH)
    slots = group * GROUP + tl.arange(0, GROUP)
    of_block = partial_sums + (tl.program_id(0) * num_heads + head).to(tl.int64) * num_buckets + slots
    tl.store(of_block, tl.sum(sums.to(tl.float64), axis=0), mask=slots < num_buckets)


@triton.jit(do_not_specialize=_ANY_SIZE)
def key_gradient_kernel(
    grad_out,
    q,
    k,
    v,
    buckets,
    table,
    row_bits,
    column_bits,
    lse,
    delta,
    grad_k,
    grad_v,
    num_rows,
    num_keys,
    num_buckets,
    num_heads,
    grad_out_row,
    grad_out_head,
    q_row,
    q_head,
    k_row,
    k_head,
    v_row,
    v_head,
    grad_k_row,
    grad_k_head,
    grad_v_row,
    grad_v_head,
    buckets_row,
    scale,
    threshold,
    keep_scale,
    HEAD_SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    DROPS: tl.constexpr,
):
    """Program (block of keys, head): writes dk and dv of its keys, summed over all n rows."""
    columns = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    head = tl.program_id(1)
    own_k = _rows_of(k, columns, k_row, head, k_head, num_keys, HEAD_SIZE, WIDTH)
    own_v = _rows_of(v, columns, v_row, head, v_head, num_keys, HEAD_SIZE, WIDTH)
    total_k = tl.zeros([KEYS, WIDTH], tl.float32)
    total_v = tl.zeros([KEYS, WIDTH], tl.float32)
    for start in range(0, num_rows, ROWS):
        rows = start + tl.arange(0, ROWS)
        tile_q = _rows_of(q, rows, q_row, head, q_head, num_rows, HEAD_SIZE, WIDTH)
        tile_grad = _rows_of(grad_out, rows, grad_out_row, head, grad_out_head, num_rows, HEAD_SIZE, WIDTH)
        tile_lse, tile_delta = _row_sums(lse, delta, rows, head, num_rows, num_heads)
        bucket = _bucket_tile(buckets, rows, columns, buckets_row, num_rows, num_keys)
        used, grad_scores = _pair_gradients(
            tile_q,
            own_k,
            own_v,
            tile_grad,
            tile_lse,
            tile_delta,
            bucket,
            rows,
            columns,
            table,
            row_bits,
            column_bits,
            head,
            num_rows,
            num_keys,
            num_buckets,
            scale,
            threshold,
            keep_scale,
            DROPS,
        )
        total_v += tl.dot(tl.trans(used.to(tile_grad.dtype)), tile_grad, input_precision="ieee")
        total_k += tl.dot(tl.trans(grad_scores.to(tile_q.dtype)), tile_q, input_precision="ieee")
    _store_rows(grad_k, total_k * scale, columns, grad_k_row, head, grad_k_head, num_keys, HEAD_SIZE, WIDTH)
    _store_rows(grad_v, total_v, columns, grad_v_row, head, grad_v_head, num_keys, HEAD_SIZE, WIDTH)
