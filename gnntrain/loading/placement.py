"""Chooses where a graph's edges and features are kept while a GPU trains, and puts them there.

`place` is a pure function of sizes, and gives the reason. Edges come first: every draw reads them,
and no cache helps.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any, Literal

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from gnntrain import devices
from gnntrain.compute.features import LazyFeatures
from gnntrain.config import FeaturesConfig
from gnntrain.data.graph import Graph, NodeType
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.process_group import gpu_address
from gnntrain.errors import UserError
from gnntrain.limits import available_memory
from gnntrain.loading.features import (
    CopiedFeatures,
    FeatureSource,
    InPlaceFeatures,
    slots_of,
    stored_rows,
)
from gnntrain.loading.pinned import PinningError, device_addresses, pinned, readable_bytes

_log = logging.getLogger("gnntrain")

Topology = Literal["resident", "pinned", "host"]
Features = Literal["resident", "sharded", "cached", "pinned", "memmap", "wholegraph"]

_LEAVE_OUT = "Leave it out: auto takes what fits."

# A cache of a smaller fraction of the rows is not worth its look-ups.
_LEAST_CACHED = 0.01

# torch's allocator under these settings gives memory that other processes cannot map, or only with
# rights that containers seldom have.
_UNSHARED = re.compile(r"expandable_segments:\s*true|backend:\s*cudaMallocAsync", re.IGNORECASE)
_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of a graph's parts.

    Attributes:
        small: Arrays that every GPU always holds: offsets, labels, norms, edge weights.
        topology: The edges' sources.
        features: All feature rows, as they are stored.
        num_nodes: Rows of the features.
    """

    small: int
    topology: int
    features: int
    num_nodes: int

    @property
    def row(self) -> int:
        """Bytes of one row."""
        return -(-self.features // max(1, self.num_nodes))


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a machine.

    Attributes:
        gpus: Free bytes of each rank's GPU, before anything is placed.
        host: Available bytes of host memory; all ranks share the pinned copy.
        num_gpus: GPUs of the run, on all machines.
        has_peers: Whether every GPU can read the memory of every other one of its machine.
        why_no_peers: Why not, as the end of a sentence.
    """

    gpus: tuple[int, ...]
    host: int
    has_peers: bool = False
    num_gpus: int = 1
    why_no_peers: str = "these do not"

    @property
    def usable(self) -> int:
        """Bytes that the graph may take on each GPU: half; activations need the rest."""
        return min(self.gpus) // 2

    @property
    def pinnable(self) -> int:
        """Bytes of host memory that may be pinned: half, since it cannot be swapped out."""
        return self.host // 2


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a graph is kept.

    Attributes:
        topology: `resident`: the edges on every GPU; `pinned`: in host memory, read over the bus;
            `host`: the CPU draws.
        features: `resident`: all rows on every GPU; `sharded`: an equal part on each; `cached`:
            the rows read most on each; `pinned`: in host memory, read over the bus; `memmap`: in
            the store, copied by the host batch by batch; `wholegraph`: an equal part on each GPU
            of all machines.
        num_cached: Rows on each GPU, where `cached`.
        cold: Where the other rows are kept.
        why: The reasons: a line for the topology and one for the features.
    """

    topology: Topology
    features: Features
    num_cached: int = 0
    cold: Literal["pinned", "memmap"] = "pinned"
    why: tuple[str, ...] = ()

    @property
    def pins_rows(self) -> bool:
        """Whether all rows are in pinned host memory."""
        return self.features == "pinned" or (self.features == "cached" and self.cold == "pinned")


def place(
    sizes: Sizes,
    memory: Memory,
    *,
    topology: Literal["auto", "resident", "pinned", "host"] = "auto",
    features: FeaturesConfig | None = None,
    samples_on_gpu: bool = True,
    reads_host: bool = True,
) -> Placement:
    """Choose a placement.

    Args:
        sizes: Of the graph.
        memory: Of the machine.
        topology, features: The user's choice; `auto` takes the fastest place that is large enough.
        samples_on_gpu: Whether a GPU draws; else the edges stay in host memory.
        reads_host: See `KernelChoice.reads_host`; else rows are read only in the GPU's own memory.

    Raises:
        UserError: There is not enough memory for the user's choice, or the GPU cannot read there.
    """
    features = features or FeaturesConfig()
    gpu_bytes = memory.usable
    edges: Topology = "host"
    why = "edges in host memory, drawn by the CPU"
    if samples_on_gpu:
        gpu_bytes -= sizes.small
        edges, why = _place_edges(sizes, gpu_bytes, memory.pinnable, topology)
    elif topology in ("resident", "pinned"):
        raise UserError(
            f"sampler.topology={topology} needs the GPU's sampler, but the CPU draws in this run.",
            _LEAVE_OUT,
        )
    if features.placement in ("pinned", "sharded") and not reads_host:
        raise UserError(
            f"features.placement={features.placement} needs Triton's kernels, which read memory "
            "outside their GPU; this run gathers rows by torch's operators.",
            _LEAVE_OUT,
        )
    pinnable = memory.pinnable if reads_host else -1
    gpu_bytes -= sizes.topology * (edges == "resident")
    pinnable -= sizes.topology * (edges == "pinned")
    memory = replace(memory, has_peers=memory.has_peers and reads_host)
    rows, num_cached, rows_why = _place_rows(sizes, memory, gpu_bytes, pinnable, features)
    cold: Literal["pinned", "memmap"] = "pinned" if sizes.features <= pinnable else "memmap"
    return Placement(edges, rows, num_cached, cold, (why, rows_why))


def _place_edges(
    sizes: Sizes, gpu_bytes: int, pinnable: int, wanted: Topology | Literal["auto"]
) -> tuple[Topology, str]:
    """The placement of the edges in so many bytes of a GPU and of pinned memory, and why."""
    size, on_gpu = readable_bytes(sizes.topology), readable_bytes(max(0, gpu_bytes))
    fits: dict[Topology, bool] = {
        "resident": sizes.topology <= gpu_bytes,
        "pinned": sizes.topology <= pinnable,
        "host": True,
    }
    if wanted == "auto":
        chosen = next(name for name, is_enough in fits.items() if is_enough)
        return chosen, {
            "resident": f"edges in GPU memory: {size} of the {on_gpu} left for the graph",
            "pinned": f"edges in pinned host memory: {size}, but {on_gpu} on the GPU",
            "host": f"edges in host memory, drawn by the CPU: {size} fit in neither GPU nor pinned "
            "memory",
        }[chosen]
    if not fits[wanted]:
        free = max(0, gpu_bytes if wanted == "resident" else pinnable)
        raise UserError(
            f"sampler.topology={wanted} has no room: the edges take {size}, "
            f"and {readable_bytes(free)} are left for them.",
            _LEAVE_OUT,
        )
    return wanted, f"edges {wanted}, as asked"


def _place_rows(
    sizes: Sizes, memory: Memory, gpu_bytes: int, pinnable: int, features: FeaturesConfig
) -> tuple[Features, int, str]:
    """The placement of the rows, how many are cached, and why."""
    most = max(0, gpu_bytes) // max(1, sizes.row)
    num_cached = most_cached(features, sizes.num_nodes, sizes.row, most)
    size, free = readable_bytes(sizes.features), readable_bytes(max(0, gpu_bytes))
    fits: dict[Features, bool] = {
        "resident": sizes.features <= gpu_bytes,
        "sharded": len(memory.gpus) > 1
        and memory.has_peers
        and -(-sizes.features // len(memory.gpus)) <= gpu_bytes,
        "cached": num_cached * sizes.row <= gpu_bytes,
        "pinned": sizes.features <= pinnable,
        "memmap": True,  # and so `auto` does not come to the next one
        "wholegraph": memory.num_gpus > 1 and -(-sizes.features // memory.num_gpus) <= gpu_bytes,
    }
    wanted = features.placement
    if wanted == "auto":
        fits["cached"] &= num_cached > 0 and num_cached >= _LEAST_CACHED * sizes.num_nodes
        wants_cache = features.cache_ratio is not None or features.cache_bytes is not None
        first: Features = "cached" if wants_cache else "resident"
        chosen = next(name for name in (first, *fits) if fits[name])
        why = {
            "resident": f"features in GPU memory: {size} of the {free} left for them",
            "sharded": f"features shared out over {len(memory.gpus)} GPUs: {size}, but {free} left "
            "on each",
            "cached": f"features cached: {size}, but {free} left on the GPU",
            "pinned": f"features in pinned host memory: {size}, but {free} left on the GPU",
            "memmap": f"features in the store, copied by batch: {size}, but {free} left on the GPU",
        }[chosen]
    elif fits[wanted]:
        chosen, why = wanted, f"features {wanted}, as asked"
    elif wanted == "sharded" and not memory.has_peers:
        raise UserError(
            "features.placement=sharded needs GPUs that read each other's memory: "
            f"{memory.why_no_peers}.",
            _LEAVE_OUT,
        )
    elif wanted == "wholegraph" and memory.num_gpus == 1:
        raise UserError(
            "features.placement=wholegraph needs several GPUs; this run has one.", _LEAVE_OUT
        )
    else:
        left = readable_bytes(max(0, pinnable)) if wanted == "pinned" else free
        raise UserError(
            f"features.placement={wanted} has no room: the rows take {size}, and {left} are left "
            "for them.",
            "Leave it out (auto takes what fits), lower features.cache_ratio, or store the rows in "
            "half: dataset.feature_dtype=bfloat16.",
        )
    if chosen != "cached":
        return chosen, 0, why
    cache_size = readable_bytes(num_cached * sizes.row)
    why += f" ({num_cached:,} of {sizes.num_nodes:,} rows cached, {cache_size})"
    return chosen, num_cached, why


def most_cached(features: FeaturesConfig, num_nodes: int, row_bytes: int, default: int) -> int:
    """The number of rows to cache, of `num_nodes`.

    Args:
        default: Rows to cache where the `features` keys do not say how many.
    """
    if features.cache_ratio is not None:
        default = round(features.cache_ratio * num_nodes)
    elif features.cache_bytes is not None:
        default = features.cache_bytes // max(1, row_bytes)
    return min(default, num_nodes)


def measured_memory(context: DistributedContext) -> Memory:
    """The free memory of the ranks' GPUs and the host; on CPU ranks that of the host for both.

    Of several machines the least that one has. Collective: all ranks get the same result.
    """
    host, device = available_memory(), context.device
    free = devices.free_memory(device) if devices.is_gpu(device) else host
    everyone = context.gather((free, host))
    why_not = why_no_peers(context)
    ranks = [context.ranks_of(machine) for machine in range(context.num_machines)]
    return Memory(
        tuple(sorted(free for free, _ in everyone)[: min(map(len, ranks))]),
        min(host for _, host in everyone),
        has_peers=not why_not,
        num_gpus=context.world_size,
        why_no_peers=why_not,
    )


def why_no_peers(context: DistributedContext) -> str:
    """Why a rank's GPU cannot read the memory of another one of its machine; "": all can.

    Collective: all ranks get the same answer.
    """
    addresses = context.gather(gpu_address(context.device))
    own = context.machine_ranks
    others = [addresses[rank] for rank in own if rank != context.rank]
    return next(filter(None, context.gather(_why_not(context.device, others))), "")


def _why_not(device: torch.device, others: list[str | None]) -> str:
    if device.type != "cuda":
        return "only GPUs of NVIDIA and AMD do"
    for name in _SETTINGS:
        if setting := _UNSHARED.search(os.environ.get(name, "")):
            return f"with {name}={setting[0]} torch's memory cannot be shared"
    visible = {gpu_address(torch.device("cuda", i)): i for i in range(torch.cuda.device_count())}
    if not visible.keys() >= set(others):
        return "each rank sees its own GPU alone"
    reads = [torch.cuda.can_device_access_peer(device, visible[other]) for other in others]
    return "" if all(reads) else "these do not"


@dataclass
class PinnedArrays:
    """Copies of a graph's arrays in pinned host memory, where the placement has them there.

    Attributes:
        indices: The edges' sources, or None.
        rows: The feature rows of each node type.
    """

    indices: Tensor | None = None
    rows: dict[NodeType, Tensor] = field(default_factory=dict)


def place_and_pin(
    graph: Graph,
    choose: Callable[[Memory], Placement],
    memory: Memory,
    context: DistributedContext,
) -> tuple[Placement, PinnedArrays]:
    """Choose a placement, and pin in host memory what it has there. Collective.

    Where the system refuses, the placement is chosen anew, as if the host had no more memory than
    what could be pinned.

    Args:
        graph: The graph.
        choose: The placement for some memory, equal on all ranks.
        memory: Of the machine.
        context: This rank.

    Raises:
        PinningError: The user's choice cannot be pinned.
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
        arrays = PinnedArrays()
        try:
            if placement.topology == "pinned":
                arrays.indices = pinned(graph.indices, context)
            if placement.pins_rows:
                for node_type, rows in stored_rows(graph).items():
                    arrays.rows[node_type] = pinned(rows, context)
            return placement, arrays
        except PinningError as error:
            # A new one: the traceback of this one holds the memory that could not be pinned.
            failure = PinningError(error.message, error.hint)
        if context.is_main:
            _log.warning("%s The graph is kept elsewhere.", failure.message)
        num_pinned = sum(rows.nbytes for rows in arrays.rows.values())
        num_pinned += 0 if arrays.indices is None else arrays.indices.nbytes
        memory = replace(memory, host=2 * num_pinned)  # of which half may be pinned
        del arrays  # freed, and pinned again


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
        own if rank == context.rank else opened(rebuild, arguments, context.device)
        for rank, (rebuild, arguments) in enumerate(handles)
        if rank in ranks
    )


def opened(
    rebuild: Callable[..., Tensor], arguments: tuple[Any, ...], device: torch.device
) -> Tensor:
    """Another rank's tensor, mapped for `device`.

    torch would map it for the GPU that holds it, and only that GPU's kernels could read it. Mapped
    for `device`, CUDA enables access to the peer's memory. The owner has filled the tensor before.

    Args:
        rebuild, arguments: The result of `reduce_tensor` on the owner's rank.
    """
    if device.type != "cuda":
        return rebuild(*arguments)
    bound = signature(rebuild).bind(*arguments)
    bound.arguments |= {"storage_device": device.index, "event_sync_required": False}
    return rebuild(*bound.args)
