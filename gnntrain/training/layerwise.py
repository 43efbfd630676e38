"""Exact inference: every layer for all nodes, over all in-neighbours, before the next layer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain, takewhile
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.data.graph import EdgeType, GraphSchema, NodeType
from gnntrain.devices import set_current
from gnntrain.models import GNN, AnyModel, HeteroGNN
from gnntrain.models.hetero import SourceKey
from gnntrain.models.mlp import edgeless
from gnntrain.sampling.block import Block
from gnntrain.tasks import Task
from gnntrain.training.buffers import SharedBuffers
from gnntrain.training.evaluation import Inferred, SplitMetrics, exact_metrics
from gnntrain.training.graph_access import GraphAccess, OwnedRows, Rows, RowSource, most_gathered

Stages = Sequence[Sequence[EdgeType]]
"""Stages of one node type, see `HeteroConv.stages`."""

T = TypeVar("T")


class LayerConv(Protocol):
    """A layer's convolution as exact inference computes it: a `HeteroConv`, or a `OneTypeConv`."""

    takes_lazy: bool
    """Whether `message` takes lazy rows."""
    sources_hold_dst: bool
    """Whether `message` reads the destinations' rows among those of the sources."""
    reads_own: bool
    """Whether it reads `h_dst`."""

    def columns(self, key: SourceKey) -> slice: ...

    def stages(self, node_type: NodeType) -> Stages: ...

    def source(self, edge_type: EdgeType) -> SourceKey | None: ...

    def transform(self, key: SourceKey, rows: Tensor) -> Tensor: ...

    def message(
        self,
        blocks: Mapping[EdgeType, Block],
        sources: Mapping[EdgeType, Tensor | LazyFeatures],
        h_dst: Tensor,
    ) -> Tensor: ...

    def finish(self, node_type: NodeType, total: Tensor | None, h_dst: Tensor) -> Tensor: ...


class OneTypeModel:
    """A `GNN` with the interface of a `HeteroGNN`: a model of one node type and one edge type.

    All layers of a model without edges are computed as one, unless their outputs are kept.

    Args:
        model: The model.
        schema: The types of its graph.
        embed: Whether the input of the last layer is kept.
    """

    def __init__(self, model: GNN, schema: GraphSchema, embed: bool) -> None:
        self.model, self.schema = model, schema
        self.is_fused = not model.uses_graph and not embed
        self.num_layers = 1 if self.is_fused else model.num_layers
        self.has_state = model.jk_channels > 0 and not self.is_fused
        self.needs, self.tables = model.needs, dict[NodeType, torch.nn.Module]()
        self.hidden_channels, self.out_channels = model.hidden_channels, model.out_channels
        self.num_inputs = {schema.target: model.in_channels}

    def node_types_after(self, i: int) -> tuple[NodeType, ...]:
        del i
        return (self.schema.target,)

    def is_projected(self, node_type: NodeType) -> bool:
        del node_type
        return False

    def conv(self, i: int) -> OneTypeConv:
        return OneTypeConv(self, i)

    def update(self, i: int, node_type: NodeType, out: Tensor, h_dst: Tensor) -> Tensor:
        del node_type, h_dst  # `GNN.layer` includes its update
        is_last = i == self.num_layers - 1 and not self.has_state and not self.is_fused
        return self.model.readout(out) if is_last else out


