"""Neighbour sampling on a graph in parts: the owners of the nodes draw, the asking rank numbers.

A draw depends on the destination's *original* id within its type and on the order of its in-edges,
which parts keep; nodes are numbered in the order of `CPUSampler`. So a batch has the blocks that it
has on the whole graph, whatever the partition; its nodes differ by the renumbering of the partition
alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import torch

from gnntrain.data.graph import AnyArray, EdgeType, FusedCSC, Int64Array, NodeType
from gnntrain.distributed.owners import Caller, GroupedNodes, NodeOwners, joined
from gnntrain.sampling.base import FanOuts, FanOutScope, SampleKey, Sampler, Seeds
from gnntrain.sampling.block import NO_NEEDS, Block, BlockNeeds, Hop, Sample
from gnntrain.sampling.cpu import (
    NOT_WANTED,
    check_batch_nodes,
    check_hop_edges,
    checked_seeds,
    fan_outs_by_hop,
    in_edges_of,
    num_seeds_of,
    numba_hop_key,
    rows_of,
    starts_of,
)
from gnntrain.sampling.kernels import (
    CHUNK_EDGES,
    HopEdges,
    HopOptions,
    IndexArray,
    Int32Array,
    copied_segments,
    count_edges,
    draw_by_node,
    draw_hop,
    register_in_table,
    relabel_by_table,
    table_layout,
)

Draws = list[AnyArray]
"""For the destinations of an edge type: their numbers of drawn edges; the edges' sources, then
their weights; the destinations' degrees in the whole graph. What is not wanted has no entries."""

DRAW = "draw"
"""The name of the call that asks an owner for in-neighbours."""

_NOT_WANTED: AnyArray = np.empty(0, np.uint8)


class RemoteSampler(Sampler):
    """Draws in-neighbours of nodes whose in-edges other machines hold.

    `sample` may be called from several threads at once; a call in flight holds hash tables of the
    size of its batch. Nothing is as long as the graph.

    Args:
        caller: Asks the owners, each of which serves `DRAW` with `draw_answers`.
        owners: Who holds which nodes of each type.
        edge_types: In the order of the whole graph.
        fan_outs, scope, replace: See `Sampler`.
        needs: Of its fields, `weight` is set in all blocks, `degree` in those of the last hop,
            which have the destinations of all others.
    """

    def __init__(
        self,
        caller: Caller,
        owners: Mapping[NodeType, NodeOwners],
        edge_types: Sequence[EdgeType],
        fan_outs: FanOuts,
        *,
        scope: FanOutScope = "relation",
        replace: bool = False,
        needs: BlockNeeds = NO_NEEDS,
    ) -> None:
        self._caller = caller
        self._owners = owners
        self._edge_types = edge_types
        self._fan_outs = fan_outs_by_hop(edge_types, fan_outs)
        self._options = int(scope == "node"), int(replace)
        self._needs = needs
        self._idle: deque[dict[NodeType, NodeNumbers]] = deque()

    def sample(self, seeds: Seeds, key: SampleKey) -> Sample:
        """Draw the neighbourhood of `seeds`, which the partition has numbered.

        Raises:
            UserError: A seed is not a node of its type.
            RunError: The batch has more than 2^30 nodes of a type, or a hop 2^31 edges or more; an
                owner does not answer.
        """
        num_nodes = {name: owners.num_nodes for name, owners in self._owners.items()}
        checked = checked_seeds(seeds, num_nodes)
        try:
            numbers = self._idle.pop()
        except IndexError:
            numbers = {name: NodeNumbers() for name in self._owners}
        for name, of_type in numbers.items():
            of_type.start(checked[name])
        hops = []
        for hop, fan_outs in enumerate(self._fan_outs):
            wants_degree = self._needs.degree and hop == len(self._fan_outs) - 1
            hops.append(self._draw_hop(numbers, fan_outs, numba_hop_key(key, hop), wants_degree))
        nodes = {name: torch.from_numpy(found.known.copy()) for name, found in numbers.items()}
        # Not reached after an error, when the tables may hold numbers of half a batch.
        self._idle.append(numbers)
        return Sample(nodes, num_seeds_of(seeds), tuple(reversed(hops)))

    def _draw_hop(
        self,
        numbers: Mapping[NodeType, NodeNumbers],
        fan_outs: Int64Array,
        key: np.uint64,
        wants_degree: bool,
    ) -> Hop:
        """The in-edges of all nodes known so far."""
        wants_weight = self._needs.weight
        num_dst = {name: of_type.num_nodes for name, of_type in numbers.items()}
        grouped = {name: self._owners[name].group(own.known) for name, own in numbers.items()}
        options = *self._options, wants_weight, wants_degree
        question = np.array([key.view(np.int64), *options, *fan_outs], np.int64)
        draws = _ask(partial(self._caller.call, DRAW), self._edge_types, question, grouped)
        check_hop_edges(sum(len(sources) for _, sources, _, _ in draws))
        # The sources of all edge types are numbered before the first block says how many there are.
        indices = [
            numbers[name[0]].relabel(sources)
            for name, (_, sources, _, _) in zip(self._edge_types, draws, strict=True)
        ]
        num_src = {name: of_type.num_nodes for name, of_type in numbers.items()}
        blocks = {}
        for r, (name, (counts, _, weights, degrees)) in enumerate(
            zip(self._edge_types, draws, strict=True)
        ):
            blocks[name] = Block(
                # Of the indices' type, as torch's CSR tensors require.
                torch.from_numpy(starts_of(counts).astype(np.int32)),
                torch.from_numpy(indices[r]),
                num_src[name[0]],
                weight=torch.from_numpy(weights) if wants_weight else None,
                degree=torch.from_numpy(degrees.astype(np.float32)) if wants_degree else None,
                max_in_edges=int(fan_outs[r]) if fan_outs[r] >= 0 else None,
            )
        return Hop(blocks, num_dst, num_src)


