"""Puts feature rows where a GPU reads them: in GPU memory, in pinned host memory, or copied."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from gnntrain.compute.features import LazyFeatures, addresses_of
from gnntrain.data.graph import Graph
from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.features import (
    CopiedFeatures,
    FeatureSource,
    InPlaceFeatures,
    slots_of,
    stored_rows,
)
from gnntrain.loading.pinned import pinned
from gnntrain.loading.placement import Placement


def place_features(
    store: Graph, placement: Placement, context: DistributedContext, hot: Tensor | None
) -> FeatureSource:
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
        return InPlaceFeatures(LazyFeatures(rows.to(device)), device)
    if kind == "pinned":
        return InPlaceFeatures(LazyFeatures(pinned(rows, context)), device)
    if kind == "sharded":
        return InPlaceFeatures(sharded_rows(exchanged_shards(rows, context), device), device)
    if kind == "cached" and placement.cold == "pinned":
        assert hot is not None
        return InPlaceFeatures(cached_rows(pinned(rows, context), hot, device), device)
    return CopiedFeatures(rows, device, hot if kind == "cached" else None)


def cached_rows(rows: Tensor, hot: Tensor, device: torch.device) -> LazyFeatures:
    """All rows, those of the nodes `hot` (ascending) from a copy on the device.

    Args:
        rows: `[num_nodes, width]`, where the device can read it.
    """
    return LazyFeatures(
        rows=rows[hot.cpu()].to(device),
        slots=slots_of(hot, len(rows), device),
        parts=addresses_of([rows], device),
        part_rows=len(rows),
        held=(rows,),
    )


def sharded_rows(shards: tuple[Tensor, ...], device: torch.device) -> LazyFeatures:
    """All rows, an equal part of which (the last may be smaller) lies on each GPU."""
    return LazyFeatures(
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
