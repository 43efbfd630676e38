"""Tables of feature rows, and reductions over the in-edges of a block, on a GPU.

The twin of `gnntrain.compute.rows`: the same reductions, on tensors, by the kernels of
`gnntrain.compute.triton_kernels`, and with gradients. Nothing here waits for the GPU. A block may
be padded, with `indices` longer than `indptr[-1]`, destinations without in-edges and sources
without out-edges: what is too many is not read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from gnntrain.compute.eager import eager
from gnntrain.compute.launching import (
    Pieces,
    Tile,
    launch,
    launch_by_edge,
    launch_by_row,
    num_parts,
)

Root = Literal["none", "beside", "added"]


@dataclass(frozen=True, slots=True)
class DeviceTable:
    """Rows for a GPU to read: source u is the row of node `nodes[u]`, or of node u without `nodes`.

    Node n is row n of `rows`. With `slots` it is row `slots[n]`, or, where that is negative, with
    `parts` alone always, row `n % part_rows` of part `n // part_rows`.

    Attributes:
        rows: `[num_rows, width]` of any floating type, each row without gaps; in the GPU's memory,
            or pinned in the host's, where kernels read it over the bus. With `slots`, the hot rows.
        nodes: int64 `[num_sources]` on the GPU, or None.
        slots: int32 `[num_nodes]` on the GPU, or None.
        parts: int64 `[num_parts]` on the GPU, the addresses of `held` (`addresses_of`), or None.
        part_rows: How many nodes a part holds; the last may hold fewer.
        held: Matrices of the type, width and strides of `rows`, wherever the GPU can read them:
            pinned in the host's memory, or on GPUs that are its peers.
    """

    rows: Tensor
    nodes: Tensor | None = None
    slots: Tensor | None = None
    parts: Tensor | None = None
    part_rows: int = 0
    held: tuple[Tensor, ...] = ()

    @property
    def width(self) -> int:
        return self.rows.shape[1]

    @property
    def device(self) -> torch.device:
        """Where it is read: by the current GPU, if nothing but pinned rows says."""
        known = (self.nodes, self.slots, self.parts, self.rows)
        place = next(tensor.device for tensor in known if tensor is not None)
        is_pinned = place.type == "cpu" and self.rows.is_pinned()
        return torch.device("cuda", torch.cuda.current_device()) if is_pinned else place

    def __len__(self) -> int:
        if self.nodes is not None:
            return len(self.nodes)
        if self.slots is not None:
            return len(self.slots)
        return sum(map(len, self.held)) if self.held else len(self.rows)

    def gather(self, start: int, stop: int, out: Tensor) -> None:
        """Copy the sources `start … stop − 1` to `out` `[stop − start, width]`, in its type."""
        tile, number = Tile.of(self.width), stop - start
        grid = num_parts(number, tile.rows), num_parts(self.width, tile.block)
        places = {**self.places(), "first": start, "num_rows": number}
        launch("triton_kernels.gather_rows", grid, tile, out, self.width, **places)

    @eager
    def read(self, start: int, stop: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """The sources `start … stop − 1` as `[stop − start, width]` in `dtype`, on the GPU."""
        out = torch.empty(stop - start, self.width, dtype=dtype, device=self.device)
        self.gather(start, stop, out)
        return out

    def whole(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """All sources as `[num_sources, width]` in `dtype`, on the GPU."""
        return self.read(0, len(self), dtype)

    def places(self) -> dict[str, Any]:
        """What kernels that read tables take, see `triton_tables.place_of`."""
        begin = self.rows.data_ptr()
        apart = math.gcd(16, *(part.data_ptr() - begin for part in self.held))
        return {
            "rows": self.rows,
            "nodes": self.nodes,
            "slots": self.slots,
            "parts": self.parts,
            "STRIDE": self.rows.stride(0),
            "PART_ROWS": self.part_rows,
            "ALIGN": max(1, apart // self.rows.element_size()),
        }


def table_of(rows: Tensor) -> DeviceTable:
    """The rows of a tensor in the GPU's memory; no copy where each row is without gaps."""
    has_gaps = rows.shape[1] > 1 and rows.stride(1) != 1
    return DeviceTable(rows.contiguous() if has_gaps else rows)


def addresses_of(held: Sequence[Tensor], device: torch.device | str) -> Tensor:
    """Where each matrix begins, as `DeviceTable.parts`: int64 `[num_parts]` on `device`."""
    return torch.tensor([part.data_ptr() for part in held], dtype=torch.int64, device=device)


class OutEdges(NamedTuple):
    """The out-edges of every source.

    Attributes:
        indptr, indices: By source, the destinations; in the type of the block's indices.
        edges: Which in-edge each is, in the same type.
    """

    indptr: Tensor
    indices: Tensor
    edges: Tensor


