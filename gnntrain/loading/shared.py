"""A graph that machines share out: its feature rows in ranges, or the whole graph in parts.

An owner answers the others' calls; a rank asks the owners of nodes for what its mini-batches need.
Local rows are read in place, on the store's pages. The other machines' rows that batches read most
are cached, one copy a machine. The rest is fetched, once a batch, in the loader's thread: while the
step before computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gnntrain import devices
from gnntrain.compute.features import LazyFeatures, addresses_of
from gnntrain.config import FeaturesConfig
from gnntrain.data.graph import EdgeType, Graph, Int64Array, NodeType
from gnntrain.data.partitioned_graph import Part, PartitionedGraph
from gnntrain.distributed.context import DistributedContext, rank_range
from gnntrain.distributed.owners import (
    AnyArray,
    Caller,
    NodeOwners,
    answers_of,
    ask_rows,
    equal_ranges,
)
from gnntrain.distributed.shared import shared_tensor
from gnntrain.errors import RunError
from gnntrain.loading.features import FeatureSource, rows_of
from gnntrain.loading.graph import BatchValues, ValueName
from gnntrain.loading.pinned import readable_bytes
from gnntrain.loading.read_counts import DenseReadCounts, SparseReadCounts, most_read_nodes
from gnntrain.loading.transfer import send_all
from gnntrain.sampling.block import Sample
from gnntrain.sampling.kernels import find_in_table, register_in_table, table_layout
from gnntrain.sampling.remote import DRAW, PartDraws, draw_answers

if TYPE_CHECKING:
    from gnntrain.distributed.exchange import Exchange

# The names of the calls to an owner, for feature rows and for targets.
ROWS = "rows"
TARGETS = "targets"

# Where a machine holds parts, it counts the reads of so many nodes for each that it caches.
_COUNTED_PER_CACHED = 4
_LEAST_COUNTED = 1 << 16

# A batch's nodes are numbered by matrix and row: row r of matrix m is m · _PART_ROWS + r.
_PART_ROWS = 1 << 40
# Bytes of the cache that a call fetches.
_FETCH_BYTES = 16 << 20

SlotsOf = Callable[[Int64Array], Int64Array]
"""Nodes (int64 `[n]`) to their rows in a cache, −1 where it has not the node; int64 `[n]`."""


def originals_of(graph: Graph) -> Mapping[NodeType, Tensor]:
    """The original number of each node, int64, of the types whose rows a model learns, where a
    partition has numbered nodes anew."""
    parted = graph.originals if isinstance(graph, PartitionedGraph) else {}
    return {name: torch.from_numpy(numbers) for name, numbers in parted.items()}


class ShardedFeatures(FeatureSource):
    """The rows of all nodes, of which this machine holds a range.

    Some rows of other machines may be cached; the rest is fetched. Reads are counted of other
    machines' rows alone.

    Args:
        local_rows: This machine's rows, in order; several matrices where it holds several parts.
        first: The first node of these.
        like: `[any, num_features]`, of the type of the rows.
        owners: Who holds the rows of which nodes. Each serves `name` by `answers_of`.
        caller: Asks the owners.
        context: This rank. It reads rows in place, or on a GPU by a copy of each batch's.
    """

    def __init__(
        self,
        local_rows: Sequence[Tensor],
        first: int,
        like: Tensor,
        owners: NodeOwners,
        caller: Caller,
        context: DistributedContext,
        name: str = ROWS,
    ) -> None:
        super().__init__()
        self.local_rows, self.name = local_rows, name
        self.cached_rows: Tensor | None = None
        self._slots_of: SlotsOf
        self._context, self.waits = context, devices.is_gpu(context.device)
        self._like, self._owners, self._caller = like[:0], owners, caller
        self._starts: Int64Array = first + np.cumsum([0, *map(len, local_rows)])

    def cache(self, nodes: Int64Array, rows: Tensor, slots_of: SlotsOf) -> None:
        """Keep the rows of `nodes` of other machines (int64 `[n]`, each once) in `rows`, which the
        ranks of this machine share: each fetches a part, so it is collective among them."""
        ranks = self._context.machine_ranks
        share = rank_range(len(nodes), self._context.rank - ranks[0], len(ranks))
        step = max(1, _FETCH_BYTES // max(1, rows[:1].nbytes))
        for start in range(share.start, share.stop, step):
            some = slice(start, min(start + step, share.stop))
            fetched = torch.from_numpy(ask_rows(self._caller, self._owners, self.name, nodes[some]))
            rows[some] = fetched.view(rows.dtype)
        self._context.on_machine.barrier()
        self.cached_rows, self._slots_of = rows, slots_of

    def cache_by_table(self, nodes: Int64Array) -> None:
        """As `cache`, in memory; a hash table of 32 to 64 bytes a node finds the rows."""
        length, shift = table_layout(len(nodes))
        shape = len(nodes), self._like.shape[1]
        try:
            rows = shared_tensor(shape, self._like.dtype, self._context, None)
            table: Int64Array = shared_tensor((length,), torch.int64, self._context, None).numpy()
        except OSError as error:
            raise RunError(
                f"Memory for a cache of {len(nodes):,} feature rows cannot be had: {error}.",
                "Free some memory, or lower features.cache_bytes.",
            ) from error
        if self._context.is_machine_main:
            table[:] = 0
            register_in_table(nodes, len(nodes), table, shift, 1)

        def slots_of(wanted: Int64Array) -> Int64Array:
            slots = np.empty(len(wanted), np.int64)
            find_in_table(wanted, table, shift, 1, slots)
            return slots

        self.cache(nodes, rows, slots_of)

    def select(self, nodes: Tensor | None = None, size: Tensor | None = None) -> LazyFeatures:
        """See `FeatureSource.select`; `nodes` are distinct and not padded."""
        assert nodes is not None, "no machine holds the rows of all nodes"
        assert size is None, "batches in host memory are not padded"
        wanted, dtype = nodes.cpu().numpy(), self._like.dtype
        # The matrix and row of each node: of this machine, of the cache, or fetched.
        numbers = np.empty(len(wanted), np.int64)
        for matrix, (first, stop) in enumerate(pairwise(self._starts)):
            is_here = (wanted >= first) & (wanted < stop)
            np.add(wanted, matrix * _PART_ROWS - first, out=numbers, where=is_here)
        remote = np.flatnonzero((wanted < self._starts[0]) | (wanted >= self._starts[-1]))
        matrices, missing = [*self.local_rows], remote
        if self.cached_rows is not None:
            slots = self._slots_of(wanted[remote])
            is_cached = slots >= 0
            numbers[remote[is_cached]] = len(matrices) * _PART_ROWS + slots[is_cached]
            matrices.append(self.cached_rows)
            missing = remote[~is_cached]
        self.count(len(remote) - len(missing), len(remote))
        if len(missing):
            grouped = self._owners.group(wanted[missing])
            asked = {owner: [rows] for owner, rows in grouped.rows.items()}
            answers = self._caller.call(self.name, asked)
            fetched = []
            for owner, rows in grouped.rows.items():
                fetched.append(np.arange(len(rows)) + len(matrices) * _PART_ROWS)
                matrices.append(torch.from_numpy(answers[owner][0]).view(dtype))
            numbers[missing] = grouped.scattered(np.concatenate(fetched))
        selection = LazyFeatures(
            self._like,
            torch.from_numpy(numbers),
            parts=addresses_of(matrices, "cpu"),
            part_rows=_PART_ROWS,
            held=tuple(matrices),
        )
        if not self.waits:
            return selection
        (sent,) = send_all([selection.read(0, len(wanted), dtype)], self._context.device)
        return LazyFeatures(sent)


class SharedGraph(BatchValues):
    """A graph that machines share out: the rows, and in parts also the values, of any node.

    It answers the others that ask for what this machine holds: rows; in parts draws, targets and
    norms, too.

    Args:
        graph: The graph, whole or in parts, of which this rank's are open.
        exchange: Asks other machines, and answers them.
        context: This rank. The ranks of a machine share a cache.
        in_parts: Whether the owners draw, too: no array is as long as the graph then. Of a whole
            graph each owner answers for a range of the nodes of each type.

    Attributes:
        owners: Who holds which nodes of each type, or their rows.
        why: The places of the rows in words, once they are known.
    """

    device = torch.device("cpu")

    def __init__(
        self, graph: Graph, exchange: Exchange, context: DistributedContext, *, in_parts: bool
    ) -> None:
        self.schema, self.why = graph.schema, tuple[str, ...]()
        self._graph, self._exchange, self._context = graph, exchange, context
        self._in_parts, num_owners, owner = in_parts, exchange.num_owners, exchange.owner
        self._originals = originals_of(graph)
        if isinstance(graph, PartitionedGraph):
            cuts = equal_ranges(graph.num_parts, num_owners).starts
            self.owners = {name: NodeOwners(starts[cuts]) for name, starts in graph.starts.items()}
        else:
            sizes = self.schema.num_nodes.items()
            self.owners = {name: equal_ranges(size, num_owners) for name, size in sizes}
        self._local = {
            name: range(*((0, 0) if owner is None else of.starts[owner : owner + 2].tolist()))
            for name, of in self.owners.items()
        }
        parts: Sequence[Part] = ()
        if isinstance(graph, PartitionedGraph):
            parts = graph.opened
        elif in_parts and owner is not None:
            parts = (Part.of(graph, self._local),)
        if parts:
            edges, draws = parts[0].graph.edges, []
            for part in parts:
                weights = {name: own.weight for name, own in part.graph.edges.items()}
                draws.append(PartDraws(part.graph.fused, part.originals, weights))
            held = {
                name: NodeOwners(np.cumsum([0, *(len(part.ranges[name]) for part in parts)]))
                for name in self.owners
            }
            exchange.serve(DRAW, draw_answers(draws, held, tuple(edges)))
            exchange.serve(TARGETS, answers_of([part.graph.labels for part in parts]))
            for edge_type in edges:
                of_parts = [part.graph.edges[edge_type].gcn_norm for part in parts]
                if norms := [norm for norm in of_parts if norm is not None]:
                    exchange.serve(_norm_call(edge_type), answers_of(norms))
        self._rows: dict[NodeType, list[AnyArray]] = {}
        for name, width in self.schema.num_features.items():
            if width > 0:
                local, nodes = self._local[name], graph.nodes[name]
                self._rows[name] = [part.graph.nodes[name].features for part in parts]
                if not in_parts:
                    self._rows[name] = [nodes.features[local.start : local.stop]]
                exchange.serve(f"{ROWS}/{name}", answers_of(self._rows[name]))

    def read(self, name: ValueName, of: Any, ids: Tensor | None) -> Tensor | None:
        """See `BatchValues.read`; weights and degrees come with the draws."""
        if name in ("weight", "degree") or ids is None:
            return None
        node_type = of[0] if name == "norm" else of
        call = TARGETS if name == "targets" else _norm_call(of)
        rows = ask_rows(self._exchange, self.owners[node_type], call, ids.numpy())
        return torch.from_numpy(rows)

    def row_ids(self, sample: Sample) -> Mapping[NodeType, Tensor]:
        """See `BatchValues.row_ids`: the original numbers of nodes whose rows a model learns."""
        originals = self._originals
        return {
            name: originals[name][nodes] if name in originals else nodes
            for name, nodes in sample.nodes.items()
        }

    def features(
        self,
        keys: FeaturesConfig,
        presampled: Callable[[int], Iterable[Mapping[NodeType, Tensor]]],
    ) -> dict[NodeType, FeatureSource]:
        """The rows of all nodes, by type. Collective. Of other machines' rows so many are cached as
        the keys say: those that are read most by `presampled`, the batches of so many epochs."""
        graph, exchange, context = self._graph, self._exchange, self._context
        sizes, numbers = self.schema.num_nodes, self._num_cached(keys)
        counts: dict[NodeType, DenseReadCounts | SparseReadCounts] = {
            name: SparseReadCounts(max(_LEAST_COUNTED, _COUNTED_PER_CACHED * number))
            if self._in_parts
            else DenseReadCounts(sizes[name])
            for name, number in numbers.items()
        }
        for nodes in presampled(keys.presample_epochs if any(numbers.values()) else 0):
            for name, of_type in counts.items():
                read, local = nodes[name].cpu().numpy(), self._local[name]
                of_type.add(read[(read < local.start) | (read >= local.stop)])
        sources: dict[NodeType, FeatureSource] = {}
        for name, number in numbers.items():
            cached = most_read_nodes(counts[name].between, number, sizes[name], context)
            like, call = rows_of(graph.nodes[name])[:0], f"{ROWS}/{name}"
            rows = [torch.from_numpy(local).view(like.dtype) for local in self._rows[name]]
            first, owners = self._local[name].start, self.owners[name]
            source = ShardedFeatures(rows, first, like, owners, exchange, context, call)
            source.cache_by_table(cached)
            sources[name] = source
            size = readable_bytes(sum(local.nbytes for local in rows))
            row_bytes = like.shape[1] * like.element_size()
            self.why += (
                (f"{name}: " if graph.is_hetero else "")
                + f"features of {sum(map(len, rows)):,} nodes on this machine ({size}), "
                f"{len(cached):,} rows of other machines cached "
                f"({readable_bytes(len(cached) * row_bytes)})",
            )
        return sources

    def _num_cached(self, keys: FeaturesConfig) -> dict[NodeType, int]:
        """Rows of other machines to cache; types share `cache_bytes` by their size."""
        sizes, widths = self.schema.num_nodes, self.schema.num_features
        total = sum(size * widths[name] for name, size in sizes.items())
        numbers = {}
        for name in self._rows:
            size, itemsize = sizes[name], self._graph.nodes[name].features.itemsize
            number = size // 10
            if keys.cache_ratio is not None:
                number = round(keys.cache_ratio * size)
            elif keys.cache_bytes is not None:
                number = keys.cache_bytes * size // total // itemsize
            numbers[name] = min(number, size - len(self._local[name]))
        return numbers


def _norm_call(edge_type: EdgeType) -> str:
    return f"norm/{'/'.join(edge_type)}"
