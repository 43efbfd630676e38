"""Launching the GPU's kernels on tensors.

Triton is imported when first needed: computing on a CPU does not need it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.operator import Operator, Sum
from gnntrain.compute.reference import exact_type
from gnntrain.errors import UserError

_MOST_BYTES = 16  # that a thread reads at once

# A warp's part of a program's tile: 16 numbers for each thread. Tiles are narrow enough that few
# columns of the last one are idle, and no taller than most destinations have in-edges: where these
# are few, a program is one warp, so that more programs wait for memory at the same time, and sums
# need no shared memory.
_WARP_TILE = 512
_MANY_WARPS = 4
_FEW_EDGES = 8
_MIN_BLOCK, _MAX_BLOCK = 16, 128
_MAX_ROWS = 64

# Edges of a long row that a program takes: one warp reads them in 64 steps. A row of a million
# edges has 4,000 chunks to add up, which its own program does in 250.
_CHUNK_EDGES = 256


class Tile(NamedTuple):
    """The rows and columns of a program's tile, and its warps."""

    rows: int
    block: int
    warps: int

    @classmethod
    def of(cls, width: int, chunks: Chunks | None = None, num_rows: int = 1) -> Tile:
        """For rows of so many columns, a sum of which takes the edges of `chunks` by `num_rows`."""
        block = min(_MAX_BLOCK, max(_MIN_BLOCK, 1 << (width - 1).bit_length()))
        has_few = chunks is not None and chunks.num_edges <= _FEW_EDGES * num_rows
        warps = 1 if has_few else _MANY_WARPS
        return cls(min(_MAX_ROWS, warps * _WARP_TILE // block), block, warps)


class Chunks(NamedTuple):
    """The chunks of the edges of long rows, see `triton_kernels`.

    Attributes:
        size: Edges of a chunk; 0: no row is long.
        number: Whole chunks in all edges.
        num_edges: All edges.
    """

    size: int
    number: int
    num_edges: int

    @classmethod
    def of(cls, num_edges: int, max_edges: int | None = None) -> Chunks:
        """For a block of `num_edges` edges, at most `max_edges` of them (if known) in a row."""
        longest = num_edges if max_edges is None else min(num_edges, max_edges)
        if longest < 2 * _CHUNK_EDGES:
            return cls(0, 0, num_edges)
        return cls(_CHUNK_EDGES, num_edges // _CHUNK_EDGES, num_edges)

    def partial(self, like: Tensor | None, width: int) -> Tensor | None:
        """An empty tensor for the chunks' part of `like`, `[number, width]`, if there are any."""
        if not self.size or like is None:
            return None
        return like.new_empty(self.number, width, dtype=exact_type(like.dtype))


def num_parts(whole: int, part: int) -> int:
    """The number of parts of a whole; the last may be shorter."""
    return -(-whole // part)


def launch_by_row(
    name: str,
    out: Tensor,
    width: int,
    chunks: Chunks,
    also: Mapping[str, Tensor | None] = MappingProxyType({}),
    **arguments: Any,
) -> None:
    """Run a kernel that writes by row: a program for each chunk, then one for each row.

    Args:
        name: See `launch`.
        out: `[num_rows, any]`.
        width: Columns of the rows that it sums.
        chunks: The edges of long rows. Their programs write to tensors which those of the rows
            find under the same names with `partial_` in front.
        also: What it writes besides, `[num_rows, width]`.
        **arguments: Further arguments of the kernel.
    """
    outs: dict[str, Any] = {"out": out, **also}
    of_chunks: dict[str, Any] = {key: chunks.partial(outs[key], width) for key in outs}
    partials: dict[str, Any] = {f"partial_{key}": of_chunks[key] for key in outs}
    tile = Tile.of(width, chunks, len(out))
    given = {**arguments, "num_rows": len(out), "CHUNK": chunks.size}
    across = num_parts(width, tile.block)
    if chunks.size and len(out):
        none: dict[str, Any] = dict.fromkeys(partials)
        grid = chunks.number, across
        launch(name, grid, tile, width, **given, **of_chunks, **none, OF_CHUNKS=True)
    launch(name, (len(out), across), tile, width, **given, **outs, **partials, OF_CHUNKS=False)


def launch_by_edge(
    name: str, num_rows: int, across: int, tile: Tile, width: int, chunks: Chunks, **arguments: Any
) -> None:
    """Run a kernel that writes by edge: a program for the edges of each row and of each chunk.

    Args:
        name: See `launch`.
        num_rows: Number of rows.
        across: Programs of a row.
        tile: See `launch`.
        width: See `launch`.
        chunks: The edges of long rows.
        **arguments: Further arguments of the kernel.
    """
    given = {**arguments, "num_rows": num_rows, "CHUNK": chunks.size}
    launch(name, (num_rows, across), tile, width, **given, OF_CHUNKS=False)
    if chunks.size and num_rows:
        launch(name, (chunks.number, across), tile, width, **given, OF_CHUNKS=True)


def launch(
    name: str, grid: tuple[int, int], tile: Tile, width: int, *, out: Tensor, **arguments: Any
) -> None:
    """Run a kernel on `out`'s device, on the current stream.

    Args:
        name: Module and kernel, as "triton_kernels.reduce_rows".
        grid: Number of programs.
        tile: A program's tile.
        width: Columns of the rows that it reads.
        out: The tensor that it writes.
        **arguments: By name, what else it takes; others are left out.
    """
    if out.numel() == 0 or 0 in grid:
        return
    module, _, function = name.partition(".")
    kernels = _kernels(module)
    kernel = getattr(kernels, function)
    known = {given: arguments[given] for given in kernel.arg_names if given in arguments}
    number = kernels.tl.float64 if out.dtype == torch.float64 else kernels.tl.float32
    constants = {"WIDTH": width, "TOTAL": number, "ROWS": tile.rows, "BLOCK": tile.block}
    options = {"num_warps": tile.warps, "enable_fp_fusion": True}
    with torch.cuda.device_of(out):  # type: ignore[no-untyped-call]  # torch has no types here
        kernel[grid](**known, **constants, **options, out=out)


def _kernels(module: str) -> ModuleType:
    try:
        return import_module(f"gnntrain.compute.{module}")
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise UserError(
            "computing on a GPU needs triton, which is not installed",
            "it comes with torch's CUDA builds for Linux; else: pip install triton",
        ) from error


def arguments_of(operator: Operator) -> dict[str, Any]:
    """An operator's fields, and those of its rows and sum, by the names that kernels give them."""
    known: dict[str, Any] = {}
    for name, value in vars(operator).items():
        if isinstance(value, LazyFeatures):
            known |= _places_of(value)
        elif isinstance(value, Sum):
            known |= value._asdict()
        else:
            known[name] = value
    for name, value in known.items():
        if isinstance(value, Tensor) and name != "rows":
            known[name] = value.contiguous()
    return known


def _places_of(features: LazyFeatures) -> dict[str, Any]:
    """The arguments of kernels that read features, see `triton_kernels.rows_at`."""
    rows, stride = features.rows, features.rows.stride(0)
    begins = [matrix.data_ptr() for matrix in (rows, *features.held)]
    return {
        "rows": rows,
        "nodes": features.nodes,
        "slots": features.slots,
        "parts": features.parts,
        "STRIDE": stride,
        "PART_ROWS": features.part_rows,
        "ALIGN": math.gcd(_MOST_BYTES, stride * rows.element_size(), *begins),
    }