def _ask(
    call: Callable[[dict[int, list[AnyArray]]], Mapping[int, Sequence[AnyArray]]],
    edge_types: Sequence[EdgeType],
    question: Int64Array,
    grouped: Mapping[NodeType, GroupedNodes],
) -> list[Draws]:
    """Ask each owner the question of its rows of each node type.

    Returns:
        The answers by edge type, in the order of the nodes before they were grouped.
    """
    of_types = [nodes.rows for nodes in grouped.values()]
    owners = sorted({owner for rows in of_types for owner, own in rows.items() if len(own)})
    none = np.empty(0, np.int32)
    # Of no nodes the first owner is asked: its answer has the right types.
    asked = {
        owner: [question, *(rows.get(owner, none) for rows in of_types)] for owner in owners or [0]
    }
    answers = call(asked)
    by_owner: list[list[Draws]] = [[] for _ in edge_types]
    for owner, (_, *rows) in asked.items():
        counts, sources, weights, degrees = answers[owner]
        num_rows = dict(zip(grouped, map(len, rows), strict=True))
        row = edge = 0
        for (_, _, destination), draws in zip(edge_types, by_owner, strict=True):
            rows_of_type = slice(row, row + num_rows[destination])
            counts_of_type = counts[rows_of_type]
            edges_of_type = slice(edge, edge + int(counts_of_type.sum(dtype=np.int64)))
            of_edges = sources[edges_of_type], weights[edges_of_type]
            draws.append([counts_of_type, *of_edges, degrees[rows_of_type]])
            row, edge = rows_of_type.stop, edges_of_type.stop
    found = []
    for (_, _, destination), draws in zip(edge_types, by_owner, strict=True):
        counts, sources, weights, degrees = map(joined, zip(*draws, strict=True))
        nodes = grouped[destination]
        if nodes.order is not None:
            begins = nodes.scattered(starts_of(counts)[:-1])
            counts = nodes.scattered(counts)
            segments = begins, starts_of(counts)
            sources = copied_segments(sources, *segments)
            weights = copied_segments(weights, *segments) if len(weights) else weights
            degrees = nodes.scattered(degrees) if len(degrees) else degrees
        found.append([counts, sources, weights, degrees])
    return found


def _answer_of(counts: AnyArray, sources: AnyArray, weights: AnyArray, degrees: AnyArray) -> Draws:
    """Draws as they are sent: numbers that are never negative in the smallest type."""
    smallest = [own.astype(np.min_scalar_type(own.max(initial=0))) for own in (counts, degrees)]
    return [smallest[0], sources, weights, smallest[1]]


