"""Sources of the feature rows of mini-batches.

Those of rows on several machines are in `loading/shared.py`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from gnntrain import devices
from gnntrain.compute.features import LazyFeatures
from gnntrain.data.graph import Graph, Nodes, NodeType
from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.transfer import send, send_all, staging

_HOST = torch.device("cpu")


def rows_of(nodes: Nodes) -> Tensor:
    """The stored rows of the nodes of one type, in their precision, as views of mapped pages."""
    rows = torch.from_numpy(nodes.features)
    return rows.view(torch.bfloat16) if nodes.feature_dtype == "bfloat16" else rows


def stored_rows(graph: Graph) -> dict[NodeType, Tensor]:
    """The rows of each node type that has features, see `rows_of`."""
    return {name: rows_of(nodes) for name, nodes in graph.nodes.items() if nodes.num_features}


class FeatureSource(ABC):
    """Gives the feature rows of nodes, in any thread.

    Attributes:
        waits: Whether the host reads the nodes in `select`, and so waits for those in a GPU's
            memory.
    """

    waits = True

    def __init__(self) -> None:
        self._counts = 0, 0
        self._lock = threading.Lock()

    @abstractmethod
    def select(self, nodes: Tensor | None = None, size: Tensor | None = None) -> LazyFeatures:
        """The rows of `nodes`, or of all nodes of the graph.

        Args:
            nodes: int64 `[n]`, in the host's memory or the device's.
            size: The number of `nodes` before padding, int64 on the device; None: no padding.
        """

    def take_reads(self) -> tuple[int, int]:
        """Rows read from a cache, and rows read, since the last call; (0, 0) without a cache."""
        with self._lock:
            taken, self._counts = self._counts, (0, 0)
        return taken

    def count(self, hits: int, reads: int) -> None:
        """Count reads, of which `hits` were from the cache."""
        with self._lock:
            self._counts = self._counts[0] + hits, self._counts[1] + reads


class InPlaceFeatures(FeatureSource):
    """The rows of all nodes of the graph, which the device reads in place: no copy, no
    synchronisation."""

    waits = False

    def __init__(self, rows: LazyFeatures, device: torch.device) -> None:
        super().__init__()
        self._rows = rows
        self._device = device
        self._reads = torch.zeros(2, dtype=torch.int64, device=device)

    def select(self, nodes: Tensor | None = None, size: Tensor | None = None) -> LazyFeatures:
        """See `FeatureSource.select`."""
        if nodes is None:
            return self._rows
        # Not `LazyFeatures.select`: in a loader's thread another GPU may be current.
        (nodes,) = send_all([nodes], self._device)
        if self._rows.nodes is not None:  # counted on the device, without synchronisation
            nodes = self._rows.nodes[nodes]
            is_cached = nodes >= self._rows.part_rows
            wanted = torch.ones_like(is_cached)
            if size is not None:
                wanted = torch.arange(len(nodes), device=self._device) < size
            self._reads += torch.stack([(is_cached & wanted).sum(), wanted.sum()])
        return replace(self._rows, nodes=nodes)

    def take_reads(self) -> tuple[int, int]:
        """See `FeatureSource.take_reads`."""
        if self._rows.nodes is not None:
            self.count(*self._reads.tolist())
            self._reads.zero_()
        return super().take_reads()


def in_place(graph: Graph, device: torch.device = _HOST) -> dict[NodeType, FeatureSource]:
    """All rows on a device; on a CPU on the store's pages, which all ranks of a machine share."""
    rows = {name: stored.to(device) for name, stored in stored_rows(graph).items()}
    return {name: InPlaceFeatures(LazyFeatures(own), device) for name, own in rows.items()}


class CopiedFeatures(FeatureSource):
    """Rows that the host copies from the store, batch by batch; some rows may be cached on the GPU.

    For nodes in host memory the host does not wait for the GPU.

    Args:
        rows: `[num_nodes, num_features]`, the store's.
        device: The GPU that reads.
        cached: int64, ascending: the nodes whose rows are kept on the GPU.
    """

    def __init__(self, rows: Tensor, device: torch.device, cached: Tensor | None = None) -> None:
        super().__init__()
        self._rows = rows
        self._device = device
        self._cache: tuple[Tensor, Tensor] | None = None
        if cached is not None:
            slots = torch.full((len(rows),), -1, dtype=torch.int32)  # of the nodes
            slots[cached.cpu()] = torch.arange(len(cached), dtype=torch.int32)
            self._cache = rows[cached.cpu()].to(device), slots

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
        self.count(len(wanted) - len(others), len(wanted))
        positions = is_cached.nonzero().flatten(), (~is_cached).nonzero().flatten()
        hits, hit_slots, misses = send_all(
            [positions[0], slots[is_cached].long(), positions[1]], self._device
        )
        out = cached_rows.new_empty(len(wanted), cached_rows.shape[1])
        out[hits] = cached_rows.index_select(0, hit_slots)
        out[misses] = self._sent(others)
        return LazyFeatures(out)

    def _sent(self, nodes: Tensor) -> Tensor:
        """The rows of `nodes` on the GPU."""
        size = len(nodes), self._rows.shape[1]
        staged = staging(size, self._rows.dtype, self._device)
        return send(torch.index_select(self._rows, 0, nodes, out=staged), self._device)


class WholeGraphFeatures(FeatureSource):
    """The rows of all nodes, an equal part on each rank's GPU: NVIDIA's WholeGraph gathers them.

    A gather (`pip install pylibwholegraph-cu13`) sends node ids to the GPUs that hold the rows, and
    rows back, by NCCL: over NVLink within a machine, over the network between machines. Making this
    from the store's rows is a collective of all ranks, and so is `select`: all call it equally
    often, in the thread whose current GPU is the rank's.
    """

    def __init__(self, rows: Tensor, context: DistributedContext) -> None:
        super().__init__()
        library = import_module("pylibwholegraph.torch")
        self._device = context.device
        ranks = context.machine_ranks
        place = context.rank, context.world_size, context.rank - ranks[0], len(ranks)
        library.init(*place, wm_log_level="error")
        # It takes torch's process group to tell all ranks the address of a communicator of its own,
        # in which its gathers run: they do not mix with DDP's collectives.
        comm = library.get_global_communicator("nccl")
        self._rows: Any = library.create_wholememory_tensor(
            comm, "distributed", "cuda", list(rows.shape), rows.dtype, None
        )
        part, first = self._rows.get_local_tensor()
        part.copy_(rows[first : first + len(part)])
        devices.synchronize(self._device)
        comm.barrier()

    def select(self, nodes: Tensor | None = None, size: Tensor | None = None) -> LazyFeatures:
        """See `FeatureSource.select`; `nodes` are not padded."""
        assert nodes is not None, "no GPU holds the rows of all nodes"
        assert size is None, "a gather waits for the GPU: its batches are not padded"
        return LazyFeatures(self._rows.gather(nodes.to(self._device)))
