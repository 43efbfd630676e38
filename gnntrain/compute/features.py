"""Lazy feature rows: kernels read them in place; nothing is copied."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

# torch has no read-only tensors, as over the store's pages, and warns once: of this one.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.from_numpy(np.frombuffer(bytes(8)))


@dataclass(frozen=True, slots=True)
class LazyFeatures:
    """Lazy feature rows, of `nodes` or of all nodes.

    The row of node n is row n of `rows`; with `parts` it is row `n % part_rows` of part
    `n // part_rows`.

    Attributes:
        rows: `[num_rows, num_features]` of any floating type, each row without gaps: in memory, on
            the store's mapped pages, on a GPU, or pinned in the host's memory, where a GPU reads it
            over the bus. With `parts` only their type, width and strides are read.
        nodes: int64 `[n]` on the device that reads, or None: all nodes. With `parts` perhaps int32.
        parts: int64 `[num_parts]` likewise, the addresses of `held` (`addresses_of`), or None.
        part_rows: How many numbers of nodes a part takes; it may hold fewer rows.
        held: Matrices of the type, width and strides of `rows` that the GPU can read: in pinned
            host memory, or on its peers.
    """

    rows: Tensor
    nodes: Tensor | None = None
    parts: Tensor | None = None
    part_rows: int = 0
    held: tuple[Tensor, ...] = ()

    @classmethod
    def of(cls, rows: Tensor) -> LazyFeatures:
        """The rows of a tensor `[num_rows, num_features]`; copied only if rows have gaps."""
        has_gaps = rows.shape[1] > 1 and rows.stride(1) != 1
        return cls(rows.contiguous() if has_gaps else rows)

    @property
    def num_features(self) -> int:
        return self.rows.shape[1]

    @property
    def is_plain(self) -> bool:
        """Whether all rows are in one matrix."""
        return self.parts is None

    @property
    def device(self) -> torch.device:
        """The device that reads the rows: for pinned rows alone the current GPU."""
        for given in (self.nodes, self.parts):
            if given is not None:
                return given.device
        # `is_pinned` initialises CUDA, also in a process that trains on the CPU.
        has_cuda: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        is_pinned = has_cuda and self.rows.is_pinned()
        return torch.device("cuda", torch.cuda.current_device()) if is_pinned else self.rows.device

    def __len__(self) -> int:
        if self.nodes is not None:
            return len(self.nodes)
        return sum(map(len, self.held)) if self.held else len(self.rows)

    def select(self, nodes: Tensor) -> LazyFeatures:
        """The rows of `nodes` (int64 `[n]`, positions in this selection), still lazy."""
        to = self.device
        nodes = nodes.to(to, non_blocking=to.type != "cpu")  # the host reads them at once
        return replace(self, nodes=nodes if self.nodes is None else self.nodes[nodes])

    def columns(self, which: slice) -> LazyFeatures:
        """Some columns of the rows, still lazy."""
        held, first = tuple(part[:, which] for part in self.held), which.start or 0
        parts = None if self.parts is None else self.parts + first * self.rows.element_size()
        return replace(self, rows=self.rows[:, which], parts=parts, held=held)

    def map(self, function: Callable[[Tensor], Tensor]) -> LazyFeatures:
        """The same rows, after the function for each tensor of numbers and of places."""
        rows, held = function(self.rows), tuple(map(function, self.held))
        nodes = None if self.nodes is None else function(self.nodes)
        parts = None if self.parts is None else addresses_of(held, rows.device)
        return replace(self, rows=rows, nodes=nodes, parts=parts, held=held)

    def read(self, start: int, stop: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """The rows `start … stop − 1` as `[stop − start, num_features]` in `dtype`."""
        device = self.device
        if self.nodes is None and device != self.rows.device:  # pinned: the GPU reads them
            nodes = torch.arange(start, stop, device=device)
            return self.select(nodes).read(0, stop - start, dtype)
        # Not by `Gather`, whose module imports this one.
        out: Tensor = torch.ops.gnntrain.gather.default(*self.arguments(), start, stop, dtype)
        return out

    def whole(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """All rows as `[n, num_features]` in `dtype`; not copied if they have this form already."""
        if (
            self.is_plain
            and self.nodes is None
            and self.rows.dtype == dtype
            and self.rows.device == self.device
        ):
            return self.rows
        return self.read(0, len(self), dtype)

    def addresses(self) -> Tensor:
        """Where the rows begin that lie in several matrices: int64 `[n]`, addresses."""
        assert self.parts is not None
        row_bytes = max((self.rows, *self.held), key=len).stride(0) * self.rows.element_size()
        nodes = torch.arange(len(self), device=self.device) if self.nodes is None else self.nodes
        number = nodes // self.part_rows
        return self.parts[number] + (nodes - number * self.part_rows).long() * row_bytes

    def arguments(self) -> tuple[Any, ...]:
        """The fields, as torch's dispatcher takes them."""
        return self.rows, self.nodes, self.parts, self.part_rows, self.held


def addresses_of(held: Sequence[Tensor], device: torch.device | str) -> Tensor:
    """The address of each matrix, for `LazyFeatures.parts`: int64 `[num_parts]` on `device`."""
    return torch.tensor([part.data_ptr() for part in held], dtype=torch.int64, device=device)