class PartDraws:
    """Draws in-neighbours of a part's nodes, in any thread.

    Args:
        edges: The in-edges of the part's nodes: destinations are rows of the part, sources are
            numbered as the partition does, in the order of the whole graph.
        original: By node type int64 `[n]`, the ids of the part's nodes before the partition.
        weights: float32 `[num_edges]` of the edge types that have weights.
    """

    def __init__(
        self,
        edges: FusedCSC,
        original: Mapping[NodeType, Int64Array],
        weights: Mapping[EdgeType, AnyArray | None],
    ) -> None:
        self._edges = in_edges_of(edges)
        self._original = [original[name] for name in edges.num_nodes]
        self._weights = [weights.get(name) for name in edges.edge_types]

    def __call__(self, arguments: Sequence[AnyArray]) -> Draws:
        """Draw for some nodes.

        Args:
            arguments: int64 `[5 + R]`: the hop's key, whether edge types into a node share a
                fan-out, whether with replacement, whether weights and degrees are wanted, and the
                fan-outs; then, of each node type, the nodes' rows in the part.

        Returns:
            `Draws` of all edge types, each array edge type by edge type.
        """
        question, *rows = arguments
        edges, (key, shares, replace, wants_weight, wants_degree) = self._edges, question[:5]
        options = HopOptions(key.view(np.uint64), question[5:].copy(), bool(shares), bool(replace))
        num_dst = list(map(len, rows))
        nodes = joined([of_type.astype(np.int64) for of_type in rows])
        # Keys are of the ids before the partition.
        ids = joined([own[of_type] for own, of_type in zip(self._original, rows, strict=True)])
        bounds = rows_of(edges, num_dst)
        hop = HopEdges(ids, starts_of(num_dst), bounds, *np.empty((3, bounds[-1]), np.int64))
        count_edges(edges, options, hop, nodes)
        edge_ids = draw_by_node(edges, options, hop) if options.shares else NOT_WANTED
        rows_of_types = [*pairwise(hop.rows.tolist())]
        counts = [np.diff(hop.offsets[begin:end]) for begin, end in rows_of_types]
        first_drawn = starts_of([hop.offsets[end - 1] for _, end in rows_of_types])
        sources = np.empty(first_drawn[-1], edges.indices.dtype)
        if wants_weight and not shares:
            edge_ids = np.empty(first_drawn[-1], np.int64)
        draw_hop(edges, options, hop, None, sources, edge_ids)
        weights, degrees = [_NOT_WANTED], [_NOT_WANTED]
        if wants_weight:
            parts = zip(self._weights, pairwise(first_drawn.tolist()), strict=True)
            weights = [own[edge_ids[slice(*edges)]] for own, edges in parts if own is not None]
        if wants_degree:
            degrees = [hop.degrees[begin : end - 1] for begin, end in rows_of_types]
        return _answer_of(joined(counts), sources, joined(weights), joined(degrees))


def draw_answers(
    parts: Sequence[PartDraws],
    ranges: Mapping[NodeType, NodeOwners],
    edge_types: Sequence[EdgeType],
) -> Callable[[Sequence[AnyArray]], Draws]:
    """Answers a call with draws, see `PartDraws.__call__`: the owner's side of a `RemoteSampler`.

    Args:
        parts: Draws for each of the owner's parts, in order.
        ranges: The parts as ranges of the owner's rows, by node type.
        edge_types: In the order of the whole graph.
    """

    def call(asked: dict[int, list[AnyArray]]) -> dict[int, Draws]:
        return {part: parts[part](own) for part, own in asked.items()}

    def answer(arguments: Sequence[AnyArray]) -> Draws:
        question, *rows = arguments
        grouped = {name: ranges[name].group(own) for name, own in zip(ranges, rows, strict=True)}
        draws = _ask(call, edge_types, question, grouped)
        return _answer_of(*map(joined, zip(*draws, strict=True)))

    return answer


class NodeNumbers:
    """Numbers the nodes of one batch after the other, in order of discovery, by a hash table.

    The table is as large as the largest batch so far needs, see `kernels.slot_of`. It is never
    cleared: every batch starts with a base above all numbers written before.

    Attributes:
        nodes: int64, the batch's nodes by number, and room for more.
        num_nodes: How many they are.
    """

    def __init__(self) -> None:
        self.nodes: Int64Array = np.empty(0, np.int64)
        self.num_nodes = 0
        self._base = 1
        self._table: Int64Array = np.empty(0, np.int64)
        self._shift = np.uint64(0)

    @property
    def known(self) -> Int64Array:
        """The batch's nodes by number."""
        return self.nodes[: self.num_nodes]

    def start(self, seeds: Int64Array) -> None:
        """Begin a batch: number the seeds by position; a repeated one is known by its first."""
        self._base += self.num_nodes
        self.num_nodes = 0
        self._reserve(len(seeds))
        self.num_nodes = len(seeds)
        self.nodes[: len(seeds)] = seeds
        register_in_table(self.nodes, len(seeds), self._table, self._shift, self._base)

    def relabel(self, sources: IndexArray) -> Int32Array:
        """The numbers of `sources`; nodes not yet known are numbered in their order."""
        out = np.empty(len(sources), np.int32)
        done = 0
        while True:
            done, self.num_nodes = relabel_by_table(
                sources,
                done,
                self._table,
                self._shift,
                self._base,
                self.nodes,
                self.num_nodes,
                out,
            )
            if done == len(sources):
                return out
            self._reserve(CHUNK_EDGES)

    def _reserve(self, num_new: int) -> None:
        """Make room for so many new nodes, at least twice the room where there is too little."""
        needed = self.num_nodes + num_new
        check_batch_nodes(needed)
        if needed <= len(self.nodes):
            return
        known = self.known
        length, self._shift = table_layout(max(CHUNK_EDGES, needed))
        self._table = np.zeros(length, np.int64)
        self.nodes = np.empty(len(self._table) // 4, np.int64)
        self.nodes[: self.num_nodes] = known
        register_in_table(self.nodes, self.num_nodes, self._table, self._shift, self._base)
