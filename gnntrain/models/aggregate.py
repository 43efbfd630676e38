"""Sums, means and maxima over the in-edges of a block, without a tensor of edges × features.

The kernels of `gnntrain.compute` reduce the rows, on a CPU and on a GPU; the backward pass reduces
over the transposed block. Where weights have gradients of their own (attention), the sum is the
product of a sparse matrix in CSR form (rows: destinations, columns: sources) with a dense one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gnntrain.compute import device
from gnntrain.compute.eager import eager
from gnntrain.compute.rows import Reduction, Table, array_of, by_rows, table_of
from gnntrain.loading.features import StoredRows
from gnntrain.sampling.block import Block

Reduce = Literal["sum", "mean", "max"]

# Numbers that a chunk of edges × features may hold where a step needs them one by one (16 MiB of
# float32): small against the activations, large enough to keep the vector units busy.
MAX_CHUNK_ELEMENTS = 2**22

_INT32_MAX = 2**31 - 1

# Torch warns once a process that these tensors are in beta, and some versions that they are not
# checked, which each call says; the user can do nothing about it.
for _message in ("Sparse CS[CR] tensor support", "Sparse invariant checks are implicitly"):
    warnings.filterwarnings("ignore", message=_message, category=UserWarning)


def num_sampled(block: Block) -> Tensor:
    """In-edges of each destination in the block, int `[num_dst]`."""
    return block.indptr.diff()


def edge_dst(block: Block) -> Tensor:
    """The destination of each edge, int64 `[num_edges]`."""
    rows = torch.arange(block.num_dst, device=block.indptr.device)
    return rows.repeat_interleave(num_sampled(block), output_size=block.num_edges)


def self_loops(block: Block) -> Tensor:
    """Which edges lead from a node to itself, bool `[num_edges]`."""
    return block.indices == edge_dst(block) + block.dst_offset


def by_head(rows: Tensor, heads: int) -> Tensor:
    """`[R, H·C]` seen as `[R, H, C]`; also where there are no rows."""
    return rows.reshape(rows.shape[0], heads, rows.shape[1] // heads)


def sampling_scale(block: Block) -> Tensor | None:
    """What makes a sum over drawn in-edges an unbiased estimate of the sum over all.

    Each in-edge of a destination is drawn with probability `num_sampled / degree`, hence the
    factor `degree / num_sampled` (Horvitz and Thompson, 1952).

    Returns:
        float32 `[num_dst]`, or None where no edge was left out.
    """
    if block.degree is None:
        return None
    return block.degree / num_sampled(block).clamp(min=1)


@dataclass(frozen=True, slots=True)
class Aggregation:
    """What one row is made of, for every destination of a block.

    out[v] = scale[v] · Σ_e weight[e] · source_scale[u] · row(u) + loop[v] · row(v), with u the
    source of the in-edge e. What is None counts as 1, but `loop` as 0. None of them has a gradient.

    Attributes:
        block: The in-edges.
        reduce: "sum", "mean" (the sum over the number of in-edges) or "max" (of the rows alone: it
            takes no weight, scale or loop); 0 where a destination has no in-edge.
        weight: float `[num_edges]`.
        source_scale: float `[num_src]`.
        scale: float `[num_dst]`.
        loop: float `[num_dst]`.
        skip_loops: Leave out the edges that lead from a node to itself.
    """

    block: Block
    reduce: Reduce = "sum"
    weight: Tensor | None = None
    source_scale: Tensor | None = None
    scale: Tensor | None = None
    loop: Tensor | None = None
    skip_loops: bool = False

    def on_cpu(self) -> Reduction:
        """The same for the CPU's kernels."""
        return Reduction(
            indptr=self.block.indptr.numpy(),
            indices=self.block.indices.numpy(),
            edge_weight=array_of(self.weight),
            source_scale=array_of(self.source_scale),
            row_scale=array_of(self.scale),
            loop=array_of(self.loop),
            is_mean=self.reduce == "mean",
            is_max=self.reduce == "max",
            skip_own=self.skip_loops,
            own=self.block.dst_offset,
        )

    def on_device(self) -> device.DeviceReduction:
        """The same for the GPU's kernels."""
        return device.DeviceReduction(
            indptr=self.block.indptr,
            indices=self.block.indices,
            edge_weight=self.weight,
            source_scale=self.source_scale,
            row_scale=self.scale,
            loop=self.loop,
            is_mean=self.reduce == "mean",
            is_max=self.reduce == "max",
            skip_own=self.skip_loops,
            own=self.block.dst_offset,
            max_edges=self.block.max_in_edges,
        )

    def transposed(self) -> Reduction:
        """What takes the gradient of the result to the sources', on the CPU; not of a maximum."""
        return self.on_cpu().transposed(self.block.out_edges())


