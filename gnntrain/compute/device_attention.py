"""Attention over the in-edges of a block, on a GPU: scores and their softmax, with gradients.

As in `device`, nothing waits for the GPU, and a block may be padded: what belongs to edges past
`indptr[-1]` is not read; where it is returned, it is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gnntrain.compute.device import DeviceReduction, DeviceTable, OutEdges, reduce_table
from gnntrain.compute.launching import (
    Pieces,
    Tile,
    launch,
    launch_by_edge,
    launch_by_row,
    num_parts,
)

_MODULE = "triton_attention"


class InEdges(NamedTuple):
    """The in-edges of some destinations.

    Attributes:
        indptr, indices: int32 or int64 `[num_dst + 1]` and `[num_edges]`.
        own: Source number of destination 0.
        max_edges: The most in-edges of a destination, if known.
        out_edges: Gives them by source; called for gradients of what belongs to sources.
    """

    indptr: Tensor
    indices: Tensor
    own: int
    max_edges: int | None
    out_edges: Callable[[], OutEdges]

    @property
    def num_dst(self) -> int:
        return len(self.indptr) - 1

    @property
    def pieces(self) -> Pieces:
        """How its long rows are shared out."""
        return Pieces.of(len(self.indices), self.max_edges)


def edge_softmax(score: Tensor, loop_score: Tensor, edges: InEdges) -> tuple[Tensor, Tensor]:
    """Softmax over each destination's in-edges and its own extra loop, by head; gradients flow.

    Args:
        score: float `[num_edges, H]`; edges from a node to itself are left out, and get 0.
        loop_score: `[num_dst, H]`, in the same type.
        edges: The in-edges.

    Returns:
        Weights of the edges `[num_edges, H]` and of the loops `[num_dst, H]`.
    """
    return _edge_softmax(score, None, loop_score, 1.0, edges)


def pair_softmax(
    source: Tensor, target: Tensor, loop_score: Tensor, slope: float, edges: InEdges
) -> tuple[Tensor, Tensor]:
    """`edge_softmax` of the scores leaky_relu(source[u] + target[v]), which are kept nowhere.

    Args:
        source: float `[num_src, H]`.
        target: `[num_dst, H]`, in the same type, as is `loop_score`.
        loop_score: `[num_dst, H]`.
        slope: Of the leaky ReLU for negative values.
        edges: The in-edges.
    """
    return _edge_softmax(source, target, loop_score, slope, edges)


def pair_scores(left: Tensor, right: Tensor, att: Tensor, slope: float, edges: InEdges) -> Tensor:
    """att · leaky_relu(left[u] + right[v]) for every edge and head; gradients flow.

    Args:
        left: float `[num_src, H·C]`.
        right: float `[num_dst, H·C]`.
        att: float `[H, C]`.
        slope: Of the leaky ReLU for negative values.
        edges: The in-edges.

    Returns:
        `[num_edges, H]` in the type of `att`.
    """
    return _pair_scores(left, right, att, slope, edges)


class _EdgeSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        target: Tensor | None,
        loop_score: Tensor,
        slope: float,
        edges: InEdges,
    ) -> tuple[Tensor, Tensor]:
        rows, loop_score = rows.contiguous(), loop_score.contiguous()
        target = None if target is None else target.contiguous()
        out = torch.empty_like(loop_score)
        alpha = out.new_zeros(len(edges.indices), out.shape[1])
        _put_softmax(rows, target, loop_score, slope, edges, alpha, out)
        pair = (None, None) if target is None else (rows, target)
        ctx.save_for_backward(alpha, out, *pair)
        ctx.edges, ctx.slope = edges, slope
        return alpha, out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, loop_grad: Tensor) -> tuple[Tensor | None, ...]:
        alpha, loop_alpha, source, target = ctx.saved_tensors
        edges: InEdges = ctx.edges
        pieces, num_dst, width = edges.pieces, edges.num_dst, alpha.shape[1]
        score_grad, out = torch.zeros_like(alpha), torch.empty_like(loop_alpha)
        given = {"rows": alpha, "grad": grad.contiguous(), "indptr": edges.indptr}
        partial = pieces.partial(out, width)
        if partial is not None:
            args = {**given, "num_rows": num_dst, "PIECE": pieces.size}
            launch_by_row(f"{_MODULE}.mean_pieces", partial, width, **args)
        given |= {"source": source, "target": target, "indices": edges.indices}
        given |= {"means": torch.empty_like(out) if pieces.size else None}
        given |= {"SLOPE": ctx.slope, "PIECE": pieces.size}
        loops = {"loop_alpha": loop_alpha, "loop_grad": loop_grad.contiguous(), "partial": partial}
        name = f"{_MODULE}.edge_softmax_gradient"
        launch_by_row(name, out, width, **given, **loops, score_grad=score_grad)
        if pieces.size:
            _launch_by_piece("gradient_of_pieces", score_grad, pieces, **given, num_rows=num_dst)
        if target is None:
            return score_grad, None, out, None, None
        return *_sums_of(score_grad, edges), out, None, None


def _put_softmax(
    rows: Tensor,
    target: Tensor | None,
    loop_score: Tensor,
    slope: float,
    edges: InEdges,
    alpha: Tensor,
    out: Tensor,
) -> None:
    pieces, width = edges.pieces, out.shape[1]
    given: dict[str, Any] = {"rows": rows, "target": target}
    given |= {"indptr": edges.indptr, "indices": edges.indices}
    given |= {"own": edges.own, "SLOPE": slope, "PIECE": pieces.size}
    partial, partial_tops = (pieces.partial(out, width) for _ in range(2))
    tops, totals = (torch.empty_like(out) if pieces.size else None for _ in range(2))
    if partial_tops is not None:
        args = {**given, "totals": partial, "num_rows": edges.num_dst}
        launch_by_row(f"{_MODULE}.softmax_pieces", partial_tops, width, **args)
    sums = {"tops": tops, "totals": totals}
    partials = {"partial_tops": partial_tops, "partial": partial}
    args = {**given, **sums, **partials, "loop_score": loop_score, "alpha": alpha}
    launch_by_row(f"{_MODULE}.edge_softmax", out, width, **args)
    if pieces.size:
        args = {**given, **sums, "num_rows": edges.num_dst}
        _launch_by_piece("softmax_of_pieces", alpha, pieces, **args)


def _sums_of(score_grad: Tensor, edges: InEdges) -> tuple[Tensor, Tensor]:
    """Sums of a table by edge, over the out-edges of each source and the in-edges of the others."""
    indptr, _, numbers = edges.out_edges()
    table, dtype = DeviceTable(score_grad), score_grad.dtype
    by_source = DeviceReduction(indptr, numbers)
    by_target = DeviceReduction(
        edges.indptr, edges.indices, max_edges=edges.max_edges, is_by_edge=True
    )
    return reduce_table(table, by_source, dtype), reduce_table(table, by_target, dtype)


def _launch_by_piece(name: str, out: Tensor, pieces: Pieces, **arguments: Any) -> None:
    """Run a kernel of which a program writes the edges of one piece to `out`, by edge."""
    width = out.shape[1]
    tile = Tile.of(width)
    grid = pieces.number, num_parts(width, tile.block)
    launch(f"{_MODULE}.{name}", grid, tile, out, width, **arguments)


class _PairScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, left: Tensor, right: Tensor, att: Tensor, slope: float, edges: InEdges
    ) -> Tensor:
        left, right, att = left.contiguous(), right.contiguous(), att.contiguous()
        out = att.new_zeros(len(edges.indices), len(att))
        given = {"rows": left, "right": right, "att": att, "SLOPE": slope}
        given |= {"indptr": edges.indptr, "indices": edges.indices}
        name, width = "triton_pairs.pair_scores", left.shape[1]
        launch_by_edge(name, out, width, edges.num_dst, edges.pieces, **given)
        ctx.save_for_backward(left, right, att)
        ctx.edges, ctx.slope = edges, slope
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        left, right, att = ctx.saved_tensors
        edges: InEdges = ctx.edges
        out_edges, numbers = edges.out_edges(), {"att": att, "grad": grad.contiguous()}
        numbers |= {"SLOPE": ctx.slope, "HEADS": len(att)}
        exact = torch.promote_types(att.dtype, torch.float32)
        values = right.new_empty(right.shape, dtype=exact)
        by_target = {"indptr": edges.indptr, "indices": edges.indices, "edges": None}
        right_grad = _side_gradient(left, right, values, edges.pieces, **numbers, **by_target)
        by_source = out_edges._asdict()
        pieces = Pieces.of(len(edges.indices))
        left_grad = _side_gradient(right, left, None, pieces, **numbers, **by_source)
        att_grad = values.sum(0).view(att.shape).to(att.dtype)
        return left_grad, right_grad, att_grad, None, None


def _side_gradient(
    other: Tensor, mine: Tensor, values: Tensor | None, pieces: Pieces, **arguments: Any
) -> Tensor:
    """The gradient of `mine`; what belongs to `att` goes to `values`."""
    out, width = torch.empty_like(mine), mine.shape[1]
    given = {**arguments, "rows": other, "mine": mine, "PIECE": pieces.size}
    partial, partial_values = pieces.partial(out, width), None
    if partial is not None:
        partial_values = None if values is None else torch.empty_like(partial)
        args = {name: value for name, value in given.items() if name != "att"}
        args |= {"num_rows": len(mine), "values": partial_values}
        launch_by_row("triton_pairs.pair_pieces", partial, width, **args)
    partials = {"partial": partial, "partial_values": partial_values, "values": values}
    launch_by_row("triton_pairs.pair_gradient", out, width, **given, **partials)
    return out


_edge_softmax: Callable[..., tuple[Tensor, Tensor]] = _EdgeSoftmax.apply
_pair_scores: Callable[..., Tensor] = _PairScores.apply
