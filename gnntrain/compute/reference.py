"""Every operator in plain torch operators, for any device; kernels are tested against these.

They also serve where there are no kernels (attention on a CPU). So they compute in chunks of edges,
without a tensor of edges × features, and by `index_select`, which on a CPU is four times faster
than `rows[numbers]` for rows that are a few heads wide.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gnntrain.compute import ops
from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.ops import Edges, Sum

# Numbers that a chunk of edges × features may hold (16 MiB of float32): small against the
# activations, large enough to keep the vector units busy.
MAX_CHUNK_ELEMENTS = 2**22


def gather(features: LazyFeatures, start: int, stop: int, dtype: torch.dtype) -> Tensor:
    """See `ops.SCHEMAS`, as for all functions that are named as operators."""
    return rows_of(features, start, stop).to(dtype)


def rows_of(features: LazyFeatures, start: int, stop: int) -> Tensor:
    """The rows `start … stop − 1` in their own type."""
    if features.nodes is None:
        nodes = torch.arange(start, stop, device=features.device)
    else:
        nodes = features.nodes[start:stop]
    if features.slots is None and features.parts is None:
        return features.rows[nodes.to(features.rows.device)].to(nodes.device)
    slots = torch.full_like(nodes, -1) if features.slots is None else features.slots[nodes].long()
    out = features.rows.new_empty(len(nodes), features.num_features)
    is_cached = slots >= 0
    out[is_cached] = features.rows[slots[is_cached]]
    for number, part in enumerate(features.held):
        here = ~is_cached & (nodes // features.part_rows == number)
        places = nodes[here] - number * features.part_rows
        out[here] = part[places.to(part.device)].to(out.device)
    return out


def transpose(indptr: Tensor, indices: Tensor, num_src: int) -> tuple[Tensor, Tensor, Tensor]:
    """The edges of a source keep their order; entries past `indptr[-1]` go behind all others."""
    kind, is_short = indices.dtype, indices.dtype == torch.int32
    numbers = torch.arange(len(indices), dtype=kind, device=indices.device)
    known = torch.where(numbers < indptr[-1], indices, num_src)
    sources, edge_ids = torch.sort(known, stable=True)
    edge_ids = edge_ids.to(kind)
    starts = torch.arange(num_src + 1, dtype=kind, device=indices.device)
    starts = torch.searchsorted(sources, starts, out_int32=is_short)
    destinations = torch.searchsorted(indptr, edge_ids, right=True, out_int32=is_short) - 1
    return starts, destinations, edge_ids


def aggregate(features: LazyFeatures, total: Sum, root: str, dtype: torch.dtype) -> Tensor:
    """By chunks of edges."""
    rows = rows_of(features, 0, len(features)).to(_exact(features.rows.dtype, dtype))
    width = rows.shape[1] // 2 if root == "added" else rows.shape[1]
    dst, src = edges_of(total.indptr, total.indices)
    factors = edge_factors(total).to(rows.dtype)
    out = rows.new_zeros(total.num_dst, width)
    for part in edge_chunks(len(dst), width):
        values = by_head(rows[src[part], :width], factors.shape[1])
        out.index_add_(0, dst[part], (values * factors[part].unsqueeze(-1)).flatten(1))
    if total.scale is not None:
        out *= total.scale.to(out.dtype).unsqueeze(1)
    own = rows[max(0, total.dst_offset + total.first_loop) :]
    if total.loop is not None:
        number = min(len(total.loop), total.num_dst - total.first_loop)
        stop = total.first_loop + number
        factors = total.loop[:number, None].to(out.dtype)
        out[total.first_loop : stop] += factors * own[:number, :width]
    if root == "added":
        number = min(len(rows), total.num_dst - total.first_loop)
        out[total.first_loop : total.first_loop + number] += own[:number, width:]
    if root == "beside":
        first = total.dst_offset
        out = torch.cat([out, rows[first : first + total.num_dst]], dim=1)
    return out.to(dtype)


def edge_products(rows: Tensor, grad: Tensor, total: Sum) -> Tensor:
    """⟨rows[src], grad[dst]⟩ by head, times all factors but the weight itself."""
    assert total.edge_weight is not None
    out = torch.zeros_like(total.edge_weight)
    dst, src = edges_of(total.indptr, total.indices)
    exact = _exact(rows.dtype, out.dtype)
    factors = edge_factors(total._replace(edge_weight=None))
    if total.scale is not None:
        factors = factors * total.scale[dst].unsqueeze(1)
    for part in edge_chunks(len(dst), rows.shape[1]):
        pairs = rows[src[part]].to(exact) * grad[dst[part]].to(exact)
        products = by_head(pairs, total.heads).sum(-1) * factors[part]
        out[part] = products.view(out[part].shape).to(out.dtype)
    return out


def aggregate_max(
    features: LazyFeatures, edges: Edges, dtype: torch.dtype, count: bool
) -> tuple[Tensor, Tensor]:
    """NaN is the largest."""
    indptr, indices, _ = edges
    rows = rows_of(features, 0, len(features)).to(_exact(features.rows.dtype, dtype))
    dst, src = edges_of(indptr, indices)
    out = rows.new_full((edges.num_dst, rows.shape[1]), -torch.inf)
    for part in edge_chunks(len(dst), rows.shape[1]):
        index = dst[part].unsqueeze(1).expand(-1, rows.shape[1])
        out.scatter_reduce_(0, index, rows[src[part]], "amax")
    out[indptr.diff() == 0] = 0
    ties = torch.zeros(out.shape if count else (0, 0), dtype=torch.int32, device=out.device)
    for part in edge_chunks(len(dst), rows.shape[1]) if count else ():
        is_top = rows[src[part]] == out[dst[part]]
        ties.index_add_(0, dst[part], is_top.to(ties.dtype))
    return out.to(dtype), ties


def aggregate_max_backward(
    grad: Tensor, rows: Tensor, out: Tensor, ties: Tensor, indptr: Tensor, indices: Tensor
) -> Tensor:
    """Over the out-edges: `indptr` has a row a source, `indices` are destinations."""
    exact = _exact(rows.dtype)
    shares = grad.to(exact) / ties.clamp(min=1)
    total = torch.zeros(rows.shape, dtype=exact, device=rows.device)
    src, dst = edges_of(indptr, indices)
    for part in edge_chunks(len(dst), rows.shape[1]):
        is_top = rows[src[part]] == out[dst[part]]
        total.index_add_(0, src[part], torch.where(is_top, shares[dst[part]], 0))
    return total.to(rows.dtype)


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
    loop_score: Tensor,
    slope: float,
    dst_offset: int,
    edges: Edges,
) -> tuple[Tensor, Tensor]:
    """The maximum is subtracted first, so that huge scores stay finite."""
    indptr, indices, _ = edges
    dst, src = edges_of(indptr, indices)
    is_own = (src == dst + dst_offset).unsqueeze(1)
    if target is None:
        alpha = score[: len(dst)].masked_fill(is_own, -torch.inf)
    else:
        alpha = F.leaky_relu_(_end_sums(score, target, src, dst), slope)
        alpha.masked_fill_(is_own, -torch.inf)
    top = torch.maximum(_segments(alpha, indptr, "max"), loop_score)
    alpha.sub_(top.index_select(0, dst)).exp_()
    loop_alpha = (loop_score - top).exp_()
    total = _segments(alpha, indptr, "sum") + loop_alpha
    alpha.div_(total.index_select(0, dst))
    return _padded(alpha, indices), loop_alpha.div_(total)


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
    indptr, indices, _ = edges
    dst, src = edges_of(indptr, indices)
    alpha = alpha[: len(dst)]
    weighted, loop_weighted = alpha * grad[: len(dst)], loop_alpha * loop_grad
    mean = _segments(weighted, indptr, "sum") + loop_weighted
    weighted.sub_(mean.index_select(0, dst).mul_(alpha))
    if score is not None and target is not None:
        sums = _end_sums(score, target, src, dst)
        weighted = torch.ops.aten.leaky_relu_backward(weighted, sums, slope, False)
    return _padded(weighted, indices), loop_weighted - loop_alpha * mean


def pair_scores(
    left: Tensor,
    right: Tensor,
    att: Tensor,
    slope: float,
    edges: Edges,
) -> Tensor:
    """By chunks of edges, in the type of `att`."""
    dst, src = edges_of(edges.indptr, edges.indices)
    score = att.new_empty(len(dst), att.shape[0])
    for part in edge_chunks(len(dst), left.shape[1]):
        pair = _pairs(left, right, src[part], dst[part], att)
        score[part] = F.leaky_relu_(pair, slope).mul_(att).sum(-1)
    return _padded(score, edges.indices)


def pair_scores_backward(
    grad: Tensor,
    left: Tensor,
    right: Tensor,
    att: Tensor,
    slope: float,
    edges: Edges,
    *_: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """By chunks of edges, whose pairs are computed again."""
    dst, src = edges_of(edges.indptr, edges.indices)
    # Sums over many edges: kept in the precision of the parameters.
    exact = torch.promote_types(att.dtype, torch.float32)
    grad_left = torch.zeros_like(left, dtype=exact)
    grad_right = torch.zeros_like(right, dtype=exact)
    grad_att = torch.zeros_like(att, dtype=exact)
    for part in edge_chunks(len(dst), left.shape[1]):
        pair = _pairs(left, right, src[part], dst[part], att)
        slopes = torch.full_like(pair, slope).masked_fill_(pair > 0, 1)
        weight = grad[part].unsqueeze(-1)
        grad_att += (pair.mul_(slopes) * weight).sum(0)
        pair_grad = slopes.mul_(weight * att).flatten(1).to(exact)
        grad_left.index_add_(0, src[part], pair_grad)
        grad_right.index_add_(0, dst[part], pair_grad)
    return grad_left.to(left.dtype), grad_right.to(right.dtype), grad_att.to(att.dtype)


def dropout(x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """The state is the mask, bool."""
    out, mask = torch.native_dropout(x, p, True)
    return out, mask


def dropout_backward(grad: Tensor, state: Tensor, p: float) -> Tensor:
    out: Tensor = torch.ops.aten.native_dropout_backward(grad, state, 1 / (1 - p))
    return out


def edges_of(indptr: Tensor, indices: Tensor | None) -> tuple[Tensor, Tensor]:
    """The destination and the source of each edge, int64; without the padding of a block."""
    rows = torch.arange(len(indptr) - 1, device=indptr.device)
    dst = rows.repeat_interleave(indptr.diff())
    src = torch.arange(len(dst), device=dst.device) if indices is None else indices[: len(dst)]
    return dst, src.long()


def by_head(rows: Tensor, heads: int) -> Tensor:
    """`[R, H·C]` viewed as `[R, H, C]`; also without rows."""
    return rows.reshape(rows.shape[0], heads, rows.shape[1] // heads)


def edge_chunks(num_edges: int, width: int) -> Iterator[slice]:
    """Ranges of edges whose edges × `width` tensor stays under `MAX_CHUNK_ELEMENTS`."""
    step = max(1, MAX_CHUNK_ELEMENTS // max(1, width))
    for start in range(0, num_edges, step):
        yield slice(start, min(start + step, num_edges))


def edge_factors(total: Sum) -> Tensor:
    """The factor of each edge's row, without `scale`; float64 `[num_edges, H]`."""
    dst, src = edges_of(total.indptr, total.indices)
    factors = torch.ones(len(dst), 1, dtype=torch.float64, device=dst.device)
    if total.edge_weight is not None:
        edges = slice(len(dst)) if total.edge_ids is None else total.edge_ids[: len(dst)].long()
        factors = total.edge_weight[edges].reshape(len(dst), total.heads).double()
    if total.source_scale is not None:
        factors = factors * total.source_scale[src].unsqueeze(1)
    if total.source_indptr is not None:
        factors = factors / total.source_indptr.diff()[src].unsqueeze(1)
    if total.is_mean:
        factors = factors / total.indptr.diff()[dst].unsqueeze(1)
    if total.skip_own:
        factors = factors * (src != dst + total.dst_offset).unsqueeze(1)
    return factors


def _exact(*dtypes: torch.dtype) -> torch.dtype:
    """The type of sums: float32, or float64 for float64 inputs."""
    return torch.float64 if torch.float64 in dtypes else torch.float32


def _segments(values: Tensor, indptr: Tensor, reduce: str) -> Tensor:
    """Sum or maximum over each destination's edges: `[num_edges, H]` → `[num_dst, H]`."""
    return torch.segment_reduce(values, reduce, offsets=indptr, axis=0, unsafe=True)


def _padded(values: Tensor, indices: Tensor) -> Tensor:
    """With a row of zeros for each padding edge."""
    if len(values) == len(indices):
        return values
    return F.pad(values, (0, 0, 0, len(indices) - len(values)))


def _end_sums(left: Tensor, right: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    """left[src] + right[dst] for every edge, in the type of `left`."""
    return left.index_select(0, src).add_(right.index_select(0, dst))


def _pairs(left: Tensor, right: Tensor, src: Tensor, dst: Tensor, att: Tensor) -> Tensor:
    """left[src] + right[dst] as `[edges, H, C]` in the type of `att`."""
    pair = left.index_select(0, src).to(att.dtype)
    pair += right.index_select(0, dst)
    return pair.view(-1, *att.shape)