class OneTypeConv:
    """A layer of a `GNN`, see `LayerConv`; a message is the layer's whole output."""

    def __init__(self, typed: OneTypeModel, i: int) -> None:
        self._model, self._i, self._is_fused = typed.model, i, typed.is_fused
        self._conv, (self._edge_type,) = typed.model.conv(i), typed.schema.edge_types
        self.sources_hold_dst = True
        self.takes_lazy = i == 0 and typed.needs.rows
        self.has_edges = typed.model.uses_graph
        self.reads_own = self._conv.has_transform or not self.has_edges

    def columns(self, key: SourceKey) -> slice:
        del key
        return slice(None)

    def stages(self, node_type: NodeType) -> Stages:
        del node_type
        return [(self._edge_type,)] if self.has_edges else []

    def source(self, edge_type: EdgeType) -> SourceKey | None:
        return edge_type if self._conv.has_transform else None

    def transform(self, key: SourceKey, rows: Tensor) -> Tensor:
        del key
        return self._conv.transform(self._started(rows))

    def message(
        self,
        blocks: Mapping[EdgeType, Block],
        sources: Mapping[EdgeType, Tensor | LazyFeatures],
        h_dst: Tensor,
    ) -> Tensor:
        block, rows = blocks[self._edge_type], sources[self._edge_type]
        if not self._conv.has_transform:
            rows = self._started(rows) if isinstance(rows, Tensor) else rows
            return self._model.layer(self._i, rows, block)
        assert isinstance(rows, Tensor)  # of `transform`
        z_dst = rows[block.dst_offset : block.dst_offset + block.num_dst]
        return self._model.propagate(self._i, block, rows, self._started(h_dst), z_dst)

    def finish(self, node_type: NodeType, total: Tensor | None, h_dst: Tensor) -> Tensor:
        del node_type
        if total is not None:
            return total
        model, block, h = self._model, edgeless(len(h_dst)).to(h_dst.device), self._started(h_dst)
        if not self._is_fused:
            return model.layer(self._i, h, block)
        state: Tensor | None = None
        for i in range(model.num_layers):
            h = model.layer(i, h, block)
            state = model.jk_update(i, state, h)
        assert state is not None
        return model.readout(state)

    def _started(self, rows: Tensor) -> Tensor:
        return self._model.start(rows) if self._i == 0 else rows


@dataclass(frozen=True, slots=True)
class TypeRows:
    """Rows of all nodes of a type, and their width: a layer's input, or transformed."""

    rows: Rows
    width: int

    def columns(self, which: slice) -> TypeRows:
        """Some columns of the rows: all, or some of learnt rows that are read in place."""
        if which == slice(None):
            return self
        assert isinstance(self.rows, LazyFeatures)
        rows = self.rows.columns(which)
        return TypeRows(rows, rows.num_features)


@dataclass(slots=True)
class Layer:
    """A layer that is being computed.

    Attributes:
        model: The model.
        i: Number of the layer.
        inputs: Its input, by node type.
        out_channels: Width of its output.
        sources: Widths of the transformed rows.
        totals: Widths of the sum of the stages, by node type that has several passes.
        transformed: The transformed rows that are held.
    """

    model: HeteroGNN | OneTypeModel
    i: int
    out_channels: int
    inputs: Mapping[NodeType, TypeRows] = field(default_factory=dict)
    sources: dict[SourceKey, int] = field(default_factory=dict)
    totals: dict[NodeType, int] = field(default_factory=dict)
    transformed: dict[SourceKey, TypeRows] = field(default_factory=dict)

    @property
    def conv(self) -> LayerConv:
        return self.model.conv(self.i)

    @property
    def node_types(self) -> tuple[NodeType, ...]:
        return self.model.node_types_after(self.i)

    @property
    def is_last(self) -> bool:
        return self.i == self.model.num_layers - 1

    def passes(self, node_type: NodeType) -> list[Stages]:
        """The stages into a node type that are computed in one pass over its nodes: one that
        aggregates rows of its own alone, so that these are not all held; the others together."""
        alone: list[Stages] = []
        together: list[Sequence[EdgeType]] = []
        for stage in self.conv.stages(node_type):
            if any(isinstance(self.conv.source(edge), tuple) for edge in stage):
                alone.append([stage])
            else:
                together.append(stage)
        return [*alone, together] if together or not alone else alone

    def is_read_after(self, key: SourceKey, node_type: NodeType) -> bool:
        """Whether a type that is computed after `node_type` aggregates the transformed rows."""
        later = self.node_types[self.node_types.index(node_type) + 1 :]
        stages = chain(*map(self.conv.stages, later))
        return any(key == self.conv.source(edge) for edge in chain(*stages))


