"""Every operator in plain torch operators, for any device; kernels are tested against these.

They also compute where there are no kernels: everything on a device with `compute.kernels=torch`,
GATv2's scores on a CPU. So nothing makes the host wait for the device. No tensor is edges ×
features: columns are computed some at a time. Rows are read where they lie. `embedding_bag` sums
over edges, in their order: equal runs give equal numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gnntrain.compute import ops
from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.ops import Edges, Sum

# Numbers that a tensor of some edges × features may hold (16 MiB of float32): small against the
# activations, large enough to keep the vector units busy.
MAX_CHUNK_ELEMENTS = 2**22
# The same for edges × some features: of few columns each cache line would be read several times.
MAX_COLUMN_ELEMENTS = 2**24
_INT32_MAX = 2**31 - 1


def gather(features: LazyFeatures, start: int, stop: int, dtype: torch.dtype) -> Tensor:
    """See `ops.SCHEMAS`, as for all functions that are named as operators."""
    if _is_plain(features) and features.nodes is None:
        return features.rows[start:stop].to(features.device, dtype, copy=True)
    return rows_at(features, torch.arange(start, stop, device=features.device)).to(dtype)


def rows_at(features: LazyFeatures, places: Tensor) -> Tensor:
    """The rows at these places (int32 or int64 `[n]`), in their own type; waits for parts."""
    nodes = places if features.nodes is None else features.nodes.index_select(0, places)
    if _is_plain(features):
        rows = features.rows
        return rows.index_select(0, nodes.to(rows.device)).to(nodes.device)
    slots = torch.full_like(nodes, -1) if features.slots is None else features.slots[nodes]
    out = features.rows.new_empty(len(nodes), features.num_features)
    is_cached = slots >= 0
    out[is_cached] = features.rows[slots[is_cached]]
    for number, part in enumerate(features.held):
        here = ~is_cached & (nodes // features.part_rows == number)
        own = nodes[here] - number * features.part_rows
        out[here] = part[own.to(part.device)].to(out.device)
    return out


def transpose(indptr: Tensor, indices: Tensor, num_src: int) -> tuple[Tensor, Tensor, Tensor]:
    """The edges of a source keep their order; padding goes behind all others, to the last one."""
    kind, is_short = indices.dtype, indices.dtype == torch.int32
    numbers = torch.arange(len(indices), dtype=kind, device=indices.device)
    known = torch.where(numbers < indptr[-1], indices, num_src)
    sources, edge_ids = torch.sort(known, stable=True)
    edge_ids = edge_ids.to(kind)
    starts = torch.arange(num_src + 1, dtype=kind, device=indices.device)
    starts = torch.searchsorted(sources, starts, out_int32=is_short)
    ends = torch.searchsorted(indptr[1:-1], edge_ids, right=True, out_int32=is_short)
    return starts, ends, edge_ids


def aggregate(features: LazyFeatures, total: Sum, root: str, dtype: torch.dtype) -> Tensor:
    """The sum over the edges, then the destinations' own rows."""
    exact, num_dst, first = _exact(features.rows.dtype, dtype), total.num_dst, total.first_loop
    width = features.num_features // 2 if root == "added" else features.num_features
    out = _row_sums(features, total, width, exact)
    scale = row_factors(total, exact)
    if scale is not None:
        out *= scale
    start = max(0, total.dst_offset + first)
    if total.loop is not None:
        number = min(len(total.loop), num_dst - first)
        own = gather(features, start, start + number, exact)[:, :width]
        out[first : first + number] += own * total.loop[:number, None]
    if root == "added":
        number = min(len(features), num_dst - first)
        out[first : first + number] += gather(features, start, start + number, exact)[:, width:]
    if root == "beside":
        own = gather(features, total.dst_offset, total.dst_offset + num_dst, dtype)
        return torch.cat([out.to(dtype), own], dim=1)
    return out.to(dtype)


