"""Neighbour sampling on a typed graph in parts; see `gnntrain.sampling.partitioned`.

Each node type is numbered and shared out by itself. A draw depends on the destination's original
id within its type, so that a batch has the blocks that it has on the whole graph.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise, starmap

import numpy as np
import torch
from torch import Tensor

from gnntrain.data.fused import FusedCSC
from gnntrain.data.graph import EdgeType, NodeType
from gnntrain.distributed.owners import AnyArray, Caller, GroupedNodes, NodeOwners
from gnntrain.sampling.base import Int64Array, SampleKey
from gnntrain.sampling.block import Block
from gnntrain.sampling.cpu import HopBuffers, check_hop_edges, checked_seeds, numba_hop_key
from gnntrain.sampling.hetero import (
    FanOuts,
    FanOutScope,
    HeteroBlock,
    HeteroSampler,
    HeteroSubgraph,
)
from gnntrain.sampling.kernels import draw_sources, type_key
from gnntrain.sampling.partitioned import (
    DRAW,
    NO_DEGREES,
    NO_WEIGHTS,
    NodeNumbers,
    join_draws,
    offsets_of,
    smallest,
)
from gnntrain.sampling.typed_edges import Hop, TypedEdges, fan_outs_by_hop, starts_of

Draws = tuple[AnyArray, AnyArray, AnyArray]
"""For the destinations of an edge type: their numbers of drawn edges; the edges' sources; their
degrees in the whole graph, or nothing where they are not wanted."""


class PartitionedHeteroSampler(HeteroSampler):
    """Draws in-neighbours of nodes whose in-edges other machines hold.

    `sample` may be called from several threads at once; a call in flight holds hash tables of the
    size of its batch. Nothing is as long as the graph.

    Args:
        caller: Asks the owners, each of which serves `DRAW` with `HeteroDrawAnswers`.
        owners: Who holds which nodes of each type.
        edge_types: In the order of the whole graph.
        target, fan_outs, scope, replace: See `HeteroSampler`.
        degrees: Set `degree` in the last hop's blocks, which have the destinations of all others.

    Raises:
        UserError: See `HeteroCPUSampler`.
    """

    def __init__(
        self,
        caller: Caller,
        owners: Mapping[NodeType, NodeOwners],
        edge_types: Sequence[EdgeType],
        target: NodeType,
        fan_outs: FanOuts,
        *,
        scope: FanOutScope = "relation",
        replace: bool = False,
        degrees: bool = False,
    ) -> None:
        self._caller = caller
        self._owners = owners
        self._edge_types = edge_types
        self._target = target
        self._fan_outs = fan_outs_by_hop(edge_types, fan_outs, scope)
        self._options = int(scope == "node"), int(replace)
        self._degrees = degrees
        self._idle: deque[dict[NodeType, NodeNumbers]] = deque()

    def sample(self, seeds: Tensor, key: SampleKey) -> HeteroSubgraph:
        """Draw the neighbourhood of `seeds`, which the partition has numbered.

        Raises:
            UserError: A seed is not a node of the target type.
            RunError: The batch has more than 2^30 nodes of a type, or a hop 2^31 edges or more; an
                owner does not answer.
        """
        given = checked_seeds(seeds.numpy(), self._owners[self._target].num_nodes)
        try:
            numbers = self._idle.pop()
        except IndexError:
            numbers = {name: NodeNumbers() for name in self._owners}
        for name, of_type in numbers.items():
            of_type.start(given if name == self._target else given[:0])
        hops = [
            self._draw_hop(
                numbers,
                fan_outs,
                numba_hop_key(key, hop),
                self._degrees and hop == len(self._fan_outs) - 1,
            )
            for hop, fan_outs in enumerate(self._fan_outs)
        ]
        nodes = {name: torch.from_numpy(_known(own).copy()) for name, own in numbers.items()}
        # Not reached after an error, when the tables may hold numbers of half a batch.
        self._idle.append(numbers)
        return HeteroSubgraph.of(nodes, self._target, len(given), hops)

    def _draw_hop(
        self,
        numbers: Mapping[NodeType, NodeNumbers],
        fan_outs: Int64Array,
        key: np.uint64,
        wants_degree: bool,
    ) -> HeteroBlock:
        """The in-edges of all nodes known so far."""
        num_dst = {name: of_type.num_nodes for name, of_type in numbers.items()}
        grouped = {name: self._owners[name].group(_known(own)) for name, own in numbers.items()}
        options = *self._options, wants_degree
        question = np.array([key.view(np.int64), *options, *fan_outs], np.int64)
        asked = questions(question, grouped)
        answers = self._caller.call(DRAW, asked)
        drawn = by_edge_type(self._edge_types, grouped, asked, answers)
        check_hop_edges(sum(len(sources) for _, sources, _ in drawn))
        indices = [
            numbers[name[0]].relabel(sources)
            for name, (_, sources, _) in zip(self._edge_types, drawn, strict=True)
        ]
        num_src = {name: of_type.num_nodes for name, of_type in numbers.items()}
        blocks = {
            name: Block(
                # Of the indices' type, as torch's CSR tensors require.
                torch.from_numpy(offsets_of(counts).astype(np.int32)),
                torch.from_numpy(of_type),
                num_src[name[0]],
                degree=torch.from_numpy(degrees.astype(np.float32)) if wants_degree else None,
                max_in_edges=fan_out if fan_out >= 0 else None,
            )
            for name, (counts, _, degrees), of_type, fan_out in zip(
                self._edge_types, drawn, indices, fan_outs.tolist(), strict=True
            )
        }
        return HeteroBlock(blocks, num_dst, num_src)


def _known(numbers: NodeNumbers) -> Int64Array:
    return numbers.nodes[: numbers.num_nodes]


def questions(
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


def by_edge_type(
    edge_types: Sequence[EdgeType],
    grouped: Mapping[NodeType, GroupedNodes],
    asked: Mapping[int, Sequence[AnyArray]],
    answers: Mapping[int, Sequence[AnyArray]],
) -> list[Draws]:
    """The answers to `questions` by edge type, in the order of the nodes before."""
    types = list(grouped)
    parts = []
    for owner, (_, *rows) in asked.items():
        counts, sources, degrees = answers[owner]
        num_dst = [len(rows[types.index(edge_type[2])]) for edge_type in edge_types]
        by_type = _split(counts, num_dst)
        num_edges = [int(own.sum(dtype=np.int64)) for own in by_type]
        of_edges = _split(sources, num_edges), _split(degrees, num_dst)
        parts.append(list(zip(by_type, *of_edges, strict=True)))
    draws = []
    for edge_type, of_type in zip(edge_types, zip(*parts, strict=True), strict=True):
        whole = [(counts, sources, NO_WEIGHTS, degrees) for counts, sources, degrees in of_type]
        counts, sources, _, degrees = join_draws(grouped[edge_type[2]], whole)
        draws.append((counts, sources, degrees))
    return draws


def _split(values: AnyArray, lengths: Sequence[int]) -> list[AnyArray]:
    return np.split(values, np.cumsum(lengths)[:-1])


def answer_of(draws: Iterable[Draws]) -> list[AnyArray]:
    """The draws of all edge types as an owner answers: counts, sources, degrees, each edge type by
    edge type."""
    counts, sources, degrees = map(np.concatenate, zip(*draws, strict=True))
    return [smallest(counts), sources, smallest(degrees)]


class HeteroPartDraws:
    """Draws in-neighbours of a part's nodes, in any thread.

    Args:
        edges: The in-edges of the part's nodes: destinations are rows of the part, sources are
            numbered as the partition does, in the order of the whole graph.
        original: By node type int64 `[n]`, the ids of the part's nodes before the partition.
    """

    def __init__(self, edges: FusedCSC, original: Mapping[NodeType, Int64Array]) -> None:
        self._edges = TypedEdges(edges)
        self._original = [original[name] for name in self._edges.node_types]

    def __call__(self, arguments: Sequence[AnyArray]) -> list[AnyArray]:
        """Draw for some nodes.

        Args:
            arguments: int64 `[4 + R]`: the hop's key, whether edge types into a node share a
                fan-out, whether with replacement, whether degrees are wanted, and the fan-outs;
                then, of each node type, the nodes' rows in the part.

        Returns:
            By edge type, one after the other: the numbers of drawn edges of its destinations; the
            edges' sources; the destinations' degrees in the whole graph, if wanted.
        """
        question, *given = arguments
        key, shares, replace, wants_degree = question[:4].tolist()
        fan_outs = question[4:]
        rows = [of_type.astype(np.int64) for of_type in given]
        room = starts_of(np.array(list(map(len, rows))))
        ids = np.concatenate(
            [original[of_type] for original, of_type in zip(self._original, rows, strict=True)]
        )
        buffers = HopBuffers(self._edges.indices.dtype)
        hop = self._edges.hop(np.concatenate(rows), room, np.diff(room), buffers)
        hop_key = np.int64(key).view(np.uint64)
        draw = self._draw_by_node if shares else self._draw_by_relation
        sources = draw(hop, ids, fan_outs, hop_key, bool(replace), buffers)
        rows_of = list(starmap(slice, pairwise(hop.rows)))
        counts = [np.diff(hop.offsets[of_type]) for of_type in rows_of]
        degrees = [hop.degrees[of_type][:-1] if wants_degree else NO_DEGREES for of_type in rows_of]
        return answer_of(zip(counts, sources, degrees, strict=True))

    def _draw_by_relation(
        self,
        hop: Hop,
        ids: Int64Array,
        fan_outs: Int64Array,
        key: np.uint64,
        replace: bool,
        buffers: HopBuffers,
    ) -> list[AnyArray]:
        edges = self._edges
        most = edges.count(hop, fan_outs, replace)
        buffers.reserve_edges(most, min(most, int(fan_outs.max())))
        sources = [np.empty(count, edges.indices.dtype) for count in hop.num_edges]
        for r, of_type in enumerate(sources):
            begin, end, node_type = hop.rows[r], hop.rows[r + 1], edges.ends[1, r]
            draw_sources(
                edges.indices[edges.first_edge[r] : edges.first_edge[r + 1]],
                NO_WEIGHTS,
                ids[hop.room[node_type] : hop.room[node_type + 1]],
                np.uint64(type_key(key, np.uint64(r))),
                bool(fan_outs[r] < 0),
                replace,
                hop.starts[begin : end - 1],
                hop.degrees[begin : end - 1],
                hop.offsets[begin:end],
                buffers.positions,
                buffers.table,
                of_type,
                NO_WEIGHTS,
            )
        return sources

    def _draw_by_node(
        self,
        hop: Hop,
        ids: Int64Array,
        fan_outs: Int64Array,
        key: np.uint64,
        replace: bool,
        buffers: HopBuffers,
    ) -> list[AnyArray]:
        edges = self._edges
        positions = edges.draw_by_node(hop, ids, fan_outs, key, replace, buffers)
        first_drawn = starts_of(hop.num_edges)
        return [
            edges.indices[edges.first_edge[r] : edges.first_edge[r + 1]][
                positions[first_drawn[r] : first_drawn[r + 1]]
            ]
            for r in range(len(fan_outs))
        ]


class HeteroDrawAnswers:
    """Answers a call with draws: the owner's side of a `PartitionedHeteroSampler`.

    Args:
        parts: Draws for each of the owner's parts, in order.
        ranges: The parts as ranges of the owner's rows, by node type.
        edge_types: In the order of the whole graph.
    """

    def __init__(
        self,
        parts: Sequence[HeteroPartDraws],
        ranges: Mapping[NodeType, NodeOwners],
        edge_types: Sequence[EdgeType],
    ) -> None:
        self._parts = parts
        self._ranges = ranges
        self._edge_types = edge_types

    def __call__(self, arguments: Sequence[AnyArray]) -> list[AnyArray]:
        """See `HeteroPartDraws.__call__`."""
        question, *given = arguments
        grouped = {
            name: ranges.group(rows)
            for (name, ranges), rows in zip(self._ranges.items(), given, strict=True)
        }
        asked = questions(question, grouped)
        answers = {part: self._parts[part](own) for part, own in asked.items()}
        return answer_of(by_edge_type(self._edge_types, grouped, asked, answers))