@dataclass(frozen=True, slots=True)
class View:
    """A chunk: the in-edges of the nodes `a … b − 1`, the rows that their sources number, and the
    nodes' own input."""

    a: int
    b: int
    blocks: dict[EdgeType, Block]
    sources: dict[EdgeType, Tensor | LazyFeatures]
    h_dst: Tensor


class LayerwiseEvaluator:
    """Computes every layer for all nodes, over all in-neighbours, before the next; see `HeteroGNN`.

    A rank computes its destination nodes of each type, chunk by chunk, into one matrix a node type
    of the layer's activations, for all ranks of its machine. Memory of a machine: two such matrices
    a node type; the transformed rows that a stage aggregates instead of the layer's input; the sum
    of one type's stages, where several are computed one after the other; and for each rank a chunk
    or two. Types that the outputs do not depend on are skipped. Where the device does not read rows
    in place, a chunk's in-neighbours are gathered, each once, and renumbered.

    Args:
        access: The graph, as this rank reads it and computes some of its nodes.
        buffers: Allocates the matrices.
        task: Seeds, targets and metrics.
        features: The rows of all nodes of each type that has features, perhaps some on other
            machines; None: the graph's.
    """

    def __init__(
        self,
        access: GraphAccess,
        buffers: SharedBuffers,
        *,
        task: Task,
        features: Mapping[NodeType, LazyFeatures | RowSource] | None = None,
    ) -> None:
        self.access, self.buffers = access, buffers
        self._task, self._context = task, access.context
        self._features = access.features if features is None else features
        is_local = all(isinstance(rows, LazyFeatures) for rows in self._features.values())
        self._gathers = access.is_partitioned or not is_local
        # Of jumping knowledge: the states, and where they are kept, the embeddings.
        self._states: Tensor | None = None
        self._embeddings: Tensor | None = None

    def evaluate(self, model: AnyModel) -> SplitMetrics:
        """See `Evaluator.evaluate`; `model` is a `GNN` or `HeteroGNN`."""
        outputs = self.outputs(model)
        computed = self.access.computed(self._task, outputs)
        metrics = exact_metrics(self._task, computed, self._context)
        del outputs, computed
        # Between evaluations training uses the memory.
        self.buffers.release()
        return metrics

    def infer(self, model: AnyModel, *, embed: bool = False) -> Inferred:
        """The outputs for every node of the target type, on all ranks. Collective.

        The result is valid until the next call. If rank 0 computes alone, it is empty on the other
        machines. Not for a graph in parts.

        Args:
            model: See `evaluate`.
            embed: Keep the rows that enter the last layer, too.
        """
        outputs, rows = self._inferred(model, embed=embed)
        if embed and not isinstance(rows, Tensor):  # of a single layer that takes them as they are
            target, tables = self.access.schema.target, getattr(model, "tables", {})
            rows = tables[target].weight if target in tables else self.access.features[target]
        rows = rows.cpu() if isinstance(rows, Tensor) else rows
        assert rows is None or isinstance(rows, Tensor | LazyFeatures)
        return Inferred(self._task, self.access.graph, outputs.cpu(), rows if embed else None)

    def outputs(self, model: AnyModel) -> Tensor:
        """The model's outputs for the machine's nodes of the target type. Collective.

        Returns:
            float32 `[n, num_outputs]`, valid until the next call.

        Raises:
            Interrupted: On all ranks, if a stop was requested meanwhile.
        """
        return self._inferred(model)[0]

    @torch.no_grad()
    def _inferred(self, model: AnyModel, *, embed: bool = False) -> tuple[Tensor, Rows | None]:
        """See `outputs`; and the rows of all nodes of that type that enter the last layer."""
        assert isinstance(model, GNN | HeteroGNN)
        schema = self.access.schema
        typed = OneTypeModel(model, schema, embed) if isinstance(model, GNN) else model
        was_training = model.training
        model.eval()
        try:
            layers = _layers(typed, self._context.device)
            self.buffers.begin(self._needed(typed, layers, embed))
            self.access.begin(typed.needs)
            if isinstance(typed, OneTypeModel) and typed.has_state:
                gnn, target = typed.model, schema.target
                self._states = self._matrix(target, "states", gnn.jk_channels)
                if embed:
                    width = gnn.embedding_channels
                    self._embeddings = self._matrix(target, "embeddings", width)
            return self._by_layer(typed, layers, embed)
        finally:
            self._states = self._embeddings = None
            self.buffers.release("states")
            self.access.end()
            model.train(was_training)

    def _by_layer(
        self, model: HeteroGNN | OneTypeModel, layers: Sequence[Layer], embed: bool
    ) -> tuple[Tensor, Rows | None]:
        inputs = {t: self._start(model, t) for t in model.node_types_after(-1)}
        for layer in layers:
            layer.inputs, outputs = inputs, {}
            # Of one type, the next layer writes to the matrix that this one reads: no new memory.
            is_reused = len(layer.node_types) == 1 and layer.i + 2 < len(layers)
            for t in layer.node_types:
                name = "logits" if layer.is_last else f"h{layer.i % 2}/{t}"
                out = self._output(layer, t, name)
                if t == layer.node_types[-1]:  # the inputs are read
                    for each in inputs:
                        self._drop(
                            f"h{(layer.i - 1) % 2}/{each}",
                            keeps_memory=is_reused and each in layer.node_types,
                        )
                rows = self.access.publish(t, name, out, self.buffers)
                outputs[t] = TypeRows(rows, layer.out_channels)
            layer.inputs = {}
            if layer.is_last:
                break
            inputs = outputs
        target, embeddings = model.schema.target, None
        if self._embeddings is not None:
            embeddings = self.access.publish(target, "embeddings", self._embeddings, self.buffers)
        elif embed:
            embeddings = inputs[target].rows
        return out, embeddings

    def _start(self, model: HeteroGNN | OneTypeModel, node_type: NodeType) -> TypeRows:
        """The first layer's input for all nodes of a type."""
        rows: Rows
        if node_type in model.tables:
            weight = model.tables[node_type].weight
            assert isinstance(weight, Tensor)
            rows = self.access.learnt(node_type, LazyFeatures(weight))
        else:
            rows = self._features[node_type]
        width, hidden, name = model.num_inputs[node_type], model.hidden_channels, f"h1/{node_type}"
        if not model.is_projected(node_type):
            return TypeRows(rows, width)
        assert isinstance(model, HeteroGNN)
        matrix = self._matrix(node_type, name, hidden)
        for a, b in self._chunks(node_type, max(width, hidden)):
            read = self._read(node_type, rows, a, b)
            self._own(node_type, matrix, a, b)[:] = model.start(node_type, read)
        return TypeRows(self.access.publish(node_type, name, matrix, self.buffers), hidden)

    def _output(self, layer: Layer, node_type: NodeType, name: str) -> Tensor:
        """A layer's output for this rank's nodes of a type, in the matrix `name`."""
        conv, model = layer.conv, layer.model
        out = self._matrix(node_type, name, layer.out_channels)
        passes = layer.passes(node_type)
        totals: Tensor | None = None
        if len(passes) > 1:
            totals = self._matrix(node_type, "total", layer.totals[node_type])
        for number, stages in enumerate(passes):
            for view in self._views(layer, node_type, stages):
                total: Tensor | None = None
                for stage in stages:
                    blocks = {edge: view.blocks[edge] for edge in stage}
                    sources = {edge: view.sources[edge] for edge in stage}
                    part = conv.message(blocks, sources, view.h_dst)
                    total = part if total is None else total + part
                if totals is not None:
                    assert total is not None
                    before = self._own(node_type, totals, view.a, view.b)
                    if number > 0:
                        total += before.to(total.device)
                    if number < len(passes) - 1:
                        before[:] = total
                        continue
                rows = conv.finish(node_type, total, view.h_dst)
                rows = model.update(layer.i, node_type, rows, view.h_dst)
                if self._states is not None:
                    rows = self._jumped(layer, rows, self._states, view)
                self._own(node_type, out, view.a, view.b)[:] = rows
            for key in list(layer.transformed):
                if not layer.is_read_after(key, node_type):
                    del layer.transformed[key]
                    self._drop(_matrix_name(key))
        del totals
        self.buffers.release("total")
        return out

    def _jumped(self, layer: Layer, h: Tensor, states: Tensor, view: View) -> Tensor:
        """Add a layer's output to the states of jumping knowledge; of the last layer the model's
        outputs, else `h`."""
        assert isinstance(layer.model, OneTypeModel)
        model, target = layer.model.model, layer.model.schema.target
        own = self._own(target, states, view.a, view.b)
        state = model.jk_update(layer.i, None if layer.i == 0 else own.to(h.device), h)
        own.copy_(state)
        if self._embeddings is not None:  # the input of `lin`
            kept, width = self._own(target, self._embeddings, view.a, view.b), h.shape[1]
            is_cat = model.jk == "cat"
            columns = slice(layer.i * width, (layer.i + 1) * width) if is_cat else slice(None)
            kept[:, columns] = h if is_cat else state  # whole after the last layer
        return model.readout(state) if layer.is_last else h

    def _views(self, layer: Layer, node_type: NodeType, stages: Stages) -> Iterator[View]:
        """The chunks of the nodes of a type; where other machines are asked for rows, each is made
        while the one before is computed."""
        conv = layer.conv
        h_dst = layer.inputs[node_type].columns(conv.columns(node_type))
        sources = {edge: self._source(layer, edge) for edge in chain(*stages)}
        widths = [h_dst.width, *(rows.width for rows in sources.values())]
        widths += [layer.out_channels, layer.model.hidden_channels]

        def make(chunk: tuple[int, int]) -> View:
            blocks, rows = {}, {}
            for edge, source in sources.items():
                blocks[edge], rows[edge] = self._in_edges_and_rows(layer, edge, source.rows, *chunk)
            own = self._read(node_type, h_dst.rows, *chunk) if conv.reads_own else _UNREAD
            return View(*chunk, blocks, rows, own)

        chunks = self._chunks(node_type, max(widths))
        if all(isinstance(rows.rows, Tensor | LazyFeatures) for rows in sources.values()):
            return map(make, chunks)
        return prefetch(make, chunks, self._context.device)

    def _source(self, layer: Layer, edge_type: EdgeType) -> TypeRows:
        """The rows of all source nodes that an edge type aggregates."""
        conv, key = layer.conv, layer.conv.source(edge_type)
        if key is None:
            found = layer.inputs[edge_type[0]].columns(conv.columns(edge_type))
        else:
            if key not in layer.transformed:
                layer.transformed[key] = self._transformed(layer, key)
            found = layer.transformed[key]
        return replace(found, rows=self.access.cached(edge_type[0], found.rows, self.buffers))

    def _transformed(self, layer: Layer, key: SourceKey) -> TypeRows:
        node_type, name = _node_type(key), _matrix_name(key)
        width, rows = layer.sources[key], layer.inputs[node_type].columns(layer.conv.columns(key))
        matrix = self._matrix(node_type, name, width)
        for a, b in self._chunks(node_type, max(rows.width, width)):
            read = self._read(node_type, rows.rows, a, b)
            self._own(node_type, matrix, a, b)[:] = layer.conv.transform(key, read)
        return TypeRows(self.access.publish(node_type, name, matrix, self.buffers), width)

    def _in_edges_and_rows(
        self, layer: Layer, edge_type: EdgeType, rows: Rows, a: int, b: int
    ) -> tuple[Block, Tensor | LazyFeatures]:
        """The in-edges of one type of the nodes `a … b − 1`, and the rows that its sources number:
        where the device does not read all rows in place, those of the chunk, each once."""
        access, conv, needs = self.access, layer.conv, layer.model.needs
        block = access.in_edges(edge_type, a, b, needs)
        can_read = isinstance(rows, Tensor) or (isinstance(rows, LazyFeatures) and conv.takes_lazy)
        if can_read and self._is_here(rows):
            norm = access.norm(None) if needs.norm else None
            assert isinstance(rows, Tensor | LazyFeatures)
            return replace(block, norm=norm) if needs.norm else block, rows
        if conv.sources_hold_dst:
            nodes, block = renumbered(block)
        else:
            nodes, numbers = torch.unique(block.indices, return_inverse=True)
            indices, nodes = numbers.to(block.indices.dtype), nodes.long()
            block = replace(block, indices=indices, num_src=len(nodes), dst_offset=0)
        if needs.norm:
            block = replace(block, norm=access.norm(nodes))
        selected = (LazyFeatures(rows) if isinstance(rows, Tensor) else rows).select(nodes)
        is_input = conv.source(edge_type) is None and not isinstance(rows, Tensor)
        if is_input and conv.takes_lazy and self._is_here(selected):
            return block, selected
        return block, selected.whole().to(self._context.device)

    def _is_here(self, rows: Rows) -> bool:
        # Not the devices as such: "cuda" and "cuda:0" are the same one, but not equal.
        here = self._context.device.type
        return isinstance(rows, Tensor | LazyFeatures) and rows.device.type == here

    def _chunks(self, node_type: NodeType, widest: int) -> Iterator[tuple[int, int]]:
        """This rank's nodes of a type, cut into ranges of bounded rows and edges.

        Ends early after a stop request; `GraphAccess.publish` then raises `Interrupted` on all
        ranks.

        Args:
            node_type: The type.
            widest: The most numbers of a row that is read or computed.
        """
        max_rows, max_edges = self.buffers.chunk_limits(max(1, widest))
        if self._gathers:
            max_edges = min(max_edges, most_gathered(widest))
        chunks, control = self.access.chunks(node_type, max_rows, max_edges), self._context.control
        return takewhile(lambda _: not control.stop_requested, chunks)

    def _read(self, node_type: NodeType, rows: Rows, a: int, b: int) -> Tensor:
        """The rows of this machine's nodes `a … b − 1`, on the model's device."""
        if isinstance(rows, OwnedRows):
            rows = rows.own
        if isinstance(rows, Tensor):
            read = self._own(node_type, rows, a, b)
        elif isinstance(rows, LazyFeatures):
            read = rows.read(a, b)
        else:
            read = rows.select(torch.arange(a, b)).whole()
        return read.to(self._context.device)

    def _own(self, node_type: NodeType, matrix: Tensor, a: int, b: int) -> Tensor:
        """The rows of this machine's nodes `a … b − 1` in one of its matrices."""
        first = self.access.nodes[node_type].start
        return matrix[a - first : b - first]

    def _matrix(self, node_type: NodeType, name: str, width: int) -> Tensor:
        return self.buffers.matrix(name, len(self.access.nodes[node_type]), width)

    def _drop(self, name: str, *, keeps_memory: bool = False) -> None:
        """Drop a matrix that this rank has read."""
        if not keeps_memory:
            self.buffers.release(name)
        self.access.drop(name, self.buffers)

    def _needed(self, model: HeteroGNN | OneTypeModel, layers: Sequence[Layer], embed: bool) -> int:
        """Bytes of the matrices that exist at the same time, at most."""

        def size(node_type: NodeType, width: int) -> int:
            return 4 * len(self.access.nodes[node_type]) * width

        projected = filter(model.is_projected, model.node_types_after(-1))
        before = sum(size(t, model.hidden_channels) for t in projected)
        most = 0
        for layer in layers:
            sources = {key: size(_node_type(key), width) for key, width in layer.sources.items()}
            # Rows of an edge type's own are held for one pass, those of a node type for the layer.
            own = [
                sum(sources[edge] for edge in chain(*stages) if edge in sources)
                for t in layer.node_types
                for stages in layer.passes(t)
            ]
            shared = sum(held for key, held in sources.items() if isinstance(key, str))
            totals = [size(t, width) for t, width in layer.totals.items()]
            after = sum(size(t, layer.out_channels) for t in layer.node_types)
            held = shared + max(own, default=0) + max(totals, default=0)
            most, before = max(most, before + after + held), after
        if isinstance(model, OneTypeModel) and model.has_state:
            gnn = model.model
            width = gnn.jk_channels + gnn.embedding_channels * embed
            most += size(model.schema.target, width)
        return most


