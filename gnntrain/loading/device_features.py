"""Feature rows where a GPU reads them: in its memory, in its peers', in the host's, or copied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from gnntrain.compute.device import DeviceTable, addresses_of
from gnntrain.data.graph import Graph
from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.features import as_tensor
from gnntrain.loading.pinned import pinned
from gnntrain.loading.placement import Placement
from gnntrain.sampling.base import Int64Array


class DeviceFeatures(Protocol):
    """Hands out tables of rows for a GPU, wherever the rows lie."""

    waits: bool
    """Whether naming rows waits for the GPU."""

    @property
    def num_features(self) -> int: ...

    def named(
        self, nodes: Tensor | Int64Array | None = None, size: Tensor | None = None
    ) -> DeviceTable:
        """The rows of `nodes` (int64 `[n]`), or of all nodes of the graph.

        Args:
            nodes: In the GPU's memory, or in the host's.
            size: How many of `nodes` count, int64 on the device; None: all.
        """
        ...

    def take_reads(self) -> tuple[int, int]:
        """Rows read from the cache, and rows read, since last asked; (0, 0) without a cache."""
        ...


class _CountedReads:
    """How often the cache had what was wanted; counted where the nodes are, read when asked."""

    def __init__(self, device: torch.device) -> None:
        self._reads = torch.zeros(2, dtype=torch.int64, device=device)

    def _count(self, is_hot: Tensor, size: Tensor | None) -> None:
        wanted = torch.ones_like(is_hot)
        if size is not None:
            wanted = torch.arange(len(is_hot), device=is_hot.device) < size
        self._reads += torch.stack([(is_hot & wanted).sum(), wanted.sum()])

    def take_reads(self) -> tuple[int, int]:
        """See `DeviceFeatures.take_reads`."""
        hits, reads = self._reads.tolist()
        self._reads.zero_()
        return hits, reads


class PlacedFeatures(_CountedReads):
    """Rows that kernels read where they lie: nothing is copied, and nobody waits.

    Args:
        table: Of all nodes of the graph.
        device: The GPU that reads.
    """

    waits = False

    def __init__(self, table: DeviceTable, device: torch.device) -> None:
        super().__init__(device)
        self._table = table
        self._device = device

    @property
    def num_features(self) -> int:
        return self._table.width

    def named(
        self, nodes: Tensor | Int64Array | None = None, size: Tensor | None = None
    ) -> DeviceTable:
        """See `DeviceFeatures.named`."""
        if nodes is None:
            return self._table
        own = _on_device(nodes, self._device)
        if self._table.slots is not None:
            self._count(self._table.slots[own] >= 0, size)
        return replace(self._table, nodes=own)


class StagedFeatures(_CountedReads):
    """Rows that the host copies from the store, batch by batch; hot ones may be on the GPU already.

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

    @property
    def num_features(self) -> int:
        return self._rows.shape[1]

    def named(
        self, nodes: Tensor | Int64Array | None = None, size: Tensor | None = None
    ) -> DeviceTable:
        """See `DeviceFeatures.named`."""
        if nodes is None:
            return DeviceTable(self._rows.to(self._device))
        if self._slots is None or self._cache is None:
            return DeviceTable(self._copied(nodes))
        own = _on_device(nodes, self._device)
        slots = self._slots[own]
        is_hot = slots >= 0
        self._count(is_hot, size)
        out = torch.empty(len(own), self.num_features, dtype=self._rows.dtype, device=self._device)
        out[is_hot] = self._cache[slots[is_hot]]
        out[~is_hot] = self._copied(own[~is_hot])
        return DeviceTable(out)

    def _copied(self, nodes: Tensor | Int64Array) -> Tensor:
        wanted = nodes.cpu() if isinstance(nodes, Tensor) else torch.from_numpy(nodes)
        on_gpu = self._device.type == "cuda"
        staged = torch.empty(
            len(wanted), self.num_features, dtype=self._rows.dtype, pin_memory=on_gpu
        )
        torch.index_select(self._rows, 0, wanted, out=staged)
        return staged.to(self._device, non_blocking=True)


