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
    """Softmax by head over each destination's in-edges, and log Σ exp(score), −∞ for a destination
    without in-edges. With `target` the score of an edge is leaky_relu(score[u] + target[v], slope),
    else `score` is by edge.

    It is computed in float32 or finer: `models.attention` converts.
    """

    types = frozenset({torch.float32, torch.float64})

    score: Tensor
    target: Tensor | None
    slope: float
    edges: Edges

    def fake(self) -> tuple[Tensor, Tensor]:
        score, edges, heads = self.score, self.edges, self.score.shape[1]
        return score.new_empty(len(edges.indices), heads), score.new_empty(edges.num_dst, heads)

    def reference(self) -> tuple[Tensor, Tensor]:
        """The maximum is subtracted first, so that huge scores stay finite."""
        score, (indptr, src, *_) = self.score, self.edges
        dst = destinations(indptr, len(src))
        if self.target is None:
            alpha = score.clone()
        else:
            sums = end_sums(score, self.target, src, dst, score.dtype)
            alpha = F.leaky_relu_(sums, self.slope)
        fill_padding(alpha, indptr, -torch.inf)
        top = reference.maxima(alpha, dst, indptr)
        alpha.sub_(top.index_select(0, dst)).exp_()
        total = reference.edge_sums(alpha, indptr)
        alpha.div_(total.index_select(0, dst))
        # The padding's destination may have no in-edge: not a number.
        return fill_padding(alpha, indptr), top.add_(total.log())

    def cpu(self) -> tuple[Tensor, Tensor]:
        score, edges = self.score, self.edges
        alpha = cpu.numbers_by_edge(edges, score.shape[1], score.dtype)
        log_sum = score.new_empty(edges.num_dst, score.shape[1])
        given = (*cpu.arrays(score, self.target), self.slope), cpu.arrays(*edges[:3])
        outs = cpu.arrays(alpha, log_sum)
        softmax_rows = kernels.softmax_rows
        cpu.by_rows(len(log_sum), len(alpha), lambda a, b: softmax_rows(*given, a, b, *outs))
        return alpha, log_sum

    def cuda(self) -> tuple[Tensor, Tensor]:
        alpha, log_sum = self.fake()
        alpha.zero_()
        launch("softmax_rows", self, log_sum, log_sum.shape[1], alpha=alpha)
        return alpha, log_sum

    @staticmethod
    def examples(given: Inputs) -> dict[str, Operator]:
        sizes = given.num_edges, given.num_rows, given.edges.num_dst
        score, source, target = (given.exact(size, 3) for size in sizes)
        return {
            "scores by edge": EdgeSoftmax(score, None, _SLOPE, given.edges),
            "scores by node": EdgeSoftmax(source, target, _SLOPE, given.edges),
        }


