"""Graphs in parts, and owners that answer in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from gnntrain.data.graph import Edges, EdgeType, FusedCSC, NodeType
from gnntrain.distributed.owners import AnyArray, NodeOwners
from gnntrain.sampling.base import FanOuts, Int64Array
from gnntrain.sampling.remote import DRAW, DrawAnswers, PartDraws, RemoteSampler
from tests.sampling.graphs import fan_outs_of, target_of

Answer = Callable[[Sequence[AnyArray]], list[AnyArray]]


@dataclass
class InProcess:
    """Calls owners in this process; what crosses is copied, as it would be over a network."""

    answers: dict[str, list[Answer]]  # by the name of the call, then by owner
    # Name, owner, bytes asked, bytes answered.
    asked: list[tuple[str, int, int, int]] = field(default_factory=list)
    num_calls: int = 0  # in a call any owners are asked at once

    def call(
        self, name: str, arguments: Mapping[int, Sequence[AnyArray]]
    ) -> dict[int, list[AnyArray]]:
        found = {}
        self.num_calls += 1
        for owner, given in arguments.items():
            answer = self.answers[name][owner]([_received(array) for array in given])
            found[owner] = [_received(array) for array in answer]
            sizes = sum(array.nbytes for array in given), sum(array.nbytes for array in answer)
            self.asked.append((name, owner, *sizes))
        return found


def _received(array: AnyArray) -> AnyArray:
    assert array.flags.c_contiguous
    return np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape)


@dataclass(frozen=True)
class Partition:
    """A renumbering of the nodes of a type by which each part is a range."""

    owners: NodeOwners  # who holds which new ids
    originals: Int64Array  # [num_nodes], the original id of each new one
    new: Int64Array  # [num_nodes], the new id of each original one

    @classmethod
    def of(cls, part_of: Sequence[int], num_parts: int) -> Partition:
        """The partition in which node i lies in part `part_of[i]`."""
        parts = np.asarray(part_of, np.int64)
        originals = np.argsort(parts, kind="stable")
        new = np.empty_like(originals)
        new[originals] = np.arange(len(originals))
        starts = np.append(0, np.cumsum(np.bincount(parts, minlength=num_parts)))
        return cls(NodeOwners(starts), originals, new)

    def ranges(self) -> list[slice]:
        starts = self.owners.starts.tolist()
        return [slice(*ends) for ends in pairwise(starts)]


Partitions = Mapping[NodeType, Partition]


def originals_of(partitions: Partitions) -> dict[NodeType, Int64Array]:
    return {name: own.originals for name, own in partitions.items()}


def by_turns(graph: FusedCSC, num_parts: int) -> Partitions:
    return {
        name: Partition.of([i % num_parts for i in range(size)], num_parts)
        for name, size in graph.num_nodes.items()
    }


def part_draws(
    graph: FusedCSC, partitions: Partitions, part: int, weights: Mapping[EdgeType, AnyArray]
) -> PartDraws:
    """Draws of one part: the in-edges of its nodes of each type."""
    original = {name: own.originals[own.ranges()[part]] for name, own in partitions.items()}
    edges, of_part = {}, {}
    for number, name in enumerate(graph.edge_types):
        indptr, indices = graph.part(number)
        ids = [np.arange(*indptr[node : node + 2]) for node in original[name[2]]]
        taken = np.concatenate([np.empty(0, np.int64), *ids])
        offsets = np.append(0, np.cumsum(list(map(len, ids)))).astype(np.int64)
        sources = partitions[name[0]].new[indices[taken]].astype(indices.dtype)
        edges[name] = Edges(offsets, sources)
        if name in weights:
            of_part[name] = weights[name][taken]
    sizes = {name: len(own) for name, own in original.items()}
    return PartDraws(FusedCSC.of(edges, sizes), original, of_part)


def remote_sampler(
    graph: FusedCSC,
    partitions: Partitions,
    fan_outs: Sequence[int] | FanOuts,
    *,
    parts_each: int = 1,
    weights: Mapping[EdgeType, AnyArray] | None = None,
    **options: Any,
) -> tuple[RemoteSampler, InProcess]:
    """A sampler, and the owners that it asks, each of several parts."""
    starts = {name: own.owners.starts for name, own in partitions.items()}
    num_parts = len(starts[target_of(graph)]) - 1
    answers: list[Answer] = []
    for first in range(0, num_parts, parts_each):
        stop = min(first + parts_each, num_parts)
        draws = [part_draws(graph, partitions, part, weights or {}) for part in range(first, stop)]
        held = {name: NodeOwners(of[first : stop + 1] - of[first]) for name, of in starts.items()}
        answers.append(DrawAnswers(draws, held, graph.edge_types))
    caller = InProcess({DRAW: answers})
    owners = {
        name: NodeOwners(np.append(of[:-1:parts_each], of[-1])) for name, of in starts.items()
    }
    fan_outs = fan_outs_of(graph, fan_outs)
    sampler = RemoteSampler(caller, owners, graph.edge_types, fan_outs, **options)
    return sampler, caller
