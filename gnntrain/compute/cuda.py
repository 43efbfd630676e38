"""The operators on a GPU: the Triton kernels. No function synchronises."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gnntrain.compute import reference
from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.launching import (
    Chunks,
    Tile,
    exact_type,
    launch,
    launch_by_edge,
    launch_by_row,
    num_parts,
)
from gnntrain.compute.ops import Edges, Sum

transpose = reference.transpose

_MOST_BYTES = 16
"""What a thread reads at once."""


def gather(features: LazyFeatures, start: int, stop: int, dtype: torch.dtype) -> Tensor:
    """See `ops.SCHEMAS`, as for all functions that are named as operators."""
    width, number = features.num_features, stop - start
    out = torch.empty(number, width, dtype=dtype, device=features.device)
    tile = Tile.of(width)
    grid = num_parts(number, tile.rows), num_parts(width, tile.block)
    args = {**_places(features), "first": start, "num_rows": number}
    launch("triton_kernels.gather_rows", grid, tile, width, out=out, **args)
    return out


def aggregate(features: LazyFeatures, total: Sum, root: str, dtype: torch.dtype) -> Tensor:
    width = features.num_features // 2 if root == "added" else features.num_features
    across = 2 * width if root == "beside" else width
    out = torch.empty(total.num_dst, across, dtype=dtype, device=total.indptr.device)
    weight, loop, adds_own = total.edge_weight, total.loop, root == "added"
    num_edges = len(features.rows if total.indices is None else total.indices)
    launch_by_row(
        "triton_kernels.reduce_rows",
        out,
        width,
        Chunks.of(num_edges, total.max_in_edges),
        **_places(features),
        indptr=total.indptr,
        indices=total.indices,
        edges=total.edge_ids,
        edge_weight=None if weight is None else weight.contiguous(),
        source_scale=total.source_scale,
        source_indptr=total.source_indptr,
        row_scale=total.scale,
        loop=loop,
        first_loop=total.first_loop,
        num_loops=len(loop) if loop is not None else len(features) * adds_own,
        own=total.dst_offset,
        HEADS=total.heads,
        IS_MEAN=total.is_mean,
        SKIP_OWN=total.skip_own,
        PUTS_OWN=root == "beside",
        ADDS_OWN=adds_own,
    )
    return out


def edge_products(rows: Tensor, grad: Tensor, total: Sum) -> Tensor:
    assert total.edge_weight is not None
    assert total.indices is not None
    out = torch.zeros_like(total.edge_weight, memory_format=torch.contiguous_format)
    width, heads = rows.shape[1], total.heads
    rows = LazyFeatures.of(rows).rows
    chunks = Chunks.of(len(total.indices), total.max_in_edges)
    launch_by_edge(
        "triton_kernels.edge_products",
        total.num_dst,
        heads,
        Tile.of(width // heads, chunks, total.num_dst),
        width,
        chunks,
        out=out,
        rows=rows,
        STRIDE=rows.stride(0),
        grad=grad.contiguous(),
        indptr=total.indptr,
        indices=total.indices,
        source_scale=total.source_scale,
        row_scale=total.scale,
        own=total.dst_offset,
        HEADS=heads,
        IS_MEAN=total.is_mean,
        SKIP_OWN=total.skip_own,
    )
    return out


def aggregate_max(
    features: LazyFeatures, edges: Edges, dtype: torch.dtype, count: bool
) -> tuple[Tensor, Tensor]:
    width = features.num_features
    out = torch.empty(edges.num_dst, width, dtype=dtype, device=edges.indptr.device)
    ties = torch.empty(out.shape if count else (0, 0), dtype=torch.int32, device=out.device)
    args: dict[str, Any] = {**_places(features), **_tables(edges)}
    also = {"ties": ties if count else None}
    launch_by_row("triton_maximum.max_rows", out, width, _chunks_of(edges), also, **args)
    return out, ties


def aggregate_max_backward(
    grad: Tensor, rows: Tensor, out: Tensor, ties: Tensor, indptr: Tensor, indices: Tensor
) -> Tensor:
    grad_rows, chunks = torch.empty_like(rows), Chunks.of(len(indices))
    args: dict[str, Any] = {"rows": rows, "tops": out, "ties": ties, "grad": grad}
    args |= {"indptr": indptr, "indices": indices}
    launch_by_row("triton_maximum.spread_maximum", grad_rows, rows.shape[1], chunks, **args)
    return grad_rows


def edge_softmax(
    score: Tensor,
    target: Tensor | None,
    loop_score: Tensor | None,
    slope: float,
    dst_offset: int,
    edges: Edges,
) -> tuple[Tensor, Tensor]:
    heads, num_dst = score.shape[1], edges.num_dst
    tops, totals, out = (score.new_empty(num_dst, heads) for _ in range(3))
    alpha = score.new_zeros(len(edges.indices), heads)
    own = dst_offset if loop_score is not None else -num_dst  # no source has such a number
    args: dict[str, Any] = {"rows": score, "target": target, "loop_score": loop_score}
    args |= {"own": own, "SLOPE": slope, **_tables(edges)}
    name, place = "triton_attention.softmax_sums", (heads, _chunks_of(edges))
    launch_by_row(name, tops, *place, {"totals": totals}, **args)
    args |= {"tops": tops, "totals": totals, "alpha": alpha}
    _launch_by_head("softmax_weights", out, edges, **args)
    return alpha, out


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
    grad = grad.contiguous()
    score_grad, out = torch.zeros_like(alpha), torch.empty_like(loop_alpha)
    weighted = Sum(edges.indptr, None, edge_weight=alpha, max_in_edges=edges.max_in_edges)
    sums = aggregate(LazyFeatures(grad), weighted, "none", alpha.dtype)
    args: dict[str, Any] = {"rows": alpha, "grad": grad, "sums": sums, "loop_alpha": loop_alpha}
    args |= {"loop_grad": loop_grad.contiguous(), "source": score, "target": target}
    args |= {"score_grad": score_grad, "SLOPE": slope, **_tables(edges)}
    _launch_by_head("softmax_gradient", out, edges, **args)
    return score_grad, out


def _launch_by_head(name: str, out: Tensor, edges: Edges, **arguments: Any) -> None:
    """Run a kernel that writes by edge, and besides `out`, `[num_dst, H]`."""
    width, chunks, name = out.shape[1], _chunks_of(edges), f"triton_attention.{name}"
    tile = Tile.of(width, chunks, edges.num_dst)
    across = num_parts(width, tile.block)
    launch_by_edge(name, edges.num_dst, across, tile, width, chunks, out=out, **arguments)


def pair_scores(
    left: Tensor,
    right: Tensor,
    att: Tensor,
    slope: float,
    edges: Edges,
) -> Tensor:
    out, heads, width = att.new_zeros(len(edges.indices), len(att)), len(att), left.shape[1]
    args: dict[str, Any] = {"rows": left, "right": right, "att": att, **_tables(edges)}
    args |= {"out": out, "SLOPE": slope, "HEADS": heads}
    chunks = _chunks_of(edges)
    tile = Tile.of(width // heads, chunks, edges.num_dst)
    place = edges.num_dst, heads, tile, width, chunks
    launch_by_edge("triton_pairs.pair_scores", *place, **args)
    return out


def pair_scores_backward(
    grad: Tensor,
    left: Tensor,
    right: Tensor,
    att: Tensor,
    slope: float,
    edges: Edges,
    out_indptr: Tensor,
    out_indices: Tensor,
    out_edge_ids: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    left_grad, right_grad = torch.empty_like(left), torch.empty_like(right)
    values = torch.empty_like(right, dtype=exact_type(att.dtype))
    name, width = "triton_pairs.pair_gradient", right.shape[1]
    given: dict[str, Any] = {"att": att, "grad": grad.contiguous()}
    given |= {"SLOPE": slope, "HEADS": len(att)}
    args = {**given, **_tables(edges), "rows": left, "mine": right, "edges": None}
    launch_by_row(name, right_grad, width, _chunks_of(edges), {"values": values}, **args)
    back = Edges(out_indptr, out_indices)
    args = {**given, **_tables(back), "rows": right, "mine": left, "edges": out_edge_ids}
    launch_by_row(name, left_grad, width, _chunks_of(back), {"values": None}, **args)
    return left_grad, right_grad, values.sum(0).view(att.shape).to(att.dtype)


def _places(features: LazyFeatures) -> dict[str, Any]:
    """The arguments of kernels that read features, see `triton_tables.begin_of`."""
    rows, stride = features.rows, features.rows.stride(0)
    begins = [matrix.data_ptr() for matrix in (rows, *features.held)]
    return {
        "rows": rows,
        "nodes": features.nodes,
        "slots": features.slots,
        "parts": features.parts,
        "STRIDE": stride,
        "PART_ROWS": features.part_rows,
        "ALIGN": math.gcd(_MOST_BYTES, stride * rows.element_size(), *begins),
    }


def _tables(edges: Edges) -> dict[str, Tensor]:
    return {"indptr": edges.indptr, "indices": edges.indices}


def _chunks_of(edges: Edges) -> Chunks:
    """The chunks of the edges of long rows."""
    return Chunks.of(len(edges.indices), edges.max_in_edges)
