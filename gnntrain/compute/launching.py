"""Launching the GPU's kernels on an operator's fields.

Triton is imported when first needed: computing on a CPU does not need it.
"""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.operator import Edges, Operator, Sum

LOAD_BYTES = 16
"""The most that a thread reads at once."""

# Numbers of a tile for each warp: 16 a thread. Where destinations have few in-edges a program is
# one warp, with a tile no taller than most need: more programs then wait for memory at the same
# time, and sums need no shared memory.
_WARP_TILE, _MANY_WARPS = 512, 4
_FEW_EDGES, _MOST_EDGES = 16, 64
_MAX_BLOCK = 256

# Edges of a long row that a program sums: A row of a million edges has 4,000 chunks to add up.
CHUNK_EDGES = 256


def num_chunks(num_edges: int, max_edges: int | None = None) -> int:
    """The whole chunks in so many edges, of at most `max_edges` a row if that is known; 0 if no row
    has many: see `triton_kernels.reduce_rows`."""
    longest = num_edges if max_edges is None else min(num_edges, max_edges)
    return 0 if longest < 2 * CHUNK_EDGES else num_edges // CHUNK_EDGES


def launch(
    name: str,
    operator: Operator,
    result: Tensor,
    width: int,
    heads: int = 1,
    programs: int | None = None,
    **more: Any,
) -> None:
    """Run a kernel on the device of its result, on the current stream.

    Args:
        name: Of the kernel.
        operator: Whose fields, and its edges', are the kernel's arguments of the same names.
        result: What it writes to.
        width: Columns of the rows that it reads, of all heads.
        heads: Heads, each of which has programs of its own (but not for sums).
        programs: For each block of columns; None: one a destination or, for a kernel without edges,
            a tile of rows of the result.
        more: Further arguments, or others than the operator's.
    """
    known: dict[str, Any] = {**vars(operator), **more, "result": result}
    features, edges = known.get("features"), known.get("edges")
    if programs is None:
        programs = len(result) if edges is None else edges.num_dst
    if result.numel() == 0 or programs == 0:
        return
    kernels = import_module("gnntrain.compute.triton_kernels")
    kernel = getattr(kernels, name)
    if edges is not None:
        known = edges._asdict() | known
    given = {key: _plain(known[key]) for key in kernel.arg_names if key in known}
    part, groups = (width, 1) if name == "reduce_rows" else (width // heads, heads)
    block = 1 << max(0, part - 1).bit_length()
    block = block if name == "pair_scores" else min(_MAX_BLOCK, block)
    warps, rows = _MANY_WARPS, _MOST_EDGES
    if edges is not None and len(edges.indices) <= _FEW_EDGES * programs:
        warps, rows = 1, _FEW_EDGES
    rows = max(1, min(rows, warps * _WARP_TILE // block))
    number = kernels.tl.float64 if result.dtype == torch.float64 else kernels.tl.float32
    more = {}
    if features is not None:
        more = _layout(features, width)
        nodes = features.nodes if features.is_plain else features.addresses()
        given["features"] = kernels.Rows(features.rows, nodes)
    given["K"] = kernels.Constants(width, heads, rows, block, number, **more)
    grid = -(-programs // rows) if edges is None else programs, -(-part // block), groups
    with torch.cuda.device_of(result):  # type: ignore[no-untyped-call]  # torch has no types here
        kernel[grid](**given, num_warps=warps, enable_fp_fusion=True)


def _layout(features: LazyFeatures, width: int) -> dict[str, int]:
    """Constants for the kernels that read these rows."""
    matrices, size = (features.rows, *features.held), features.rows.element_size()
    stride = max(matrices, key=len).stride(0)  # torch gives a single row any stride
    step = LOAD_BYTES // size
    wide, align, load = -(-width // step) * step, 0, 0
    if not features.is_plain:
        begins = (matrix.data_ptr() for matrix in matrices)
        align = math.gcd(LOAD_BYTES, stride * size, *begins)
    # Columns behind the last one are read, too, to fill a vector, where there is memory.
    ends = (m.storage_offset() + (len(m) - 1) * stride + wide for m in matrices if len(m))
    sizes = (m.untyped_storage().nbytes() // size for m in matrices if len(m))
    is_whole = width == features.num_features and stride % step == 0
    if is_whole and all(end <= most for end, most in zip(ends, sizes, strict=True)):
        load = wide
    return {"STRIDE": stride, "ALIGN": align, "LOAD": load}


def _plain(value: Any) -> Any:
    """A field as kernels take it: tensors without gaps, of edges and sums the tensors alone."""
    if isinstance(value, Edges | Sum):
        return type(value)._make(
            _plain(part) if isinstance(part, Tensor) else None for part in value
        )
    return value.contiguous() if isinstance(value, Tensor) else value
