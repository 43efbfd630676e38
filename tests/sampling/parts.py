"""Graphs in parts, and owners that answer in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gnntrain.data.graph import GraphData, Int64Array, NodeType
from gnntrain.data.partitioned_graph import PartitionedGraph
from gnntrain.data.partitioning.build import write_parts
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext, rank_range
from gnntrain.distributed.owners import AnyArray
from gnntrain.loading.shared import SharedGraph
from gnntrain.sampling.base import FanOuts, Seeds
from gnntrain.sampling.remote import RemoteSampler
from tests.graphs import stored
from tests.sampling.graphs import fan_outs_of, seeds_of, target_of

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
class Serving:
    """The exchange of an owner, as far as a graph that answers uses it."""

    calls: InProcess
    owner: int
    num_owners: int

    def serve(self, name: str, answer: Answer) -> None:
        self.calls.answers.setdefault(name, []).append(answer)


@dataclass(frozen=True)
class InParts:
    """A graph, whole and in parts in a folder."""

    store: StoredGraph
    path: Path

    @classmethod
    def of(cls, folder: Path, data: GraphData, part_of: npt.ArrayLike) -> InParts:
        """`part_of`: the part of each node, type by type."""
        store, parts = stored(folder / "store", data), np.array(part_of, np.uint8)
        write_parts(folder / "parts", store, parts, int(parts.max()) + 1, "random")
        return cls(store, folder / "parts")

    @cached_property
    def originals(self) -> dict[NodeType, Int64Array]:
        """Of the nodes of each type, by their new numbers, the numbers in the whole graph."""
        opened = PartitionedGraph.open(self.path).opened
        return {
            name: np.concatenate([part.originals[name] for part in opened])
            for name in self.store.nodes
        }

    def seeds(self, nodes: npt.ArrayLike) -> Seeds:
        """Seeds of the target type by their new numbers."""
        graph = self.store.fused
        new = np.argsort(self.originals[target_of(graph)])
        return seeds_of(torch.from_numpy(new[np.asarray(nodes, np.int64)]), graph)

    def sampler(
        self, fan_outs: Sequence[int] | FanOuts, num_owners: int, **options: Any
    ) -> tuple[RemoteSampler, InProcess]:
        """A sampler, and the owners that it asks, each of several parts."""
        calls, num_parts = InProcess({}), PartitionedGraph.open(self.path, range(0)).num_parts
        for owner in range(num_owners):
            held = rank_range(num_parts, owner, num_owners)
            graph = PartitionedGraph.open(self.path, range(held.start, held.stop))
            exchange: Any = Serving(calls, owner, num_owners)
            shared = SharedGraph(graph, exchange, DistributedContext(), in_parts=True)
        by_type = fan_outs_of(self.store.fused, fan_outs)
        return RemoteSampler(calls, shared.owners, tuple(graph.edges), by_type, **options), calls
