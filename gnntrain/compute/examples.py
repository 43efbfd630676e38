"""Inputs of the operators' examples: small and awkward blocks, and random rows for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gnntrain.compute.features import LazyFeatures, addresses_of
from gnntrain.compute.operator import Edges, Sum

_HUB_EDGES = 1500  # more than two chunks of `launching`


@dataclass(frozen=True)
class Inputs:
    """Random inputs for a block, on the CPU.

    Attributes:
        name: Of the block.
        edges: Its in-edges.
        num_src: Number of sources, some of which may be no destination's.
        dtype: Of rows of features and activations.
    """

    name: str
    edges: Edges
    num_src: int
    dtype: torch.dtype = torch.float32
    draw: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(1))

    @property
    def num_edges(self) -> int:
        return len(self.edges.indices)

    @property
    def num_rows(self) -> int:
        """Rows of the sources, and of the destinations, which are sources too."""
        return max(self.num_src, self.edges.dst_offset + self.edges.num_dst)

    def back(self) -> Edges:
        """The out-edges of every source, see `Transpose`."""
        # Not by `Transpose`, whose module imports this one.
        return Edges(*torch.ops.gnntrain.transpose(*self.edges[:2], self.num_src))

    def rows(self, number: int, width: int) -> Tensor:
        """Normal numbers `[number, width]`."""
        return self.exact(number, width).to(self.dtype)

    def exact(self, *shape: int) -> Tensor:
        """The same in the type of factors and attention scores, float32."""
        return torch.randn(shape, generator=self.draw)

    def integers(self, number: int, width: int) -> Tensor:
        """Rows of a few distinct numbers, among which maxima tie."""
        return torch.randint(-2, 3, (number, width), generator=self.draw).to(self.dtype)

    def features(self, width: int, dtype: torch.dtype | None = None) -> LazyFeatures:
        """Rows for all sources and destinations, of random nodes."""
        nodes = torch.randint(0, 70, (self.num_rows,), generator=self.draw)
        rows = self.exact(70, width).to(self.dtype if dtype is None else dtype)
        return LazyFeatures(rows, nodes)

    def spread(self, width: int) -> LazyFeatures:
        """The same in several matrices, of which the last has copies of some rows."""
        whole = self.features(width)
        held = whole.rows[:40].clone(), whole.rows[40:].clone(), whole.rows[::3].clone()
        places = torch.arange(70, dtype=torch.int32)
        places[::3] = torch.arange(80, 104, dtype=torch.int32)
        return LazyFeatures(held[2], places[whole.nodes], addresses_of(held, "cpu"), 40, held)

    def mean(self) -> Sum:
        return Sum(scale=self.edges.shares(torch.float32))

    def factors(self) -> Sum:
        """A sum with every factor that there may be."""
        return Sum(*map(self.exact, (self.num_edges, self.num_src, self.edges.num_dst)))


def awkward_inputs(
    dtype: torch.dtype = torch.float32, hub_edges: int = _HUB_EDGES
) -> Iterator[Inputs]:
    """Inputs for a block without edges, of one row, with hubs, with destinations not from 0 on,
    and a padded one."""

    def block(name: str, degrees: Sequence[int] | Tensor, indices: Any, num_src: int) -> Inputs:
        degrees, indices = torch.as_tensor(degrees), torch.as_tensor(indices, dtype=torch.int64)
        indptr = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
        return Inputs(name, Edges(indptr.int(), indices.int()), num_src, dtype)

    yield block("no edge", [0, 0], [], 3)
    yield block("one row", [3], [1, 0, 1], 2)
    draw = torch.Generator().manual_seed(0)
    indices = torch.randint(0, 9, (9 + hub_edges,), generator=draw)
    indices[::4], indices[1::4], indices[2::4] = 2, 2, 2  # many out-edges
    hubs = block("hubs", [3, 0, hub_edges, 1, 5], indices, 9)
    indptr, indices, *_ = hubs.edges
    yield Inputs("hubs", Edges(indptr.long(), indices.long()), 9, dtype)
    for name, num_dst, offset in (("destinations from 5 on", 5, 5), ("padded", 7, 0)):
        degrees = torch.randint(0, 9, (num_dst,), generator=draw)
        indices = torch.randint(0, 12, (int(degrees.sum()),), generator=draw)
        starts = degrees.cumsum(0) - degrees
        has_edges = degrees > 0
        indices[starts[has_edges]] = offset + torch.arange(num_dst)[has_edges]  # self loops
        if name == "padded":
            degrees = torch.cat([degrees, degrees.new_zeros(3)])
            indices = torch.cat([indices, indices.new_zeros(5)])
        made = block(name, degrees, indices, 16 if name == "padded" else 12)
        edges = made.edges._replace(dst_offset=offset, max_in_edges=8)
        yield Inputs(name, edges, made.num_src, dtype)