def edge_products(rows: Tensor, grad: Tensor, total: Sum) -> Tensor:
    """⟨rows[src], grad[dst]⟩ by head, times all factors but the weight itself."""
    weight, src = total.edge_weight, total.indices
    assert weight is not None
    assert src is not None
    exact, dst = _exact(rows.dtype, weight.dtype), destinations(total.indptr, len(src))
    out = torch.empty(len(src), total.heads, dtype=exact, device=rows.device)
    for edges in _edge_chunks(len(src), rows.shape[1]):
        pairs = rows.index_select(0, src[edges]).to(exact)
        pairs.mul_(grad.index_select(0, dst[edges]))
        out[edges] = by_head(pairs, total.heads).sum(-1)
    factors = edge_factors(total._replace(edge_weight=None), src, exact)
    scale = row_factors(total, exact)
    if factors is not None:
        out *= factors
    if scale is not None:
        out *= scale.index_select(0, dst)
    return _fill_padding(out, total.indptr).view(weight.shape).to(weight.dtype)


def aggregate_max(
    features: LazyFeatures, edges: Edges, dtype: torch.dtype, count: bool
) -> tuple[Tensor, Tensor]:
    """Not a number is the largest."""
    indptr, indices, _ = edges
    exact, dst = _exact(features.rows.dtype, dtype), destinations(indptr, len(indices))
    size, is_empty = (edges.num_dst, features.num_features), (indptr.diff() == 0).unsqueeze(1)
    out = torch.empty(size, dtype=dtype, device=indptr.device)
    ties = torch.empty(size if count else (0, 0), dtype=torch.int32, device=indptr.device)
    for _, columns in _columns(size[1], len(indices)):
        values = rows_at(features.columns(columns), indices).to(exact)
        top = _maxima(_fill_padding(values, indptr, -torch.inf), dst, indptr)
        out[:, columns] = top.masked_fill_(is_empty, 0)
        if count:
            is_top = _fill_padding(values == top.index_select(0, dst), indptr)
            number = torch.zeros_like(top, dtype=torch.int32)
            ties[:, columns] = number.index_add_(0, dst, is_top.to(torch.int32))
    return out, ties


def aggregate_max_backward(
    grad: Tensor, rows: Tensor, out: Tensor, ties: Tensor, indptr: Tensor, indices: Tensor
) -> Tensor:
    """Over the out-edges: `indptr` has a row a source, `indices` are destinations."""
    shares = grad.to(_exact(rows.dtype)) / ties.clamp(min=1)
    found, src = torch.empty_like(rows), destinations(indptr, len(indices))
    for _, columns in _columns(rows.shape[1], len(indices)):
        tops = out[:, columns].index_select(0, indices)
        is_top = tops == rows[:, columns].index_select(0, src)
        values = shares[:, columns].index_select(0, indices)
        found[:, columns] = _edge_sums(values.where(is_top, 0), indptr)
    return found


