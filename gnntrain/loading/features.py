"""Sources of the feature rows of mini-batches."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, Protocol

import numpy.typing as npt
import torch
from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.data.graph import Graph

Array = npt.NDArray[Any]

# The store's pages are read-only, which torch cannot express; nothing here writes to them.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


def as_tensor(array: Array) -> Tensor:
    """A tensor over the array's own memory. It must only be read."""
    return torch.from_numpy(array)


def stored_rows(store: Graph) -> Tensor:
    """The store's rows, in the stored precision, as views of its mapped pages."""
    rows = as_tensor(store.features)
    return rows.view(torch.bfloat16) if store.feature_dtype == "bfloat16" else rows


class FeatureSource(Protocol):
    """Gives the feature rows of nodes."""

    waits: bool
    """Whether `select` makes the host wait for the GPU."""

    def select(self, nodes: Tensor | None = None, size: Tensor | None = None) -> LazyFeatures:
        """The rows of `nodes`, or of all nodes of the graph.

        Args:
            nodes: int64 `[n]`, in the host's memory or the device's.
            size: The number of `nodes` before padding, int64 on the device; None: no padding.
        """
        ...

    def take_reads(self) -> tuple[int, int]:
        """Rows read from a cache, and rows read, since the last call; (0, 0) without a cache."""
        ...


class _CountedReads:
    """Counts the rows read from a cache; on the device, without synchronisation."""

    def __init__(self, device: torch.device) -> None:
        self._reads = torch.zeros(2, dtype=torch.int64, device=device)

    def _count(self, is_hot: Tensor, size: Tensor | None) -> None:
        wanted = torch.ones_like(is_hot)
        if size is not None:
            wanted = torch.arange(len(is_hot), device=is_hot.device) < size
        self._reads += torch.stack([(is_hot & wanted).sum(), wanted.sum()])

    def take_reads(self) -> tuple[int, int]:
        """See `FeatureSource.take_reads`."""
        hits, reads = self._reads.tolist()
        self._reads.zero_()
        return hits, reads


class InPlaceFeatures(_CountedReads):
    """Rows that kernels read in place: no copy, no synchronisation.

    Args:
        rows: Of all nodes of the graph.
        device: Where the kernels run.
    """

    waits = False

    def __init__(self, rows: LazyFeatures, device: torch.device) -> None:
        super().__init__(device)
        self._rows = rows
        self._device = device

    @classmethod
    def of(cls, store: Graph) -> InPlaceFeatures:
        """A CPU reads the store's mapped pages, which all ranks of a machine share."""
        return cls(LazyFeatures(stored_rows(store)), torch.device("cpu"))

    def select(self, nodes: Tensor | None = None, size: Tensor | None = None) -> LazyFeatures:
        """See `FeatureSource.select`."""
        if nodes is None:
            return self._rows
        # Not `LazyFeatures.select`: in a loader's thread another GPU may be current.
        own = nodes.to(self._device, non_blocking=True)
        if self._rows.slots is not None:
            self._count(self._rows.slots[own] >= 0, size)
        return replace(self._rows, nodes=own)


class CopiedFeatures(_CountedReads):
    """Rows that the host copies from the store, batch by batch; hot rows may be cached on the GPU.

    Args:
        rows: `[num_nodes, num_features]`, the store's.
        device: The GPU that reads.
        hot: int64, ascending: the nodes whose rows are kept on the GPU.
    """

    waits = True

    def __init__(self, rows: Tensor, device: torch.device, hot: Tensor | None = None) -> None:
        super().__init__(device)
        self._rows = rows
        self._device = device
        self._cache = None if hot is None else rows[hot.cpu()].to(device)
        self._slots = None if hot is None else slots_of(hot, len(rows), device)

    def select(self, nodes: Tensor | None = None, size: Tensor | None = None) -> LazyFeatures:
        """See `FeatureSource.select`; all rows are the store's own, in host memory."""
        if nodes is None:
            return LazyFeatures(self._rows)
        if self._slots is None or self._cache is None:
            return LazyFeatures(self._copied(nodes))
        own = nodes.to(self._device, non_blocking=True)
        slots = self._slots[own]
        is_hot = slots >= 0
        self._count(is_hot, size)
        out = self._cache.new_empty(len(own), self._cache.shape[1])
        out[is_hot] = self._cache[slots[is_hot]]
        out[~is_hot] = self._copied(own[~is_hot])
        return LazyFeatures(out)

    def _copied(self, nodes: Tensor) -> Tensor:
        wanted = nodes.cpu()
        on_gpu = self._device.type == "cuda"
        size = len(wanted), self._rows.shape[1]
        copied = torch.empty(size, dtype=self._rows.dtype, pin_memory=on_gpu)
        torch.index_select(self._rows, 0, wanted, out=copied)
        return copied.to(self._device, non_blocking=True)


def slots_of(hot: Tensor, num_nodes: int, device: torch.device) -> Tensor:
    """Each node's row in a cache of the nodes `hot`; −1: not cached. int32 `[num_nodes]`."""
    slots = torch.full((num_nodes,), -1, dtype=torch.int32, device=device)
    slots[hot.to(device)] = torch.arange(len(hot), dtype=torch.int32, device=device)
    return slots
