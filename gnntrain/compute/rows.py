"""Operators on single rows and edges: gather, transpose, a step of Adam."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gnntrain.compute import kernels
from gnntrain.compute.buffers import BUFFERS
from gnntrain.compute.cpu import array_of, arrays, by_rows, table_of
from gnntrain.compute.examples import Inputs
from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.launching import launch
from gnntrain.compute.operator import Changed, Operator
from gnntrain.compute.reference import rows_at


class Gather(Operator):
    """Rows `start … stop − 1`."""

    features: LazyFeatures
    start: int
    stop: int
    dtype: torch.dtype

    def fake(self) -> Tensor:
        rows, width = self.stop - self.start, self.features.num_features
        return self.features.rows.new_empty(rows, width, dtype=self.dtype)

    def reference(self) -> Tensor:
        features, start, stop = self.features, self.start, self.stop
        if features.is_plain and features.nodes is None:
            return features.rows[start:stop].to(features.device, self.dtype, copy=True)
        return rows_at(features, torch.arange(start, stop, device=features.device)).to(self.dtype)

    def cpu(self) -> Tensor:
        table, start, width = table_of(self.features), self.start, self.features.num_features
        out = BUFFERS.empty((self.stop - start, width), self.dtype)

        def task(a: int, b: int) -> None:
            kernels.gather_rows(table, start, a, b, array_of(out[a:b]), 0, width)

        by_rows(len(out), 0, task)
        return out

    def cuda(self) -> Tensor:
        size = self.stop - self.start, self.features.num_features
        out = torch.empty(size, dtype=self.dtype, device=self.features.device)
        launch("gather_rows", self, out, out.shape[1], num_rows=len(out))
        return out

    @staticmethod
    def examples(given: Inputs) -> dict[str, Operator]:
        stop, dtype = given.num_rows, given.dtype
        return {
            "selected rows": Gather(given.features(136), stop // 3, stop, torch.float32),
            "float32 rows": Gather(given.features(136, torch.float32), 0, stop, dtype),
            "rows in several matrices": Gather(given.spread(40), 0, stop, dtype),
        }


class Transpose(Operator):
    """The out-edges of every source: indptr, indices (destinations), edge ids (in-edges)."""

    indptr: Tensor
    indices: Tensor
    num_src: int

    def fake(self) -> tuple[Tensor, Tensor, Tensor]:
        indices = self.indices
        by_edge = torch.empty_like(indices), torch.empty_like(indices)
        return indices.new_empty(self.num_src + 1), *by_edge

    def reference(self) -> tuple[Tensor, Tensor, Tensor]:
        """The edges of a source keep their order; padding goes behind all others, to the last."""
        indptr, indices, num_src = self.indptr, self.indices, self.num_src
        kind, is_short = indices.dtype, indices.dtype == torch.int32
        numbers = torch.arange(len(indices), dtype=kind, device=indices.device)
        known = torch.where(numbers < indptr[-1], indices, num_src)
        sources, edge_ids = torch.sort(known, stable=True)
        edge_ids = edge_ids.to(kind)
        starts = torch.arange(num_src + 1, dtype=kind, device=indices.device)
        starts = torch.searchsorted(sources, starts, out_int32=is_short)
        ends = torch.searchsorted(indptr[1:-1], edge_ids, right=True, out_int32=is_short)
        return starts, ends, edge_ids

    def cpu(self) -> tuple[Tensor, Tensor, Tensor]:
        indptr, indices = self.indptr, self.indices
        out_indptr = indices.new_zeros(self.num_src + 1)
        out = out_indptr, torch.empty_like(indices), torch.empty_like(indices)
        kernels.transpose(indptr.numpy(), indices.numpy(), *(part.numpy() for part in out))
        for part in out[1:]:
            part[int(indptr[-1]) :] = 0  # padding, which torch's operators read too
        return out


class AddSelfLoops(Operator):
    """The in-edges of each destination but for those from a node to itself, and behind them one
    self loop: indptr, indices, and each edge's number, `num_edges + v` for the self loop of v. The
    places of the edges that are left out are padding, at the end.
    """

    indptr: Tensor
    indices: Tensor
    dst_offset: int

    def fake(self) -> tuple[Tensor, Tensor, Tensor]:
        number = len(self.indices) + len(self.indptr) - 1
        by_edge = self.indices.new_empty(number), self.indices.new_empty(number)
        return torch.empty_like(self.indptr), *by_edge

    def reference(self) -> tuple[Tensor, Tensor, Tensor]:
        """A stable sort by destination, with padding as the edges of one destination more."""
        indptr, indices, num_dst = self.indptr, self.indices, len(self.indptr) - 1
        kind, is_short = indices.dtype, indices.dtype == torch.int32
        numbers = torch.arange(len(indices), dtype=kind, device=indices.device)
        starts = torch.arange(num_dst + 1, dtype=kind, device=indices.device)
        own = starts[:-1]
        ends = torch.searchsorted(indptr[1:-1], numbers, right=True, out_int32=is_short)
        is_kept = (numbers < indptr[-1]) & (indices != ends + self.dst_offset)
        ends = torch.cat([torch.where(is_kept, ends, num_dst), own])
        ends, edge_ids = torch.sort(ends, stable=True)
        edge_ids = edge_ids.to(kind)
        sources = torch.cat([indices, own + self.dst_offset]).index_select(0, edge_ids)
        starts = torch.searchsorted(ends, starts, out_int32=is_short)
        is_padding = ends == num_dst
        return starts, sources.masked_fill_(is_padding, 0), edge_ids.masked_fill_(is_padding, 0)

    def cpu(self) -> tuple[Tensor, Tensor, Tensor]:
        out = self.fake()
        given = self.indptr.numpy(), self.indices.numpy(), self.dst_offset
        kernels.add_self_loops(*given, *(part.numpy() for part in out))
        return out

    @staticmethod
    def examples(given: Inputs) -> dict[str, Operator]:
        edges = given.edges
        return {"edges": AddSelfLoops(edges.indptr, edges.indices, edges.dst_offset)}


class AdamRows(Operator):
    """One step of Adam for the rows `nodes` (int64, each once) of a matrix and its moments.

    g = grad + l2 · w; m ← m + (1 − beta1) (g − m); v ← beta2 · v + (1 − beta2) g²;
    w ← decay · w − step_size · m / (√v / root + eps).
    """

    weight: Changed
    exp_avg: Changed
    exp_avg_sq: Changed
    nodes: Tensor
    grad: Tensor
    beta1: float
    beta2: float
    decay: float
    l2: float
    step_size: float
    root: float
    eps: float

    def fake(self) -> None:
        """The matrices are changed in place."""

    def reference(self) -> None:
        matrices = self.weight, self.exp_avg, self.exp_avg_sq
        row, first, second = (matrix.index_select(0, self.nodes) for matrix in matrices)
        grad = self.grad.to(row.dtype).add(row, alpha=self.l2)
        first.lerp_(grad, 1 - self.beta1)
        second.mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)
        root = second.sqrt().div_(self.root).add_(self.eps)
        row.mul_(self.decay).addcdiv_(first, root, value=-self.step_size)
        for matrix, changed in zip(matrices, (row, first, second), strict=True):
            matrix.index_copy_(0, self.nodes, changed)

    def cpu(self) -> None:
        matrices = arrays(self.weight, self.exp_avg, self.exp_avg_sq)
        places = self.nodes.numpy()
        gradient = array_of(self.grad.to(self.weight.dtype).contiguous())
        shares = 1 - self.beta1, self.beta2, 1 - self.beta2  # not subtracted in float32
        factors = self.decay, self.l2, self.step_size, self.root, self.eps
        numbers = np.array([*shares, *factors], matrices[0].dtype)

        def task(start: int, stop: int) -> None:
            kernels.adam_rows(matrices, places[start:stop], gradient[start:stop], numbers)

        by_rows(len(places), 0, task)