_UNREAD = torch.empty(0)


def _layers(model: HeteroGNN | OneTypeModel, device: torch.device) -> list[Layer]:
    """The layers with the widths of their numbers, found by computing them for no nodes."""
    none = torch.empty(0, dtype=torch.int64, device=device)
    block = Block(torch.zeros(1, dtype=torch.int64, device=device), none, num_src=0)
    hidden, layers = model.hidden_channels, list[Layer]()
    widths = {
        t: hidden if model.is_projected(t) else model.num_inputs[t]
        for t in model.node_types_after(-1)
    }
    for i in range(model.num_layers):
        is_last = i == model.num_layers - 1
        layer = Layer(model, i, model.out_channels if is_last else hidden)
        conv, inputs = layer.conv, {t: torch.empty(0, widths[t], device=device) for t in widths}
        for t in layer.node_types:
            sources = {}
            for edge in chain(*conv.stages(t)):
                key = conv.source(edge)
                rows = inputs[edge[0]][:, conv.columns(edge if key is None else key)]
                sources[edge] = rows if key is None else conv.transform(key, rows)
                if key is not None:
                    layer.sources[key] = sources[edge].shape[1]
            if len(layer.passes(t)) > 1:
                stage = conv.stages(t)[0]
                of_stage = {edge: sources[edge] for edge in stage}
                own = inputs[t][:, conv.columns(t)]
                total = conv.message(dict.fromkeys(stage, block), of_stage, own)
                layer.totals[t] = total.shape[1]
        layers.append(layer)
        widths = dict.fromkeys(layer.node_types, hidden)
    return layers


