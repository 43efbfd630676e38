"""Launching the GPU's kernels on tensors.

Triton is imported when first needed: computing on a CPU does not need it.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gnntrain.errors import UserError

# A program's tile: 16 numbers for each thread of four warps; narrow enough that few columns of the
# last tile are idle, no taller than most destinations have in-edges.
_TILE = 2048
_MIN_BLOCK, _MAX_BLOCK = 16, 128
_MAX_ROWS = 64

# Edges of a long row that a program takes. A row of a million edges is then as much work for its
# own program (2,000 chunks to add up) as a few chunks are for theirs.
_CHUNK_EDGES = 512


class Tile(NamedTuple):
    """The rows and columns of a program's tile."""

    rows: int
    block: int

    @classmethod
    def of(cls, width: int) -> Tile:
        """For rows of so many columns."""
        block = min(_MAX_BLOCK, max(_MIN_BLOCK, 1 << (width - 1).bit_length()))
        return cls(min(_MAX_ROWS, _TILE // block), block)


class Chunks(NamedTuple):
    """The chunks of the edges of long rows, see `triton_tables`.

    Attributes:
        size: Edges of a chunk; 0: no row is long.
        number: Whole chunks in all edges.
    """

    size: int
    number: int

    @classmethod
    def of(cls, num_edges: int, max_edges: int | None = None) -> Chunks:
        """For a block of `num_edges` edges, at most `max_edges` of them (if known) in a row."""
        longest = num_edges if max_edges is None else min(num_edges, max_edges)
        if longest < 2 * _CHUNK_EDGES:
            return cls(0, 0)
        return cls(_CHUNK_EDGES, num_edges // _CHUNK_EDGES)

    def partial(self, like: Tensor, width: int) -> Tensor | None:
        """An empty tensor for the chunks' results, `[number, width]`, in `like`'s type of sums."""
        if not self.size:
            return None
        return like.new_empty(self.number, width, dtype=exact_type(like.dtype))


def exact_type(dtype: torch.dtype) -> torch.dtype:
    """The type of the sums of kernels that write `dtype`."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def num_parts(whole: int, part: int) -> int:
    """The number of parts of a whole; the last may be shorter."""
    return -(-whole // part)


def launch_by_row(name: str, out: Tensor, width: int, **arguments: Any) -> None:
    """Run a kernel with a program for each row of `out` and tile of columns."""
    tile = Tile.of(width)
    launch(name, (len(out), num_parts(width, tile.block)), tile, out, width, **arguments)


def launch_by_edge(
    name: str, out: Tensor, width: int, num_rows: int, chunks: Chunks, **arguments: Any
) -> None:
    """Run a kernel that writes `out` by edge: a program for the edges of each row and head.

    Args:
        name: See `launch`.
        out: `[num_edges]`, or `[num_edges, H]` for H heads.
        width: Of the rows that belong to the edges; each head has a part.
        num_rows: Number of rows.
        chunks: The edges of long rows, which have programs of their own.
        **arguments: Further arguments of the kernel.
    """
    heads = out.shape[1] if out.dim() == 2 else 1
    tile = Tile.of(width // heads)
    given = {**arguments, "num_rows": num_rows, "HEADS": heads, "CHUNK": chunks.size}
    launch(name, (num_rows, heads), tile, out, width, **given, OF_CHUNKS=False)
    if chunks.size:
        launch(name, (chunks.number, heads), tile, out, width, **given, OF_CHUNKS=True)


def launch(
    name: str, grid: tuple[int, int], tile: Tile, out: Tensor, width: int, **arguments: Any
) -> None:
    """Run a kernel on `out`'s device, on the current stream.

    Args:
        name: Module and kernel, as "triton_kernels.reduce_rows".
        grid: Number of programs.
        tile: A program's tile.
        out: The tensor that it writes.
        width: Columns of its rows.
        **arguments: What else it takes.
    """
    if out.numel() == 0 or 0 in grid:
        return
    module, kernel = name.split(".")
    kernels = _kernels(module)
    number = kernels.tl.float64 if out.dtype == torch.float64 else kernels.tl.float32
    with torch.cuda.device_of(out):  # type: ignore[no-untyped-call]  # torch has no types here
        getattr(kernels, kernel)[grid](
            **arguments, out=out, WIDTH=width, TOTAL=number, ROWS=tile.rows, BLOCK=tile.block
        )


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
