"""Exact evaluation of a graph in parts: each machine computes the nodes that it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.data.parts import Part, Parts
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.owners import AnyArray, Caller, NodeOwners, ask_rows
from gnntrain.loading.features import as_tensor
from gnntrain.loading.loader import in_edges
from gnntrain.loading.sharded import answers_of
from gnntrain.models import GNN, PlainModel
from gnntrain.sampling.base import Int64Array
from gnntrain.sampling.block import Block
from gnntrain.tasks import Task
from gnntrain.training.buffers import SharedBuffers
from gnntrain.training.evaluation import SPLITS, SplitMetrics
from gnntrain.training.layerwise import (
    LayerwiseInference,
    Rows,
    RowSource,
    balanced_range,
    chunks,
    most_gathered,
)
from gnntrain.training.split_metrics import Piece, split_metrics

# Bounds the outputs of a slice of a split: 16 MiB of float32.
_MAX_SLICE_NUMBERS = 1 << 22

_NORM = "evaluation/gcn_norm"


class Server(Caller, Protocol):
    """Asks and answers; an `Exchange` is one.

    Attributes:
        owner: Which owner this machine is; None: it holds nothing.
    """

    owner: int | None

    def serve(self, name: str, answer: Callable[[list[AnyArray]], list[AnyArray]]) -> None:
        """Answer calls of `name` from now on. Calls that came before have waited."""
        ...

    def withdraw(self, name: str) -> None:
        """Serve `name` no longer; wait until no call of it is being answered."""
        ...


@dataclass(frozen=True, slots=True)
class OwnedRows:
    """A layer's rows: this machine's in a matrix, those of other nodes with their owners.

    Attributes:
        own: The rows of the machine's nodes, float32.
        name: Of the call that asks for rows.
        owners: Who holds which nodes.
        exchange: Asks them.
    """

    own: Tensor
    name: str
    owners: NodeOwners
    exchange: Server

    def select(self, nodes: Tensor) -> LazyFeatures:
        """See `RowSource.select`."""
        grouped = self.owners.group(nodes.cpu().numpy())
        others = {o: [rows] for o, rows in grouped.rows.items() if o != self.exchange.owner}
        answers = self.exchange.call(self.name, others)
        out, done = torch.empty(len(nodes), self.own.shape[1]), 0
        for owner, rows in grouped.rows.items():
            is_own = owner == self.exchange.owner
            found = self.own[as_tensor(rows)] if is_own else as_tensor(answers[owner][0])
            places = slice(done, done + len(rows))
            out[places if grouped.order is None else as_tensor(grouped.order[places])] = found
            done += len(rows)
        return LazyFeatures(out)


@dataclass(frozen=True, slots=True)
class Share:
    """The nodes of a part that one of its machine's ranks computes."""

    part: Part
    nodes: range

    @classmethod
    def of(cls, part: Part, place: int, count: int) -> Share:
        """The share of the rank number `place` of the machine's `count`."""
        first = part.nodes.start
        start, stop = balanced_range(part.indptr, place, count)
        return cls(part, range(first + start, first + stop))


