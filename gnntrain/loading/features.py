"""Where feature rows come from."""

from __future__ import annotations

import warnings
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnntrain.data.store import GraphStore
from gnntrain.jit import jit
from gnntrain.sampling.base import Int64Array

Array = npt.NDArray[Any]

# The store's pages are mapped read-only, which torch has no notion of; nothing here writes to them.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


def share(array: Array) -> Tensor:
    """A tensor over the array's own memory. It must only be read."""
    return torch.from_numpy(array)


class FeatureSource(Protocol):
    """Hands out feature rows, wherever they lie."""

    @property
    def num_features(self) -> int: ...

    def gather(self, nodes: Int64Array) -> Tensor:
        """Rows of `nodes` (int64 `[n]`) as float32 `[n, num_features]`. Thread-safe."""
        ...

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows of the nodes `start … stop − 1` as float32 `[stop − start, num_features]`."""
        ...

    def whole(self) -> Tensor | None:
        """All rows as float32 `[num_nodes, num_features]` if no copy is needed, else None."""
        ...


class MappedFeatures:
    """Rows read from the store's mapped pages: one copy a machine, whatever the number of ranks."""

    def __init__(self, store: GraphStore) -> None:
        self._table = store.features
        self._dtype = store.feature_dtype

    @property
    def num_features(self) -> int:
        return int(self._table.shape[1])

    def gather(self, nodes: Int64Array) -> Tensor:
        """See `FeatureSource.gather`."""
        out = np.empty((len(nodes), self.num_features), self._table.dtype)
        # Half floats are moved as plain 16-bit patterns, which Numba can copy.
        words = self._table.view(np.uint16) if self._table.itemsize == 2 else self._table
        _gather(words, nodes, out.view(words.dtype))
        return self._float32(out)

    def rows(self, start: int, stop: int) -> Tensor:
        """See `FeatureSource.rows`."""
        return self._float32(self._table[start:stop])

    def whole(self) -> Tensor | None:
        """See `FeatureSource.whole`."""
        return share(self._table) if self._dtype == "float32" else None

    def _float32(self, rows: Array) -> Tensor:
        tensor = share(rows)
        if self._dtype == "bfloat16":
            tensor = tensor.view(torch.bfloat16)
        return tensor.float()


@jit
def _gather(table: Array, nodes: Int64Array, out: Array) -> None:
    for i in range(nodes.shape[0]):
        out[i] = table[nodes[i]]
