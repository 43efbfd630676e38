"""Sums and maxima of rows over the in-edges of each destination, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnntrain.compute import kernels, launching
from gnntrain.compute.buffers import BUFFERS
from gnntrain.compute.cpu import (
    array_of,
    arrays,
    by_rows,
    factors_of,
    number_type,
    table_of,
)
from gnntrain.compute.examples import Inputs
from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.launching import launch, num_chunks
from gnntrain.compute.operator import Edges, Operator, Sum
from gnntrain.compute.reference import (
    columns_of,
    destinations,
    edge_sums,
    exact_type,
    fill_padding,
    maxima,
    rows_at,
    sums_at,
)
from gnntrain.compute.rows import Gather


class Aggregate(Operator):
    """`Sum`; with `root` row(dst_offset + v), the destination's own, stands beside out[v], which is
    then twice as wide."""

    features: LazyFeatures
    edges: Edges
    total: Sum
    dtype: torch.dtype
    root: bool = False

    @property
    def size(self) -> tuple[int, int]:
        return self.edges.num_dst, self.features.num_features * (1 + self.root)

    def fake(self) -> Tensor:
        return torch.empty(self.size, dtype=self.dtype, device=self.edges.indptr.device)

    def reference(self) -> Tensor:
        """Some columns of all rows are read at a time, or of each edge's, whichever are fewer."""
        features, total, dtype = self.features, self.total, self.dtype
        indptr, src, edge_ids, dst_offset, _ = self.edges
        exact, heads, num_rows = exact_type(features.rows.dtype, dtype), total.heads, len(features)
        factors: list[Tensor] = []  # of each edge's row
        if (weight := total.edge_weight) is not None:
            weight = weight if edge_ids is None else weight.index_select(0, edge_ids)
            factors.append(weight.reshape(len(src), heads))
        if total.source_scale is not None:
            factors.append(total.source_scale.index_select(0, src).unsqueeze(1))
        factors_of_heads: Any = [None] * heads
        if factors:
            product = reduce(torch.mul, [part.to(exact) for part in factors])
            factors_of_heads = product.expand(-1, heads).t().contiguous()
        numbers = torch.arange(min(len(src), num_rows), dtype=src.dtype, device=src.device)
        wanted, places = (src, numbers) if len(src) < num_rows else (numbers, src)
        parts: list[Tensor] = []
        for own_heads, columns in columns_of(features.num_features, len(numbers), heads):
            rows = rows_at(features.columns(columns), wanted).to(exact)
            # Rows without columns are one part.
            rows_of = rows.chunk(own_heads.stop - own_heads.start, dim=1)
            for part, factor in zip(rows_of, factors_of_heads[own_heads], strict=False):
                parts.append(sums_at(part.contiguous(), places, indptr, factor))
        out = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        if total.scale is not None:
            out *= total.scale.to(exact).unsqueeze(1)

        if not self.root:
            return out.to(dtype)
        own = Gather(features, dst_offset, dst_offset + len(out), dtype).reference()
        return torch.cat([out.to(dtype), own], dim=1)

    def cpu(self) -> Tensor:
        put = reduction(self.features, self.edges, self.total, self.root)
        out = BUFFERS.empty(self.size, self.dtype)
        by_rows(len(out), len(self.edges.indices), lambda a, b: put(a, b, out[a:b]))
        return out

    def cuda(self) -> Tensor:
        """Hubs' edges are summed in chunks, see `triton_kernels.reduce_rows`."""
        total, out, width = self.total, self.fake(), self.features.num_features
        num_edges, most = len(self.edges.indices), self.edges.max_in_edges
        chunks = num_chunks(num_edges, most) if len(out) else 0
        more: dict[str, Any] = {"heads": total.heads, "partial": None, "num_rows": len(out)}
        more["CHUNK"] = launching.CHUNK_EDGES if chunks else 0
        if chunks:
            partial = out.new_empty(chunks, width, dtype=exact_type(out.dtype))
            bare = {"total": total._replace(scale=None), "root": False}
            options = more | bare | {"programs": chunks, "OF_CHUNKS": True}
            launch("reduce_rows", self, partial, width, **options)
            more["partial"] = partial
        launch("reduce_rows", self, out, width, **more, OF_CHUNKS=False)
        return out

    @staticmethod
    def examples(given: Inputs) -> dict[str, Operator]:
        edges, dtype, number = given.edges, given.dtype, given.num_rows
        mean, factors = given.mean(), given.factors()
        heads = Sum(given.exact(given.num_edges, 3))

        def of(rows: Tensor | LazyFeatures, total: Sum, root: bool = False) -> Operator:
            features = LazyFeatures(rows) if isinstance(rows, Tensor) else rows
            return Aggregate(features, edges, total, dtype, root)

        grad = LazyFeatures(given.rows(edges.num_dst, 48)), given.back(), factors.transposed()
        return {
            "mean, own rows": of(given.features(136), mean, True),  # SAGE's first layer
            "float32 rows": of(given.features(136, torch.float32), mean, True),
            "float32 sums": Aggregate(given.features(136), edges, mean, torch.float32, True),
            "rows in several matrices": of(given.spread(40), mean, True),
            "sum": of(given.rows(number, 5), Sum()),
            "all factors": of(given.rows(number, 47), factors),
            "heads": of(given.rows(number, 15), heads),
            "gradient": Aggregate(*grad, dtype),
        }


