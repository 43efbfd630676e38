"""Launching the GPU's kernels on tensors.

Triton is imported when first needed: computing on a CPU does not need it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

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


def tile_of(width: int, edges_a_row: float = math.inf) -> tuple[int, int, int]:
    """The rows and columns of a program's tile, and its warps.

    For rows of so many columns, which are sums over so many edges on the average.
    """
    block = min(_MAX_BLOCK, max(_MIN_BLOCK, 1 << (width - 1).bit_length()))
    warps = 1 if edges_a_row <= _FEW_EDGES else _MANY_WARPS
    return min(_MAX_ROWS, warps * _WARP_TILE // block), block, warps


def num_chunks(num_edges: int, max_edges: int | None = None) -> int:
    """The whole chunks in so many edges, of at most `max_edges` a row if that is known; 0 if no row
    has many: see `triton_kernels`."""
    longest = num_edges if max_edges is None else min(num_edges, max_edges)
    return 0 if longest < 2 * _CHUNK_EDGES else num_edges // _CHUNK_EDGES


def launch_by_row(
    name: str,
    out: Tensor,
    width: int,
    arguments: Mapping[str, Any],
    also: Mapping[str, Tensor | None] = MappingProxyType({}),
) -> None:
    """Run a kernel that writes by row: a program for each chunk, then one for each row.

    Args:
        name: Of the kernel.
        out: `[num_rows, any]`.
        width: Columns of the rows that it sums.
        arguments: Its other arguments by name, among them the edges. The chunks' programs write to
            tensors which those of the rows find under the same names with `partial_` in front.
        also: What it writes besides, `[num_rows, width]`.
    """
    tile, chunks, given = _cut(arguments, len(out), width)
    across, outs = -(-width // tile[1]), {"out": out, **also}
    partials = {
        key: like.new_empty(chunks, width, dtype=exact_type(like.dtype))
        for key, like in outs.items()
        if chunks and like is not None
    }
    given |= {**outs, **dict.fromkeys(f"partial_{key}" for key in outs)}
    if partials and len(out):
        launch(name, (chunks, across), tile, width, given | partials | {"OF_CHUNKS": True})
    given |= {f"partial_{key}": part for key, part in partials.items()}
    launch(name, (len(out), across), tile, width, given | {"OF_CHUNKS": False})


def launch_by_edge(
    name: str, out: Tensor, width: int, arguments: Mapping[str, Any], heads: int | None = None
) -> None:
    """Run a kernel that writes by edge: a program for the edges of each row and of each chunk.

    Args:
        name, out, width, arguments: See `launch_by_row`.
        heads: Programs of a row, each of which reads `width / heads` columns; None: a tile's.
    """
    num_rows = len(arguments["indptr"]) - 1
    tile, chunks, given = _cut(arguments, num_rows, width // (heads or 1))
    across = heads or -(-width // tile[1])
    for number, of_chunks in ((num_rows, False), (chunks if num_rows else 0, True)):
        more = {"out": out, "OF_CHUNKS": of_chunks}
        launch(name, (number, across), tile, width, given | more)


def _cut(
    arguments: Mapping[str, Any], num_rows: int, width: int
) -> tuple[tuple[int, int, int], int, dict[str, Any]]:
    """The tile, the number of chunks, and the arguments with those that say so."""
    indices = arguments["indices"]
    num_edges = len(arguments["rows"] if indices is None else indices)
    chunks = num_chunks(num_edges, arguments.get("max_in_edges"))
    size = _CHUNK_EDGES if chunks else 0
    tile = tile_of(width, num_edges / max(1, num_rows))
    return tile, chunks, {**arguments, "num_rows": num_rows, "CHUNK": size}


def launch(
    name: str,
    grid: tuple[int, int],
    tile: tuple[int, int, int],
    width: int,
    arguments: Mapping[str, Any],
) -> None:
    """Run a kernel on the device of what it writes, on the current stream.

    Args:
        name: Of the kernel.
        grid: Number of programs.
        tile: See `tile_of`.
        width: Columns of the rows that it reads.
        arguments: By name, what else it takes; others are left out.

    Raises:
        UserError: Triton is not installed.
    """
    out = arguments["out"]
    if out.numel() == 0 or 0 in grid:
        return
    try:
        kernels = import_module("gnntrain.compute.triton_kernels")
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise UserError(
            "computing on a GPU needs triton, which is not installed",
            "it comes with torch's CUDA builds for Linux; else: pip install triton",
        ) from error
    kernel = getattr(kernels, name)
    known = {given: arguments[given] for given in kernel.arg_names if given in arguments}
    number = kernels.tl.float64 if out.dtype == torch.float64 else kernels.tl.float32
    known |= {"WIDTH": width, "TOTAL": number, "ROWS": tile[0], "BLOCK": tile[1]}
    with torch.cuda.device_of(out):  # type: ignore[no-untyped-call]  # torch has no types here
        kernel[grid](**known, num_warps=tile[2], enable_fp_fusion=True)


def arguments_of(operator: Operator) -> dict[str, Any]:
    """An operator's fields, and those of its rows, edges and sum, by the names of kernels."""
    known: dict[str, Any] = {}
    for name, value in vars(operator).items():
        if isinstance(value, LazyFeatures):
            rows, stride = value.rows, value.rows.stride(0)
            known |= {"rows": rows, "nodes": value.nodes, "STRIDE": stride, "ALIGN": 0}
            if not value.is_plain:
                begins = [matrix.data_ptr() for matrix in (rows, *value.held)]
                known["ALIGN"] = math.gcd(_MOST_BYTES, stride * rows.element_size(), *begins)
                known["nodes"] = value.addresses()
        elif isinstance(value, Sum) or name == "edges":
            known |= value._asdict()
        else:
            known[name] = value
    return {
        name: value.contiguous() if isinstance(value, Tensor) and name != "rows" else value
        for name, value in known.items()
    }