def place_features(
    store: Graph, placement: Placement, context: DistributedContext, hot: Tensor | None
) -> DeviceFeatures:
    """Put a store's rows where `placement` says. Collective.

    Args:
        store: The graph.
        placement: Where.
        context: This rank.
        hot: The nodes to cache, ascending; wanted where the placement is `cached`.

    Raises:
        RunError: There is less room than the placement reckoned with.
    """
    rows, device, kind = stored_rows(store), context.device, placement.features
    if kind == "resident":
        return PlacedFeatures(DeviceTable(rows.to(device)), device)
    if kind == "pinned":
        return PlacedFeatures(DeviceTable(pinned(rows, context)), device)
    if kind == "sharded":
        return PlacedFeatures(sharded_table(exchanged_shards(rows, context), device), device)
    if kind == "cached" and placement.cold == "pinned":
        assert hot is not None
        return PlacedFeatures(cached_table(pinned(rows, context), hot, device), device)
    return StagedFeatures(rows, device, hot if kind == "cached" else None)


def stored_rows(store: Graph) -> Tensor:
    """The store's rows, in their own precision, over its mapped pages."""
    rows = as_tensor(store.features)
    return rows.view(torch.bfloat16) if store.feature_dtype == "bfloat16" else rows


def cached_table(rows: Tensor, hot: Tensor, device: torch.device) -> DeviceTable:
    """All rows, those of the nodes `hot` (ascending) from a copy on the device.

    Args:
        rows: `[num_nodes, width]`, where the device can read it.
    """
    return DeviceTable(
        rows=rows[hot.cpu()].to(device),
        slots=slots_of(hot, len(rows), device),
        parts=addresses_of([rows], device),
        part_rows=len(rows),
        held=(rows,),
    )


def slots_of(hot: Tensor, num_nodes: int, device: torch.device) -> Tensor:
    """Where each node's row is in a cache of the nodes `hot`; −1: nowhere. int32 `[num_nodes]`."""
    slots = torch.full((num_nodes,), -1, dtype=torch.int32, device=device)
    slots[hot.to(device)] = torch.arange(len(hot), dtype=torch.int32, device=device)
    return slots


def sharded_table(shards: tuple[Tensor, ...], device: torch.device) -> DeviceTable:
    """All rows, an equal part of which (the last may be smaller) lies on each GPU."""
    return DeviceTable(
        rows=shards[0],
        parts=addresses_of(shards, device),
        part_rows=len(shards[0]),
        held=shards,
    )


def shard_range(num_rows: int, rank: int, world_size: int) -> slice:
    """The rows that `rank` holds: all ranks hold as many, but for the last ones."""
    part = -(-num_rows // world_size)
    return slice(min(num_rows, rank * part), min(num_rows, (rank + 1) * part))


def exchanged_shards(rows: Tensor, context: DistributedContext) -> tuple[Tensor, ...]:
    """Every rank's part of `rows` on its own GPU, each mapped into this process. Collective."""
    own = rows[shard_range(len(rows), context.rank, context.world_size)].to(context.device)
    if context.world_size == 1:
        return (own,)
    # How processes hand tensors to each other: the memory itself, not a copy.
    handles = context.gather(reduce_tensor(own))  # type: ignore[no-untyped-call]
    return tuple(
        own if rank == context.rank else opened(rebuild, given, context.device)
        for rank, (rebuild, given) in enumerate(handles)
    )


def opened(rebuild: Callable[..., Tensor], given: tuple[Any, ...], device: torch.device) -> Tensor:
    """Another rank's tensor, where `device` reads it.

    Torch would map it for the GPU that holds it, and kernels of no other could read it there. What
    is mapped for `device` its kernels can: CUDA then lets it at its peer's memory. The rank that
    holds the tensor has filled it before it was handed over.

    Args:
        rebuild, given: What `reduce_tensor` gave there.
    """
    if device.type != "cuda":
        return rebuild(*given)
    bound = signature(rebuild).bind(*given)
    bound.arguments |= {"storage_device": device.index, "event_sync_required": False}
    return rebuild(*bound.args)


def _on_device(nodes: Tensor | Int64Array, device: torch.device) -> Tensor:
    if isinstance(nodes, np.ndarray):
        nodes = torch.from_numpy(nodes)
    return nodes.to(device, non_blocking=True)
