"""Chooses where a graph's edges and features are kept while a GPU trains, and puts them there.

`place` is a pure function of sizes, and gives the reason. Edges come first: every draw reads them,
and no cache helps.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from gnntrain import devices
from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.launching import LOAD_BYTES
from gnntrain.config import FeaturesConfig
from gnntrain.data.graph import Graph, NodeType
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.process_group import gpu_address
from gnntrain.errors import UserError
from gnntrain.limits import available_memory
from gnntrain.loading.features import CopiedFeatures, FeatureSource, InPlaceFeatures, stored_rows
from gnntrain.loading.pinned import PinningError, device_addresses, pinned, readable_bytes

_log = logging.getLogger("gnntrain")

Topology = Literal["resident", "pinned", "host"]
Features = Literal["resident", "sharded", "cached", "pinned", "memmap", "wholegraph"]
_Place = TypeVar("_Place", bound=str)

_LEAVE_OUT = "Leave it out: auto takes what fits."

# A cache of a smaller fraction of the rows is not worth its look-ups.
_LEAST_CACHED = 0.01

# torch's allocator under these settings gives memory that other processes cannot map, or only with
# rights that containers seldom have.
_UNSHARED = re.compile(r"expandable_segments:\s*true|backend:\s*cudaMallocAsync", re.IGNORECASE)
_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of a graph: of the small arrays that every GPU always holds (offsets, labels, norms,
    edge weights), of the edges' sources, and of the feature rows of its nodes, as stored."""

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
    """The memory of a machine; of several the least that one has.

    Attributes:
        gpu: Free bytes of the GPU that has least, before anything is placed.
        host: Available bytes of host memory; all ranks share the pinned copy.
        local_gpus: GPUs of the machine.
        num_gpus: GPUs of the run, on all machines.
        why_no_peers: Why not every GPU can read the memory of every other one of its machine; "":
            they can.
    """

    gpu: int
    host: int
    local_gpus: int = 1
    num_gpus: int = 1
    why_no_peers: str = "these do not"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a graph is kept.

    Attributes:
        topology: The edges are on every GPU (`resident`), or in pinned host memory, which GPUs read
            over the bus; or the CPU draws (`host`).
        features: The rows are all on every GPU (`resident`); an equal part is on each GPU of the
            machine (`sharded`) or of all machines (`wholegraph`); those read most are on each
            (`cached`); GPUs read them over the bus (`pinned`); or the host copies each batch's
            (`memmap`).
        num_cached: Rows on each GPU, where `cached`.
        pins_rows: Whether the rows, or those that are not cached, are in pinned host memory.
        why: The reasons: a line for the topology and one for the features.
        pinned_indices, pinned_rows: What `place_and_pin` has pinned; rows by node type.
    """

    topology: Topology
    features: Features
    num_cached: int = 0
    pins_rows: bool = False
    why: tuple[str, ...] = ()
    pinned_indices: Tensor | None = field(default=None, repr=False)
    pinned_rows: Mapping[NodeType, Tensor] = field(default_factory=dict, repr=False)


IN_STORE = Placement("host", "memmap")
"""Of a graph that no GPU reads by itself."""


def place(
    sizes: Sizes,
    memory: Memory,
    *,
    topology: Topology | Literal["auto"] = "auto",
    features: FeaturesConfig | None = None,
    samples_on_gpu: bool = True,
    is_full: bool = False,
    reads_host: bool = True,
) -> Placement:
    """Choose a placement: the user's, or by `auto` the fastest place that is large enough.

    Args:
        sizes, memory: Of the graph, and of the machine.
        topology, features: The keys.
        samples_on_gpu: Whether a GPU draws; else the edges stay in host memory.
        is_full: Whether each step computes the whole graph: edges are then on the GPU or nowhere.
        reads_host: See `KernelChoice.reads_host`; else rows are read only in the GPU's own memory.

    Raises:
        UserError: There is not enough memory for the user's choice, or the GPU cannot read there.
    """
    keys = features or FeaturesConfig()
    # Half of each GPU: activations need the rest. Half of the host: it cannot be swapped out.
    gpu_bytes, pinnable, local_gpus = memory.gpu // 2, memory.host // 2, memory.local_gpus
    edges: Topology = "host"
    why = "edges in host memory, drawn by the CPU"
    if samples_on_gpu or is_full:
        gpu_bytes -= sizes.small
        edges, why = _choose(
            "edges",
            f"sampler.topology={topology}",
            {
                "resident": (sizes.topology, gpu_bytes, "in GPU memory"),
                "pinned": (sizes.topology, -1 if is_full else pinnable, "in pinned host memory"),
                "host": (0, 0, "in host memory, drawn by the CPU"),
            },
            sizes.topology,
            gpu_bytes,
            _LEAVE_OUT,
        )
        gpu_bytes -= sizes.topology * (edges == "resident")
        pinnable -= sizes.topology * (edges == "pinned")
    elif topology in ("resident", "pinned"):
        raise UserError(
            f"sampler.topology={topology} needs the GPU's sampler, but the CPU draws in this run.",
            _LEAVE_OUT,
        )

    wanted = f"features.placement={keys.placement}"
    lacking = ""
    if keys.placement in ("pinned", "sharded") and not reads_host:
        lacking = "Triton's kernels, which read memory outside their GPU; this run gathers rows by "
        lacking += "torch's operators"
    elif keys.placement == "sharded" and memory.why_no_peers:
        lacking = f"GPUs that read each other's memory: {memory.why_no_peers}"
    elif keys.placement == "wholegraph" and memory.num_gpus == 1:
        lacking = "several GPUs; this run has one"
    if lacking:
        raise UserError(f"{wanted} needs {lacking}.", _LEAVE_OUT)
    pinnable = pinnable if reads_host else -1
    has_peers = reads_host and local_gpus > 1 and not memory.why_no_peers
    most = max(0, gpu_bytes) // max(1, sizes.row)
    if keys.cache_ratio is not None:
        most = round(keys.cache_ratio * sizes.num_nodes)
    elif keys.cache_bytes is not None:
        most = keys.cache_bytes // max(1, sizes.row)
    num_cached = min(most, sizes.num_nodes)
    is_enough = num_cached > 0 and num_cached >= _LEAST_CACHED * sizes.num_nodes
    cache_bytes = gpu_bytes if is_enough or keys.placement == "cached" else -1
    share = -(-sizes.features // local_gpus)
    places: dict[Features, tuple[int, int, str]] = {
        "resident": (sizes.features, gpu_bytes, "in GPU memory"),
        "sharded": (share, gpu_bytes if has_peers else -1, f"shared out over {local_gpus} GPUs"),
        "cached": (num_cached * sizes.row, cache_bytes, "cached"),
        "pinned": (sizes.features, pinnable, "in pinned host memory"),
        "memmap": (0, 0, "in the store, copied by batch"),  # `auto` does not come to the next one
        "wholegraph": (-(-sizes.features // memory.num_gpus), gpu_bytes, ""),
    }
    if keys.cache_ratio is not None or keys.cache_bytes is not None:
        places = {"cached": places["cached"], **places}
    hint = (
        "Leave it out (auto takes what fits), lower features.cache_ratio, or store the rows in "
        "half: dataset.feature_dtype=bfloat16."
    )
    rows, rows_why = _choose("features", wanted, places, sizes.features, gpu_bytes, hint)
    if rows == "cached":
        cache_size = readable_bytes(num_cached * sizes.row)
        rows_why += f" ({num_cached:,} of {sizes.num_nodes:,} rows cached, {cache_size})"
    return Placement(
        edges,
        rows,
        num_cached if rows == "cached" else 0,
        pins_rows=rows == "pinned" or (rows == "cached" and sizes.features <= pinnable),
        why=(why, rows_why),
    )


def _choose(
    what: str,
    wanted: str,
    places: Mapping[_Place, tuple[int, int, str]],
    size: int,
    gpu_bytes: int,
    hint: str,
) -> tuple[_Place, str]:
    """The place that the user `wanted` ("key=place"), or the first one that is large enough; and
    why. Of each place: the bytes needed there and those left there, and its name."""
    name = wanted.partition("=")[2]
    for place, (needed, left, where) in places.items():
        if name == "auto" and needed <= left:
            free = readable_bytes(max(0, gpu_bytes))
            free = f" of the {free} left for them" if place == "resident" else f", but {free} left"
            return place, f"{what} {where}: {readable_bytes(size)}{free}"
        if name == place and needed <= left:
            return place, f"{what} {name}, as asked"
        if name == place:
            raise UserError(
                f"{wanted} has no room: the {what} take {readable_bytes(size)}, and "
                f"{readable_bytes(max(0, left))} are left for them.",
                hint,
            )
    raise AssertionError(f"{wanted}: no such place")


def measured_memory(context: DistributedContext) -> Memory:
    """The free memory of the ranks' GPUs and the host; on CPU ranks that of the host for both.

    Collective: all ranks get the same result.
    """
    memory = devices.free_memory(context.device), available_memory()
    gpu, host = map(min, zip(*context.gather(memory), strict=True))
    local_gpus = min(len(context.ranks_of(machine)) for machine in range(context.num_machines))
    return Memory(gpu, host, local_gpus, context.world_size, why_no_peers(context))


def why_no_peers(context: DistributedContext) -> str:
    """Why a rank's GPU cannot read the memory of another one of its machine; "": all can.

    Collective: all ranks get the same answer.
    """
    device, addresses = context.device, context.gather(gpu_address(context.device))
    others = [addresses[rank] for rank in context.machine_ranks if rank != context.rank]
    settings = {name: _UNSHARED.search(os.environ.get(name, "")) for name in _SETTINGS}
    shared = [f"{name}={found[0]}" for name, found in settings.items() if found]
    why = ""
    if device.type != "cuda":
        why = "only GPUs of NVIDIA and AMD do"
    elif shared:
        why = f"with {shared[0]} torch's memory cannot be shared"
    else:
        gpus = [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
        visible = {gpu_address(gpu): gpu for gpu in gpus}
        if not visible.keys() >= set(others):
            why = "each rank sees its own GPU alone"
        elif not all(torch.cuda.can_device_access_peer(device, visible[o]) for o in others):
            why = "these do not"
    return next(filter(None, context.gather(why)), "")


def place_and_pin(
    graph: Graph,
    choose: Callable[[Memory], Placement],
    memory: Memory,
    context: DistributedContext,
) -> Placement:
    """Choose a placement, and pin in host memory what it has there. Collective.

    Where the system refuses, the placement is chosen anew, as if the host had no more memory than
    what could be pinned.

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
        indices, rows = None, {}
        try:
            if placement.topology == "pinned":
                indices = pinned(torch.from_numpy(graph.only_edges.indices), context)
            if placement.pins_rows:
                for node_type, stored in stored_rows(graph).items():
                    rows[node_type] = pinned(stored, context)
            return replace(placement, pinned_indices=indices, pinned_rows=rows)
        except PinningError as error:
            # A new one: the traceback of this one holds the memory that could not be pinned.
            failure = PinningError(error.message, error.hint)
        if context.is_main:
            _log.warning("%s The graph is kept elsewhere.", failure.message)
        done = [*rows.values(), *([] if indices is None else [indices])]
        memory = replace(memory, host=2 * sum(each.nbytes for each in done))  # half may be pinned
        del indices, rows, done  # freed, and pinned again


