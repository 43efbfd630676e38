"""Sources of the feature rows of mini-batches."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, Protocol

import numpy.typing as npt
import torch
from torch import Tensor

from gnntrain.compute.features import LazyFeatures, as_tensor
from gnntrain.data.graph import Graph, Nodes, NodeType
from gnntrain.loading.transfer import send, send_all, staging

Array = npt.NDArray[Any]

_HOST = torch.device("cpu")


def rows_of(nodes: Nodes) -> Tensor:
    """The stored rows of the nodes of one type, in their precision, as views of mapped pages."""
    rows = as_tensor(nodes.features)
    return rows.view(torch.bfloat16) if nodes.feature_dtype == "bfloat16" else rows


def stored_rows(graph: Graph) -> dict[NodeType, Tensor]:
    """The rows of each node type that has features, see `rows_of`."""
    return {name: rows_of(nodes) for name, nodes in graph.nodes.items() if nodes.num_features}


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

    def _count(self, is_cached: Tensor, size: Tensor | None) -> None:
        """Count the reads on the device, without synchronisation."""
        wanted = torch.ones_like(is_cached)
        if size is not None:
            wanted = torch.arange(len(is_cached), device=is_cached.device) < size
        self._reads += torch.stack([(is_cached & wanted).sum(), wanted.sum()])


def in_place(graph: Graph) -> dict[NodeType, FeatureSource]:
    """The rows where a CPU reads them: on the store's mapped pages, which all ranks of a machine
    share."""
    return {
        name: InPlaceFeatures(LazyFeatures(rows), _HOST)
        for name, rows in stored_rows(graph).items()
    }


class CopiedFeatures:
    """Rows that the host copies from the store, batch by batch; some rows may be cached on the GPU.

    For nodes in host memory the host does not wait for the GPU.

    Args:
        rows: `[num_nodes, num_features]`, the store's.
        device: The GPU that reads.
        cached: int64, ascending: the nodes whose rows are kept on the GPU.
    """

    waits = True

    def __init__(self, rows: Tensor, device: torch.device, cached: Tensor | None = None) -> None:
        self._rows = rows
        self._device = device
        self._cache: tuple[Tensor, Tensor] | None = None
        if cached is not None:
            self._cache = rows[cached.cpu()].to(device), slots_of(cached, len(rows), _HOST)
        self._reads = ReadCounter()

    def select(self, nodes: Tensor | None = None, size: Tensor | None = None) -> LazyFeatures:
        """See `FeatureSource.select`; all rows are the store's own, in host memory."""
        if nodes is None:
            return LazyFeatures(self._rows)
        assert size is None, "a CUDA graph cannot record what the host copies"
        wanted = nodes.cpu()
        if self._cache is None:
            return LazyFeatures(self._sent(wanted))
        cached_rows, slots = self._cache
        slots = slots.index_select(0, wanted)
        is_cached = slots >= 0
        others = wanted[~is_cached]
        self._reads.add(len(wanted) - len(others), len(wanted))
        positions = is_cached.nonzero().flatten(), (~is_cached).nonzero().flatten()
        hits, hit_slots, misses = send_all(
            [positions[0], slots[is_cached].long(), positions[1]], self._device
        )
        out = cached_rows.new_empty(len(wanted), cached_rows.shape[1])
        out[hits] = cached_rows.index_select(0, hit_slots)
        out[misses] = self._sent(others)
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


def slots_of(cached: Tensor, num_nodes: int, device: torch.device) -> Tensor:
    """Each node's row in a cache of the nodes `cached`; −1: not cached. int32 `[num_nodes]`."""
    slots = torch.full((num_nodes,), -1, dtype=torch.int32, device=device)
    slots[cached.to(device)] = torch.arange(len(cached), dtype=torch.int32, device=device)
    return slots
