"""Places feature rows for a GPU: in its memory, in pinned host memory, or copied by batch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.data.graph import Graph, NodeType
from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import UserError
from gnntrain.loading.features import (
    CopiedFeatures,
    FeatureSource,
    InPlaceFeatures,
    slots_of,
    stored_rows,
)
from gnntrain.loading.pinned import PinningError, device_addresses, pinned
from gnntrain.loading.placement import Memory, Placement

_log = logging.getLogger("gnntrain")


@dataclass
class PinnedArrays:
    """Copies of a graph's arrays in pinned host memory, as far as the placement has use for them.

    Attributes:
        indices: The edges' sources, or None.
        rows: The feature rows of each node type.
    """

    indices: Tensor | None = None
    rows: dict[NodeType, Tensor] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Bytes of all of them together."""
        arrays = [*self.rows.values(), *([] if self.indices is None else [self.indices])]
        return sum(array.nbytes for array in arrays)


def place_and_pin(
    store: Graph,
    choose: Callable[[Memory], Placement],
    memory: Memory,
    context: DistributedContext,
) -> tuple[Placement, PinnedArrays]:
    """Choose a placement, and pin in host memory what it has there. Collective.

    Where the system refuses, the placement is chosen anew, as if the host had no more memory than
    what could be pinned.

    Args:
        store: The graph.
        choose: The placement for some memory, equal on all ranks.
        memory: Of the machine.
        context: This rank.

    Raises:
        PinningError: The user has asked for what cannot be pinned.
        UserError: As of `choose`.
    """
    failure: PinningError | None = None
    while True:
        try:
            placement = choose(memory)
        except UserError:
            if failure is not None:
                raise failure from None
            raise
        arrays, failure = _pin(store, placement, context)
        if failure is None:
            return placement, arrays
        if context.is_main:
            _log.warning("%s The graph is kept elsewhere.", failure.message)
        memory = replace(memory, host=2 * arrays.num_bytes)  # of which half may be pinned
        del arrays  # freed, and pinned again


def _pin(
    store: Graph, placement: Placement, context: DistributedContext
) -> tuple[PinnedArrays, PinningError | None]:
    """Pin what the placement has in host memory; if that fails, the arrays before and why."""
    arrays = PinnedArrays()
    try:
        if placement.topology == "pinned":
            arrays.indices = pinned(store.indices, context)
        for node_type, rows in stored_rows(store).items() if placement.pins_rows else ():
            arrays.rows[node_type] = pinned(rows, context)
    except PinningError as error:
        # A new one: the traceback of this one holds what could not be pinned.
        return arrays, PinningError(error.message, error.hint)
    return arrays, None


def place_features(
    rows: Tensor,
    placement: Placement,
    context: DistributedContext,
    cached: Tensor | None,
    pinned_rows: Tensor | None = None,
) -> FeatureSource:
    """Place the rows of one node type as `placement` describes. Collective.

    Args:
        rows: The store's.
        placement: The chosen placement.
        context: This rank.
        cached: The nodes to cache, ascending; needed for the placement `cached`.
        pinned_rows: Needed where `placement.pins_rows`.
    """
    device, kind = context.device, placement.features
    if kind == "resident":
        return InPlaceFeatures(LazyFeatures(rows.to(device)), device)
    if kind == "pinned":
        assert pinned_rows is not None
        return InPlaceFeatures(LazyFeatures(pinned_rows), device)
    if kind == "sharded":
        return InPlaceFeatures(sharded_rows(exchanged_shards(rows, context), device), device)
    if placement.pins_rows:
        assert cached is not None
        assert pinned_rows is not None
        return InPlaceFeatures(cached_rows(pinned_rows, cached, device), device)
    return CopiedFeatures(rows, device, cached if kind == "cached" else None)


def cached_rows(rows: Tensor, cached: Tensor, device: torch.device) -> LazyFeatures:
    """All rows, those of the nodes `cached` (ascending) from a copy on the device.

    Args:
        rows: `[num_nodes, width]`, readable by the device.
    """
    return LazyFeatures(
        rows=rows[cached.cpu()].to(device),
        slots=slots_of(cached, len(rows), device),
        parts=device_addresses([rows], device),
        part_rows=len(rows),
        held=(rows,),
    )


def sharded_rows(shards: tuple[Tensor, ...], device: torch.device) -> LazyFeatures:
    """All rows, divided equally among the GPUs (the last shard may be smaller)."""
    return LazyFeatures(
        rows=shards[0],
        parts=device_addresses(shards, device),
        part_rows=len(shards[0]),
        held=shards,
    )


def shard_range(num_rows: int, rank: int, world_size: int) -> slice:
    """The rows of the shard of `rank`; shards are equal but for the last ones."""
    part = -(-num_rows // world_size)
    return slice(min(num_rows, rank * part), min(num_rows, (rank + 1) * part))


def exchanged_shards(rows: Tensor, context: DistributedContext) -> tuple[Tensor, ...]:
    """A shard of `rows` on each of the machine's GPUs, all mapped into this process. Collective."""
    ranks = context.machine_ranks
    own = rows[shard_range(len(rows), context.rank - ranks[0], len(ranks))].to(context.device)
    if context.world_size == 1:
        return (own,)
    # torch's way to share a tensor's memory with another process, without a copy.
    handles = context.gather(reduce_tensor(own))  # type: ignore[no-untyped-call]
    return tuple(
        own if rank == context.rank else opened(rebuild, given, context.device)
        for rank, (rebuild, given) in enumerate(handles)
        if rank in ranks
    )


def opened(rebuild: Callable[..., Tensor], given: tuple[Any, ...], device: torch.device) -> Tensor:
    """Another rank's tensor, mapped for `device`.

    torch would map it for the GPU that holds it, and only that GPU's kernels could read it. Mapped
    for `device`, CUDA enables access to the peer's memory. The owner has filled the tensor before.

    Args:
        rebuild, given: The result of `reduce_tensor` on the owner's rank.
    """
    if device.type != "cuda":
        return rebuild(*given)
    bound = signature(rebuild).bind(*given)
    bound.arguments |= {"storage_device": device.index, "event_sync_required": False}
    return rebuild(*bound.args)