def place_features(
    node_type: NodeType,
    rows: Tensor,
    placement: Placement,
    context: DistributedContext,
    cached: Tensor | None,
) -> FeatureSource:
    """Place the store's rows of one node type. Collective. `cached`, where so placed: the nodes to
    cache, ascending."""
    device, kind = context.device, placement.features
    if kind == "resident":
        return InPlaceFeatures(LazyFeatures(aligned_copy(rows, device)), device)
    if kind == "pinned":
        return InPlaceFeatures(LazyFeatures(placement.pinned_rows[node_type]), device)
    if kind == "sharded":
        return InPlaceFeatures(sharded_rows(exchanged_shards(rows, context), device), device)
    if cached is not None and placement.pins_rows:
        rows = placement.pinned_rows[node_type]
        return InPlaceFeatures(cached_rows(rows, cached, device), device)
    return CopiedFeatures(rows, device, cached)


def aligned_copy(rows: Tensor, device: torch.device) -> Tensor:
    """The rows on a GPU, where each begins at a multiple of 16 bytes if that takes at most an
    eighth more memory: kernels then read 16 bytes at once, of 602 bfloat16 numbers else 4."""
    width = rows.shape[1]
    padding = -width % (LOAD_BYTES // rows.element_size())
    if padding == 0 or 8 * padding > width:
        return rows.to(device)
    copy = torch.empty(len(rows), width + padding, dtype=rows.dtype, device=device)[:, :width]
    return copy.copy_(rows)


def cached_rows(rows: Tensor, cached: Tensor, device: torch.device) -> LazyFeatures:
    """All rows (`[num_nodes, width]`, readable by the device), those of the nodes `cached`
    (ascending) from a copy on the device."""
    copy, stop = rows[cached.cpu()].to(device), len(rows) + len(cached)
    kind = torch.int32 if stop <= torch.iinfo(torch.int32).max else torch.int64
    places = torch.arange(len(rows), dtype=kind, device=device)
    places[cached.to(device)] = torch.arange(len(rows), stop, dtype=kind, device=device)
    return replace(sharded_rows((rows, copy), device), rows=copy, nodes=places)


def sharded_rows(shards: tuple[Tensor, ...], device: torch.device) -> LazyFeatures:
    """All rows, divided equally among the GPUs (the last shards may be smaller)."""
    return LazyFeatures(
        rows=shards[0],
        parts=device_addresses(shards, device),
        part_rows=len(shards[0]),
        held=shards,
    )


def exchanged_shards(rows: Tensor, context: DistributedContext) -> tuple[Tensor, ...]:
    """A shard of `rows` on each of the machine's GPUs, all mapped into this process. Collective."""
    ranks = context.machine_ranks
    size = -(-len(rows) // len(ranks))
    start = size * (context.rank - ranks[0])
    local = aligned_copy(rows[start : start + size], context.device)
    if context.world_size == 1:
        return (local,)
    # torch's way to share a tensor's memory with another process, without a copy.
    handles = context.gather(reduce_tensor(local))  # type: ignore[no-untyped-call]
    return tuple(
        local if rank == context.rank else opened(rebuild, arguments, context.device)
        for rank, (rebuild, arguments) in enumerate(handles)
        if rank in ranks
    )


def opened(
    rebuild: Callable[..., Tensor], arguments: tuple[Any, ...], device: torch.device
) -> Tensor:
    """Another rank's tensor, mapped for `device`.

    torch would map it for the GPU that holds it, and only that GPU's kernels could read it. Mapped
    for `device`, CUDA enables access to the peer's memory. The owner, where `reduce_tensor` gave
    `rebuild` and `arguments`, has filled the tensor before.
    """
    if device.type != "cuda":
        return rebuild(*arguments)
    bound = signature(rebuild).bind(*arguments)
    bound.arguments |= {"storage_device": device.index, "event_sync_required": False}
    return rebuild(*bound.args)
