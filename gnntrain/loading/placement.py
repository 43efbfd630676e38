"""Chooses where a graph's edges and features are kept while a GPU trains, with the reason.

The choice is a pure function of sizes; nothing is copied here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from gnntrain import devices
from gnntrain.config import FeaturesConfig
from gnntrain.distributed.context import DistributedContext
from gnntrain.errors import UserError
from gnntrain.limits import available_memory
from gnntrain.loading.peers import why_no_peers

Topology = Literal["resident", "pinned", "host"]
Features = Literal["resident", "sharded", "cached", "pinned", "memmap", "wholegraph"]

# A cache of a smaller fraction of the rows is not worth its look-ups.
_LEAST_CACHED = 0.01


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
    def room(self) -> int:
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
    """Choose, edges first: every draw reads them, and no cache helps.

    Args:
        sizes: Of the graph.
        memory: Of the machine.
        topology, features: The user's choice; `auto` takes the fastest place that has room.
        samples_on_gpu: Whether a GPU draws; else the edges stay in host memory.
        reads_host: See `KernelChoice.reads_host`; else rows are read only in the GPU's own memory.

    Raises:
        UserError: There is not enough memory for the user's choice, or the GPU cannot read there.
    """
    room, pinnable = memory.room, memory.pinnable if reads_host else -1
    edges: Topology = "host"
    edges_why = "edges in host memory, drawn by the CPU"
    if samples_on_gpu:
        room -= sizes.small
        edges, edges_why = _topology(sizes, room, memory.pinnable, topology)
    elif topology in ("resident", "pinned"):
        raise UserError(
            f"sampler.topology={topology} needs the GPU's sampler, but the CPU draws in this run.",
            "Leave it out: auto takes what fits.",
        )
    room -= sizes.topology * (edges == "resident")
    pinnable -= sizes.topology * (edges == "pinned")
    asked = features or FeaturesConfig()
    if asked.placement in ("pinned", "sharded") and not reads_host:
        raise UserError(
            f"features.placement={asked.placement} needs Triton's kernels, which read memory "
            "outside their GPU; this run gathers rows by torch's operators.",
            "Leave it out: auto takes what fits.",
        )
    memory = memory if reads_host else replace(memory, has_peers=False)
    chosen, num_cached, rows_why = _features(sizes, memory, room, pinnable, asked)
    cold: Literal["pinned", "memmap"] = "pinned" if sizes.features <= pinnable else "memmap"
    return Placement(edges, chosen, num_cached, cold, (edges_why, rows_why))


def _topology(
    sizes: Sizes, room: int, pinnable: int, asked: Topology | Literal["auto"]
) -> tuple[Topology, str]:
    size = in_words(sizes.topology)
    fits: dict[Topology, bool] = {
        "resident": sizes.topology <= room,
        "pinned": sizes.topology <= pinnable,
        "host": True,
    }
    places = {"resident": room, "pinned": pinnable}
    if asked == "auto":
        chosen = next(name for name, has_room in fits.items() if has_room)
    elif fits[asked]:
        chosen = asked
    else:
        raise UserError(
            f"sampler.topology={asked} has no room: the edges take {size}, "
            f"and {in_words(max(0, places[asked]))} are left for them.",
            "Leave it out: auto takes what fits.",
        )
    told = {
        "resident": f"edges in GPU memory: {size} of the {in_words(room)} left for the graph",
        "pinned": f"edges in pinned host memory: {size}, but {in_words(max(0, room))} on the GPU",
        "host": f"edges in host memory, drawn by the CPU: {size} fit in neither GPU nor pinned "
        "memory",
    }
    if asked != "auto":
        return chosen, f"edges {chosen}, as asked"
    return chosen, told[chosen]


def _features(
    sizes: Sizes, memory: Memory, room: int, pinnable: int, asked: FeaturesConfig
) -> tuple[Features, int, str]:
    """The placement of the rows, how many are cached, and why."""
    left = max(0, room) // max(1, sizes.row)
    most = most_cached(asked, sizes.num_nodes, sizes.row, left)
    share = -(-sizes.features // len(memory.gpus))
    of_all = -(-sizes.features // memory.num_gpus)
    fits: dict[Features, bool] = {
        "resident": sizes.features <= room,
        "sharded": len(memory.gpus) > 1 and memory.has_peers and share <= room,
        "cached": most * sizes.row <= room,
        "pinned": sizes.features <= pinnable,
        "memmap": True,  # and so `auto` does not come to the next one
        "wholegraph": memory.num_gpus > 1 and of_all <= room,
    }
    wanted = asked.placement
    if wanted == "auto":
        fits["cached"] &= most > 0 and most >= _LEAST_CACHED * sizes.num_nodes
        wants_cache = asked.cache_ratio is not None or asked.cache_bytes is not None
        first: list[Features] = ["cached"] if wants_cache else []
        chosen = next(name for name in (*first, *fits) if fits[name])
        why = _why(sizes, memory, room, chosen)
    elif fits[wanted]:
        chosen, why = wanted, f"features {wanted}, as asked"
    else:
        raise _no_room(sizes, memory, room, pinnable, wanted)
    if chosen == "cached":
        why += f" ({most:,} of {sizes.num_nodes:,} rows cached, {in_words(most * sizes.row)})"
    return chosen, most if chosen == "cached" else 0, why


def most_cached(asked: FeaturesConfig, num_nodes: int, row_bytes: int, default: int) -> int:
    """The number of rows that the `features` keys ask to cache, of `num_nodes`.

    Args:
        default: Rows to cache where they do not say how many.
    """
    if asked.cache_ratio is not None:
        wanted = round(asked.cache_ratio * num_nodes)
    elif asked.cache_bytes is not None:
        wanted = asked.cache_bytes // max(1, row_bytes)
    else:
        wanted = default
    return min(wanted, num_nodes)


def _why(sizes: Sizes, memory: Memory, room: int, chosen: Features) -> str:
    size, left = in_words(sizes.features), in_words(max(0, room))
    if chosen == "resident":
        return f"features in GPU memory: {size} of the {left} left for them"
    if chosen == "sharded":
        count = len(memory.gpus)
        return f"features shared out over {count} GPUs: {size}, but {left} left on each"
    if chosen == "cached":
        return f"features cached: {size}, but {left} left on the GPU"
    if chosen == "pinned":
        return f"features in pinned host memory: {size}, but {left} left on the GPU"
    return f"features in the store, copied by batch: {size}, but {left} left on the GPU"


def _no_room(sizes: Sizes, memory: Memory, room: int, pinnable: int, asked: Features) -> UserError:
    if asked == "sharded" and not memory.has_peers:
        return UserError(
            "features.placement=sharded needs GPUs that read each other's memory: "
            f"{memory.why_no_peers}.",
            "Leave it out: auto takes what fits.",
        )
    if asked == "wholegraph" and memory.num_gpus == 1:
        return UserError(
            "features.placement=wholegraph needs several GPUs; this run has one.",
            "Leave it out: auto takes what fits.",
        )
    left = in_words(max(0, pinnable if asked == "pinned" else room))
    return UserError(
        f"features.placement={asked} has no room: the rows take {in_words(sizes.features)}, and "
        f"{left} are left for them.",
        "Leave it out (auto takes what fits), lower features.cache_ratio, or store the rows in "
        "half: dataset.feature_dtype=bfloat16.",
    )


def in_words(num_bytes: int) -> str:
    """A number of bytes in a readable unit."""
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**27 else f"{num_bytes / 2**20:.1f} MiB"


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
