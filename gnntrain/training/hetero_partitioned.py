"""Exact evaluation of a typed graph in parts; see `gnntrain.training.partitioned`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.data.graph import EdgeType, Int64Array, NodeType
from gnntrain.data.partitioned_graph import PartitionedGraph
from gnntrain.data.parts import Part
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.owners import NodeOwners
from gnntrain.loading.graph import in_edges
from gnntrain.loading.remote import originals_of
from gnntrain.loading.sharded import answers_of
from gnntrain.models import AnyModel, HeteroGNN
from gnntrain.sampling.block import Block
from gnntrain.tasks import Task
from gnntrain.training.buffers import SharedBuffers
from gnntrain.training.evaluation import SPLITS, SplitMetrics
from gnntrain.training.hetero_layerwise import (
    HeteroLayerwiseInference,
    Layer,
    SummedOffsets,
    TypeRows,
    matrix_name,
)
from gnntrain.training.layerwise import Rows, RowSource, chunks, most_gathered
from gnntrain.training.partitioned import (
    HotRows,
    OwnedRows,
    RankNodes,
    hot_nodes,
    hot_rows,
    pieces,
)
from gnntrain.training.split_metrics import split_metrics

if TYPE_CHECKING:
    from gnntrain.distributed.exchange import Exchange


class HeteroPartitionedEvaluator(HeteroLayerwiseInference):
    """Exact evaluation of a typed graph in parts.

    Of each layer a machine holds the rows of its own nodes, and of as many nodes of other machines:
    of each type those that most of its in-edges come from. It asks for the rest chunk by chunk.

    Args:
        graph: The graph; the machine's parts are open.
        owners: Who holds which nodes of each type: a machine those of its parts.
        exchange: Asks other machines, and answers them.
        context: This rank. The ranks of its machine divide the nodes of the machine's parts.
        buffers: Allocates the matrices, for the machine's nodes.
        task: Seeds and metrics. Targets are the parts' labels.
        features: The rows of all nodes of each type that has features.
    """

    def __init__(
        self,
        graph: PartitionedGraph,
        owners: Mapping[NodeType, NodeOwners],
        exchange: Exchange,
        context: DistributedContext,
        buffers: SharedBuffers,
        *,
        task: Task,
        features: Mapping[NodeType, RowSource],
    ) -> None:
        parts, schema = graph.parts, graph.schema
        self._graph = graph
        self._task = task
        self._owners = owners
        self._exchange = exchange
        self._originals = originals_of(graph)
        self._is_owner = len(parts.opened) > 0
        self._served: set[str] = set()
        self._dropped: set[str] = set()
        self._hot: dict[str, HotRows] = {}
        self._hot_nodes: dict[NodeType, Int64Array] = {}
        ranks = context.machine_ranks
        self._offsets = {
            (part.number, t): SummedOffsets(
                [part.graph.edges[edge] for edge in schema.into(t)], len(part.ranges[t])
            )
            for part in parts.opened
            for t in schema.num_nodes
        }
        self._computed = {
            t: [
                RankNodes.balanced(
                    part,
                    part.ranges[t].start,
                    self._offsets[part.number, t],
                    context.rank - ranks[0],
                    len(ranks),
                )
                for part in parts.opened
            ]
            for t in schema.num_nodes
        }
        super().__init__(context, buffers, features, parts.ranges)

    def evaluate(self, model: AnyModel) -> SplitMetrics:
        """See `Evaluator.evaluate`; `model` is a `HeteroGNN`."""
        assert isinstance(model, HeteroGNN)
        outputs, target = self.outputs(model), model.schema.target
        nodes, computed = self._nodes[target], self._computed[target]
        metrics = {
            split: split_metrics(
                self._task, pieces(self._task, split, outputs, nodes, computed), self._context
            )
            for split in SPLITS
        }
        del outputs
        # Between evaluations training uses the memory.
        self.buffers.release()
        return self._context.broadcast(metrics)

    def outputs(self, model: HeteroGNN) -> Tensor:
        """The model's outputs for the machine's nodes of the target type. Collective.

        Returns:
            float32 `[n, num_outputs]`, valid until the next call.

        Raises:
            Interrupted: On all ranks, if a stop was requested meanwhile.
        """
        try:
            return self._inferred(model)[0]
        finally:
            self._withdraw({*self._served, *self._hot})

    def _all_chunks(self, node_type: NodeType, widest: int) -> Iterator[tuple[int, int]]:
        max_rows, max_edges = self.buffers.chunk_limits(widest)
        max_edges = min(max_edges, most_gathered(widest))
        for own in self._computed[node_type]:
            offsets, rows = self._offsets[own.part.number, node_type], own.nodes
            start, stop = rows.start - own.first, rows.stop - own.first
            for a, b in chunks(offsets, start, stop, max_rows, max_edges):
                yield own.first + a, own.first + b

    def _in_edges(self, edge_type: EdgeType, a: int, b: int) -> Block:
        part = self._part_of(edge_type[2], a)
        edges, first = part.graph.edges[edge_type], part.ranges[edge_type[2]].start
        block = in_edges(edges.indptr, edges.indices, None, a - first, b - first)
        num_src = self._graph.schema.num_nodes[edge_type[0]]
        return replace(block, num_src=num_src).to(self._context.device)

    def _part_of(self, node_type: NodeType, node: int) -> Part:
        parts = self._graph.parts.opened
        return next(part for part in parts if node in part.ranges[node_type])

    def _learnt(self, model: HeteroGNN, node_type: NodeType) -> LazyFeatures:
        rows = super()._learnt(model, node_type)
        original = self._originals.get(node_type)
        return rows if original is None else rows.select(original)

    def _read(self, node_type: NodeType, source: Rows, a: int, b: int) -> Tensor:
        own = source.own if isinstance(source, OwnedRows) else source
        return super()._read(node_type, own, a, b)

    def _source(self, layer: Layer, edge_type: EdgeType) -> TypeRows:
        found, node_type = super()._source(layer, edge_type), edge_type[0]
        rows = found.rows
        if not isinstance(rows, OwnedRows):
            return found
        if rows.name not in self._hot:
            nodes, name = self._hot_of(node_type), f"hot/{rows.name}"
            self._hot[rows.name] = hot_rows(rows, nodes, name, self.buffers, self._context)
        return replace(found, rows=replace(rows, hot=self._hot[rows.name]))

    def _hot_of(self, node_type: NodeType) -> Int64Array:
        """See `hot_nodes`. Collective among the machine's ranks."""
        if node_type not in self._hot_nodes:
            schema = self._graph.schema
            sources = [
                own.in_edges(own.part.graph.edges[edge])
                for edge in schema.edge_types
                if edge[0] == node_type
                for own in self._computed[edge[2]]
            ]
            size, own_nodes = schema.num_nodes[node_type], self._nodes[node_type]
            self._hot_nodes[node_type] = hot_nodes(sources, size, own_nodes, self._context)
        return self._hot_nodes[node_type]

    def _finished(self, node_type: NodeType, name: str, matrix: Tensor) -> OwnedRows:
        self._context.meet()
        called = f"evaluation/{name}"
        self._withdraw(self._dropped)  # all have read the rows that were dropped before
        self._dropped = set()
        if self._is_owner:
            self._exchange.serve(called, answers_of([matrix.numpy()]))
            self._served.add(called)
        owners, nodes = self._owners[node_type], self._nodes[node_type]
        return OwnedRows(matrix, nodes, called, owners, self._exchange)

    def _release(self, name: str) -> None:
        super()._release(name)
        self._withdraw({f"evaluation/{name}"})

    def _release_transformed(self, layer: Layer, node_type: NodeType) -> None:
        held = set(layer.transformed)
        super()._release_transformed(layer, node_type)
        dropped = {f"evaluation/{matrix_name(k)}" for k in held - set(layer.transformed)}
        self._forget_hot(dropped)
        self._dropped |= dropped  # other machines may still ask

    def _withdraw(self, names: set[str]) -> None:
        for name in names & self._served:
            self._exchange.withdraw(name)
        self._served -= names
        self._forget_hot(names)

    def _forget_hot(self, names: set[str]) -> None:
        for name in names & self._hot.keys():
            del self._hot[name]
            self.buffers.release(f"hot/{name}")
