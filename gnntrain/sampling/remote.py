"""Neighbour sampling on a graph in parts: the owners of the nodes draw, the asking rank numbers.

A draw depends on the destination's *original* id within its type and on the order of its in-edges,
which parts keep; nodes are numbered in the order of `CPUSampler`. So a batch has the blocks that it
has on the whole graph, whatever the partition; its nodes differ by the renumbering of the partition
alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gnntrain.data.graph import EdgeType, FusedCSC, NodeType
from gnntrain.distributed.owners import Caller, GroupedNodes, NodeOwners, joined
from gnntrain.errors import RunError
from gnntrain.sampling.base import (
    FanOuts,
    FanOutScope,
    Int32Array,
    Int64Array,
    SampleKey,
    Sampler,
    Seeds,
)
from gnntrain.sampling.block import NO_NEEDS, Block, BlockNeeds, Hop, Sample
from gnntrain.sampling.cpu import (
    MAX_BATCH_NODES,
    HopBuffers,
    InEdges,
    check_hop_edges,
    checked_seeds,
    fan_outs_by_hop,
    num_seeds_of,
    numba_hop_key,
    read_only,
    starts_of,
)
from gnntrain.sampling.kernels import (
    CHUNK_EDGES,
    IndexArray,
    copy_segments,
    draw_sources,
    register_in_table,
    relabel_by_table,
    table_layout,
    type_key,
)

AnyArray = npt.NDArray[Any]
Draws = list[AnyArray]
"""For the destinations of an edge type: their numbers of drawn edges; the edges' sources, then
their weights; the destinations' degrees in the whole graph. What is not wanted has no entries."""

DRAW = "draw"
"""The name of the call that asks an owner for in-neighbours."""

_NO_WEIGHTS = read_only(np.empty(0, np.float32))
_NO_NODES = np.empty(0, np.int64)
_NO_DEGREES = np.empty(0, np.uint8)


