"""Where feature rows come from."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnntrain.compute.device import DeviceTable
from gnntrain.compute.eager import eager
from gnntrain.compute.rows import NO_NODES, Table
from gnntrain.data.graph import Graph
from gnntrain.sampling.base import Int64Array

Array = npt.NDArray[Any]

# The store's pages are mapped read-only, which torch has no notion of; nothing here writes to them.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


def as_tensor(array: Array) -> Tensor:
    """A tensor over the array's own memory. It must only be read."""
    return torch.from_numpy(array)


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Feature rows that are named but not read: what aggregates them reads them where they lie.

    Attributes:
        table: The rows, in the store's own precision.
    """

    table: Table

    def __len__(self) -> int:
        nodes = self.table.nodes
        return len(nodes) if nodes is not NO_NODES else len(self.table.words)

    @property
    def num_features(self) -> int:
        return self.table.width

    @eager
    def read(self, start: int, stop: int) -> Tensor:
        """The rows `start … stop − 1` as float32 `[stop − start, num_features]`."""
        out = torch.empty(stop - start, self.num_features)
        self.table.gather(start, stop, out)
        return out

    @eager
    def whole(self) -> Tensor:
        """All rows as float32 `[num_rows, num_features]`; not a copy where they are just that."""
        if self.table.nodes is NO_NODES and self.table.words.dtype == np.float32:
            return as_tensor(self.table.words)
        return self.read(0, len(self))


NamedRows = StoredRows | DeviceTable
"""Rows that what aggregates them reads where they lie, on a CPU or on a GPU."""


class FeatureSource(Protocol):
    """Hands out feature rows, wherever they lie."""

    @property
    def num_features(self) -> int: ...

    def named(self, nodes: Int64Array | None = None) -> StoredRows:
        """Rows of `nodes` (int64 `[n]`), or of all nodes of the graph, without reading them."""
        ...

    def take_reads(self) -> tuple[int, int]:
        """Rows read from a cache, and rows read, since last asked; (0, 0) without a cache."""
        ...


class MappedFeatures:
    """Rows read from the store's mapped pages: one copy a machine, whatever the number of ranks."""

    def __init__(self, store: Graph) -> None:
        self._words: Array = store.features
        self._dtype: torch.dtype = getattr(torch, store.feature_dtype)
        if self._dtype == torch.float16:
            self._words = self._words.view(np.uint16)

    @property
    def num_features(self) -> int:
        return int(self._words.shape[1])

    def named(self, nodes: Int64Array | None = None) -> StoredRows:
        """See `FeatureSource.named`."""
        return StoredRows(Table(self._words, self._dtype, NO_NODES if nodes is None else nodes))

    def take_reads(self) -> tuple[int, int]:
        """See `FeatureSource.take_reads`: nothing is cached."""
        return 0, 0
