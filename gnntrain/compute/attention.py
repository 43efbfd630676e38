"""Attention's operators over in-edges: the softmax, GATv2's scores, and their gradients."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gnntrain.compute import attention_kernels
from gnntrain.compute.aggregate import Aggregate
from gnntrain.compute.cpu import Array, array_of, by_rows, numbers_by_edge
from gnntrain.compute.examples import Inputs
from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.launching import Chunks, Tile, launch_by_edge, launch_by_row, num_parts
from gnntrain.compute.operator import EXACT_TYPES, Operator, Sum
from gnntrain.compute.reference import (
    by_head,
    columns_of,
    destinations,
    edge_chunks,
    edge_sums,
    end_sums,
    exact_type,
    fill_padding,
    maxima,
    sums_at,
)

_SLOPE = 0.2  # of the examples


class EdgeSoftmax(Operator):
    """Softmax by head over each destination's in-edges; with `loop_score` over its own extra loop,
    too, and its self loops get 0. With `target` the score of an edge is
    leaky_relu(score[u] + target[v], slope), else `score` is by edge. The second result: weights of
    the extra loops; without these log Σ exp(score), −∞ for a destination without in-edges.

    It is computed in float32 or finer: `models.attention` converts.
    """

    types = EXACT_TYPES

    score: Tensor
    target: Tensor | None
    loop_score: Tensor | None
    slope: float
    dst_offset: int
    indptr: Tensor
    indices: Tensor
    max_in_edges: int | None

    def fake(self) -> tuple[Tensor, Tensor]:
        score, heads = self.score, self.score.shape[1]
        num_dst = len(self.indptr) - 1
        return score.new_empty(len(self.indices), heads), score.new_empty(num_dst, heads)

    def reference(self) -> tuple[Tensor, Tensor]:
        """The maximum is subtracted first, so that huge scores stay finite."""
        score, loop_score, indptr, src = self.score, self.loop_score, self.indptr, self.indices
        dst = destinations(indptr, len(src))
        if self.target is None:
            alpha = score.clone()
        else:
            sums = end_sums(score, self.target, src, dst, score.dtype)
            alpha = F.leaky_relu_(sums, self.slope)
        if loop_score is not None:
            alpha.masked_fill_((src == dst + self.dst_offset).unsqueeze(1), -torch.inf)
        fill_padding(alpha, indptr, -torch.inf)
        top = maxima(alpha, dst, indptr)
        if loop_score is not None:
            top = torch.maximum(top, loop_score)
        alpha.sub_(top.index_select(0, dst)).exp_()
        total = edge_sums(alpha, indptr)
        if loop_score is None:
            alpha.div_(total.index_select(0, dst))
            # The padding's destination may have no in-edge: not a number.
            return fill_padding(alpha, indptr), top.add_(total.log())
        loop_alpha = (loop_score - top).exp_()
        total += loop_alpha
        return alpha.div_(total.index_select(0, dst)), loop_alpha.div_(total)

    def cpu(self) -> tuple[Tensor, Tensor]:
        score, indptr, indices = self.score, self.indptr, self.indices
        alpha = numbers_by_edge(score, indptr, indices)
        second = score.new_empty(len(indptr) - 1, score.shape[1])
        loops = _rows_or_none(self.loop_score, score)
        given = array_of(score), _rows_or_none(self.target, score), self.slope, loops
        adjacency = self.dst_offset, indptr.numpy(), indices.numpy()
        outs = array_of(alpha), array_of(second)

        def task(start: int, stop: int) -> None:
            attention_kernels.softmax_rows(*given, *adjacency, start, stop, *outs)

        by_rows(len(second), len(indices), task)
        return alpha, second

    def cuda(self) -> tuple[Tensor, Tensor]:
        score, heads, num_dst = self.score, self.score.shape[1], len(self.indptr) - 1
        tops, totals, out = (score.new_empty(num_dst, heads) for _ in range(3))
        alpha = score.new_zeros(len(self.indices), heads)
        # No source has the number −num_dst.
        own = self.dst_offset if self.loop_score is not None else -num_dst
        args: dict[str, Any] = {"rows": score, "target": self.target, "own": own}
        args |= {"loop_score": self.loop_score, "SLOPE": self.slope}
        args |= {"indptr": self.indptr, "indices": self.indices}
        chunks = Chunks.of(len(self.indices), self.max_in_edges)
        also = {"totals": totals}
        launch_by_row("triton_attention.softmax_sums", tops, heads, chunks, also, **args)
        args |= {"tops": tops, "totals": totals, "alpha": alpha}
        _launch_by_head("softmax_weights", out, chunks, **args)
        return alpha, out

    @staticmethod
    def examples(given: Inputs) -> dict[str, Operator]:
        num_dst, score = given.edges.num_dst, given.exact(given.num_edges, 3)
        ends = given.exact(given.num_rows, 3), given.exact(num_dst, 3)
        loops = given.exact(num_dst, 3)

        def of(score: Tensor, target: Tensor | None, loops: Tensor | None) -> Operator:
            edges = given.edges.dst_offset, *given.adjacency
            return EdgeSoftmax(score, target, loops, _SLOPE, *edges)

        return {
            "scores by edge": of(score, None, loops),
            "scores by node": of(*ends, loops),
            "no extra loops": of(score, None, None),  # HGT's
        }


class EdgeSoftmaxBackward(Operator):
    """Gradients by edge, of score[u] + target[v] where there is a target, and by loop:
    alpha · (grad − the mean of grad, weighted by alpha)."""

    types = EXACT_TYPES

    grad: Tensor
    loop_grad: Tensor
    alpha: Tensor
    loop_alpha: Tensor
    score: Tensor | None
    target: Tensor | None
    slope: float
    indptr: Tensor
    indices: Tensor
    max_in_edges: int | None

    def fake(self) -> tuple[Tensor, Tensor]:
        return torch.empty_like(self.alpha), torch.empty_like(self.loop_alpha)

    def reference(self) -> tuple[Tensor, Tensor]:
        indptr, src, alpha, score = self.indptr, self.indices, self.alpha, self.score
        dst = destinations(indptr, len(src))
        weighted, loop_weighted = alpha * self.grad, self.loop_alpha * self.loop_grad
        mean = edge_sums(weighted, indptr) + loop_weighted
        weighted.sub_(mean.index_select(0, dst).mul_(alpha))
        if score is not None and self.target is not None:
            sums = end_sums(score, self.target, src, dst, score.dtype)
            weighted = torch.ops.aten.leaky_relu_backward(weighted, sums, self.slope, False)
        return fill_padding(weighted, indptr), loop_weighted - self.loop_alpha * mean

    def cpu(self) -> tuple[Tensor, Tensor]:
        indptr, indices, alpha, loop_alpha = self.indptr, self.indices, self.alpha, self.loop_alpha
        out, loop_out = numbers_by_edge(alpha, indptr, indices), torch.empty_like(loop_alpha)
        grads = array_of(self.grad.contiguous()), array_of(self.loop_grad.contiguous())
        given = *grads, array_of(alpha), array_of(loop_alpha)
        sums = _rows_or_none(self.score, alpha), _rows_or_none(self.target, alpha), self.slope
        adjacency, outs = (indptr.numpy(), indices.numpy()), (array_of(out), array_of(loop_out))

        def task(start: int, stop: int) -> None:
            attention_kernels.softmax_gradient_rows(*given, *sums, *adjacency, start, stop, *outs)

        by_rows(len(loop_alpha), len(alpha), task)
        return out, loop_out

    def cuda(self) -> tuple[Tensor, Tensor]:
        grad, alpha = self.grad.contiguous(), self.alpha
        score_grad, out = torch.zeros_like(alpha), torch.empty_like(self.loop_alpha)
        weighted = Sum(self.indptr, None, edge_weight=alpha, max_in_edges=self.max_in_edges)
        sums = Aggregate(LazyFeatures(grad), weighted, "none", alpha.dtype).cuda()
        args: dict[str, Any] = {"rows": alpha, "grad": grad, "sums": sums, "source": self.score}
        args |= {"loop_alpha": self.loop_alpha, "loop_grad": self.loop_grad.contiguous()}
        args |= {"target": self.target, "score_grad": score_grad, "SLOPE": self.slope}
        args |= {"indptr": self.indptr, "indices": self.indices}
        chunks = Chunks.of(len(self.indices), self.max_in_edges)
        _launch_by_head("softmax_gradient", out, chunks, **args)
        return score_grad, out

    @staticmethod
    def examples(given: Inputs) -> dict[str, Operator]:
        found: dict[str, Operator] = {}
        for name, call in EdgeSoftmax.examples(given).items():
            assert isinstance(call, EdgeSoftmax)
            if call.loop_score is not None:
                alpha, loops = call.reference()
                grads = given.exact(*alpha.shape), given.exact(*loops.shape)
                ends = (None if call.target is None else call.score), call.target
                edges: Any = (call.slope, *given.adjacency)
                found[name] = EdgeSoftmaxBackward(*grads, alpha, loops, *ends, *edges)
        return found


def _rows_or_none(rows: Tensor | None, like: Tensor) -> Array:
    return array_of(like.new_empty(0, 0) if rows is None else rows)


def _launch_by_head(name: str, out: Tensor, chunks: Chunks, **arguments: Any) -> None:
    """Run a kernel that writes by edge, and besides `out`, `[num_dst, H]`."""
    num_dst, width = out.shape
    tile, name = Tile.of(width, chunks, num_dst), f"triton_attention.{name}"
    across = num_parts(width, tile.block)
    launch_by_edge(name, num_dst, across, tile, width, chunks, out=out, **arguments)


class PairScores(Operator):
    """att · leaky_relu(left[u] + right[v], slope) for every edge and head, in the type of `att`."""

    left: Tensor
    right: Tensor
    att: Tensor
    slope: float
    indptr: Tensor
    indices: Tensor
    max_in_edges: int | None

    def fake(self) -> Tensor:
        return self.att.new_empty(len(self.indices), len(self.att))

    def reference(self) -> Tensor:
        src, dst = self.indices, destinations(self.indptr, len(self.indices))
        left, right, att, score = self.left, self.right, self.att, self.fake()
        for part in edge_chunks(len(src), left.shape[1]):
            sums = end_sums(left, right, src[part], dst[part], att.dtype)
            pair = F.leaky_relu_(sums, self.slope)
            score[part] = pair.view(-1, *att.shape).mul_(att).sum(-1)
        return fill_padding(score, self.indptr)

    def cuda(self) -> Tensor:
        heads, width = len(self.att), self.left.shape[1]
        out = self.att.new_zeros(len(self.indices), heads)
        args: dict[str, Any] = {"rows": self.left, "right": self.right, "att": self.att, "out": out}
        args |= {"SLOPE": self.slope, "HEADS": heads}
        args |= {"indptr": self.indptr, "indices": self.indices}
        num_dst, chunks = len(self.indptr) - 1, Chunks.of(len(self.indices), self.max_in_edges)
        place = num_dst, heads, Tile.of(width // heads, chunks, num_dst), width, chunks
        launch_by_edge("triton_pairs.pair_scores", *place, **args)
        return out

    @staticmethod
    def examples(given: Inputs) -> dict[str, Operator]:
        left, right = given.rows(given.num_rows, 15), given.rows(given.edges.num_dst, 15)
        att = given.exact(3, 5).to(given.dtype)
        return {"heads": PairScores(left, right, att, _SLOPE, *given.adjacency)}


class PairScoresBackward(Operator):
    """The gradients of left, right and att. The pairs are computed again."""

    grad: Tensor
    left: Tensor
    right: Tensor
    att: Tensor
    slope: float
    indptr: Tensor
    indices: Tensor
    max_in_edges: int | None
    out_indptr: Tensor
    out_indices: Tensor
    out_edge_ids: Tensor

    def fake(self) -> tuple[Tensor, Tensor, Tensor]:
        return torch.empty_like(self.left), torch.empty_like(self.right), torch.empty_like(self.att)

    def reference(self) -> tuple[Tensor, Tensor, Tensor]:
        """Sums are kept in float32 or finer."""
        left, right, att, slope = self.left, self.right, self.att, self.slope
        src, dst = self.indices, destinations(self.indptr, len(self.indices))
        flat, exact = att.flatten(), exact_type(att.dtype)
        left_grad, right_grad, att_grad = (torch.empty_like(part) for part in (left, right, flat))
        grad = fill_padding(self.grad.clone(), self.indptr)
        for heads, columns in columns_of(left.shape[1], len(src), len(att)):
            pair = end_sums(left[:, columns], right[:, columns], src, dst, att.dtype)
            weight = grad[:, heads].unsqueeze(-1)
            scaled = (weight * by_head(flat[None, columns], weight.shape[1])).flatten(1)
            values = torch.ops.aten.leaky_relu_backward(scaled, pair, slope, False).to(exact)
            by_head(F.leaky_relu_(pair, slope), weight.shape[1]).mul_(weight)
            att_grad[columns] = pair.sum(0, dtype=exact)
            left_grad[:, columns] = sums_at(values, self.out_edge_ids, self.out_indptr)
            right_grad[:, columns] = edge_sums(values, self.indptr)
        return left_grad, right_grad, att_grad.view(att.shape)

    def cuda(self) -> tuple[Tensor, Tensor, Tensor]:
        left, right, att = self.left, self.right, self.att
        left_grad, right_grad, _ = self.fake()
        values = torch.empty_like(right, dtype=exact_type(att.dtype))
        given: dict[str, Any] = {"att": att, "grad": self.grad.contiguous()}
        given |= {"SLOPE": self.slope, "HEADS": len(att)}
        name, width = "triton_pairs.pair_gradient", right.shape[1]
        args = {**given, "indptr": self.indptr, "indices": self.indices}
        args |= {"rows": left, "mine": right, "edges": None}
        chunks = Chunks.of(len(self.indices), self.max_in_edges)
        launch_by_row(name, right_grad, width, chunks, {"values": values}, **args)
        args = {**given, "indptr": self.out_indptr, "indices": self.out_indices}
        args |= {"rows": right, "mine": left, "edges": self.out_edge_ids}
        chunks = Chunks.of(len(self.out_indices))
        launch_by_row(name, left_grad, width, chunks, {"values": None}, **args)
        return left_grad, right_grad, values.sum(0).view(att.shape).to(att.dtype)

    @staticmethod
    def examples(given: Inputs) -> dict[str, Operator]:
        call: Any = PairScores.examples(given)["heads"]
        grad = given.exact(given.num_edges, 3).to(given.dtype)
        pairs = call.left, call.right, call.att, _SLOPE
        return {"heads": PairScoresBackward(grad, *pairs, *given.adjacency, *given.back())}
