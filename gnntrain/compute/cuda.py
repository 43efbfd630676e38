"""The operators on a GPU: the Triton kernels. No function synchronises."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnntrain.compute import reference
from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.launching import (
    Chunks,
    Tile,
    launch,
    launch_by_edge,
    launch_by_row,
    num_parts,
)
from gnntrain.compute.ops import Edges, Sum

transpose = reference.transpose


def gather(features: LazyFeatures, start: int, stop: int, dtype: torch.dtype) -> Tensor:
    """See `ops.SCHEMAS`, as for all functions that are named as operators."""
    width, number = features.num_features, stop - start
    out = torch.empty(number, width, dtype=dtype, device=features.device)
    tile = Tile.of(width)
    grid = num_parts(number, tile.rows), num_parts(width, tile.block)
    args = {**_places(features), "first": start, "num_rows": number}
    launch("triton_kernels.gather_rows", grid, tile, out, width, **args)
    return out


def aggregate(features: LazyFeatures, total: Sum, root: str, dtype: torch.dtype) -> Tensor:
    width = features.num_features // 2 if root == "added" else features.num_features
    across = 2 * width if root == "beside" else width
    out = torch.empty(total.num_dst, across, dtype=dtype, device=total.indptr.device)
    weight, loop, adds_own = total.edge_weight, total.loop, root == "added"
    num_edges = len(features.rows if total.indices is None else total.indices)
    chunks = Chunks.of(num_edges, total.max_in_edges)
    args = {
        **_places(features),
        "indptr": total.indptr,
        "indices": total.indices,
        "edges": total.edge_ids,
        "edge_weight": None if weight is None else weight.contiguous(),
        "source_scale": total.source_scale,
        "source_indptr": total.source_indptr,
        "own": total.dst_offset,
        "HEADS": total.heads,
        "SKIP_OWN": total.skip_own,
        "CHUNK": chunks.size,
    }
    partial = chunks.partial(out, width)
    if partial is not None:
        num_rows = total.num_dst
        launch_by_row("triton_kernels.reduce_chunks", partial, width, **args, num_rows=num_rows)
    launch_by_row(
        "triton_kernels.reduce_rows",
        out,
        width,
        **args,
        row_scale=total.scale,
        loop=loop,
        first_loop=total.first_loop,
        num_loops=len(loop) if loop is not None else len(features) * adds_own,
        partial=partial,
        IS_MEAN=total.is_mean,
        PUTS_OWN=root == "beside",
        ADDS_OWN=adds_own,
    )
    return out


def edge_products(rows: Tensor, grad: Tensor, total: Sum) -> Tensor:
    assert total.edge_weight is not None
    assert total.indices is not None
    out = torch.zeros_like(total.edge_weight, memory_format=torch.contiguous_format)
    args: dict[str, Any] = {
        "rows": rows.contiguous(),
        "grad": grad.contiguous(),
        "indptr": total.indptr,
        "indices": total.indices,
        "source_scale": total.source_scale,
        "row_scale": total.scale,
        "own": total.dst_offset,
        "IS_MEAN": total.is_mean,
        "SKIP_OWN": total.skip_own,
    }
    name, width = "triton_kernels.edge_products", rows.shape[1]
    chunks = Chunks.of(len(total.indices), total.max_in_edges)
    launch_by_edge(name, out, width, total.num_dst, chunks, **args)
    return out


def aggregate_max(
    features: LazyFeatures, edges: Edges, dtype: torch.dtype, count: bool
) -> tuple[Tensor, Tensor]:
    width, num_dst = features.num_features, edges.num_dst
    out = torch.empty(num_dst, width, dtype=dtype, device=edges.indptr.device)
    ties = torch.empty(out.shape if count else (0, 0), dtype=torch.int32, device=out.device)
    chunks = _chunks_of(edges)
    given = {**_places(features), **_tables(edges), "CHUNK": chunks.size}
    partial, partial_ties = chunks.partial(out, width), None
    if partial is not None:
        partial_ties = torch.empty_like(partial, dtype=torch.int32)
        args = {**given, "ties": partial_ties, "num_rows": num_dst}
        launch_by_row("triton_maximum.max_chunks", partial, width, **args)
    args = {**given, "partial": partial, "partial_ties": partial_ties}
    args |= {"ties": ties if count else None}
    launch_by_row("triton_maximum.max_rows", out, width, **args)
    return out, ties


def aggregate_max_backward(
    grad: Tensor, rows: Tensor, out: Tensor, ties: Tensor, indptr: Tensor, indices: Tensor
) -> Tensor:
    grad_rows, chunks, width = torch.empty_like(rows), Chunks.of(len(indices)), rows.shape[1]
    args: dict[str, Any] = {"rows": rows, "tops": out, "ties": ties, "grad": grad, "indptr": indptr}
    args |= {"indices": indices, "CHUNK": chunks.size}
    partial = chunks.partial(grad_rows, width)
    if partial is not None:
        num_rows = len(grad_rows)
        launch_by_row("triton_maximum.spread_chunks", partial, width, **args, num_rows=num_rows)
    launch_by_row("triton_maximum.spread_maximum", grad_rows, width, **args, partial=partial)
    return grad_rows


def edge_softmax(
    score: Tensor,
    target: Tensor | None,
    loop_score: Tensor,
    slope: float,
    dst_offset: int,
    edges: Edges,
) -> tuple[Tensor, Tensor]:
    out = torch.empty_like(loop_score)
    alpha = out.new_zeros(len(edges.indices), out.shape[1])
    chunks, width, num_rows = _chunks_of(edges), out.shape[1], len(out)
    given: dict[str, Any] = {"rows": score, "target": target, **_tables(edges)}
    given |= {"own": dst_offset, "SLOPE": slope, "CHUNK": chunks.size}
    partial, partial_tops = (chunks.partial(out, width) for _ in range(2))
    tops, totals = (torch.empty_like(out) if chunks.size else None for _ in range(2))
    if partial_tops is not None:
        args = {**given, "totals": partial, "num_rows": num_rows}
        launch_by_row("triton_attention.softmax_chunks", partial_tops, width, **args)
    sums = {"tops": tops, "totals": totals}
    partials = {"partial_tops": partial_tops, "partial": partial}
    args = {**given, **sums, **partials, "loop_score": loop_score, "alpha": alpha}
    launch_by_row("triton_attention.edge_softmax", out, width, **args)
    if chunks.size:
        args = {**given, **sums, "num_rows": num_rows}
        _launch_by_chunk("softmax_of_chunks", alpha, chunks, **args)
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
    chunks, num_dst, width = _chunks_of(edges), edges.num_dst, alpha.shape[1]
    score_grad, out = torch.zeros_like(alpha), torch.empty_like(loop_alpha)
    given: dict[str, Any] = {"rows": alpha, "grad": grad.contiguous(), "indptr": edges.indptr}
    partial = chunks.partial(out, width)
    if partial is not None:
        args = {**given, "num_rows": num_dst, "CHUNK": chunks.size}
        launch_by_row("triton_attention.mean_chunks", partial, width, **args)
    given |= {"source": score, "target": target, "indices": edges.indices}
    given |= {"means": torch.empty_like(out) if chunks.size else None}
    given |= {"SLOPE": slope, "CHUNK": chunks.size}
    loops = {"loop_alpha": loop_alpha, "loop_grad": loop_grad.contiguous(), "partial": partial}
    name = "triton_attention.edge_softmax_gradient"
    launch_by_row(name, out, width, **given, **loops, score_grad=score_grad)
    if chunks.size:
        _launch_by_chunk("gradient_of_chunks", score_grad, chunks, **given, num_rows=num_dst)
    return score_grad, out


def _launch_by_chunk(name: str, out: Tensor, chunks: Chunks, **arguments: Any) -> None:
    """Run a kernel with a program for each chunk of edges, which writes to `out` by edge."""
    width = out.shape[1]
    tile = Tile.of(width)
    grid = chunks.number, num_parts(width, tile.block)
    launch(f"triton_attention.{name}", grid, tile, out, width, **arguments)


def pair_scores(
    left: Tensor,
    right: Tensor,
    att: Tensor,
    slope: float,
    edges: Edges,
) -> Tensor:
    out = att.new_zeros(len(edges.indices), len(att))
    args: dict[str, Any] = {"rows": left, "right": right, "att": att, "SLOPE": slope}
    name, chunks = "triton_pairs.pair_scores", _chunks_of(edges)
    launch_by_edge(name, out, left.shape[1], edges.num_dst, chunks, **args, **_tables(edges))
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
    given: dict[str, Any] = {"att": att, "grad": grad.contiguous()}
    given |= {"SLOPE": slope, "HEADS": len(att)}
    exact = torch.promote_types(att.dtype, torch.float32)
    values = right.new_empty(right.shape, dtype=exact)
    by_target = {**given, **_tables(edges), "edges": None}
    right_grad = _side_gradient(left, right, values, _chunks_of(edges), **by_target)
    out_edges = Edges(out_indptr, out_indices)
    by_source = {**given, **_tables(out_edges), "edges": out_edge_ids}
    left_grad = _side_gradient(right, left, None, _chunks_of(out_edges), **by_source)
    return left_grad, right_grad, values.sum(0).view(att.shape).to(att.dtype)


def _side_gradient(
    other: Tensor, mine: Tensor, values: Tensor | None, chunks: Chunks, **arguments: Any
) -> Tensor:
    """The gradient of `mine`; the terms of the gradient of `att` are written to `values`."""
    out, width = torch.empty_like(mine), mine.shape[1]
    given = {**arguments, "rows": other, "mine": mine, "CHUNK": chunks.size}
    partial, partial_values = chunks.partial(out, width), None
    if partial is not None:
        partial_values = None if values is None else torch.empty_like(partial)
        args = {name: value for name, value in given.items() if name != "att"}
        args |= {"num_rows": len(mine), "values": partial_values}
        launch_by_row("triton_pairs.pair_chunks", partial, width, **args)
    partials = {"partial": partial, "partial_values": partial_values, "values": values}
    launch_by_row("triton_pairs.pair_gradient", out, width, **given, **partials)
    return out


def _places(features: LazyFeatures) -> dict[str, Any]:
    """The arguments of kernels that read features, see `triton_tables.place_of`."""
    return {
        "rows": features.rows,
        "nodes": features.nodes,
        "slots": features.slots,
        "parts": features.parts,
        "STRIDE": features.rows.stride(0),
        "PART_ROWS": features.part_rows,
        "ALIGN": features.align,
    }


def _tables(edges: Edges) -> dict[str, Tensor]:
    return {"indptr": edges.indptr, "indices": edges.indices}


def _chunks_of(edges: Edges) -> Chunks:
    """The chunks of the edges of long rows."""
    return Chunks.of(len(edges.indices), edges.max_in_edges)
