"""Sources of the feature rows of mini-batches."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, Protocol

import numpy.typing as npt
import torch
from torch import Tensor

from gnntrain.compute.features import LazyFeatures, as_tensor
from gnntrain.data.graph import Graph, Nodes
from gnntrain.loading.transfer import send, send_all, staging

Array = npt.NDArray[Any]

_HOST = torch.device("cpu")


def stored_rows(store: Graph) -> Tensor:
    """The store's rows, in the stored precision, as views of its mapped pages."""
    return rows_of(store.only_nodes)


def rows_of(nodes: Nodes) -> Tensor:
    """The rows of the nodes of one type, likewise."""
    rows = as_tensor(nodes.features)
    return rows.view(torch.bfloat16) if nodes.feature_dtype == "bfloat16" else rows


class FeatureSource(Protocol):
    """Gives the feature rows of nodes."""

    waits: bool
    """Whether the host reads the nodes in `select`, and so waits for those in a GPU's memory."""

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


class InPlaceFeatures:
    """Rows that the device reads in place: no copy, no synchronisation.

    Args:
        rows: Of all nodes of the graph.
        device: Which reads them.
    """

    waits = False

    def __init__(self, rows: LazyFeatures, device: torch.device) -> None:
        self._rows = rows
        self._device = device
        self._reads = torch.zeros(2, dtype=torch.int64, device=device)

    @classmethod
    def of(cls, store: Graph) -> InPlaceFeatures:
        """A CPU reads the store's mapped pages, which all ranks of a machine share."""
        return cls(LazyFeatures(stored_rows(store)), _HOST)

    def select(self, nodes: Tensor | None = None, size: Tensor | None = None) -> LazyFeatures:
        """See `FeatureSource.select`."""
        if nodes is None:
            return self._rows
        # Not `LazyFeatures.select`: in a loader's thread another GPU may be current.
        (own,) = send_all([nodes], self._device)
        if self._rows.slots is not None:
            self._count(self._rows.slots[own] >= 0, size)
        return replace(self._rows, nodes=own)

    def take_reads(self) -> tuple[int, int]:
        """See `FeatureSource.take_reads`."""
        if self._rows.slots is None:
            return 0, 0
        hits, reads = self._reads.tolist()
        self._reads.zero_()
        return hits, reads

    def _count(self, is_hot: Tensor, size: Tensor | None) -> None:
        """Count the reads on the device, without synchronisation."""
        wanted = torch.ones_like(is_hot)
        if size is not None:
            wanted = torch.arange(len(is_hot), device=is_hot.device) < size
        self._reads += torch.stack([(is_hot & wanted).sum(), wanted.sum()])


class CopiedFeatures:
    """Rows that the host copies from the store, batch by batch; hot rows may be cached on the GPU.

    For nodes in host memory the host does not wait for the GPU.

    Args:
        rows: `[num_nodes, num_features]`, the store's.
        device: The GPU that reads.
        hot: int64, ascending: the nodes whose rows are kept on the GPU.
    """

    waits = True

    def __init__(self, rows: Tensor, device: torch.device, hot: Tensor | None = None) -> None:
        self._rows = rows
        self._device = device
        self._cache: tuple[Tensor, Tensor] | None = None
        if hot is not None:
            self._cache = rows[hot.cpu()].to(device), slots_of(hot, len(rows), _HOST)
        self._reads = ReadCounter()

    def select(self, nodes: Tensor | None = None, size: Tensor | None = None) -> LazyFeatures:
        """See `FeatureSource.select`; all rows are the store's own, in host memory."""
        if nodes is None:
            return LazyFeatures(self._rows)
        assert size is None, "a CUDA graph cannot record what the host copies"
        wanted = nodes.cpu()
        if self._cache is None:
            return LazyFeatures(self._sent(wanted))
        cached, slots = self._cache
        slots = slots.index_select(0, wanted)
        is_hot = slots >= 0
        cold = wanted[~is_hot]
        self._reads.add(len(wanted) - len(cold), len(wanted))
        places = [is_hot.nonzero().flatten(), slots[is_hot].long(), (~is_hot).nonzero().flatten()]
        hot_places, hot_slots, cold_places = send_all(places, self._device)
        out = cached.new_empty(len(wanted), cached.shape[1])
        out[hot_places] = cached.index_select(0, hot_slots)
        out[cold_places] = self._sent(cold)
        return LazyFeatures(out)

    def take_reads(self) -> tuple[int, int]:
        """See `FeatureSource.take_reads`."""
        return self._reads.take()

    def _sent(self, nodes: Tensor) -> Tensor:
        """The rows of `nodes` on the GPU."""
        size = len(nodes), self._rows.shape[1]
        staged = staging(size, self._rows.dtype, self._device)
        return send(torch.index_select(self._rows, 0, nodes, out=staged), self._device)


class ReadCounter:
    """Counts rows that were read from a cache, and rows that were read; from any thread."""

    def __init__(self) -> None:
        self._counts = 0, 0
        self._lock = threading.Lock()

    def add(self, hits: int, reads: int) -> None:
        """Count reads, of which `hits` were from the cache."""
        with self._lock:
            self._counts = self._counts[0] + hits, self._counts[1] + reads

    def take(self) -> tuple[int, int]:
        """See `FeatureSource.take_reads`."""
        with self._lock:
            taken, self._counts = self._counts, (0, 0)
        return taken


def slots_of(hot: Tensor, num_nodes: int, device: torch.device) -> Tensor:
    """Each node's row in a cache of the nodes `hot`; −1: not cached. int32 `[num_nodes]`."""
    slots = torch.full((num_nodes,), -1, dtype=torch.int32, device=device)
    slots[hot.to(device)] = torch.arange(len(hot), dtype=torch.int32, device=device)
    return slots
