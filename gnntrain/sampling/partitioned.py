"""Neighbour sampling on a graph in parts: the owners of the nodes draw, the asking rank numbers.

A draw depends on the destination's *original* id and on the order of its in-edges, which parts
keep; nodes are numbered in the order of `CPUSampler`. So a batch has the blocks that it has on the
whole graph, whatever the partition; its nodes differ by the renumbering of the partition alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnntrain.distributed.owners import Caller, GroupedNodes, NodeOwners, joined
from gnntrain.errors import RunError
from gnntrain.sampling.base import Int32Array, Int64Array, SampledSubgraph, SampleKey, Sampler
from gnntrain.sampling.block import NO_NEEDS, Block, BlockNeeds
from gnntrain.sampling.cpu import (
    MAX_BATCH_NODES,
    check_hop_edges,
    checked_fan_outs,
    checked_seeds,
    numba_hop_key,
    read_only_csc,
)
from gnntrain.sampling.kernels import (
    CHUNK_EDGES,
    SCAN_LIMIT,
    Float32Array,
    IndexArray,
    copy_segments,
    count_edges,
    draw_sources,
    new_table,
    register_in_table,
    relabel_by_table,
)

AnyArray = npt.NDArray[Any]

DRAW = "draw"
"""The name of the call that asks an owner for in-neighbours."""

NO_WEIGHTS: Float32Array = np.empty(0, np.float32)
NO_DEGREES = np.empty(0, np.uint8)


class PartitionedSampler(Sampler):
    """Draws in-neighbours of nodes whose in-edges other machines hold.

    `sample` may be called from several threads at once; a call in flight holds a hash table of the
    size of its batch. Nothing is as long as the graph.

    Args:
        caller: Asks the owners, each of which serves `DRAW` with `DrawAnswers`.
        owners: Who holds which nodes.
        fan_outs: In-neighbours a node, the hop next to the seeds first; −1 takes all.
        replace: Draw with replacement.
        needs: Of its fields, `weight` and `degree` are set in the blocks.

    Raises:
        UserError: A fan-out is neither −1 nor at least 1.
    """

    def __init__(
        self,
        caller: Caller,
        owners: NodeOwners,
        fan_outs: Sequence[int],
        *,
        replace: bool = False,
        needs: BlockNeeds = NO_NEEDS,
    ) -> None:
        self._caller = caller
        self._owners = owners
        self._fan_outs = checked_fan_outs(fan_outs)
        self._replace = replace
        self._needs = needs
        self._idle: deque[NodeNumbers] = deque()

    def sample(self, seeds: Tensor, key: SampleKey) -> SampledSubgraph:
        """Draw the neighbourhood of `seeds`, which the partition has numbered.

        Raises:
            UserError: A seed is not a node of the graph.
            RunError: The batch has more than 2^30 nodes, or a hop 2^31 edges or more; an owner does
                not answer.
        """
        given = checked_seeds(seeds.numpy(), self._owners.num_nodes)
        try:
            numbers = self._idle.pop()
        except IndexError:
            numbers = NodeNumbers()
        numbers.start(given)
        blocks: list[Block] = []
        num_new_edges: list[int] = []
        oldest = 0
        for hop, fan_out in enumerate(self._fan_outs):
            num_dst = numbers.num_nodes
            # The last hop has the destinations of all others.
            wants_degree = self._needs.degree and hop == len(self._fan_outs) - 1
            block = self._draw_hop(numbers, fan_out, numba_hop_key(key, hop), wants_degree)
            blocks.append(block)
            num_new_edges.append(block.num_edges - int(block.indptr[oldest]))
            oldest = num_dst
        nodes = torch.from_numpy(numbers.nodes[: numbers.num_nodes].copy())
        # Not reached after an error, when the table may hold numbers of half a batch.
        self._idle.append(numbers)
        return SampledSubgraph(nodes, len(given), _with_degrees(blocks), num_new_edges)

    def _draw_hop(
        self, numbers: NodeNumbers, fan_out: int, key: np.uint64, wants_degree: bool
    ) -> Block:
        """The in-edges of all nodes known so far."""
        grouped = self._owners.group(numbers.nodes[: numbers.num_nodes])
        wants_weight = self._needs.weight
        wants = self._replace, wants_weight, wants_degree
        question = np.array([key.view(np.int64), fan_out, *wants], np.int64)
        answers = self._caller.call(
            DRAW, {owner: [question, rows] for owner, rows in grouped.rows.items()}
        )
        counts, sources, weights, degrees = join_draws(grouped, list(answers.values()))
        indptr = offsets_of(counts)
        check_hop_edges(len(sources))
        indices = numbers.relabel(sources)
        return Block(
            # Of the indices' type, as torch's CSR tensors require.
            torch.from_numpy(indptr.astype(np.int32)),
            torch.from_numpy(indices),
            numbers.num_nodes,
            weight=torch.from_numpy(weights) if wants_weight else None,
            degree=torch.from_numpy(degrees.astype(np.float32)) if wants_degree else None,
            max_in_edges=fan_out if fan_out >= 0 else None,
        )


def _with_degrees(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """The blocks, the last hop's first, all with its degrees."""
    degree = blocks[-1].degree if blocks else None
    if degree is None:
        return tuple(reversed(blocks))
    return tuple(replace(block, degree=degree[: block.num_dst]) for block in reversed(blocks))