class PartitionedEvaluator(LayerwiseInference):
    """Exact evaluation of a graph in parts.

    Of each layer a machine holds the rows of its own nodes. It asks other machines for rows of
    theirs, chunk by chunk. Nothing is as long as the graph, but for metrics without a `Tally` the
    outputs of a split on rank 0.

    Args:
        parts: The graph; the machine's parts are open.
        owners: Who holds which nodes: a machine those of its parts.
        exchange: Asks other machines, and answers them.
        context: This rank. The ranks of its machine divide the nodes of the machine's parts.
        buffers: Allocates the matrices, for the machine's nodes.
        task: Seeds and metrics. Targets are the parts' labels.
        features: The rows of all nodes.
    """

    def __init__(
        self,
        parts: Parts,
        owners: NodeOwners,
        exchange: Server,
        context: DistributedContext,
        buffers: SharedBuffers,
        *,
        task: Task,
        features: RowSource,
    ) -> None:
        self._parts = parts
        self._owners = owners
        self._exchange = exchange
        self._task = task
        self._served: set[str] = set()
        place, count = context.rank - context.machine_ranks[0], len(context.machine_ranks)
        self._shares = [Share.of(part, place, count) for part in parts.opened]
        num_own = sum(len(share.nodes) for share in self._shares)
        width = parts.meta.num_features
        super().__init__(context, buffers, features, width, parts.nodes, num_own)

    def evaluate(self, model: GNN | PlainModel) -> SplitMetrics:
        """See `Evaluator.evaluate`; `model` is a `GNN`."""
        assert isinstance(model, GNN)
        outputs = self.outputs(model)
        metrics = {
            split: split_metrics(self._task, self._pieces(split, outputs), self._context)
            for split in SPLITS
        }
        del outputs
        # Between evaluations training uses the memory.
        self.buffers.release()
        return self._context.broadcast(metrics)

    def outputs(self, model: GNN) -> Tensor:
        """The model's outputs for the machine's nodes. Collective.

        Returns:
            float32 `[len(parts.nodes), num_outputs]`, valid until the next call.

        Raises:
            Interrupted: On all ranks, if a stop was requested meanwhile.
        """
        try:
            if model.needs.norm:
                self._serve(_NORM, [part.gcn_norm for part in self._parts.opened])
            return self._inferred(model)[0]
        finally:
            self._withdraw(*self._served)

    def _all_chunks(self, widest: int) -> Iterator[tuple[int, int]]:
        max_rows, max_edges = self.buffers.chunk_limits(widest)
        max_edges = min(max_edges, most_gathered(widest))
        for share in self._shares:
            part, first = share.part, share.part.nodes.start
            rows = share.nodes.start - first, share.nodes.stop - first
            for a, b in chunks(part.indptr, *rows, max_rows, max_edges):
                yield first + a, first + b

    def _in_edges(self, model: GNN, a: int, b: int) -> Block:
        part = next(part for part in self._parts.opened if b <= part.nodes.stop)
        weight = part.edge_weight if model.needs.weight else None
        first = part.nodes.start
        block = in_edges(part.indptr, part.indices, weight, a - first, b - first)
        block = replace(block, num_src=self._parts.num_nodes, dst_offset=a)
        return block.to(self._context.device)

    def _norm_of(self, nodes: Tensor) -> Tensor:
        norm = ask_rows(self._exchange, self._owners, _NORM, nodes.cpu().numpy())
        return as_tensor(norm).to(self._context.device)

    def _read(self, source: Rows, a: int, b: int) -> Tensor:
        return super()._read(source.own if isinstance(source, OwnedRows) else source, a, b)

    def _finished(self, name: str, matrix: Tensor) -> OwnedRows:
        self._context.meet()
        # All have read what the layer before left.
        self._withdraw(*self._served - {_NORM})
        called = f"evaluation/{name}"
        self._serve(called, [matrix.numpy()])
        return OwnedRows(matrix, called, self._owners, self._exchange)

    def _serve(self, name: str, rows: Sequence[AnyArray]) -> None:
        """Answer other machines that ask for rows of this one's nodes, given one array a part, or
        one of all."""
        if self._parts.opened:
            self._exchange.serve(name, answers_of(rows))
            self._served.add(name)

    def _withdraw(self, *names: str) -> None:
        for name in names:
            self._exchange.withdraw(name)
            self._served.remove(name)

    def _pieces(self, split: str, outputs: Tensor) -> Iterator[Piece]:
        """This rank's outputs and targets, slice by slice."""
        seeds = self._task.seeds(split)
        size = max(1, _MAX_SLICE_NUMBERS // outputs.shape[1])
        for start in range(0, len(seeds), size):
            yield self._piece(np.asarray(seeds[start : start + size]), outputs)

    def _piece(self, seeds: Int64Array, rows: Tensor) -> Piece:
        """This rank's outputs and targets of a slice."""
        places, outputs, targets = [np.empty(0, np.int64)], [rows[:0]], [self._task.targets[:0]]
        for share in self._shares:
            found = np.flatnonzero((seeds >= share.nodes.start) & (seeds < share.nodes.stop))
            nodes = seeds[found]
            places.append(found)
            outputs.append(rows[nodes - self._nodes.start])
            targets.append(as_tensor(share.part.labels[nodes - share.part.nodes.start]))
        return Piece(as_tensor(np.concatenate(places)), torch.cat(outputs), torch.cat(targets))