def transpose(indptr: Tensor, indices: Tensor, num_src: int) -> OutEdges:
    """Sort the in-edges of some destinations by their `num_src` sources.

    The edges of a source keep their order, so that sums over them are the same every time. What
    `indices` holds past `indptr[-1]` goes behind all others, and belongs to no source.
    """
    kind, is_short = indices.dtype, indices.dtype == torch.int32
    numbers = torch.arange(len(indices), dtype=kind, device=indices.device)
    known = torch.where(numbers < indptr[-1], indices, num_src)
    sources, edges = torch.sort(known, stable=True)
    edges = edges.to(kind)
    starts = torch.arange(num_src + 1, dtype=kind, device=indices.device)
    starts = torch.searchsorted(sources, starts, out_int32=is_short)
    destinations = torch.searchsorted(indptr, edges, right=True, out_int32=is_short) - 1
    return OutEdges(starts, destinations, edges)


@dataclass(frozen=True, slots=True)
class DeviceReduction:
    """A sum, mean or maximum over the in-edges of each destination, see `rows.Reduction`.

    out[v] = row_scale[v] · Σ_e edge_weight[e] · source_scale[u] · row(u) + loop[v] · row(own + v),
    with u the source of the in-edge e; what is None counts as 1, but `loop` as 0.

    Attributes:
        indptr, indices: The in-edges, int32 or int64 `[num_dst + 1]` and `[num_edges]`.
        edge_weight: float `[num_edges]`, or `[num_edges, H]` for H heads: head h weighs the columns
            `[h·F/H, (h + 1)·F/H)`.
        source_scale: float `[num_src]`.
        row_scale: float `[num_dst]`.
        loop: float, of the destinations from `first_loop` on.
        is_mean: Divide the sum by the number of in-edges.
        is_max: Take the largest, unweighted, 0 without in-edges.
        skip_own: Leave out edges from a node to itself.
        own: Source number of destination 0.
        first_loop: See `loop`.
        edges: The numbers of the edges in `edge_weight`; None: as they lie.
        source_indptr: Divide the row of source u by `source_indptr[u + 1] - source_indptr[u]`.
        root: "beside": row(own + v) stands beside out[v], which is twice as wide. "added": the
            second half of row(own + v) is added to out[v] where v has a loop, and the first halves
            are summed.
        max_edges: The most in-edges of a destination, if known.
        is_by_edge: The rows are the edges' own: that of edge e is row e, whatever its source.
    """

    indptr: Tensor
    indices: Tensor
    edge_weight: Tensor | None = None
    source_scale: Tensor | None = None
    row_scale: Tensor | None = None
    loop: Tensor | None = None
    is_mean: bool = False
    is_max: bool = False
    skip_own: bool = False
    own: int = 0
    first_loop: int = 0
    edges: Tensor | None = None
    source_indptr: Tensor | None = None
    root: Root = "none"
    max_edges: int | None = None
    is_by_edge: bool = False

    @property
    def num_dst(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_heads(self) -> int:
        weight = self.edge_weight
        return weight.shape[1] if weight is not None and weight.dim() == 2 else 1

    @property
    def pieces(self) -> Pieces:
        """How its long rows are shared out."""
        return Pieces.of(len(self.indices), self.max_edges)

    def transposed(self, out_edges: OutEdges) -> DeviceReduction:
        """Σ over the out-edges: takes the gradient of the destinations to the sources.

        Of a sum or mean. Factors stay where they are; the kernel reads them from the other side.
        """
        return replace(
            self,
            indptr=out_edges.indptr,
            indices=out_edges.indices,
            edges=out_edges.edges,
            source_scale=self.row_scale,
            row_scale=self.source_scale,
            source_indptr=self.indptr if self.is_mean else None,
            is_mean=False,
            own=-self.own,
            first_loop=self.own,
            root="added" if self.root == "beside" else "none",
            max_edges=None,
        )


def reduce_table(table: DeviceTable, reduction: DeviceReduction, dtype: torch.dtype) -> Tensor:
    """Reduce stored rows where they lie.

    Returns:
        `[num_dst, width]` in `dtype`, without gradient; `[num_dst, 2 · width]` where the own rows
        stand beside, half as wide as the table where they are added.
    """
    width = table.width // 2 if reduction.root == "added" else table.width
    across = 2 * width if reduction.root == "beside" else width
    device = reduction.indptr.device
    out = torch.empty(reduction.num_dst, across, dtype=dtype, device=device)
    if reduction.is_max:
        _put_maximum(table, reduction, out, None)
    else:
        _put_sum(table, reduction, out, width)
    return out


def reduce_rows(
    rows: Tensor, reduction: DeviceReduction, out_edges: Callable[[], OutEdges]
) -> Tensor:
    """Reduce the rows of a tensor; gradients flow to it and to the weights of the edges.

    Args:
        rows: float `[num_src, F]`.
        reduction: How.
        out_edges: Gives the block transposed; called for the gradient of the rows only.

    Returns:
        `[num_dst, F]` in the type of `rows`. In-neighbours that share a maximum share its gradient.
    """
    if reduction.is_max:
        return _maximum(rows, reduction, out_edges)
    return _sum(rows, reduction.edge_weight, reduction, out_edges)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        edge_weight: Tensor | None,
        reduction: DeviceReduction,
        out_edges: Callable[[], OutEdges],
    ) -> Tensor:
        ctx.save_for_backward(rows if ctx.needs_input_grad[1] else None, edge_weight)
        ctx.reduction, ctx.out_edges = replace(reduction, edge_weight=None), out_edges
        return reduce_table(table_of(rows), reduction, rows.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        rows, edge_weight = ctx.saved_tensors
        reduction = replace(ctx.reduction, edge_weight=edge_weight)
        grad_rows = grad_weight = None
        if ctx.needs_input_grad[0]:
            backward = reduction.transposed(ctx.out_edges())
            grad_rows = reduce_table(table_of(grad), backward, grad.dtype)
        if ctx.needs_input_grad[1]:
            grad_weight = _edge_products(rows, grad, reduction)
        return grad_rows, grad_weight, None, None


class _Maximum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, reduction: DeviceReduction, out_edges: Callable[[], OutEdges]
    ) -> Tensor:
        out = rows.new_empty(reduction.num_dst, rows.shape[1])
        ties = None
        if ctx.needs_input_grad[0]:
            ties = torch.empty_like(out, dtype=torch.int32)
            ctx.save_for_backward(rows, out, ties)
            ctx.out_edges = out_edges
        _put_maximum(table_of(rows), reduction, out, ties)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        rows, tops, ties = ctx.saved_tensors
        indptr, indices, _ = ctx.out_edges()
        rows, grad = rows.contiguous(), grad.contiguous()
        out, pieces = torch.empty_like(rows), Pieces.of(len(indices))
        args = {"rows": rows, "tops": tops, "ties": ties, "grad": grad, "indptr": indptr}
        args |= {"indices": indices, "PIECE": pieces.size}
        name, width = "triton_maximum.spread_{}", rows.shape[1]
        partial = pieces.partial(out, width)
        if partial is not None:
            launch_by_row(name.format("pieces"), partial, width, **args, num_rows=len(out))
        launch_by_row(name.format("maximum"), out, width, **args, partial=partial)
        return out, None, None