def join_draws(grouped: GroupedNodes, answers: Sequence[Sequence[AnyArray]]) -> list[AnyArray]:
    """Several `PartDraws` for grouped nodes as one, in the order of the nodes before."""
    by_owner, sources, weights, degrees = map(joined, zip(*answers, strict=True))
    if grouped.order is None:
        return [by_owner, sources, weights, degrees]
    counts = grouped.scattered(by_owner)
    segments = grouped.scattered(offsets_of(by_owner)[:-1]), offsets_of(counts)
    return [
        counts,
        _segments(sources, *segments),
        _segments(weights, *segments) if len(weights) else weights,
        grouped.scattered(degrees) if len(degrees) else degrees,
    ]


def _segments(values: AnyArray, begins: Int64Array, indptr: Int64Array) -> AnyArray:
    out = np.empty_like(values)
    copy_segments(values, begins, indptr, out)
    return out


def offsets_of(counts: AnyArray) -> Int64Array:
    """0, and the sums of `counts` up to each, int64."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


class PartDraws:
    """Draws in-neighbours of a part's nodes, in any thread.

    Args:
        indptr: int64 `[n + 1]`, where the in-edges of each of the part's nodes start in `indices`.
        indices: int32 or int64 `[num_edges]`, source nodes as the partition numbers them, in the
            order of the whole graph.
        original: int64 `[n]`, the nodes' ids in the graph before the partition.
        weight: float32 `[num_edges]`, or None.
    """

    def __init__(
        self,
        indptr: AnyArray,
        indices: AnyArray,
        original: AnyArray,
        weight: AnyArray | None = None,
    ) -> None:
        self._indptr, self._indices = read_only_csc(indptr, indices)
        self._original = original
        self._weight = (NO_WEIGHTS if weight is None else np.asarray(weight)).view()
        self._weight.flags.writeable = False  # of one type, for which the kernels are compiled

    def __call__(self, arguments: Sequence[AnyArray]) -> list[AnyArray]:
        """Draw for some nodes.

        Args:
            arguments: int64 `[5]`: the hop's key, the fan-out, whether with replacement, whether
                weights and degrees are wanted; and the nodes' rows in the part, `[n]`.

        Returns:
            `[n]` numbers of drawn edges; their sources, `[num_edges]`; their weights, float32
            `[num_edges]`; `[n]` degrees in the whole graph. What is not wanted has no entries.
        """
        question, given = arguments
        key, fan_out, *wants = question.tolist()
        with_replacement, wants_weight, wants_degree = map(bool, wants)
        rows = given.astype(np.int64)
        starts, degrees = np.empty((2, len(rows)), np.int64)
        offsets = np.zeros(len(rows) + 1, np.int64)
        most = count_edges(self._indptr, rows, fan_out, with_replacement, starts, degrees, offsets)
        sources = np.empty(offsets[-1], self._indices.dtype)
        weights = np.empty(len(sources) if wants_weight else 0, np.float32)
        draw_sources(
            self._indices,
            self._weight,
            self._original[rows],
            np.int64(key).view(np.uint64),
            fan_out < 0,
            with_replacement,
            starts,
            degrees,
            offsets,
            np.empty(max(CHUNK_EDGES, most), np.int64),
            np.empty(4 * fan_out if SCAN_LIMIT < fan_out <= most else 0, np.int64),
            sources,
            weights,
        )
        counts = smallest(np.diff(offsets))
        return [counts, sources, weights, smallest(degrees) if wants_degree else NO_DEGREES]


def smallest(values: Int64Array) -> AnyArray:
    """The numbers, none of them negative, in the smallest type."""
    return values.astype(np.min_scalar_type(values.max(initial=0)))


class DrawAnswers:
    """Answers a call with draws: the owner's side of a `PartitionedSampler`.

    Args:
        parts: Draws for each of the owner's parts, in order.
        ranges: The parts as ranges of the owner's rows.
    """

    def __init__(self, parts: Sequence[PartDraws], ranges: NodeOwners) -> None:
        self._parts = parts
        self._ranges = ranges

    def __call__(self, arguments: Sequence[AnyArray]) -> list[AnyArray]:
        """See `PartDraws.__call__`."""
        question, given = arguments
        grouped = self._ranges.group(given)
        return join_draws(
            grouped, [self._parts[p]([question, rows]) for p, rows in grouped.rows.items()]
        )


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
        known = self.nodes[: self.num_nodes]
        self._table, self._shift = new_table(max(CHUNK_EDGES, needed))
        self.nodes = np.empty(len(self._table) // 4, np.int64)
        self.nodes[: self.num_nodes] = known
        register_in_table(self.nodes, self.num_nodes, self._table, self._shift, self._base)