@eager
def aggregate(source: Tensor | StoredRows | device.DeviceTable, aggregation: Aggregation) -> Tensor:
    """Reduce the rows of the in-neighbours of every destination.

    Args:
        source: float `[num_src, F]`; gradients flow to a tensor. Stored rows are read in place.
        aggregation: How.

    Returns:
        `[num_dst, F]` in the type of a tensor, float32 of stored rows.
    """
    if isinstance(source, StoredRows):
        return _reduced(torch.empty(0), source.table, aggregation)
    if isinstance(source, device.DeviceTable) or source.is_cuda:
        return aggregate_on_device(source, aggregation)
    if aggregation.reduce == "max" and source.requires_grad:
        return _maximum(aggregation.block, source)
    if source.dtype == torch.float16:  # the kernels read it, but do not write it
        return aggregate(source.float(), aggregation).half()
    return _reduced(source, table_of(source), aggregation)


def aggregate_on_device(source: Tensor | device.DeviceTable, aggregation: Aggregation) -> Tensor:
    """`aggregate` by the GPU's kernels."""
    reduction, block = aggregation.on_device(), aggregation.block
    if isinstance(source, device.DeviceTable):
        return device.reduce_table(source, reduction, torch.float32)
    return device.reduce_rows(source, reduction, lambda: out_edges_on_device(block))


class _Reduced(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, table: Table, aggregation: Aggregation) -> Tensor:
        reduction = aggregation.on_cpu()
        out = rows.new_empty(reduction.num_dst, table.width)
        by_rows(
            len(out),
            aggregation.block.num_edges,
            lambda a, b: reduction.put(table, a, b, out[a:b], width=table.width),
        )
        ctx.aggregation = aggregation
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return transposed_rows(ctx.aggregation, grad), None, None


_reduced: Callable[..., Tensor] = _Reduced.apply


def transposed_rows(aggregation: Aggregation, grad: Tensor, has_root: bool = False) -> Tensor:
    """The gradient of the source rows, from that of the destinations', on the CPU.

    Args:
        aggregation: What was done to the rows.
        grad: float `[num_dst, F]`, or with `has_root` `[num_dst, 2F]`: beside the gradient of the
            aggregate that of the destinations' own rows.
        has_root: See `grad`.

    Returns:
        `[num_src, F]` in the type of `grad`.
    """
    block, backward = aggregation.block, aggregation.transposed()
    width = grad.shape[1] // 2 if has_root else grad.shape[1]
    if has_root:
        backward = replace(backward, loop=np.ones(block.num_dst, np.float32))
    table = table_of(grad)
    out = grad.new_empty(block.num_src, width)
    column = width if has_root else 0
    by_rows(
        block.num_src,
        block.num_edges,
        lambda a, b: backward.put(table, a, b, out[a:b], width=width, loop_column=column),
    )
    return out


@eager
def weighted_sum(
    block: Block, x: Tensor, weight: Tensor | None = None, scale: Tensor | None = None
) -> Tensor:
    """Sum the rows of the in-neighbours of every destination, with weights by head.

    Args:
        block: The edges.
        x: float `[num_src, F]`, any floating type; gradients flow.
        weight: float `[num_edges, H]` for H heads, where head h weighs the columns
            `[h·F/H, (h + 1)·F/H)`; gradients flow. None: all 1.
        scale: float `[num_dst]`, a factor for each destination, without gradient.

    Returns:
        `[num_dst, F]` in the type of `x`; 0 where a destination has no in-edge.
    """
    if x.is_cuda:
        return weighted_sum_on_device(block, x, weight, scale)
    return _weighted_sum(x, None if weight is None else weight.to(x.dtype), scale, block)


def weighted_sum_on_device(
    block: Block, x: Tensor, weight: Tensor | None = None, scale: Tensor | None = None
) -> Tensor:
    """`weighted_sum` by the GPU's kernels."""
    reduction = device.DeviceReduction(
        block.indptr,
        block.indices,
        edge_weight=weight,
        row_scale=scale,
        max_edges=block.max_in_edges,
    )
    return device.reduce_rows(x, reduction, lambda: out_edges_on_device(block))


def out_edges_on_device(block: Block) -> device.OutEdges:
    """The edges by source, for the GPU's kernels; found once."""
    if "device_out_edges" not in block.derived:
        edges = device.transpose(block.indptr, block.indices, block.num_src)
        block.derived["device_out_edges"] = edges
    found: device.OutEdges = block.derived["device_out_edges"]
    return found


