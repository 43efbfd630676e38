"""Graphs in parts, and owners that answer in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from gnntrain.distributed.owners import AnyArray, NodeOwners
from gnntrain.sampling.base import Int64Array
from gnntrain.sampling.partitioned import DRAW, DrawAnswers, PartDraws
from tests.sampling.graphs import CSC

Answer = Callable[[Sequence[AnyArray]], list[AnyArray]]


@dataclass
class InProcess:
    """Calls owners in this process; what crosses is copied, as it would be over a network.

    Attributes:
        answers: By the name of the call, then by owner.
        asked: The calls so far: name, owner, bytes asked, bytes answered.
    """

    answers: dict[str, list[Answer]]
    asked: list[tuple[str, int, int, int]] = field(default_factory=list)

    def call(
        self, name: str, arguments: Mapping[int, Sequence[AnyArray]]
    ) -> dict[int, list[AnyArray]]:
        found = {}
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
    """A renumbering of nodes by which each part is a range.

    Attributes:
        owners: Who holds which new ids.
        originals: int64 `[num_nodes]`, the original id of each new one.
        new: int64 `[num_nodes]`, the new id of each original one.
    """

    owners: NodeOwners
    originals: Int64Array
    new: Int64Array

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

    def machines(self, parts_each: int) -> NodeOwners:
        """Owners of several parts each, the last perhaps of fewer."""
        starts = self.owners.starts
        return NodeOwners(np.append(starts[:-1:parts_each], starts[-1]))

    def held(self, parts_each: int) -> list[tuple[range, NodeOwners]]:
        """By owner: its parts, and their ranges of its rows."""
        starts = self.owners.starts
        begins = range(0, self.owners.num_owners, parts_each)
        parts = [range(p, min(p + parts_each, self.owners.num_owners)) for p in begins]
        return [(own, NodeOwners(starts[own[0] : own[-1] + 2] - starts[own[0]])) for own in parts]

    def caller(self, graph: CSC, weight: AnyArray | None = None, parts_each: int = 1) -> InProcess:
        """Answers draws on the whole graph."""
        draws = [PartDraws(**self._part(graph, nodes, weight)) for nodes in self.ranges()]
        held = self.held(parts_each)
        answers = [DrawAnswers([draws[p] for p in own], ranges) for own, ranges in held]
        return InProcess({DRAW: list(answers)})

    def _part(self, graph: CSC, nodes: slice, weight: AnyArray | None) -> dict[str, Any]:
        indptr, indices = graph
        originals = self.originals[nodes]
        edges = [np.arange(indptr[v], indptr[v + 1]) for v in originals]
        ids = np.concatenate([np.empty(0, np.int64), *edges])
        return {
            "indptr": np.append(0, np.cumsum([len(some) for some in edges])).astype(np.int64),
            "indices": self.new[indices[ids]].astype(indices.dtype),
            "original": originals,
            "weight": None if weight is None else weight[ids],
        }