def aggregate_linear(
    features: LazyFeatures,
    total: Sum,
    weight: Tensor,
    bias: Tensor,
    has_root: bool,
    dropout: float | None,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    """One aggregate in the type of the weight, and one product."""
    root = "beside" if has_root else "none"
    inputs = ops.aggregate(*features.arguments(), *total, root, weight.dtype)
    out = torch.addmm(bias, inputs, weight.t())
    if dropout is not None:
        out = F.dropout(out.relu_(), dropout)
    return out, inputs if keep else inputs.new_empty(0, inputs.shape[1])


def aggregate_linear_backward(
    grad: Tensor,
    weight: Tensor,
    inputs: Tensor,
    out: Tensor | None,
    dropout: float | None,
    dtype: torch.dtype,
    needs_inputs: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The mask of ReLU and dropout are the positive numbers of the result."""
    if out is not None:
        grad = torch.ops.aten.threshold_backward(grad, out, 0)
    factor = 1 / (1 - (dropout or 0.0))
    # With beta 0 the first argument gives only the shape.
    scaled: Any = {"beta": 0, "alpha": factor}
    grad_inputs = inputs.new_empty(0)
    if needs_inputs:
        grad_inputs = torch.addmm(inputs, grad, weight, **scaled)
    grad_weight = torch.addmm(weight, grad.t(), inputs, **scaled).to(dtype)
    return grad_inputs, grad_weight, grad.sum(0, dtype=dtype).mul_(factor)


def edge_softmax(
    score: Tensor,
    target: Tensor | None,
    loop_score: Tensor | None,
    slope: float,
    dst_offset: int,
    edges: Edges,
) -> tuple[Tensor, Tensor]:
    """The maximum is subtracted first, so that huge scores stay finite."""
    indptr, src, _ = edges
    dst = destinations(indptr, len(src))
    if target is None:
        alpha = score.clone()
    else:
        alpha = F.leaky_relu_(_end_sums(score, target, src, dst, score.dtype), slope)
    if loop_score is not None:
        alpha.masked_fill_((src == dst + dst_offset).unsqueeze(1), -torch.inf)
    _fill_padding(alpha, indptr, -torch.inf)
    top = _maxima(alpha, dst, indptr)
    if loop_score is not None:
        top = torch.maximum(top, loop_score)
    alpha.sub_(top.index_select(0, dst)).exp_()
    total = _edge_sums(alpha, indptr)
    if loop_score is None:
        alpha.div_(total.index_select(0, dst))
        # The padding's destination may have no in-edge: not a number.
        return _fill_padding(alpha, indptr), top.add_(total.log())
    loop_alpha = (loop_score - top).exp_()
    total += loop_alpha
    return alpha.div_(total.index_select(0, dst)), loop_alpha.div_(total)


def edge_softmax_backward(
    grad: Tensor,
    loop_grad: Tensor,
    alpha: Tensor,
    loop_alpha: Tensor,
    score: Tensor | None,
    target: Tensor | None,
    slope: float,
    edges: Edges,
) -> tuple[Tensor, Tensor]:
    """alpha · (grad − the mean of grad, weighted by alpha)."""
    indptr, src, _ = edges
    dst = destinations(indptr, len(src))
    weighted, loop_weighted = alpha * grad, loop_alpha * loop_grad
    mean = _edge_sums(weighted, indptr) + loop_weighted
    weighted.sub_(mean.index_select(0, dst).mul_(alpha))
    if score is not None and target is not None:
        sums = _end_sums(score, target, src, dst, score.dtype)
        weighted = torch.ops.aten.leaky_relu_backward(weighted, sums, slope, False)
    return _fill_padding(weighted, indptr), loop_weighted - loop_alpha * mean


def pair_scores(
    left: Tensor,
    right: Tensor,
    att: Tensor,
    slope: float,
    edges: Edges,
) -> Tensor:
    """In the type of `att`."""
    src, dst = edges.indices, destinations(edges.indptr, len(edges.indices))
    score = att.new_empty(len(src), len(att))
    for part in _edge_chunks(len(src), left.shape[1]):
        pair = F.leaky_relu_(_end_sums(left, right, src[part], dst[part], att.dtype), slope)
        score[part] = pair.view(-1, *att.shape).mul_(att).sum(-1)
    return _fill_padding(score, edges.indptr)


def pair_scores_backward(
    grad: Tensor,
    left: Tensor,
    right: Tensor,
    att: Tensor,
    slope: float,
    edges: Edges,
    out_indptr: Tensor,
    _: Tensor,
    out_edge_ids: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The pairs are computed again; sums are kept in float32 or finer."""
    src, dst = edges.indices, destinations(edges.indptr, len(edges.indices))
    flat, exact = att.flatten(), _exact(att.dtype)
    left_grad, right_grad, att_grad = (torch.empty_like(part) for part in (left, right, flat))
    grad = _fill_padding(grad.clone(), edges.indptr)
    for heads, columns in _columns(left.shape[1], len(src), len(att)):
        pair = _end_sums(left[:, columns], right[:, columns], src, dst, att.dtype)
        weight = grad[:, heads].unsqueeze(-1)
        scaled = (weight * by_head(flat[None, columns], weight.shape[1])).flatten(1)
        values = torch.ops.aten.leaky_relu_backward(scaled, pair, slope, False).to(exact)
        by_head(F.leaky_relu_(pair, slope), weight.shape[1]).mul_(weight)
        att_grad[columns] = pair.sum(0, dtype=exact)
        left_grad[:, columns] = _sums(values, out_edge_ids, out_indptr)
        right_grad[:, columns] = _edge_sums(values, edges.indptr)
    return left_grad, right_grad, att_grad.view(att.shape)


def by_head(rows: Tensor, heads: int) -> Tensor:
    """`[R, H·C]` viewed as `[R, H, C]`; also without rows."""
    return rows.reshape(rows.shape[0], heads, rows.shape[1] // heads)


def flat_heads(rows: Tensor, heads: int) -> tuple[Tensor, int]:
    """`[R, H·C]` viewed as `[…, C]`, and a step: head h of row r is row `r·step + h`.

    Some columns of a wider matrix are not copied, if its width is a multiple of C.
    """
    width, stride = rows.shape[1] // heads, rows.stride(0)
    if len(rows) < 2 or rows.stride(1) != 1 or stride % max(1, width):
        return rows.reshape(len(rows) * heads, width), heads
    step = stride // max(1, width)
    return rows.as_strided(((len(rows) - 1) * step + heads, width), (width, 1)), step


def destinations(indptr: Tensor, num_edges: int) -> Tensor:
    """The destination of each edge, in the type of `indptr`; padding belongs to the last one."""
    starts = torch.cat([indptr[:-1], indptr.new_full((1,), num_edges)])
    return torch.repeat_interleave(starts.diff(), output_size=num_edges)


def edge_factors(total: Sum, src: Tensor, dtype: torch.dtype) -> Tensor | None:
    """What each edge's row is multiplied by, `[num_edges, H or 1]`; None: by nothing."""
    factors: list[Tensor] = []
    if total.edge_weight is not None:
        weight, ids = total.edge_weight, total.edge_ids
        weight = weight if ids is None else weight.index_select(0, ids)
        factors.append(weight.reshape(len(src), total.heads))
    if total.source_scale is not None:
        factors.append(total.source_scale.index_select(0, src).unsqueeze(1))
    if total.source_indptr is not None:
        factors.append(_shares(total.source_indptr, dtype).index_select(0, src))
    if total.skip_own:
        dst = destinations(total.indptr, len(src))
        factors.append((src != dst + total.dst_offset).unsqueeze(1))
    return _product(factors, dtype)


def row_factors(total: Sum, dtype: torch.dtype) -> Tensor | None:
    """What each destination's sum is multiplied by, `[num_dst, 1]`; None: by nothing."""
    factors = [] if total.scale is None else [total.scale.unsqueeze(1)]
    if total.is_mean:
        factors.append(_shares(total.indptr, dtype))
    return _product(factors, dtype)


def _product(factors: list[Tensor], dtype: torch.dtype) -> Tensor | None:
    return reduce(torch.mul, [part.to(dtype) for part in factors]) if factors else None


def _shares(indptr: Tensor, dtype: torch.dtype) -> Tensor:
    """1 / the number of each row's edges, `[rows, 1]`."""
    return indptr.diff().clamp(min=1).to(dtype).reciprocal().unsqueeze(1)


def _row_sums(features: LazyFeatures, total: Sum, width: int, dtype: torch.dtype) -> Tensor:
    """Sums of the first `width` columns of rows times `edge_factors`, `[num_dst, width]`."""
    indptr, src, heads = total.indptr, total.indices, total.heads
    if src is None:
        src = torch.arange(len(features), dtype=indptr.dtype, device=indptr.device)
    by_edge = edge_factors(total, src, dtype)
    factors = [None] * heads if by_edge is None else by_edge.expand(-1, heads).t().contiguous()
    parts: list[Tensor] = []
    for own, rows, places in _tables(features, src, width, heads, dtype):
        number = own.stop - own.start
        flat, step = flat_heads(rows, number)
        places = places.long() if len(flat) > _INT32_MAX else places
        for head in range(number):
            at = places if step == 1 else places * step + head
            parts.append(_sums(flat, at, indptr, factors[own.start + head]))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _tables(
    features: LazyFeatures, src: Tensor, width: int, heads: int, dtype: torch.dtype
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """(heads, rows of their columns, each edge's place in them), together `width` columns.

    Rows of `dtype` in one matrix on the device are not copied. Of others some columns at a time:
    those of all rows, or those of each edge's row, whichever are fewer.
    """
    is_here = features.rows.device == src.device
    if is_here and features.rows.dtype == dtype and _is_plain(features):
        nodes = features.nodes
        places = src if nodes is None else nodes.index_select(0, src)
        yield slice(0, heads), features.rows[:, :width], places
        return
    by_edge = len(src) < len(features)
    number = min(len(src), len(features))
    numbers = torch.arange(number, dtype=src.dtype, device=src.device)
    wanted, places = (src, numbers) if by_edge else (numbers, src)
    for own, columns in _columns(width, len(wanted), heads):
        yield own, rows_at(features.columns(columns), wanted).to(dtype), places


def _edge_sums(values: Tensor, indptr: Tensor) -> Tensor:
    """Sums over each destination's edges of numbers by edge."""
    edges = torch.arange(len(values), dtype=indptr.dtype, device=indptr.device)
    return _sums(values, edges, indptr)


def _sums(rows: Tensor, places: Tensor, indptr: Tensor, factors: Tensor | None = None) -> Tensor:
    """Sums over each destination's edges of the rows at the edges' places, times factors."""
    if rows.numel() == 0 or len(places) == 0:
        return rows.new_zeros(len(indptr) - 1, rows.shape[1])
    # One bag more than destinations: it takes the padding.
    bags = F.embedding_bag(places, rows, indptr, mode="sum", per_sample_weights=factors)
    return bags[:-1]


def _maxima(values: Tensor, dst: Tensor, indptr: Tensor) -> Tensor:
    """The largest number by edge of each destination; −∞ without an edge."""
    if values.device.type == "cpu":  # which scatters one number after the other
        return torch.segment_reduce(values, "max", offsets=indptr, axis=0, unsafe=True)
    top = values.new_full((len(indptr) - 1, values.shape[1]), -torch.inf)
    return top.scatter_reduce_(0, dst.long().unsqueeze(1).expand_as(values), values, "amax")


def _fill_padding(by_edge: Tensor, indptr: Tensor, fill: float = 0) -> Tensor:
    """Put `fill` in the rows past `indptr[-1]`, in place."""
    edges = torch.arange(len(by_edge), dtype=indptr.dtype, device=indptr.device)
    return by_edge.masked_fill_((edges >= indptr[-1]).unsqueeze(1), fill)


def _edge_chunks(num_edges: int, width: int) -> Iterator[slice]:
    """Ranges of edges, so that edges × `width` stay in `MAX_CHUNK_ELEMENTS`."""
    step = max(1, MAX_CHUNK_ELEMENTS // max(1, width))
    for start in range(0, num_edges, step):
        yield slice(start, min(start + step, num_edges))


def _columns(width: int, num_rows: int, heads: int = 1) -> Iterator[tuple[slice, slice]]:
    """(heads, their columns or, of one, some): rows × columns stay in `MAX_COLUMN_ELEMENTS`."""
    if width == 0:
        yield slice(0, heads), slice(0, 0)
        return
    most, per_head = max(1, MAX_COLUMN_ELEMENTS // max(1, num_rows)), width // heads
    many = max(1, most // max(1, per_head))
    step = min(most, many * per_head)
    for head in range(0, heads, many):
        last = min(head + many, heads)
        for start in range(head * per_head, last * per_head, step):
            yield slice(head, last), slice(start, min(start + step, last * per_head))


def _is_plain(features: LazyFeatures) -> bool:
    """Whether all rows are in one matrix."""
    return features.slots is None and features.parts is None


def _exact(*dtypes: torch.dtype) -> torch.dtype:
    """The type of sums: float32, or float64 for float64 inputs."""
    return torch.float64 if torch.float64 in dtypes else torch.float32


def _end_sums(left: Tensor, right: Tensor, src: Tensor, dst: Tensor, dtype: torch.dtype) -> Tensor:
    """left[src] + right[dst] for every edge."""
    return left.index_select(0, src).to(dtype).add_(right.index_select(0, dst))


def adam_rows(
    weight: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    nodes: Tensor,
    grad: Tensor,
    beta1: float,
    beta2: float,
    decay: float,
    l2: float,
    step_size: float,
    root: float,
    eps: float,
) -> None:
    row, first, second = (m.index_select(0, nodes) for m in (weight, exp_avg, exp_avg_sq))
    grad = grad.to(row.dtype).add(row, alpha=l2)
    first.lerp_(grad, 1 - beta1)
    second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    row.mul_(decay).addcdiv_(first, second.sqrt().div_(root).add_(eps), value=-step_size)
    for matrix, changed in ((weight, row), (exp_avg, first), (exp_avg_sq, second)):
        matrix.index_copy_(0, nodes, changed)
