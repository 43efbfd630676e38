"""Where feature rows come from."""

from __future__ import annotations

import warnings
from typing import Any, Protocol

import numpy.typing as npt
import torch
from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.data.store import GraphStore
from gnntrain.sampling.base import Int64Array

Array = npt.NDArray[Any]

# The store's pages are mapped read-only, which torch has no notion of; nothing here writes to them.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


def as_tensor(array: Array) -> Tensor:
    """A tensor over the array's own memory. It must only be read."""
    return torch.from_numpy(array)


class FeatureSource(Protocol):
    """Hands out feature rows, wherever they lie."""

    @property
    def num_features(self) -> int: ...

    def named(self, nodes: Int64Array | None = None) -> LazyFeatures:
        """Rows of `nodes` (int64 `[n]`), or of all nodes of the graph, without reading them."""
        ...

    def take_reads(self) -> tuple[int, int]:
        """Rows read from a cache, and rows read, since last asked; (0, 0) without a cache."""
        ...


class MappedFeatures:
    """Rows read from the store's mapped pages: one copy a machine, whatever the number of ranks."""

    def __init__(self, store: GraphStore) -> None:
        self._rows = LazyFeatures(stored_rows(store))

    @property
    def num_features(self) -> int:
        return self._rows.num_features

    def named(self, nodes: Int64Array | None = None) -> LazyFeatures:
        """See `FeatureSource.named`."""
        return self._rows if nodes is None else self._rows.select(nodes)

    def take_reads(self) -> tuple[int, int]:
        """See `FeatureSource.take_reads`: nothing is cached."""
        return 0, 0


def stored_rows(store: GraphStore) -> Tensor:
    """The store's rows, in their own precision, over its mapped pages."""
    rows = as_tensor(store.features)
    return rows.view(torch.bfloat16) if store.feature_dtype == "bfloat16" else rows
