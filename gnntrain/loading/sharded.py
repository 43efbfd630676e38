"""Feature rows in ranges, one a machine: a machine reads the others' rows by calls to them.

Own rows are read in place, on the store's pages. The other machines' rows that batches read most
are cached, one copy a machine. The rest is fetched, once a batch, in the loader's thread: while the
step before computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from gnntrain import devices
from gnntrain.compute.features import LazyFeatures, addresses_of, as_tensor
from gnntrain.config import FeaturesConfig
from gnntrain.data.graph import Graph, NodeType
from gnntrain.data.partitioned_graph import Part
from gnntrain.distributed.context import DistributedContext, rank_range
from gnntrain.distributed.owners import (
    AnyArray,
    Caller,
    NodeOwners,
    RowAnswers,
    ask_rows,
    equal_ranges,
)
from gnntrain.distributed.shared import shared_tensor
from gnntrain.errors import RunError
from gnntrain.loading.features import FeatureSource, ReadCounter, rows_of
from gnntrain.loading.pinned import readable_bytes
from gnntrain.loading.placement import most_cached
from gnntrain.loading.read_counts import (
    DenseReadCounts,
    HashedReadCounts,
    most_read_nodes,
)
from gnntrain.loading.transfer import send_all
from gnntrain.sampling.base import Int64Array
from gnntrain.sampling.kernels import find_in_table, register_in_table, table_layout

if TYPE_CHECKING:
    from gnntrain.distributed.exchange import Exchange

_HOST = torch.device("cpu")

ROWS = "rows"
"""The name of the call that asks an owner for feature rows."""

# Where a machine holds parts, it counts the reads of so many nodes for each that it caches.
_COUNTED_PER_CACHED = 4
_LEAST_COUNTED = 1 << 16

# A batch's nodes are numbered by matrix and row: row r of matrix m is m · _PART_ROWS + r.
_PART_ROWS = 1 << 40
# Bytes of the cache that a call fetches.
_FETCH_BYTES = 16 << 20


class RowExchange(Caller, Protocol):
    """The calls between owners of rows; an `Exchange` is one.

    Attributes:
        owner: The number of this rank's own range; None: it holds no row.
    """

    owner: int | None


class RowCache:
    """Rows of other machines' nodes; a hash table of 32 to 64 bytes a node finds them.

    The table is one copy a machine, too: making the cache is collective among the machine's ranks.

    Args:
        nodes: int64 `[n]`, each once, equal on these ranks.
        rows: `[n, num_features]`, theirs.
        context: This rank.

    Raises:
        OSError: There is not enough memory for the table; raised on all ranks of the machine.
    """

    def __init__(self, nodes: Int64Array, rows: Tensor, context: DistributedContext) -> None:
        self.rows = rows
        length, self._shift = table_layout(len(nodes))
        self._table: Int64Array = shared_tensor((length,), torch.int64, context, None).numpy()
        if context.is_machine_main:
            self._table[:] = 0
            register_in_table(nodes, len(nodes), self._table, self._shift, 1)
        context.machine_barrier()

    def find(self, nodes: Int64Array) -> Int64Array:
        """The row of each node in the cache, −1 where it is not there; int64 `[n]`."""
        slots = np.empty(len(nodes), np.int64)
        find_in_table(nodes, self._table, self._shift, 1, slots)
        return slots


class ShardedFeatures:
    """The rows of all nodes, of which this machine holds a range. Thread-safe.

    Args:
        own: This machine's rows, in order; several matrices where it holds several parts.
        owners: Who holds the rows of which nodes. Each serves `name` with a `RowAnswers`.
        exchange: Calls the owners.
        cache: Rows of other machines.
        name: Of the call.
        device: Which reads the rows: in place on the host, or a GPU by a copy of each batch's.
    """

    def __init__(
        self,
        own: Sequence[Tensor],
        owners: NodeOwners,
        exchange: RowExchange,
        cache: RowCache,
        name: str = ROWS,
        device: torch.device = _HOST,
    ) -> None:
        self.waits = devices.is_gpu(device)
        self._device = device
        self._own, self._owners, self._exchange, self._cache = own, owners, exchange, cache
        self._name = name
        first = 0 if exchange.owner is None else owners.starts[exchange.owner]
        self._starts: Int64Array = first + np.cumsum([0, *map(len, own)])
        self._reads = ReadCounter()

    def select(self, nodes: Tensor | None = None, size: Tensor | None = None) -> LazyFeatures:
        """See `FeatureSource.select`; `nodes` are distinct and not padded.

        Raises:
            RunError: An owner does not answer.
        """
        assert nodes is not None, "no machine holds the rows of all nodes"
        assert size is None, "batches in host memory are not padded"
        wanted = nodes.cpu().numpy()
        places = np.empty(len(wanted), np.int64)
        others = self._place_own(wanted, places)
        slots = self._cache.find(wanted[others])
        is_cached = slots >= 0
        places[others[is_cached]] = len(self._own) * _PART_ROWS + slots[is_cached]
        far = others[~is_cached]
        fetched = self._fetch(wanted[far], far, places)
        self._reads.add(len(others) - len(far), len(others))
        held = (*self._own, self._cache.rows, *fetched)
        addresses = addresses_of(held, "cpu")
        rows = LazyFeatures(self._cache.rows, as_tensor(places), None, addresses, _PART_ROWS, held)
        if not self.waits:
            return rows
        (sent,) = send_all([rows.read(0, len(rows), rows.rows.dtype)], self._device)
        return LazyFeatures(sent)

    def take_reads(self) -> tuple[int, int]:
        """Of the rows of other machines: the reads from the cache, and all reads, since the last
        call."""
        return self._reads.take()

    def _place_own(self, nodes: Int64Array, places: Int64Array) -> Int64Array:
        """Place the own nodes; return the positions of the others."""
        for number, (first, stop) in enumerate(pairwise(self._starts)):
            is_here = (nodes >= first) & (nodes < stop)
            np.add(nodes, number * _PART_ROWS - first, out=places, where=is_here)
        return np.flatnonzero((nodes < self._starts[0]) | (nodes >= self._starts[-1]))

    def _fetch(self, nodes: Int64Array, at: Int64Array, places: Int64Array) -> list[Tensor]:
        """The rows of `nodes`, a matrix an owner; `places[at]` says where each is."""
        if len(nodes) == 0:
            return []
        grouped = self._owners.group(nodes)
        questions = {owner: [rows] for owner, rows in grouped.rows.items()}
        answers = self._exchange.call(self._name, questions)
        numbers = [
            np.arange(len(rows)) + (len(self._own) + 1 + i) * _PART_ROWS
            for i, rows in enumerate(grouped.rows.values())
        ]
        places[at] = grouped.scattered(np.concatenate(numbers))
        dtype = self._cache.rows.dtype
        return [as_tensor(answers[owner][0]).view(dtype) for owner in grouped.rows]


def rows_call(node_type: str) -> str:
    """The name of the call that asks an owner for feature rows of a node type."""
    return f"{ROWS}/{node_type}"


@dataclass(frozen=True)
class MachineRows:
    """The feature rows of each node type, of which this machine holds some.

    Attributes:
        graph: The graph, whole or in parts.
        owners: Who holds the rows of which nodes, by type.
        own: This machine's rows of each type that has features, as they are stored: one matrix, or
            several where it holds several parts.
        exchange: Asks other machines, and answers them.
        in_parts: Whether no array here may be as long as the graph.
    """

    graph: Graph
    owners: Mapping[NodeType, NodeOwners]
    own: Mapping[NodeType, Sequence[AnyArray]]
    exchange: Exchange
    in_parts: bool = False

    @classmethod
    def of_ranges(cls, graph: Graph, exchange: Exchange) -> MachineRows:
        """An equal range of the rows of each type at each owner."""
        sizes, widths = graph.schema.num_nodes, graph.schema.num_features
        owners = {name: equal_ranges(sizes[name], exchange.num_owners) for name in sizes}
        made = cls(graph, owners, {name: () for name, width in widths.items() if width}, exchange)
        if exchange.owner is None:
            return made
        own = {name: [graph.nodes[name].features[made._own_range(name)]] for name in made.own}
        return replace(made, own=own)

    @classmethod
    def of_parts(
        cls,
        graph: Graph,
        parts: Sequence[Part],
        owners: Mapping[NodeType, NodeOwners],
        exchange: Exchange,
    ) -> MachineRows:
        """The rows of a machine that holds `parts`, see `remote.held_parts`."""
        own = {
            name: [part.graph.nodes[name].features for part in parts]
            for name, width in graph.schema.num_features.items()
            if width
        }
        return cls(graph, owners, own, exchange, in_parts=True)

    def serve(self) -> None:
        """Answer other machines that ask for rows of this one."""
        for name, rows in self.own.items():
            self.exchange.serve(rows_call(name), answers_of(rows))

    def sources(
        self,
        keys: FeaturesConfig,
        presampled: Callable[[int], Iterable[Mapping[NodeType, Tensor]]],
        context: DistributedContext,
    ) -> tuple[dict[NodeType, FeatureSource], tuple[str, ...]]:
        """The rows of all nodes, by type; and their places in words. Collective.

        Args:
            keys: How many rows of other machines this one caches.
            presampled: Gives the nodes of the batches of so many epochs, of which those that are
                read most are cached.
            context: This rank. The ranks of a machine share a cache.
        """
        sources: dict[NodeType, FeatureSource] = {}
        whys = []
        for name, cached in self._most_read(keys, presampled, context).items():
            own, like = self.own[name], rows_of(self.graph.nodes[name])[:0]
            call, owners = rows_call(name), self.owners[name]
            cache = fetch_cache(cached, like, owners, self.exchange, context, call)
            here = [as_tensor(rows).view(like.dtype) for rows in own]
            device = context.device
            sources[name] = ShardedFeatures(here, owners, self.exchange, cache, call, device)
            own_size = readable_bytes(sum(rows.nbytes for rows in own))
            whys.append(
                (f"{name}: " if self.graph.is_hetero else "")
                + f"features of {sum(map(len, own)):,} nodes on this machine ({own_size}), "
                f"{len(cache.rows):,} rows of other machines cached "
                f"({readable_bytes(cache.rows.nbytes)})"
            )
        return sources, tuple(whys)

    def _most_read(
        self,
        keys: FeaturesConfig,
        presampled: Callable[[int], Iterable[Mapping[NodeType, Tensor]]],
        context: DistributedContext,
    ) -> dict[NodeType, Int64Array]:
        """By type, the nodes of other machines whose rows this machine caches, ascending."""
        sizes = self.graph.schema.num_nodes
        numbers = {name: self._num_cached(keys, name) for name in self.own}
        counts: dict[NodeType, DenseReadCounts | HashedReadCounts] = {
            name: HashedReadCounts(max(_LEAST_COUNTED, _COUNTED_PER_CACHED * number))
            if self.in_parts
            else DenseReadCounts(sizes[name])
            for name, number in numbers.items()
        }
        with torch.random.fork_rng(devices=()):  # PyG's sampler draws from it
            for nodes in presampled(keys.presample_epochs if any(numbers.values()) else 0):
                for name, of_type in counts.items():
                    read, own = nodes[name].cpu().numpy(), self._own_range(name)
                    of_type.add(read[(read < own.start) | (read >= own.stop)])
        return {
            name: most_read_nodes(counts[name], number, sizes[name], context)
            for name, number in numbers.items()
        }

    def _num_cached(self, keys: FeaturesConfig, node_type: NodeType) -> int:
        """Rows of other machines to cache; types share `cache_bytes` by their size."""
        sizes, widths = self.graph.schema.num_nodes, self.graph.schema.num_features
        num_nodes, width = sizes[node_type], widths[node_type]
        if keys.cache_bytes is not None:
            total = sum(size * widths[name] for name, size in sizes.items())
            share = keys.cache_bytes * num_nodes * width // total
            keys = keys.model_copy(update={"cache_bytes": share})
        row_bytes = width * self.graph.nodes[node_type].features.itemsize
        own = self._own_range(node_type)
        num_others: int = num_nodes - (own.stop - own.start)
        return min(most_cached(keys, num_nodes, row_bytes, num_nodes // 10), num_others)

    def _own_range(self, node_type: NodeType) -> slice:
        owner = self.exchange.owner
        if owner is None:
            return slice(0, 0)
        return slice(*self.owners[node_type].starts[owner : owner + 2].tolist())


def answers_of(own: Sequence[AnyArray]) -> RowAnswers:
    """Answers `ROWS` with an owner's rows, of one matrix or several in order."""
    return RowAnswers(own, NodeOwners(np.cumsum([0, *map(len, own)])))


