"""What the operators' references share: plain torch operators, for any device.

References also compute where there are no kernels: everything on a device with
`compute.kernels=torch`, GATv2's scores on a CPU. So nothing makes the host wait for the device. No
tensor is edges × features: columns are computed some at a time. Rows are read where they lie.
`embedding_bag` sums over edges, in their order: equal runs give equal numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from gnntrain.compute.features import LazyFeatures

# Numbers that a tensor of some edges × features may hold (16 MiB of float32): small against the
# activations, large enough to keep the vector units busy.
MAX_CHUNK_ELEMENTS = 2**22
# The same for edges × some features: of few columns each cache line would be read several times.
MAX_COLUMN_ELEMENTS = 2**24
# Rows of at most so many columns are selected column by column.
MAX_SINGLE_COLUMNS = 8


def rows_at(features: LazyFeatures, places: Tensor) -> Tensor:
    """The rows at these places (int32 or int64 `[n]`), in their own type; waits for parts."""
    nodes = places if features.nodes is None else features.nodes.index_select(0, places)
    if features.is_plain:
        rows = features.rows
        return rows.index_select(0, nodes.to(rows.device)).to(nodes.device)
    out = features.rows.new_empty(len(nodes), features.num_features)
    for number, part in enumerate(features.held):
        here = nodes // features.part_rows == number
        own = nodes[here] - number * features.part_rows
        out[here] = part[own.to(part.device)].to(out.device)
    return out


def by_head(rows: Tensor, heads: int) -> Tensor:
    """`[R, H·C]` viewed as `[R, H, C]`; also without rows."""
    return rows.reshape(rows.shape[0], heads, rows.shape[1] // heads)


def destinations(indptr: Tensor, num_edges: int) -> Tensor:
    """The destination of each edge, in the type of `indptr`; padding belongs to the last one."""
    starts = torch.cat([indptr[:-1], indptr.new_full((1,), num_edges)])
    return torch.repeat_interleave(starts.diff(), output_size=num_edges)


def edge_sums(values: Tensor, indptr: Tensor) -> Tensor:
    """Sums over each destination's edges of numbers by edge."""
    edges = torch.arange(len(values), dtype=indptr.dtype, device=indptr.device)
    return sums_at(values, edges, indptr)


def sums_at(rows: Tensor, places: Tensor, indptr: Tensor, factors: Tensor | None = None) -> Tensor:
    """Sums over each destination's edges of the rows at the edges' places, times factors."""
    if rows.numel() == 0 or len(places) == 0:
        return rows.new_zeros(len(indptr) - 1, rows.shape[1])
    # One bag more than destinations: it takes the padding.
    bags = F.embedding_bag(places, rows, indptr, mode="sum", per_sample_weights=factors)
    return bags[:-1]


def maxima(values: Tensor, dst: Tensor, indptr: Tensor) -> Tensor:
    """The largest number by edge of each destination; −∞ without an edge."""
    if values.device.type == "cpu":  # which scatters one number after the other
        return torch.segment_reduce(values, "max", offsets=indptr, axis=0, unsafe=True)
    top = values.new_full((len(indptr) - 1, values.shape[1]), -torch.inf)
    return top.scatter_reduce_(0, dst.long().unsqueeze(1).expand_as(values), values, "amax")


def fill_padding(by_edge: Tensor, indptr: Tensor, fill: float = 0) -> Tensor:
    """Put `fill` in the rows past `indptr[-1]`, in place."""
    edges = torch.arange(len(by_edge), dtype=indptr.dtype, device=indptr.device)
    return by_edge.masked_fill_((edges >= indptr[-1]).unsqueeze(1), fill)


def columns_of(width: int, num_rows: int, heads: int = 1) -> Iterator[tuple[slice, slice]]:
    """(heads, their columns or, of one, some): rows × columns stay in `MAX_COLUMN_ELEMENTS`."""
    part, step = width // heads, max(1, MAX_COLUMN_ELEMENTS // max(1, num_rows))
    many = max(1, step // max(1, part))
    for first in range(0, heads, many):
        last = min(first + many, heads)
        for start in range(first * part, max(1, last * part), min(step, max(1, many * part))):
            yield slice(first, last), slice(start, min(start + step, last * part))


def exact_type(*dtypes: torch.dtype) -> torch.dtype:
    """The type of sums: float32, or float64 for float64 inputs."""
    return torch.float64 if torch.float64 in dtypes else torch.float32


def end_sums(left: Tensor, right: Tensor, src: Tensor, dst: Tensor, dtype: torch.dtype) -> Tensor:
    """left[src] + right[dst] for every edge."""
    return selected_rows(left, src).to(dtype).add_(selected_rows(right, dst))


def selected_rows(rows: Tensor, index: Tensor) -> Tensor:
    """rows[index]. Of narrow rows by column: torch's kernel for GPUs takes a thread block a row."""
    if rows.shape[1] <= MAX_SINGLE_COLUMNS:
        return rows.t().contiguous().index_select(1, index).t().contiguous()
    return rows.index_select(0, index)