def prefetch(
    make: Callable[[tuple[int, int]], T], chunks: Iterator[tuple[int, int]], device: torch.device
) -> Iterator[T]:
    """What `make` returns for each chunk, in order, made one chunk ahead by a thread."""
    with ThreadPoolExecutor(1, initializer=set_current, initargs=(device,)) as thread:
        waiting: deque[Future[T]] = deque()
        for chunk in chunks:
            waiting.append(thread.submit(make, chunk))
            if len(waiting) > 1:
                yield waiting.popleft().result()
        for made in waiting:
            yield made.result()


def renumbered(block: Block) -> tuple[Tensor, Block]:
    """The nodes of a block's edges, its destinations first, and the block with these as its only
    sources.

    Returns:
        Nodes, int64 on the block's device, in the numbers of the block before; the block.
    """
    a, num_dst, indices = block.dst_offset, block.num_dst, block.indices
    is_other = (indices < a) | (indices >= a + num_dst)
    others, numbers = torch.unique(indices[is_other], return_inverse=True)
    sources = indices - a
    sources[is_other] = (numbers + num_dst).to(indices.dtype)
    nodes = torch.cat([torch.arange(a, a + num_dst, device=others.device), others.long()])
    return nodes, replace(block, indices=sources, num_src=len(nodes), dst_offset=0, derived={})


def _node_type(key: SourceKey) -> NodeType:
    """The type of the nodes whose rows are transformed."""
    return key if isinstance(key, str) else key[0]


def _matrix_name(key: SourceKey) -> str:
    return f"z/{key if isinstance(key, str) else '/'.join(key)}"