_sum: Callable[..., Tensor] = _Sum.apply
_maximum: Callable[..., Tensor] = _Maximum.apply


def _put_sum(table: DeviceTable, reduction: DeviceReduction, out: Tensor, width: int) -> None:
    pieces, weight = reduction.pieces, reduction.edge_weight
    given = {
        **table.places(),
        "indptr": reduction.indptr,
        "indices": None if reduction.is_by_edge else reduction.indices,
        "edges": reduction.edges,
        "edge_weight": None if weight is None else weight.contiguous(),
        "source_scale": reduction.source_scale,
        "source_indptr": reduction.source_indptr,
        "own": reduction.own,
        "HEADS": reduction.num_heads,
        "SKIP_OWN": reduction.skip_own,
        "PIECE": pieces.size,
    }
    partial = pieces.partial(out, width)
    if partial is not None:
        num_rows = reduction.num_dst
        launch_by_row("triton_kernels.reduce_pieces", partial, width, **given, num_rows=num_rows)
    loop, adds_own = reduction.loop, reduction.root == "added"
    launch_by_row(
        "triton_kernels.reduce_rows",
        out,
        width,
        **given,
        row_scale=reduction.row_scale,
        loop=loop,
        first_loop=reduction.first_loop,
        num_loops=len(loop) if loop is not None else len(table) * adds_own,
        partial=partial,
        IS_MEAN=reduction.is_mean,
        PUTS_OWN=reduction.root == "beside",
        ADDS_OWN=adds_own,
    )


def _edge_products(rows: Tensor, grad: Tensor, reduction: DeviceReduction) -> Tensor:
    """The gradient of the edges' weights; 0 for edges of no destination."""
    assert reduction.edge_weight is not None
    out = torch.zeros_like(reduction.edge_weight, memory_format=torch.contiguous_format)
    given = {
        "rows": rows.contiguous(),
        "grad": grad.contiguous(),
        "indptr": reduction.indptr,
        "indices": reduction.indices,
        "source_scale": reduction.source_scale,
        "row_scale": reduction.row_scale,
        "own": reduction.own,
        "IS_MEAN": reduction.is_mean,
        "SKIP_OWN": reduction.skip_own,
    }
    name, width, num_dst = "triton_kernels.edge_products", rows.shape[1], reduction.num_dst
    launch_by_edge(name, out, width, num_dst, reduction.pieces, **given)
    return out


def _put_maximum(
    table: DeviceTable, reduction: DeviceReduction, out: Tensor, ties: Tensor | None
) -> None:
    pieces, width = reduction.pieces, table.width
    given = {**table.places(), "indptr": reduction.indptr, "indices": reduction.indices}
    given["PIECE"] = pieces.size
    partial, partial_ties = pieces.partial(out, width), None
    if partial is not None:
        partial_ties = torch.empty_like(partial, dtype=torch.int32)
        num_rows = reduction.num_dst
        args = {**given, "ties": partial_ties, "num_rows": num_rows}
        launch_by_row("triton_maximum.max_pieces", partial, width, **args)
    args = {**given, "partial": partial, "partial_ties": partial_ties, "ties": ties}
    launch_by_row("triton_maximum.max_rows", out, width, **args)
