"""Feature rows in ranges, one a machine: a machine reads the others' rows by calls to them.

Local rows are read in place, on the store's pages. The other machines' rows that batches read most
are cached, one copy a machine. The rest is fetched, once a batch, in the loader's thread: while the
step before computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
from gnntrain.distributed.owners import AnyArray, Caller, NodeOwners, RowAnswers, ask_rows
from gnntrain.distributed.shared import shared_tensor
from gnntrain.errors import RunError
from gnntrain.loading.features import FeatureSource, rows_of
from gnntrain.loading.pinned import readable_bytes
from gnntrain.loading.placement import most_cached
from gnntrain.loading.read_counts import DenseReadCounts, SparseReadCounts, most_read_nodes
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


class ShardedFeatures(FeatureSource):
    """The rows of all nodes, of which this machine holds a range. Thread-safe.

    Args:
        local_rows: This machine's rows, in order; several matrices where it holds several parts.
        owners: Who holds the rows of which nodes. Each serves `name` with a `RowAnswers`.
        exchange: Calls the owners.
        cache: Rows of other machines.
        name: Of the call.
        device: Which reads the rows: in place on the host, or a GPU by a copy of each batch's.
    """

    def __init__(
        self,
        local_rows: Sequence[Tensor],
        owners: NodeOwners,
        exchange: RowExchange,
        cache: RowCache,
        name: str = ROWS,
        device: torch.device = _HOST,
    ) -> None:
        super().__init__()
        self.waits = devices.is_gpu(device)
        self._device = device
        self._local_rows, self._owners, self._exchange = local_rows, owners, exchange
        self._cache, self._name = cache, name
        first = 0 if exchange.owner is None else owners.starts[exchange.owner]
        self._starts: Int64Array = first + np.cumsum([0, *map(len, local_rows)])

    def select(self, nodes: Tensor | None = None, size: Tensor | None = None) -> LazyFeatures:
        """See `FeatureSource.select`; `nodes` are distinct and not padded.

        Raises:
            RunError: An owner does not answer.
        """
        assert nodes is not None, "no machine holds the rows of all nodes"
        assert size is None, "batches in host memory are not padded"
        wanted = nodes.cpu().numpy()
        # The matrix and row of each node: of this machine, of the cache, or fetched.
        places = np.empty(len(wanted), np.int64)
        for number, (first, stop) in enumerate(pairwise(self._starts)):
            is_here = (wanted >= first) & (wanted < stop)
            np.add(wanted, number * _PART_ROWS - first, out=places, where=is_here)
        remote = np.flatnonzero((wanted < self._starts[0]) | (wanted >= self._starts[-1]))
        slots = self._cache.find(wanted[remote])
        is_cached = slots >= 0
        matrices = [*self._local_rows, self._cache.rows]
        places[remote[is_cached]] = len(self._local_rows) * _PART_ROWS + slots[is_cached]
        missing = remote[~is_cached]
        self.count(len(remote) - len(missing), len(remote))
        if len(missing):
            grouped = self._owners.group(wanted[missing])
            answers = self._exchange.call(
                self._name, {owner: [rows] for owner, rows in grouped.rows.items()}
            )
            numbers = []
            for owner, rows in grouped.rows.items():
                numbers.append(np.arange(len(rows)) + len(matrices) * _PART_ROWS)
                matrices.append(as_tensor(answers[owner][0]).view(self._cache.rows.dtype))
            places[missing] = grouped.scattered(np.concatenate(numbers))
        selection = LazyFeatures(
            self._cache.rows,
            as_tensor(places),
            parts=addresses_of(matrices, "cpu"),
            part_rows=_PART_ROWS,
            held=tuple(matrices),
        )
        if not self.waits:
            return selection
        copied = selection.read(0, len(selection), self._cache.rows.dtype)
        (sent,) = send_all([copied], self._device)
        return LazyFeatures(sent)


class MachineRows:
    """The feature rows that this machine holds; it answers other machines that ask for them.

    Args:
        graph: The graph, whole or in parts.
        owners: Who holds the rows of which nodes, by type.
        parts: Those that this machine holds; None: of the whole graph it holds its range.
        exchange: Asks other machines, and answers them.
    """

    def __init__(
        self,
        graph: Graph,
        owners: Mapping[NodeType, NodeOwners],
        parts: Sequence[Part] | None,
        exchange: Exchange,
    ) -> None:
        self._graph, self._owners, self._exchange = graph, owners, exchange
        self._in_parts = parts is not None  # then no array may be as long as the graph
        self._local_rows: dict[NodeType, list[AnyArray]] = {}
        for name, width in graph.schema.num_features.items():
            if width == 0:
                continue
            if parts is None:
                local_rows = [graph.nodes[name].features[self._local_range(name)]]
            else:
                local_rows = [part.graph.nodes[name].features for part in parts]
            self._local_rows[name] = local_rows
            exchange.serve(f"{ROWS}/{name}", answers_of(local_rows))

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
        sizes, numbers = self._graph.schema.num_nodes, self._num_cached(keys)
        counts: dict[NodeType, DenseReadCounts | SparseReadCounts] = {
            name: SparseReadCounts(max(_LEAST_COUNTED, _COUNTED_PER_CACHED * number))
            if self._in_parts
            else DenseReadCounts(sizes[name])
            for name, number in numbers.items()
        }
        with torch.random.fork_rng(devices=()):  # PyG's sampler draws from it
            for nodes in presampled(keys.presample_epochs if any(numbers.values()) else 0):
                for name, of_type in counts.items():
                    read, local = nodes[name].cpu().numpy(), self._local_range(name)
                    of_type.add(read[(read < local.start) | (read >= local.stop)])
        sources: dict[NodeType, FeatureSource] = {}
        whys = []
        for name, number in numbers.items():
            cached = most_read_nodes(counts[name].between, number, sizes[name], context)
            like = rows_of(self._graph.nodes[name])[:0]
            exchange, owners, call = self._exchange, self._owners[name], f"{ROWS}/{name}"
            cache = fetch_cache(cached, like, owners, exchange, context, call)
            local_rows = [as_tensor(rows).view(like.dtype) for rows in self._local_rows[name]]
            sources[name] = ShardedFeatures(
                local_rows, owners, exchange, cache, call, context.device
            )
            size = readable_bytes(sum(rows.nbytes for rows in local_rows))
            whys.append(
                (f"{name}: " if self._graph.is_hetero else "")
                + f"features of {sum(map(len, local_rows)):,} nodes on this machine ({size}), "
                f"{len(cache.rows):,} rows of other machines cached "
                f"({readable_bytes(cache.rows.nbytes)})"
            )
        return sources, tuple(whys)

    def _num_cached(self, keys: FeaturesConfig) -> dict[NodeType, int]:
        """Rows of other machines to cache; types share `cache_bytes` by their size."""
        sizes, widths = self._graph.schema.num_nodes, self._graph.schema.num_features
        total = sum(size * widths[name] for name, size in sizes.items())
        numbers = {}
        for name in self._local_rows:
            num_nodes, width, share = sizes[name], widths[name], keys
            if keys.cache_bytes is not None:
                cache_bytes = keys.cache_bytes * num_nodes * width // total
                share = keys.model_copy(update={"cache_bytes": cache_bytes})
            row_bytes = width * self._graph.nodes[name].features.itemsize
            local = self._local_range(name)
            num_remote = num_nodes - (local.stop - local.start)
            numbers[name] = min(
                most_cached(share, num_nodes, row_bytes, num_nodes // 10), num_remote
            )
        return numbers

    def _local_range(self, node_type: NodeType) -> slice:
        owner = self._exchange.owner
        if owner is None:
            return slice(0, 0)
        return slice(*self._owners[node_type].starts[owner : owner + 2].tolist())


def answers_of(local_rows: Sequence[AnyArray]) -> RowAnswers:
    """Answers `ROWS` with an owner's rows, of one matrix or several in order."""
    return RowAnswers(local_rows, NodeOwners(np.cumsum([0, *map(len, local_rows)])))


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
    width, row_bytes = like.shape[1], max(1, like.shape[1] * like.element_size())
    try:
        rows = shared_tensor((len(nodes), width), like.dtype, context, None)
        cache = RowCache(nodes, rows, context)
    except OSError as error:
        raise RunError(
            f"{len(nodes) * row_bytes / 2**20:.0f} MiB of memory for a cache of feature rows "
            f"cannot be had: {error}.",
            "Free some memory, or lower features.cache_bytes.",
        ) from error
    ranks = context.machine_ranks
    share = rank_range(len(nodes), context.rank - ranks[0], len(ranks))
    step = max(1, _FETCH_BYTES // row_bytes)
    for start in range(share.start, share.stop, step):
        part = slice(start, min(start + step, share.stop))
        rows[part] = as_tensor(ask_rows(exchange, owners, name, nodes[part])).view(like.dtype)
    context.machine_barrier()
    return cache
