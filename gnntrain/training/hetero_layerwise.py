"""Exact inference on typed graphs: every layer for all nodes, over all in-neighbours, before the
next layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, takewhile
from math import prod

import torch
from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.data.graph import Edges, EdgeType, Graph, NodeType
from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.features import rows_of
from gnntrain.loading.graph import in_edges
from gnntrain.models import AnyModel
from gnntrain.models.hetero import HeteroConv, HeteroGNN, SourceKey
from gnntrain.sampling.block import Block
from gnntrain.tasks import Task
from gnntrain.training.buffers import Buffers
from gnntrain.training.evaluation import Inferred, SplitMetrics, metrics_of
from gnntrain.training.layerwise import (
    Rows,
    RowSource,
    balanced_range,
    chunks,
    most_gathered,
    one_ahead,
    read_rows,
)

Stages = Sequence[Sequence[EdgeType]]
"""Stages of one node type, see `HeteroConv.stages`."""


@dataclass(frozen=True, slots=True)
class TypeRows:
    """Rows of all nodes of a type: a layer's input, or transformed for an edge type.

    Attributes:
        rows: Each node's numbers as one row.
        shape: The shape of a node's numbers.
    """

    rows: Rows
    shape: tuple[int, ...]

    @property
    def width(self) -> int:
        return prod(self.shape)

    def columns(self, which: slice) -> TypeRows:
        """Some columns of the rows: all, or some of learnt rows that are read in place."""
        if which == slice(None):
            return self
        assert isinstance(self.rows, LazyFeatures)
        rows = self.rows.columns(which)
        return TypeRows(rows, (rows.num_features,))


@dataclass(frozen=True, slots=True)
class View:
    """The in-edges of some nodes, the rows that their sources number, and the nodes' own input."""

    blocks: dict[EdgeType, Block]
    sources: dict[EdgeType, Tensor | LazyFeatures]
    h_dst: Tensor