def edge_chunks(num_edges: int, width: int) -> Iterator[slice]:
    """Ranges of edges whose edges × `width` tensor stays under `MAX_CHUNK_ELEMENTS`."""
    step = max(1, MAX_CHUNK_ELEMENTS // max(1, width))
    for start in range(0, num_edges, step):
        yield slice(start, min(start + step, num_edges))


class _WeightedSum(torch.autograd.Function):
    """out[v, h] = scale[v] · Σ_e weight[e, h] · x[src(e), h] over the in-edges e of v."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, scale: Tensor | None, block: Block
    ) -> Tensor:
        heads = 1 if weight is None else weight.shape[1]
        ctx.block, ctx.heads = block, heads
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight, scale)
        rows = by_head(x.contiguous(), heads)
        out = _product(block.indptr, block.indices, weight, rows)
        if scale is not None:
            out.mul_(scale.view(-1, 1, 1))
        return out.flatten(1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, weight, scale = ctx.saved_tensors
        block: Block = ctx.block
        rows = by_head(grad.contiguous(), ctx.heads)
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_x = _transposed_product(block, weight, scale, rows).flatten(1)
        if ctx.needs_input_grad[1]:
            if scale is not None:
                rows = rows * scale.view(-1, 1, 1)
            grad_weight = _edge_products(block, rows, by_head(x, ctx.heads))
            grad_weight = grad_weight.to(weight.dtype)
        return grad_x, grad_weight, None, None


_weighted_sum: Callable[..., Tensor] = _WeightedSum.apply


def _transposed_product(
    block: Block, weight: Tensor | None, scale: Tensor | None, rows: Tensor
) -> Tensor:
    """Σ over the out-edges of every source: `[num_dst, H, C]` → `[num_src, H, C]`."""
    indptr, indices, numbers = _transposed(block)
    values = None if weight is None else weight[numbers]
    if scale is not None:
        factor = scale[indices].unsqueeze(1)
        values = (factor if values is None else values * factor).to(rows.dtype)
        values = values.expand(-1, rows.shape[1])
    return _product(indptr, indices, values, rows)


def _transposed(block: Block) -> tuple[Tensor, Tensor, Tensor]:
    """The out-edges: `indptr` and `indices` by source, and which edge of the block each is."""
    if "transposed" not in block.derived:
        # A block read by column instead of by row is its transpose; the numbers of the edges as
        # values show where each went.
        numbers = torch.arange(block.num_edges, device=block.indices.device)
        size = (block.num_src, block.num_dst)
        flipped = torch.sparse_csc_tensor(
            block.indptr, block.indices, numbers, size, check_invariants=False
        ).to_sparse_csr()
        parts = (flipped.crow_indices(), flipped.col_indices(), flipped.values())
        block.derived["transposed"] = parts
    transposed: tuple[Tensor, Tensor, Tensor] = block.derived["transposed"]
    return transposed


def _product(indptr: Tensor, indices: Tensor, weight: Tensor | None, rows: Tensor) -> Tensor:
    """A sparse matrix a head, times the head's columns: `[R, H, C]` → `[num rows, H, C]`.

    Head h of row r is row `r·H + h` of the same memory seen as `[R·H, C]`, so that no head's
    columns are ever copied.
    """
    num_rows, heads, width = rows.shape
    if indices.numel() == 0:
        return rows.new_zeros(indptr.numel() - 1, heads, width)
    if weight is None:
        weight = rows.new_ones(indices.numel(), 1)
    flat = rows.reshape(num_rows * heads, width)
    indptr, indices = _widened(indptr, indices, num_rows * heads)
    outs = [
        # Needs no MKL, and takes every floating type.
        torch.sparse.mm(
            _csr(indptr, indices * heads + head, weight[:, head], len(flat)), flat, "sum"
        )
        for head in range(heads)
    ]
    return torch.stack(outs, dim=1) if heads > 1 else outs[0].unsqueeze(1)


def _edge_products(block: Block, grad: Tensor, rows: Tensor) -> Tensor:
    """⟨grad[dst], rows[src]⟩ for every edge and head, `[num_edges, H]`."""
    num_rows, heads, width = rows.shape
    if block.num_edges == 0:
        return rows.new_zeros(0, heads)
    exact = rows.dtype if rows.dtype == torch.float64 else torch.float32  # all the kernel knows
    flat = rows.reshape(num_rows * heads, width).to(exact)
    # Torch refuses a matrix with more entries than cells: where duplicates make it one, widen it.
    missing = -(-block.num_edges // block.num_dst) - len(flat)
    if missing > 0:
        flat = F.pad(flat, (0, 0, 0, missing))
    indptr, indices = _widened(block.indptr, block.indices, len(flat))
    zeros = flat.new_zeros(block.num_edges)
    outs = []
    for head in range(heads):
        pattern = _csr(indptr, indices * heads + head, zeros, len(flat))
        left = grad[:, head].to(exact).contiguous()
        outs.append(torch.sparse.sampled_addmm(pattern, left, flat.t(), beta=0.0).values())
    return torch.stack(outs, dim=1)


def _widened(indptr: Tensor, indices: Tensor, num_columns: int) -> tuple[Tensor, Tensor]:
    """int64 where int32 could not number the columns."""
    if num_columns <= _INT32_MAX:
        return indptr, indices
    return indptr.to(torch.int64), indices.to(torch.int64)


def _csr(indptr: Tensor, indices: Tensor, values: Tensor, num_columns: int) -> Tensor:
    size = (indptr.numel() - 1, num_columns)
    return torch.sparse_csr_tensor(
        indptr, indices, values.contiguous(), size, check_invariants=False
    )


def _maximum(block: Block, x: Tensor) -> Tensor:
    ones = x.new_ones(block.num_edges)
    matrix = _csr(block.indptr, block.indices, ones, block.num_src)
    result: Tensor = torch.sparse.mm(matrix, x, "amax")
    return result