def reduction(
    features: LazyFeatures, edges: Edges, total: Sum, root: bool
) -> Callable[[int, int, Tensor], None]:
    """Reduces for the destinations `start … stop − 1` into the rows of a tensor, on this thread."""
    table, own, heads = table_of(features), edges.dst_offset, total.heads
    width, row_type = features.num_features, features.rows.dtype
    factors = (
        factors_of(total.edge_weight, heads),
        factors_of(total.source_scale),
        factors_of(total.scale),
    )
    given = table, arrays(*edges[:3]), factors

    def put(start: int, stop: int, out: Tensor) -> None:
        rows, memory = array_of(out), np.empty(width, number_type(row_type, out.dtype))
        kernels.reduce_rows(*given, start, stop, rows, memory)
        if root:
            kernels.gather_rows(table, own, start, stop, rows, width, width)

    return put


class AggregateMax(Operator):
    """The largest number of each column, 0 without in-edges, and how many in-edges brought it
    (int32; nothing if not asked for). Not a number is the largest."""

    features: LazyFeatures
    edges: Edges
    dtype: torch.dtype
    count: bool

    def fake(self) -> tuple[Tensor, Tensor]:
        size = self.edges.num_dst, self.features.num_features
        out = torch.empty(size, dtype=self.dtype, device=self.edges.indptr.device)
        return out, out.new_empty(size if self.count else (0, 0), dtype=torch.int32)

    def reference(self) -> tuple[Tensor, Tensor]:
        features, (indptr, indices, *_) = self.features, self.edges
        exact, dst = exact_type(features.rows.dtype, self.dtype), destinations(indptr, len(indices))
        is_empty = (indptr.diff() == 0).unsqueeze(1)
        out, ties = self.fake()
        for _, columns in columns_of(features.num_features, len(indices)):
            values = rows_at(features.columns(columns), indices).to(exact)
            top = maxima(fill_padding(values, indptr, -torch.inf), dst, indptr)
            out[:, columns] = top.masked_fill_(is_empty, 0)
            if self.count:
                is_top = fill_padding(values == top.index_select(0, dst), indptr)
                number = torch.zeros_like(top, dtype=torch.int32)
                ties[:, columns] = number.index_add_(0, dst, is_top.to(torch.int32))
        return out, ties

    def cpu(self) -> tuple[Tensor, Tensor]:
        width = self.features.num_features
        out = BUFFERS.empty((self.edges.num_dst, width), self.dtype)
        ties = BUFFERS.empty(out.shape if self.count else (0, 0), torch.int32)
        given = table_of(self.features), arrays(*self.edges[:3])
        number = number_type(self.features.rows.dtype, self.dtype)

        def task(start: int, stop: int) -> None:
            rows = array_of(out[start:stop]), ties[start:stop].numpy(), np.empty(width, number)
            kernels.max_rows(*given, start, stop, *rows)

        by_rows(len(out), len(self.edges.indices), task)
        return out, ties

    def cuda(self) -> tuple[Tensor, Tensor]:
        out, ties = self.fake()
        launch("max_rows", self, out, out.shape[1], ties=ties if self.count else None)
        return out, ties

    @staticmethod
    def examples(given: Inputs) -> dict[str, Operator]:
        rows = LazyFeatures(given.integers(given.num_rows, 21))
        edges, dtype = given.edges, given.dtype
        return {
            "ties": AggregateMax(rows, edges, dtype, True),
            "selected rows": AggregateMax(given.features(136), edges, torch.float32, False),
            "float32 rows": AggregateMax(given.features(136, torch.float32), edges, dtype, False),
            "rows in several matrices": AggregateMax(given.spread(40), edges, dtype, True),
        }


class AggregateMaxBackward(Operator):
    """The gradient of the rows, over their out-edges: in-edges that share a maximum share its
    gradient evenly."""

    grad: Tensor
    rows: Tensor
    out: Tensor
    ties: Tensor
    edges: Edges

    def fake(self) -> Tensor:
        return torch.empty_like(self.rows)

    def reference(self) -> Tensor:
        rows, (indptr, indices, *_) = self.rows, self.edges
        shares = self.grad.to(exact_type(rows.dtype)) / self.ties.clamp(min=1)
        found, src = torch.empty_like(rows), destinations(indptr, len(indices))
        for _, columns in columns_of(rows.shape[1], len(indices)):
            tops = self.out[:, columns].index_select(0, indices)
            is_top = tops == rows[:, columns].index_select(0, src)
            values = shares[:, columns].index_select(0, indices)
            found[:, columns] = edge_sums(values.where(is_top, 0), indptr)
        return found

    def cpu(self) -> Tensor:
        rows = self.rows
        grad_rows = BUFFERS.empty(rows.shape, rows.dtype)
        given = arrays(rows, self.out, self.ties, self.grad)
        edges, number = arrays(*self.edges[:3]), number_type(rows.dtype)

        def task(start: int, stop: int) -> None:
            memory = np.empty(rows.shape[1], number)
            target = array_of(grad_rows[start:stop])
            kernels.spread_maximum(given, edges, start, stop, target, memory)

        by_rows(len(rows), len(self.edges.indices), task)
        return grad_rows

    def cuda(self) -> Tensor:
        grad_rows = torch.empty_like(self.rows)
        launch("spread_maximum", self, grad_rows, grad_rows.shape[1])
        return grad_rows

    @staticmethod
    def examples(given: Inputs) -> dict[str, Operator]:
        rows, grad = given.integers(given.num_rows, 21), given.rows(given.edges.num_dst, 21)
        top = AggregateMax(LazyFeatures(rows), given.edges, given.dtype, True).reference()
        return {"ties": AggregateMaxBackward(grad, rows, *top, given.back())}