@dataclass(slots=True)
class LayerShapes:
    """The shapes of a node's numbers in one layer.

    Attributes:
        sources: Of the transformed rows.
        totals: Of the sum of the stages, by node type.
        outputs: Of the layer's output, by node type.
    """

    sources: dict[SourceKey, tuple[int, ...]] = field(default_factory=dict)
    totals: dict[NodeType, tuple[int, ...]] = field(default_factory=dict)
    outputs: dict[NodeType, tuple[int, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class Layer:
    """A layer that is being computed.

    Attributes:
        model: The model.
        i: Number of the layer.
        inputs: Its input, by node type.
        shapes: Of its numbers.
        transformed: The transformed rows that are held.
    """

    model: HeteroGNN
    i: int
    inputs: Mapping[NodeType, TypeRows]
    shapes: LayerShapes
    transformed: dict[SourceKey, TypeRows] = field(default_factory=dict)

    @property
    def conv(self) -> HeteroConv:
        return self.model.conv(self.i)

    @property
    def node_types(self) -> tuple[NodeType, ...]:
        return self.model.node_types_after(self.i)

    def output(self, node_type: NodeType, total: Tensor | None, h_dst: Tensor) -> Tensor:
        """The layer's output for destinations of a type; see `HeteroConv.finish`."""
        out = self.conv.finish(node_type, total, h_dst)
        return self.model.update(self.i, node_type, out, h_dst)

    def is_read_after(self, key: SourceKey, node_type: NodeType) -> bool:
        """Whether a type that is computed after `node_type` aggregates the transformed rows."""
        later = self.node_types[self.node_types.index(node_type) + 1 :]
        stages = chain(*map(self.conv.stages, later))
        return any(key == self.conv.source(edge) for edge in chain(*stages))


class SummedOffsets:
    """The in-edges of several edge types together, as one `indptr` that is not stored.

    Args:
        edges: The edges of each type, into the same node type.
        num_nodes: Nodes of that type.
    """

    def __init__(self, edges: Sequence[Edges], num_nodes: int) -> None:
        self._offsets = [given.indptr for given in edges]
        self._num_nodes = num_nodes

    def __len__(self) -> int:
        return self._num_nodes + 1

    def __getitem__(self, node: int) -> int:
        return sum(int(offsets[node]) for offsets in self._offsets)


class HeteroLayerwiseInference(ABC):
    """Computes every layer for all nodes of a typed graph before the next, see `HeteroGNN`.

    A rank computes its destination nodes of each type, chunk by chunk, into one matrix a node type
    of the layer's activations, for all ranks of its machine. Memory of a machine: two such matrices
    a node type; the transformed rows that a stage aggregates instead of the layer's input; and the
    sum of one type's stages, where several are computed one after the other. Types that the outputs
    do not depend on are skipped.

    Args:
        context: This rank.
        buffers: Allocates the matrices.
        features: The rows of all nodes of each type that has features.
        nodes: By type, the nodes that the machine's matrices hold.
    """

    def __init__(
        self,
        context: DistributedContext,
        buffers: Buffers,
        features: Mapping[NodeType, LazyFeatures | RowSource],
        nodes: Mapping[NodeType, range],
    ) -> None:
        self._context = context
        self.buffers = buffers
        self._features = features
        self._nodes = nodes

    @abstractmethod
    def _all_chunks(self, node_type: NodeType, widest: int) -> Iterator[tuple[int, int]]:
        """This rank's nodes of a type, cut into ranges of bounded rows and edges.

        Args:
            node_type: The type.
            widest: The most numbers of a row that is read or computed.
        """

    @abstractmethod
    def _in_edges(self, edge_type: EdgeType, a: int, b: int) -> Block:
        """The in-edges of one type of the nodes `a … b − 1`, on the device, over all nodes of the
        source type."""

    @abstractmethod
    def _finished(self, node_type: NodeType, name: str, matrix: Tensor) -> Rows:
        """Wait until all ranks have computed their rows of a matrix; the rows of all nodes.

        Raises:
            Interrupted: On all ranks, if any of them knows of a stop request.
        """

    @torch.no_grad()
    def _inferred(self, model: HeteroGNN) -> tuple[Tensor, Rows]:
        """The outputs of the machine's nodes of the target type, and the rows of all nodes of that
        type that enter the last layer."""
        was_training = model.training
        model.eval()
        shapes = _layer_shapes(model, self._context.device)
        self.buffers.begin(self._needed(model, shapes))
        try:
            return self._by_layer(model, shapes)
        finally:
            model.train(was_training)

    def _by_layer(self, model: HeteroGNN, shapes: Sequence[LayerShapes]) -> tuple[Tensor, Rows]:
        target, last = model.schema.target, model.num_layers - 1
        inputs = {t: self._start(model, t) for t in model.node_types_after(-1)}
        for i in range(last):
            layer = Layer(model, i, inputs, shapes[i])
            outputs: dict[NodeType, TypeRows] = {}
            for t in layer.node_types:
                name = f"h{i % 2}/{t}"
                rows = self._finished(t, name, self._output(layer, t, name))
                outputs[t] = TypeRows(rows, shapes[i].outputs[t])
            for t in inputs:
                self._release(f"h{(i - 1) % 2}/{t}")
            inputs = outputs
            del layer  # which has the inputs
        out = self._output(Layer(model, last, inputs, shapes[last]), target, "logits")
        self._finished(target, "logits", out)
        return out, inputs[target].rows

    def _start(self, model: HeteroGNN, node_type: NodeType) -> TypeRows:
        """The first layer's input for all nodes of a type."""
        is_learnt = node_type in model.tables
        given = self._learnt(model, node_type) if is_learnt else self._features[node_type]
        width = model.num_inputs[node_type]
        if not model.is_projected(node_type):
            return TypeRows(given, (width,))
        shape, name = (model.hidden_channels,), f"h1/{node_type}"
        matrix = self._matrix(node_type, name, shape)
        for a, b in self._chunks(node_type, max(width, *shape)):
            self._own(node_type, matrix, a, b)[:] = model.start(
                node_type, self._read(node_type, given, a, b)
            )
        return TypeRows(self._finished(node_type, name, matrix), shape)

    def _learnt(self, model: HeteroGNN, node_type: NodeType) -> LazyFeatures:
        """The learnt rows of all nodes of a type."""
        return LazyFeatures(model.tables[node_type].weight)

    def _output(self, layer: Layer, node_type: NodeType, name: str) -> Tensor:
        """A layer's output for this rank's nodes of a type, in the matrix `name`."""
        conv = layer.conv
        out = self._matrix(node_type, name, layer.shapes.outputs[node_type])
        passes = _stages_by_pass(conv, node_type)
        totals: Tensor | None = None
        if len(passes) > 1:
            totals = self._matrix(node_type, "total", layer.shapes.totals[node_type])
        for number, stages in enumerate(passes):
            for a, b, view in self._views(layer, node_type, stages):
                total = _sum_of_stages(conv, stages, view)
                before = None if totals is None else self._own(node_type, totals, a, b)
                if total is not None and before is not None and number > 0:
                    total += before.view_as(total)
                if number == len(passes) - 1:
                    result = layer.output(node_type, total, view.h_dst)
                    self._own(node_type, out, a, b)[:] = result
                else:
                    assert total is not None
                    assert before is not None
                    before[:] = total.flatten(1)
            self._release_transformed(layer, node_type)
        del totals
        self.buffers.release("total")
        return out

    def _views(
        self, layer: Layer, node_type: NodeType, stages: Stages
    ) -> Iterator[tuple[int, int, View]]:
        """Each chunk of the nodes of a type with its `View`; where other machines are asked for
        rows, one chunk ahead."""
        h_dst = layer.inputs[node_type].columns(layer.conv.columns(node_type))
        sources = {edge: self._source(layer, edge) for edge in chain(*stages)}
        widths = [rows.width for rows in (h_dst, *sources.values())]
        widths += [prod(layer.shapes.outputs[node_type])]

        def make(chunk: tuple[int, int]) -> tuple[int, int, View]:
            blocks, rows = {}, {}
            for edge, given in sources.items():
                blocks[edge], rows[edge] = self._in_edges_and_rows(edge, given, *chunk)
            own = self._read(node_type, h_dst.rows, *chunk)
            return *chunk, View(blocks, rows, own)

        found = self._chunks(node_type, max(widths))
        if all(isinstance(rows.rows, Tensor | LazyFeatures) for rows in sources.values()):
            yield from map(make, found)
        else:
            yield from one_ahead(make, found, self._context.device)

    def _source(self, layer: Layer, edge_type: EdgeType) -> TypeRows:
        """The rows of all source nodes that an edge type aggregates."""
        key = layer.conv.source(edge_type)
        if key is None:
            return layer.inputs[edge_type[0]].columns(layer.conv.columns(edge_type))
        if key not in layer.transformed:
            layer.transformed[key] = self._transformed(layer, key)
        return layer.transformed[key]

    def _transformed(self, layer: Layer, key: SourceKey) -> TypeRows:
        node_type, name = _node_type(key), matrix_name(key)
        given, shape = layer.inputs[node_type], layer.shapes.sources[key]
        given = given.columns(layer.conv.columns(key))
        matrix = self._matrix(node_type, name, shape)
        for a, b in self._chunks(node_type, max(given.width, *shape)):
            rows = layer.conv.transform(key, self._read(node_type, given.rows, a, b))
            self._own(node_type, matrix, a, b)[:] = rows.flatten(1)
        return TypeRows(self._finished(node_type, name, matrix), shape)

    def _release(self, name: str) -> None:
        """Drop a matrix that all ranks have read."""
        self.buffers.release(name)

    def _release_transformed(self, layer: Layer, node_type: NodeType) -> None:
        """Drop the rows that no later type aggregates."""
        for key in list(layer.transformed):
            if not layer.is_read_after(key, node_type):
                del layer.transformed[key]
                self.buffers.release(matrix_name(key))

    def _in_edges_and_rows(
        self, edge_type: EdgeType, given: TypeRows, a: int, b: int
    ) -> tuple[Block, Tensor | LazyFeatures]:
        """The in-edges of one type of the nodes `a … b − 1`, and the rows that its sources number:
        where the device does not read all rows in place, those of the chunk, each once."""
        block, rows = self._in_edges(edge_type, a, b), given.rows
        if isinstance(rows, Tensor | LazyFeatures) and self._is_here(rows):
            return block, _shaped(rows, given.shape)
        nodes, numbers = torch.unique(block.indices, return_inverse=True)
        source = LazyFeatures(rows) if isinstance(rows, Tensor) else rows
        found = source.select(nodes.long()).whole().to(self._context.device)
        indices = numbers.to(block.indices.dtype)
        return replace(block, indices=indices, num_src=len(nodes)), _shaped(found, given.shape)

    def _is_here(self, rows: Tensor | LazyFeatures) -> bool:
        return rows.device.type == self._context.device.type

    def _chunks(self, node_type: NodeType, widest: int) -> Iterator[tuple[int, int]]:
        """See `_all_chunks`.

        Ends early after a stop request; `_finished` then raises `Interrupted` on all ranks.
        """
        control = self._context.control
        found = self._all_chunks(node_type, max(1, widest))
        return takewhile(lambda _: not control.stop_requested, found)

    def _read(self, node_type: NodeType, source: Rows, a: int, b: int) -> Tensor:
        """The rows of this machine's nodes `a … b − 1`, on the model's device."""
        return read_rows(source, self._nodes[node_type], a, b).to(self._context.device)

    def _own(self, node_type: NodeType, matrix: Tensor, a: int, b: int) -> Tensor:
        """The rows of this machine's nodes `a … b − 1` in one of its matrices."""
        first = self._nodes[node_type].start
        return matrix[a - first : b - first]

    def _matrix(self, node_type: NodeType, name: str, shape: tuple[int, ...]) -> Tensor:
        return self.buffers.matrix(name, len(self._nodes[node_type]), prod(shape))

    def _needed(self, model: HeteroGNN, shapes: Sequence[LayerShapes]) -> int:
        """Bytes of the matrices that exist at the same time, at most."""

        def size(node_type: NodeType, shape: tuple[int, ...]) -> int:
            return 4 * len(self._nodes[node_type]) * prod(shape)

        projected = filter(model.is_projected, model.node_types_after(-1))
        before = sum(size(t, (model.hidden_channels,)) for t in projected)
        most = 0
        for i, layer in enumerate(shapes):
            sources = {key: size(_node_type(key), shape) for key, shape in layer.sources.items()}
            # Rows of an edge type's own are held for one pass, those of a node type for the layer.
            own = [
                sum(sources[edge] for edge in chain(*stages) if edge in sources)
                for t in layer.outputs
                for stages in _stages_by_pass(model.conv(i), t)
            ]
            shared = sum(held for key, held in sources.items() if isinstance(key, str))
            totals = [size(t, shape) for t, shape in layer.totals.items()]
            after = sum(size(t, shape) for t, shape in layer.outputs.items())
            held = shared + max(own, default=0) + max(totals, default=0)
            most, before = max(most, before + after + held), after
        return most


class HeteroLayerwiseEvaluator(HeteroLayerwiseInference):
    """Exact evaluation of a typed graph that each machine has, in whole.

    The nodes of each type are divided among all ranks; after each matrix machines exchange their
    rows.

    Args:
        graph: The graph.
        context: This rank.
        buffers: Allocates the matrices, for all nodes.
        task: Seeds, targets and metrics.
        all_ranks: Divide the nodes among all ranks, or let rank 0 compute alone.
        features: The rows of all nodes of each type that has features, perhaps some on other
            machines; None: the graph's.
    """

    def __init__(
        self,
        graph: Graph,
        context: DistributedContext,
        buffers: Buffers,
        *,
        task: Task,
        all_ranks: bool = True,
        features: Mapping[NodeType, LazyFeatures | RowSource] | None = None,
    ) -> None:
        self._graph = graph
        self._task = task
        self._stored = {
            t: LazyFeatures(rows_of(nodes))
            for t, nodes in graph.nodes.items()
            if nodes.num_features > 0
        }
        size = context.world_size if all_ranks else 1
        self._offsets = {
            t: SummedOffsets([graph.edges[edge] for edge in graph.schema.into(t)], len(nodes))
            for t, nodes in graph.nodes.items()
        }
        self._ranges = {
            t: [balanced_range(offsets, part, size) for part in range(size)]
            for t, offsets in self._offsets.items()
        }
        # If rank 0 computes alone, nothing reads the rows on another machine.
        is_read = all_ranks or context.machine == 0
        super().__init__(
            context,
            buffers,
            self._stored if features is None else features,
            nodes={t: range(len(nodes) if is_read else 0) for t, nodes in graph.nodes.items()},
        )

    def evaluate(self, model: AnyModel) -> SplitMetrics:
        """See `Evaluator.evaluate`; `model` is a `HeteroGNN`."""
        assert isinstance(model, HeteroGNN)
        outputs, _ = self._inferred(model)
        metrics = metrics_of(self._task, outputs) if self._context.is_main else {}
        del outputs
        # Between evaluations training uses the memory.
        self.buffers.release()
        return self._context.broadcast(metrics)

    def infer(self, model: AnyModel, *, embed: bool = False) -> Inferred:
        """The outputs of a `HeteroGNN` for every node of the target type, on all ranks, see
        `LayerwiseEvaluator.infer`. Collective."""
        assert isinstance(model, HeteroGNN)
        outputs, rows = self._inferred(model)
        if not isinstance(rows, Tensor):  # of a single layer that takes them as they are
            target = model.schema.target
            is_learnt = target in model.tables
            rows = model.tables[target].weight if is_learnt else self._stored[target]
        rows = rows.cpu() if isinstance(rows, Tensor) else rows
        return Inferred(self._task, self._graph, outputs.cpu(), rows if embed else None)

    def _all_chunks(self, node_type: NodeType, widest: int) -> Iterator[tuple[int, int]]:
        rank, ranges = self._context.rank, self._ranges[node_type]
        max_rows, max_edges = self.buffers.chunk_limits(widest)
        if any(not isinstance(rows, LazyFeatures) for rows in self._features.values()):
            max_edges = min(max_edges, most_gathered(widest))
        own = ranges[rank] if rank < len(ranges) else (0, 0)
        return chunks(self._offsets[node_type], *own, max_rows, max_edges)

    def _in_edges(self, edge_type: EdgeType, a: int, b: int) -> Block:
        edges = self._graph.edges[edge_type]
        block = in_edges(edges.indptr, edges.indices, None, a, b)
        block = replace(block, num_src=len(self._graph.nodes[edge_type[0]]))
        return block.to(self._context.device)

    def _finished(self, node_type: NodeType, name: str, matrix: Tensor) -> Rows:
        del name
        self._context.meet()
        self.buffers.sync(matrix, self._ranges[node_type])
        return matrix


def _layer_shapes(model: HeteroGNN, device: torch.device) -> list[LayerShapes]:
    """The shapes of each layer's numbers, found by computing the model for no nodes."""
    none = torch.empty(0, dtype=torch.int64, device=device)
    block = Block(torch.zeros(1, dtype=torch.int64, device=device), none, num_src=0)
    h: dict[NodeType, Tensor] = {
        t: model.start(t, torch.empty(0, model.num_inputs[t], device=device))
        for t in model.node_types_after(-1)
    }
    found = []
    for i in range(model.num_layers):
        found.append(LayerShapes())
        h = {
            t: _shapes_of_type(model, i, t, h, block, found[-1]) for t in model.node_types_after(i)
        }
    return found


def _shapes_of_type(
    model: HeteroGNN,
    i: int,
    node_type: NodeType,
    h: Mapping[NodeType, Tensor],
    block: Block,
    shapes: LayerShapes,
) -> Tensor:
    """The output of layer `i` for no nodes of a type; its shapes are added to `shapes`."""
    conv, total = model.conv(i), None
    own = h[node_type][:, conv.columns(node_type)]
    for stage in conv.stages(node_type):
        sources: dict[EdgeType, Tensor | LazyFeatures] = {}
        for edge in stage:
            key = conv.source(edge)
            rows = h[edge[0]][:, conv.columns(edge)]
            rows = rows if key is None else conv.transform(key, rows)
            if key is not None:
                shapes.sources[key] = rows.shape[1:]
            sources[edge] = rows
        total = conv.message(dict.fromkeys(stage, block), sources, own)
        shapes.totals[node_type] = total.shape[1:]
    out = model.update(i, node_type, conv.finish(node_type, total, own), h[node_type])
    shapes.outputs[node_type] = out.shape[1:]
    return out


def _stages_by_pass(conv: HeteroConv, node_type: NodeType) -> list[Stages]:
    """The stages into a node type that are computed in one pass over its nodes: one that aggregates
    rows of its own alone, so that these are not all held; the others together."""
    alone: list[Stages] = []
    together: list[Sequence[EdgeType]] = []
    for stage in conv.stages(node_type):
        if any(isinstance(conv.source(edge), tuple) for edge in stage):
            alone.append([stage])
        else:
            together.append(stage)
    return [*alone, together] if together or not alone else alone


def _sum_of_stages(conv: HeteroConv, stages: Stages, view: View) -> Tensor | None:
    total: Tensor | None = None
    for stage in stages:
        blocks = {edge: view.blocks[edge] for edge in stage}
        part = conv.message(blocks, {edge: view.sources[edge] for edge in stage}, view.h_dst)
        total = part if total is None else total + part
    return total


def _shaped(rows: Tensor | LazyFeatures, shape: tuple[int, ...]) -> Tensor | LazyFeatures:
    return rows.view(-1, *shape) if isinstance(rows, Tensor) else rows


def _node_type(key: SourceKey) -> NodeType:
    """The type of the nodes whose rows are transformed."""
    return key if isinstance(key, str) else key[0]


def matrix_name(key: SourceKey) -> str:
    return f"z/{key if isinstance(key, str) else '/'.join(key)}"