class RemoteSampler(Sampler):
    """Draws in-neighbours of nodes whose in-edges other machines hold.

    `sample` may be called from several threads at once; a call in flight holds hash tables of the
    size of its batch. Nothing is as long as the graph.

    Args:
        caller: Asks the owners, each of which serves `DRAW` with `DrawAnswers`.
        owners: Who holds which nodes of each type.
        edge_types: In the order of the whole graph.
        fan_outs, scope, replace: See `Sampler`.
        needs: Of its fields, `weight` is set in all blocks, `degree` in those of the last hop,
            which have the destinations of all others.

    Raises:
        UserError: See `CPUSampler`.
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
        self._fan_outs = fan_outs_by_hop(edge_types, fan_outs, scope)
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
        own = {
            name: checked_seeds(nodes.numpy(), self._owners[name].num_nodes)
            for name, nodes in seeds.nodes.items()
        }
        try:
            numbers = self._idle.pop()
        except IndexError:
            numbers = {name: NodeNumbers() for name in self._owners}
        for name, of_type in numbers.items():
            of_type.start(own.get(name, _NO_NODES))
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
        asked = _questions(question, grouped)
        answers = self._caller.call(DRAW, asked)
        drawn = _by_edge_type(self._edge_types, grouped, asked, answers)
        check_hop_edges(sum(len(sources) for _, sources, _, _ in drawn))
        # The sources of all edge types are numbered before the first block says how many there are.
        indices = [
            numbers[name[0]].relabel(sources)
            for name, (_, sources, _, _) in zip(self._edge_types, drawn, strict=True)
        ]
        num_src = {name: of_type.num_nodes for name, of_type in numbers.items()}
        blocks = {}
        for r, (name, (counts, _, weights, degrees)) in enumerate(
            zip(self._edge_types, drawn, strict=True)
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


def _questions(
    question: Int64Array, grouped: Mapping[NodeType, GroupedNodes]
) -> dict[int, list[AnyArray]]:
    """What each owner is asked: the question, and its rows of each node type.

    Of no nodes the first owner is asked: its answer has the right types.
    """
    rows = [nodes.rows for nodes in grouped.values()]
    owners = sorted({owner for of_type in rows for owner, own in of_type.items() if len(own)})
    none = np.empty(0, np.int32)
    return {
        owner: [question, *(of_type.get(owner, none) for of_type in rows)]
        for owner in owners or [0]
    }


def _by_edge_type(
    edge_types: Sequence[EdgeType],
    grouped: Mapping[NodeType, GroupedNodes],
    asked: Mapping[int, Sequence[AnyArray]],
    answers: Mapping[int, Sequence[AnyArray]],
) -> list[Draws]:
    """The answers to `_questions` by edge type, in the order of the nodes before."""
    types = list(grouped)
    by_owner = []
    for owner, (_, *rows) in asked.items():
        counts, sources, weights, degrees = answers[owner]
        ends = np.cumsum([len(rows[types.index(name[2])]) for name in edge_types])[:-1]
        of_destinations = np.split(counts, ends)
        edge_ends = np.cumsum([own.sum(dtype=np.int64) for own in of_destinations])[:-1]
        by_owner.append(
            [
                of_destinations,
                np.split(sources, edge_ends),
                np.split(weights, edge_ends if len(weights) else [0] * len(edge_ends)),
                np.split(degrees, ends if len(degrees) else [0] * len(ends)),
            ]
        )
    draws = []
    for r, name in enumerate(edge_types):
        counts, sources, weights, degrees = (
            joined([arrays[kind][r] for arrays in by_owner]) for kind in range(4)
        )
        nodes = grouped[name[2]]
        if nodes.order is not None:
            begins = nodes.scattered(starts_of(counts)[:-1])
            counts = nodes.scattered(counts)
            segments = begins, starts_of(counts)
            sources, weights = (
                _segments(values, *segments) if len(values) else values
                for values in (sources, weights)
            )
            degrees = nodes.scattered(degrees) if len(degrees) else degrees
        draws.append([counts, sources, weights, degrees])
    return draws


def _segments(values: AnyArray, begins: Int64Array, indptr: Int64Array) -> AnyArray:
    out = np.empty_like(values)
    copy_segments(values, begins, indptr, out)
    return out


def _answer_of(draws: Sequence[Draws]) -> list[AnyArray]:
    """The draws of all edge types as an owner answers: each kind edge type by edge type."""
    counts, sources, weights, degrees = map(joined, zip(*draws, strict=True))
    return [smallest(counts), sources, weights, smallest(degrees)]


def smallest(values: AnyArray) -> AnyArray:
    """The numbers, none of them negative, in the smallest type."""
    return values.astype(np.min_scalar_type(values.max(initial=0)))


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
        self._edges = InEdges(edges)
        self._original = [original[name] for name in self._edges.node_types]
        found = [weights.get(name) for name in edges.edge_types]
        # Read-only, as the kernels are compiled for one type of array.
        self._weights = [_NO_WEIGHTS if own is None else read_only(own) for own in found]

    def __call__(self, arguments: Sequence[AnyArray]) -> list[AnyArray]:
        """Draw for some nodes.

        Args:
            arguments: int64 `[5 + R]`: the hop's key, whether edge types into a node share a
                fan-out, whether with replacement, whether weights and degrees are wanted, and the
                fan-outs; then, of each node type, the nodes' rows in the part.

        Returns:
            `Draws` of all edge types, each array edge type by edge type.
        """
        question, *given = arguments
        key, shares, replace, wants_weight, wants_degree = question[:5].tolist()
        fan_outs, edges = question[5:], self._edges
        hop_key = np.int64(key).view(np.uint64)
        rows = [of_type.astype(np.int64) for of_type in given]
        num_dst = list(map(len, rows))
        room = starts_of(np.array(num_dst))
        # Keys are of the ids before the partition.
        ids = joined([own[of_type] for own, of_type in zip(self._original, rows, strict=True)])
        buffers = HopBuffers(edges.indices.dtype)
        hop = edges.destinations(joined(rows), room, num_dst, buffers)
        if shares:
            positions = edges.draw_by_node(hop, ids, fan_outs, hop_key, bool(replace), buffers)
            first_drawn = starts_of(np.array(hop.num_edges))
        else:
            most = edges.count(hop, fan_outs, bool(replace))
            buffers.reserve_edges(most, min(most, int(fan_outs.max())))
        draws = []
        for r, num_edges in enumerate(hop.num_edges):
            indices = edges.indices[edges.first_edge[r] : edges.first_edge[r + 1]]
            begin, end, node_type = hop.rows[r], hop.rows[r + 1], edges.ends[1, r]
            weight = self._weights[r]
            if shares:
                own = positions[first_drawn[r] : first_drawn[r + 1]]
                sources, weights = indices[own], weight[own] if wants_weight else _NO_WEIGHTS
            else:
                sources = np.empty(num_edges, indices.dtype)
                weights = np.empty(num_edges if wants_weight else 0, np.float32)
                draw_sources(
                    indices,
                    weight,
                    ids[hop.room[node_type] : hop.room[node_type + 1]],
                    np.uint64(type_key(hop_key, np.uint64(r))),
                    bool(fan_outs[r] < 0),
                    bool(replace),
                    hop.starts[begin : end - 1],
                    hop.degrees[begin : end - 1],
                    hop.offsets[begin:end],
                    buffers.positions,
                    buffers.table,
                    sources,
                    weights,
                )
            counts = np.diff(hop.offsets[begin:end])
            degrees = hop.degrees[begin : end - 1] if wants_degree else _NO_DEGREES
            draws.append([counts, sources, weights, degrees])
        return _answer_of(draws)


class DrawAnswers:
    """Answers a call with draws: the owner's side of a `RemoteSampler`.

    Args:
        parts: Draws for each of the owner's parts, in order.
        ranges: The parts as ranges of the owner's rows, by node type.
        edge_types: In the order of the whole graph.
    """

    def __init__(
        self,
        parts: Sequence[PartDraws],
        ranges: Mapping[NodeType, NodeOwners],
        edge_types: Sequence[EdgeType],
    ) -> None:
        self._parts = parts
        self._ranges = ranges
        self._edge_types = edge_types

    def __call__(self, arguments: Sequence[AnyArray]) -> list[AnyArray]:
        """See `PartDraws.__call__`."""
        question, *given = arguments
        grouped = {
            name: ranges.group(rows)
            for (name, ranges), rows in zip(self._ranges.items(), given, strict=True)
        }
        asked = _questions(question, grouped)
        answers = {part: self._parts[part](own) for part, own in asked.items()}
        return _answer_of(_by_edge_type(self._edge_types, grouped, asked, answers))


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
        if needed > MAX_BATCH_NODES:
            raise RunError(
                f"a mini-batch grows to {needed:,} nodes, beyond the limit of 2^30",
                "Lower the batch size or the fan-outs.",
            )
        if needed <= len(self.nodes):
            return
        known = self.known
        length, self._shift = table_layout(max(CHUNK_EDGES, needed))
        self._table = np.zeros(length, np.int64)
        self.nodes = np.empty(len(self._table) // 4, np.int64)
        self.nodes[: self.num_nodes] = known
        register_in_table(self.nodes, self.num_nodes, self._table, self._shift, self._base)
