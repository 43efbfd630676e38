"""Tables of feature rows, and reductions over the in-edges of a block, on a GPU.

The twin of `gnntrain.compute.rows`: the same reductions, on tensors, by the kernels of
`gnntrain.compute.triton_kernels`, and with gradients. Nothing here waits for the GPU. Triton is
imported when first needed: who computes on a CPU need not have it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gnntrain.errors import UserError

# The tile that a program works on: 16 numbers for each thread of four warps; no wider than what
# leaves few columns of the last one idle, no taller than most destinations have in-edges.
_TILE = 2048
_MIN_BLOCK, _MAX_BLOCK = 16, 128
_MAX_ROWS = 64


@dataclass(frozen=True, slots=True)
class DeviceTable:
    """Rows for a GPU to read: source u is the row of node `nodes[u]`, or of node u without `nodes`.

    Node n is row n of `rows`. With `slots` it is row `slots[n]`, or, where that is negative, with
    `parts` alone always, row `n % part_rows` of part `n // part_rows`.

    Attributes:
        rows: `[num_rows, width]`, contiguous, of any floating type; in the GPU's memory, or pinned
            in the host's, where kernels read it over the bus. With `slots`, the hot rows.
        nodes: int64 `[num_sources]` on the GPU, or None.
        slots: int32 `[num_nodes]` on the GPU, or None.
        parts: int64 `[num_parts]` on the GPU, the addresses of `held` (`addresses_of`), or None.
        part_rows: How many nodes a part holds; the last may hold fewer.
        held: Contiguous matrices of the type and width of `rows`, wherever the GPU can read them:
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

    def __len__(self) -> int:
        if self.nodes is not None:
            return len(self.nodes)
        if self.slots is not None:
            return len(self.slots)
        return sum(map(len, self.held)) if self.held else len(self.rows)

    def gather(self, start: int, stop: int, out: Tensor) -> None:
        """Copy the sources `start … stop − 1` to `out` `[stop − start, width]`, in its type."""
        tile = _Tile.of(self.width)
        grid = _parts(stop - start, tile.rows), _parts(self.width, tile.block)
        _launch("gather_rows", grid, tile, out, **self.places(), first=start, num_rows=stop - start)

    def whole(self) -> Tensor:
        """All rows as float32 `[num_sources, width]`, on the device that reads them."""
        place = self.rows if self.nodes is None else self.nodes
        out = torch.empty(len(self), self.width, device=place.device)
        self.gather(0, len(self), out)
        return out

    def places(self) -> dict[str, Any]:
        """What kernels that read tables take, see `triton_kernels.place_of`."""
        # Blocks of memory of the allocators begin at multiples of far more than 16 bytes.
        begin = self.rows.data_ptr()
        apart = math.gcd(16, *(part.data_ptr() - begin for part in self.held))
        return {
            "rows": self.rows,
            "nodes": self.nodes,
            "slots": self.slots,
            "parts": self.parts,
            "PART_ROWS": self.part_rows,
            "ALIGN": max(1, apart // self.rows.element_size()),
        }


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

    The edges of a source keep their order, so that sums over them are the same every time.
    """
    kind, is_short = indices.dtype, indices.dtype == torch.int32
    sources, edges = torch.sort(indices, stable=True)
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

    @property
    def num_dst(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_heads(self) -> int:
        weight = self.edge_weight
        return weight.shape[1] if weight is not None and weight.dim() == 2 else 1

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
        )


def reduce_table(table: DeviceTable, reduction: DeviceReduction, dtype: torch.dtype) -> Tensor:
    """Reduce stored rows where they lie.

    Returns:
        `[num_dst, width]` in `dtype`, without gradient.
    """
    device = reduction.indptr.device
    out = torch.empty(reduction.num_dst, table.width, dtype=dtype, device=device)
    if reduction.is_max:
        _put_maximum(table, reduction, out, None)
    else:
        _put_sum(table, reduction, out)
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


def edge_softmax(
    score: Tensor, loop_score: Tensor, indptr: Tensor, indices: Tensor, own: int
) -> tuple[Tensor, Tensor]:
    """Softmax over each destination's in-edges and its own extra loop, by head; gradients flow.

    Args:
        score: float `[num_edges, H]`; edges from a node to itself are left out, and get 0.
        loop_score: `[num_dst, H]`, in the same type.
        indptr, indices: The in-edges.
        own: Source number of destination 0.

    Returns:
        Weights of the edges `[num_edges, H]` and of the loops `[num_dst, H]`.
    """
    return _edge_softmax(score, loop_score, indptr, indices, own)


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
        return reduce_table(DeviceTable(rows), reduction, rows.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        rows, edge_weight = ctx.saved_tensors
        reduction = replace(ctx.reduction, edge_weight=edge_weight)
        grad_rows = grad_weight = None
        if ctx.needs_input_grad[0]:
            backward = reduction.transposed(ctx.out_edges())
            grad_rows = reduce_table(DeviceTable(grad), backward, grad.dtype)
        if ctx.needs_input_grad[1]:
            grad_weight = torch.empty_like(edge_weight, memory_format=torch.contiguous_format)
            _put_edge_products(rows, grad, reduction, grad_weight)
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
        _put_maximum(DeviceTable(rows), reduction, out, ties)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        rows, tops, ties = ctx.saved_tensors
        indptr, indices, _ = ctx.out_edges()
        out = torch.empty_like(rows, memory_format=torch.contiguous_format)
        args = {"tops": tops, "ties": ties, "grad": grad, "indptr": indptr, "indices": indices}
        _launch_by_row("spread_maximum", out, rows=rows, **args)
        return out, None, None


class _EdgeSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, score: Tensor, loop_score: Tensor, indptr: Tensor, indices: Tensor, own: int
    ) -> tuple[Tensor, Tensor]:
        alpha, out = (
            torch.empty_like(like, memory_format=torch.contiguous_format)
            for like in (score, loop_score)
        )
        args = {"loop_score": loop_score, "indptr": indptr, "indices": indices, "own": own}
        _launch_by_row("edge_softmax", out, rows=score, alpha=alpha, **args)
        ctx.save_for_backward(alpha, out, indptr)
        return alpha, out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, loop_grad: Tensor) -> tuple[Tensor | None, ...]:
        alpha, loop_alpha, indptr = ctx.saved_tensors
        score_grad, out = torch.empty_like(alpha), torch.empty_like(loop_alpha)
        args = {"grad": grad, "loop_grad": loop_grad, "indptr": indptr, "score_grad": score_grad}
        name = "edge_softmax_gradient"
        _launch_by_row(name, out, rows=alpha, loop_alpha=loop_alpha, **args)
        return score_grad, out, None, None, None


_sum: Callable[..., Tensor] = _Sum.apply
_edge_softmax: Callable[..., tuple[Tensor, Tensor]] = _EdgeSoftmax.apply
_maximum: Callable[..., Tensor] = _Maximum.apply


def _put_sum(table: DeviceTable, reduction: DeviceReduction, out: Tensor) -> None:
    loop = reduction.loop
    _launch_by_row(
        "reduce_rows",
        out,
        **table.places(),
        indptr=reduction.indptr,
        indices=reduction.indices,
        edges=reduction.edges,
        edge_weight=reduction.edge_weight,
        source_scale=reduction.source_scale,
        source_indptr=reduction.source_indptr,
        row_scale=reduction.row_scale,
        loop=loop,
        first_loop=reduction.first_loop,
        num_loops=0 if loop is None else len(loop),
        own=reduction.own,
        HEADS=reduction.num_heads,
        IS_MEAN=reduction.is_mean,
        SKIP_OWN=reduction.skip_own,
    )


def _put_edge_products(rows: Tensor, grad: Tensor, reduction: DeviceReduction, out: Tensor) -> None:
    _launch(
        "edge_products",
        (reduction.num_dst, reduction.num_heads),
        _Tile.of(rows.shape[1] // reduction.num_heads),
        out,
        rows=rows,
        grad=grad,
        indptr=reduction.indptr,
        indices=reduction.indices,
        source_scale=reduction.source_scale,
        row_scale=reduction.row_scale,
        own=reduction.own,
        HEADS=reduction.num_heads,
        IS_MEAN=reduction.is_mean,
        SKIP_OWN=reduction.skip_own,
    )


def _put_maximum(
    table: DeviceTable, reduction: DeviceReduction, out: Tensor, ties: Tensor | None
) -> None:
    block = {"indptr": reduction.indptr, "indices": reduction.indices}
    _launch_by_row("max_rows", out, **table.places(), ties=ties, **block)


class _Tile(NamedTuple):
    """How many rows and columns a program holds at a time."""

    rows: int
    block: int

    @classmethod
    def of(cls, width: int) -> _Tile:
        """For rows of so many columns."""
        block = min(_MAX_BLOCK, max(_MIN_BLOCK, 1 << (width - 1).bit_length()))
        return cls(min(_MAX_ROWS, _TILE // block), block)


def _parts(whole: int, part: int) -> int:
    return -(-whole // part)


def _launch_by_row(name: str, out: Tensor, **arguments: Any) -> None:
    """Run a kernel of which a program makes one row of `out`, or some of its columns."""
    num_rows, width = out.shape
    tile = _Tile.of(width)
    _launch(name, (num_rows, _parts(width, tile.block)), tile, out, **arguments)


def _launch(
    name: str, grid: tuple[int, int], tile: _Tile, out: Tensor, rows: Tensor, **arguments: Any
) -> None:
    """Run a kernel on `out`'s device, after what was launched there before.

    Args:
        name: Of the kernel in `triton_kernels`.
        grid: How many programs.
        tile: What a program works on.
        out: What it writes.
        rows: `[any, width]`, what it reads.
        **arguments: What else it takes.
    """
    if out.numel() == 0:
        return
    kernels = _kernels()
    number = kernels.tl.float64 if out.dtype == torch.float64 else kernels.tl.float32
    given = {
        key: value.contiguous() if isinstance(value, Tensor) else value
        for key, value in {**arguments, "rows": rows}.items()
    }
    with torch.cuda.device_of(out):  # type: ignore[no-untyped-call]  # torch has no types here
        getattr(kernels, name)[grid](
            **given,
            out=out,
            WIDTH=rows.shape[1],
            TOTAL=number,
            ROWS=tile.rows,
            BLOCK=tile.block,
        )


def _kernels() -> ModuleType:
    try:
        from gnntrain.compute import triton_kernels
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise UserError(
            "computing on a GPU needs triton, which is not installed",
            "it comes with torch's CUDA builds for Linux; else: pip install triton",
        ) from error
    return triton_kernels