def fetch_cache(
    nodes: Int64Array,
    like: Tensor,
    owners: NodeOwners,
    exchange: Caller,
    context: DistributedContext,
    name: str = ROWS,
) -> RowCache:
    """Fetch rows of other machines into memory that this machine's ranks share.

    Collective among these ranks, each of which fetches a part.

    Args:
        nodes: int64 `[n]`, each once, equal on these ranks.
        like: `[any, num_features]`, of the type of the rows.
        owners, exchange, name: See `ShardedFeatures`.
        context: This rank.

    Raises:
        RunError: There is not enough memory, or an owner does not answer.
    """
    shape = len(nodes), like.shape[1]
    try:
        cache = RowCache(nodes, shared_tensor(shape, like.dtype, context, None), context)
    except OSError as error:
        size = len(nodes) * shape[1] * like.element_size() / 2**20
        raise RunError(
            f"{size:.0f} MiB of memory for a cache of feature rows cannot be had: {error}.",
            "Free some memory, or lower features.cache_bytes.",
        ) from error
    ranks = context.machine_ranks
    own = rank_range(len(nodes), context.rank - ranks[0], len(ranks))
    step = max(1, _FETCH_BYTES // max(1, shape[1] * like.element_size()))
    for start in range(own.start, own.stop, step):
        part = slice(start, min(start + step, own.stop))
        rows = as_tensor(ask_rows(exchange, owners, name, nodes[part]))
        cache.rows[part] = rows.view(like.dtype)
    context.machine_barrier()
    return cache
