"""Attention's operators over in-edges: the softmax, GATv2's scores, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gnntrain.compute import cpu, kernels, reference
from gnntrain.compute.aggregate import Aggregate
from gnntrain.compute.buffers import BUFFERS
from gnntrain.compute.examples import Inputs
from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.launching import launch
from gnntrain.compute.operator import Edges, Operator, Sum
from gnntrain.compute.reference import by_head, destinations, end_sums, exact_type, fill_padding

_SLOPE = 0.2  # of the examples


class EdgeSoftmax(Operator):
    """Softmax by head over each destination's in-edges; with `loop_score` over its own extra loop,
    too, and its self loops get 0. With `target` the score of an edge is
    leaky_relu(score[u] + target[v], slope), else `score` is by edge. The second result: weights of
    the extra loops; without these log Σ exp(score), −∞ for a destination without in-edges.

    It is computed in float32 or finer: `models.attention` converts.
    """

    types = frozenset({torch.float32, torch.float64})

    score: Tensor
    target: Tensor | None
    loop_score: Tensor | None
    slope: float
    edges: Edges

    def fake(self) -> tuple[Tensor, Tensor]:
        score, edges, heads = self.score, self.edges, self.score.shape[1]
        return score.new_empty(len(edges.indices), heads), score.new_empty(edges.num_dst, heads)

    def reference(self) -> tuple[Tensor, Tensor]:
        """The maximum is subtracted first, so that huge scores stay finite."""
        score, loop_score, (indptr, src, *_) = self.score, self.loop_score, self.edges
        dst = destinations(indptr, len(src))
        if self.target is None:
            alpha = score.clone()
        else:
            sums = end_sums(score, self.target, src, dst, score.dtype)
            alpha = F.leaky_relu_(sums, self.slope)
        if loop_score is not None:
            alpha.masked_fill_((src == dst + self.edges.dst_offset).unsqueeze(1), -torch.inf)
        fill_padding(alpha, indptr, -torch.inf)
        top = reference.maxima(alpha, dst, indptr)
        if loop_score is not None:
            top = torch.maximum(top, loop_score)
        alpha.sub_(top.index_select(0, dst)).exp_()
        total = reference.edge_sums(alpha, indptr)
        if loop_score is None:
            alpha.div_(total.index_select(0, dst))
            # The padding's destination may have no in-edge: not a number.
            return fill_padding(alpha, indptr), top.add_(total.log())
        loop_alpha = (loop_score - top).exp_()
        total += loop_alpha
        return alpha.div_(total.index_select(0, dst)), loop_alpha.div_(total)

    def cpu(self) -> tuple[Tensor, Tensor]:
        score, edges = self.score, self.edges
        alpha = cpu.numbers_by_edge(edges, score.shape[1], score.dtype)
        second = score.new_empty(edges.num_dst, score.shape[1])
        scores = *cpu.arrays(score, self.target, self.loop_score), self.slope, edges.dst_offset
        given = scores, cpu.arrays(*edges[:3])
        outs = cpu.arrays(alpha, second)
        cpu.by_rows(len(second), len(alpha), lambda a, b: kernels.softmax_rows(*given, a, b, *outs))
        return alpha, second

    def cuda(self) -> tuple[Tensor, Tensor]:
        alpha, second = torch.zeros_like(self.fake()[0]), self.fake()[1]
        launch("softmax_rows", self, second, second.shape[1], alpha=alpha)
        return alpha, second

    @staticmethod
    def examples(given: Inputs) -> dict[str, Operator]:
        sizes = given.num_edges, given.num_rows, given.edges.num_dst, given.edges.num_dst
        score, source, target, loops = (given.exact(size, 3) for size in sizes)
        more = _SLOPE, given.edges
        return {
            "scores by edge": EdgeSoftmax(score, None, loops, *more),
            "scores by node": EdgeSoftmax(source, target, loops, *more),
            "no extra loops": EdgeSoftmax(score, None, None, *more),  # HGT's
        }


class AttentionBackward(Operator):
    """The gradients behind out[v] = Σ_e weight[e] · row(u) + loop_weight[v] · row(dst_offset + v),
    where the weights are those of `EdgeSoftmax`, some of them dropped.

    A score's gradient is weight · (row(u) · grad[v]) − alpha · mean[v]: the mean over a
    destination's edges is out[v] · grad[v] (as in FlashAttention), so one pass over the out-edges
    gives the gradients of rows and scores. With a `target` the score of an edge is
    leaky_relu(part(u) + target[v], slope), and the parts of a source, one a head, follow its row.

    Attributes:
        grad, out: `[num_dst, H·C]`.
        rows: `[num_src, H·C]`; with a `target` `[num_src, H·C + H]`.
        alpha, weight: `[num_edges, H]`: the softmax, and what dropout left of it.
        loop_alpha, loop_weight: `[num_dst, H]`; None: no extra loops.
        log_grad: `[num_dst, H]`, the gradient of log Σ exp(score); None with loops.
        target: `[num_dst, H]`; None: scores by edge.
        back: The out-edges of every source, see `Transpose`.

    Results:
        The gradients of `rows`; of the edges' scores or of `target`; and of the loops' scores (with
        a target nothing: a loop's score is that of the node with itself).
    """

    grad: Tensor
    rows: Tensor
    out: Tensor
    alpha: Tensor
    weight: Tensor
    loop_alpha: Tensor | None
    loop_weight: Tensor | None
    log_grad: Tensor | None
    target: Tensor | None
    slope: float
    edges: Edges
    back: Edges

    def fake(self) -> tuple[Tensor, Tensor, Tensor]:
        scores, loops = self.target, self.alpha[:0]
        if scores is None:
            scores, loops = self.alpha, loops if self.loop_alpha is None else self.loop_alpha
        rows_grad = self.rows.new_empty(self.rows.shape)
        return rows_grad, torch.empty_like(scores), torch.empty_like(loops)

    def reference(self) -> tuple[Tensor, Tensor, Tensor]:
        """By other operators."""
        call: Any = torch.ops.gnntrain
        grad, alpha, weight, target = self.grad, self.alpha, self.weight, self.target
        heads, width, num_dst = alpha.shape[1], grad.shape[1], len(grad)
        (indptr, src, _, offset, _), back = self.edges, self.back
        dst = destinations(indptr, len(src))
        exact = grad.to(alpha.dtype)
        mean = by_head(exact * self.out, heads).sum(-1)
        mean = mean if self.log_grad is None else mean - self.log_grad
        products = call.pair_scores(self.rows[:, :width], grad, None, heads, 0.0, *self.edges)
        means = reference.selected_rows(mean, dst)
        by_edge = torch.addcmul(weight * products, alpha, means, value=-1)
        by_loop = alpha[:0]
        own = slice(offset, offset + num_dst)
        if self.loop_alpha is not None and self.loop_weight is not None:
            products = by_head(exact * self.rows[own, :width], heads).sum(-1)
            by_loop = torch.addcmul(self.loop_weight * products, self.loop_alpha, mean, value=-1)
        features, total = LazyFeatures(grad).arguments(), Sum(weight, loop=self.loop_weight)
        rows_grad = call.aggregate(*features, *back, *total, "none", self.rows.dtype)
        if target is None:
            return rows_grad, fill_padding(by_edge, indptr), by_loop
        assert back.edge_ids is not None
        before_relu = torch.ops.aten.leaky_relu_backward
        parts = self.rows[:, width:].to(target.dtype)
        sums = end_sums(parts, target, src, dst, target.dtype)
        by_edge = fill_padding(before_relu(by_edge, sums, self.slope, False), indptr)
        features = LazyFeatures(by_edge).arguments()
        by_source, by_target = (
            call.aggregate(*features, *over, *Sum(), "none", by_edge.dtype)
            for over in (Edges(back.indptr, back.edge_ids), _numbered(self.edges))
        )
        if self.loop_alpha is not None:
            by_loop = before_relu(by_loop, parts[own] + target, self.slope, False)
            by_source[own] += by_loop
            by_target = by_target + by_loop
        rows_grad = torch.cat([rows_grad, by_source.to(rows_grad.dtype)], dim=1)
        return rows_grad, by_target, alpha[:0]

    def cpu(self) -> tuple[Tensor, Tensor, Tensor]:
        grad, alpha, target = self.grad.contiguous(), self.alpha, self.target
        (num_dst, width), heads, edges, back = grad.shape, alpha.shape[1], self.edges, self.back
        features = LazyFeatures.of(self.rows)
        mean, log_grad = alpha.new_empty(num_dst, heads), self.log_grad

        def means(a: int, b: int) -> None:
            products = grad[a:b].to(alpha.dtype) * self.out[a:b]
            torch.sum(by_head(products, heads), -1, out=mean[a:b])
            if log_grad is not None:
                mean[a:b] -= log_grad[a:b]

        cpu.by_rows(num_dst, 0, means)
        rows_grad = BUFFERS.empty(self.rows.shape, self.rows.dtype)
        by_edge = cpu.numbers_by_edge(edges, heads, alpha.dtype)
        by_loop = torch.empty_like(alpha[:0] if self.loop_alpha is None else self.loop_alpha)
        gradients = cpu.array_of(grad).reshape(-1), *cpu.arrays(mean, target)
        shares = cpu.arrays(alpha, self.weight, self.loop_alpha, self.loop_weight)
        options = self.slope, edges.dst_offset
        given = cpu.table_of(features), cpu.arrays(*back[:3]), gradients, shares, options
        changes: tuple[cpu.Array, cpu.Array] = cpu.arrays(by_edge, by_loop)
        number = cpu.number_type(grad.dtype, self.rows.dtype)

        def task(start: int, stop: int) -> None:
            out, memory = cpu.array_of(rows_grad[start:stop]), np.empty((2, width), number)
            kernels.attention_gradient(*given, start, stop, out, *changes, memory)

        cpu.by_rows(len(rows_grad), len(edges.indices), task)
        if target is None:
            return rows_grad, by_edge, by_loop
        features = LazyFeatures(by_edge)
        by_target = Aggregate(features, _numbered(edges), Sum(), "none", alpha.dtype).cpu()
        return rows_grad, by_target.add_(by_loop) if len(by_loop) else by_target, alpha[:0]

    @staticmethod
    def examples(given: Inputs) -> dict[str, Operator]:
        found: dict[str, Operator] = {}
        heads, edges, exact = 3, given.edges, exact_type(given.dtype)  # as models call the softmax
        for name in ("scores by edge", "scores by node", "no extra loops"):
            alpha, weight = (given.exact(given.num_edges, heads).to(exact) for _ in range(2))
            loop_alpha, loop_weight, target = (
                given.exact(edges.num_dst, heads).to(exact) for _ in range(3)
            )
            by_node = name == "scores by node"
            rows = given.rows(given.num_src, 15 + heads * by_node)
            ends = given.rows(edges.num_dst, 15), rows, given.rows(edges.num_dst, 15)
            loops: Any = loop_alpha, loop_weight, None
            if name == "no extra loops":
                loops = None, None, loop_alpha
            scores = *loops, target if by_node else None, _SLOPE, edges, given.back()
            found[name] = AttentionBackward(*ends, alpha, weight, *scores)
        return found


def _numbered(edges: Edges) -> Edges:
    """The edges with their own numbers as sources: for a sum of rows by edge."""
    kind, device = edges.indptr.dtype, edges.indptr.device
    return Edges(edges.indptr, torch.arange(len(edges.indices), dtype=kind, device=device))


class PairScores(Operator):
    """For every edge and head att · leaky_relu(left[u] + right[v], slope), or without `att`
    left[u] · right[v], in float32 or finer."""

    left: Tensor
    right: Tensor
    att: Tensor | None
    heads: int
    slope: float
    edges: Edges

    def fake(self) -> Tensor:
        size, left = (len(self.edges.indices), self.heads), self.left
        return torch.empty(size, dtype=exact_type(left.dtype), device=left.device)

    def reference(self) -> Tensor:
        left, right, att, (indptr, src, *_) = self.left, self.right, self.att, self.edges
        score, dst = self.fake(), destinations(indptr, len(src))
        step = max(1, reference.MAX_CHUNK_ELEMENTS // max(1, left.shape[1]))
        for start in range(0, len(src), step):
            part = slice(start, start + step)
            if att is None:
                pairs = left.index_select(0, src[part]).to(score.dtype)
                pairs.mul_(right.index_select(0, dst[part]))
            else:
                pairs = end_sums(left, right, src[part], dst[part], score.dtype)
                pairs = F.leaky_relu_(pairs, self.slope).mul_(att.flatten())
            score[part] = by_head(pairs, self.heads).sum(-1)
        return fill_padding(score, indptr)

    def cpu(self) -> Tensor:
        if self.att is not None:
            return self.reference()
        edges, exact = self.edges, exact_type(self.left.dtype)
        out = cpu.numbers_by_edge(edges, self.heads, exact)
        right = cpu.array_of(self.right.to(exact).contiguous())
        given = cpu.table_of(LazyFeatures.of(self.left)), cpu.arrays(*edges[:3]), right

        def task(start: int, stop: int) -> None:
            kernels.edge_products(*given, start, stop, cpu.array_of(out))

        cpu.by_rows(edges.num_dst, len(edges.indices), task)
        return out

    def cuda(self) -> Tensor:
        out, features = self.fake().zero_(), LazyFeatures.of(self.left)
        launch("pair_scores", self, out, self.left.shape[1], self.heads, features=features)
        return out

    @staticmethod
    def examples(given: Inputs) -> dict[str, Operator]:
        number, num_dst, edges = given.num_rows, given.edges.num_dst, given.edges
        left, right, att = given.rows(number, 15), given.rows(num_dst, 15), given.exact(3, 5)
        columns = given.rows(number, 60)[:, 12:]  # read in place
        return {
            "sums": PairScores(left, right, att.to(given.dtype), 3, _SLOPE, edges),
            "products": PairScores(columns, given.rows(num_dst, 48), None, 3, 0.0, edges),
        }


class PairScoresBackward(Operator):
    """The gradients of left, right and att. The pairs are computed again."""

    grad: Tensor
    left: Tensor
    right: Tensor
    att: Tensor
    slope: float
    edges: Edges
    back: Edges

    def fake(self) -> tuple[Tensor, Tensor, Tensor]:
        return torch.empty_like(self.left), torch.empty_like(self.right), torch.empty_like(self.att)

    def reference(self) -> tuple[Tensor, Tensor, Tensor]:
        """Sums are kept in float32 or finer."""
        left, right, att, slope = self.left, self.right, self.att, self.slope
        (indptr, src, *_), back = self.edges, self.back
        assert back.edge_ids is not None
        dst = destinations(indptr, len(src))
        flat, exact = att.flatten(), exact_type(att.dtype)
        left_grad, right_grad, att_grad = (torch.empty_like(part) for part in (left, right, flat))
        grad = fill_padding(self.grad.clone(), indptr)
        for heads, columns in reference.columns_of(left.shape[1], len(src), len(att)):
            pair = end_sums(left[:, columns], right[:, columns], src, dst, att.dtype)
            weight = grad[:, heads].unsqueeze(-1)
            scaled = (weight * by_head(flat[None, columns], weight.shape[1])).flatten(1)
            values = torch.ops.aten.leaky_relu_backward(scaled, pair, slope, False).to(exact)
            by_head(F.leaky_relu_(pair, slope), weight.shape[1]).mul_(weight)
            att_grad[columns] = pair.sum(0, dtype=exact)
            left_grad[:, columns] = reference.sums_at(values, back.edge_ids, back.indptr)
            right_grad[:, columns] = reference.edge_sums(values, indptr)
        return left_grad, right_grad, att_grad.view(att.shape)

    def cuda(self) -> tuple[Tensor, Tensor, Tensor]:
        left, right, att = self.left, self.right, self.att
        left_grad, right_grad, _ = self.fake()
        values = torch.empty_like(right, dtype=exact_type(att.dtype))
        width, heads = right.shape[1], len(att)
        mine: dict[str, Any] = {"others": left, "rows": right, "values": values}
        launch("pair_gradient", self, right_grad, width, heads, **mine)
        mine = {"others": right, "rows": left, "values": None, "edges": self.back}
        launch("pair_gradient", self, left_grad, width, heads, **mine)
        return left_grad, right_grad, values.sum(0).view(att.shape).to(att.dtype)

    @staticmethod
    def examples(given: Inputs) -> dict[str, Operator]:
        call: Any = PairScores.examples(given)["sums"]
        grad = given.exact(given.num_edges, 3).to(given.dtype)
        pairs = call.left, call.right, call.att, _SLOPE
        return {"heads": PairScoresBackward(grad, *pairs, given.edges, given.back())}