class AttentionBackward(Operator):
    """The gradients behind out[v] = Σ_e weight[e] · row(u), where the weights are those of
    `EdgeSoftmax`, some of them dropped.

    A score's gradient is weight · (row(u) · grad[v]) − alpha · mean[v]: the mean over a
    destination's edges is out[v] · grad[v] (as in FlashAttention), so one pass over the out-edges
    gives the gradients of rows and scores. With a `target` the score of an edge is
    leaky_relu(part(u) + target[v], slope), and the parts of a source, one a head, follow its row.

    Attributes:
        grad, out: `[num_dst, H·C]`.
        rows: `[num_src, H·C]`; with a `target` `[num_src, H·C + H]`.
        alpha, weight: `[num_edges, H]`: the softmax, and what dropout left of it.
        log_grad: `[num_dst, H]`, the gradient of log Σ exp(score).
        target: `[num_dst, H]`; None: scores by edge.
        back: The out-edges of every source, see `Transpose`.

    Results:
        The gradients of `rows`, and of the edges' scores or of `target`.
    """

    grad: Tensor
    rows: Tensor
    out: Tensor
    alpha: Tensor
    weight: Tensor
    log_grad: Tensor
    target: Tensor | None
    slope: float
    edges: Edges
    back: Edges

    def fake(self) -> tuple[Tensor, Tensor]:
        scores = self.alpha if self.target is None else self.target
        return self.rows.new_empty(self.rows.shape), torch.empty_like(scores)

    def reference(self) -> tuple[Tensor, Tensor]:
        """By other operators."""
        grad, alpha, weight, target = self.grad, self.alpha, self.weight, self.target
        heads, width, (indptr, src, *_), back = alpha.shape[1], grad.shape[1], self.edges, self.back
        dst = destinations(indptr, len(src))
        mean = by_head(grad.to(alpha.dtype) * self.out, heads).sum(-1) - self.log_grad
        products = PairScores(self.rows[:, :width], grad, None, heads, 0.0, self.edges).run()
        means = reference.selected_rows(mean, dst)
        by_edge = torch.addcmul(weight * products, alpha, means, value=-1)
        total = LazyFeatures(grad), back, Sum(weight)
        rows_grad = Aggregate(*total, self.rows.dtype).run()
        if target is None:
            return rows_grad, fill_padding(by_edge, indptr)
        assert back.edge_ids is not None
        sums = end_sums(self.rows[:, width:], target, src, dst, target.dtype)
        by_edge = torch.ops.aten.leaky_relu_backward(by_edge, sums, self.slope, False)
        fill_padding(by_edge, indptr)
        by_source, by_target = (
            Aggregate(LazyFeatures(by_edge), over, Sum(), by_edge.dtype).run()
            for over in (Edges(back.indptr, back.edge_ids), _numbered(self.edges))
        )
        return torch.cat([rows_grad, by_source.to(rows_grad.dtype)], dim=1), by_target

    def cpu(self) -> tuple[Tensor, Tensor]:
        grad, alpha, target = self.grad.contiguous(), self.alpha, self.target
        (num_dst, width), heads, edges, back = grad.shape, alpha.shape[1], self.edges, self.back
        features = LazyFeatures.of(self.rows)
        mean = alpha.new_empty(num_dst, heads)

        def means(a: int, b: int) -> None:
            products = by_head(grad[a:b].to(alpha.dtype) * self.out[a:b], heads)
            torch.sub(products.sum(-1), self.log_grad[a:b], out=mean[a:b])

        cpu.by_rows(num_dst, 0, means)
        rows_grad = BUFFERS.empty(self.rows.shape, self.rows.dtype)
        by_edge = cpu.numbers_by_edge(edges, heads, alpha.dtype)
        gradients = cpu.array_of(grad).reshape(-1), *cpu.arrays(mean, target)
        alphas = cpu.arrays(alpha, self.weight)
        given = cpu.table_of(features), cpu.arrays(*back[:3]), gradients, alphas, self.slope
        changes = cpu.array_of(by_edge)
        number = cpu.number_type(grad.dtype, self.rows.dtype)

        def task(start: int, stop: int) -> None:
            out, memory = cpu.array_of(rows_grad[start:stop]), np.empty((2, width), number)
            kernels.attention_gradient(*given, start, stop, out, changes, memory)

        cpu.by_rows(len(rows_grad), len(edges.indices), task)
        if target is None:
            return rows_grad, by_edge
        features = LazyFeatures(by_edge)
        return rows_grad, Aggregate(features, _numbered(edges), Sum(), alpha.dtype).cpu()

    @staticmethod
    def examples(given: Inputs) -> dict[str, Operator]:
        found: dict[str, Operator] = {}
        heads, edges, exact = 3, given.edges, exact_type(given.dtype)  # as models call the softmax
        for name in ("scores by edge", "scores by node"):
            alpha, weight = (given.exact(given.num_edges, heads).to(exact) for _ in range(2))
            log_grad, target = (given.exact(edges.num_dst, heads).to(exact) for _ in range(2))
            by_node = name == "scores by node"
            rows = given.rows(given.num_src, 15 + heads * by_node)
            ends = given.rows(edges.num_dst, 15), rows, given.rows(edges.num_dst, 15)
            shares, over = (alpha, weight, log_grad), (_SLOPE, edges, given.back())
            found[name] = AttentionBackward(*ends, *shares, target if by_node else None, *over)
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
