"""Exact inference: every layer for all nodes, over all in-neighbours, before the next layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain, takewhile
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.data.graph import EdgeType, NodeType
from gnntrain.devices import is_gpu, set_current
from gnntrain.loading.features import stored_rows
from gnntrain.loading.loader import made_ahead
from gnntrain.models import GNN, AnyModel, HeteroGNN
from gnntrain.models.conv import HeteroConv, LinearConv, SourceKey
from gnntrain.sampling.block import Block
from gnntrain.tasks import Task
from gnntrain.training.evaluation import Evaluator, Inferred, SplitMetrics, exact_metrics
from gnntrain.training.forward import evaluating
from gnntrain.training.graph_access import GraphAccess, OwnedRows, Rows, most_gathered

Stages = Sequence[Sequence[EdgeType]]
"""Stages of one node type, see `HeteroConv.stages`."""

MOST_KEPT = 1 << 30
"""Bytes of the features' aggregates that are kept, on all machines together. A constant: the order
of a layer's operations, and with it the last bits of its rows, must not depend on a machine."""


class _Jumping(NamedTuple):
    """Jumping knowledge: the states of the target's nodes, and where they are kept the rows of all
    layers side by side."""

    model: HeteroGNN
    states: Tensor
    embeddings: Tensor | None

    def add(self, i: int, h: Tensor, nodes: slice) -> Tensor:
        """Add layer `i`'s output to the states; of the last layer the model's outputs, else `h`."""
        before = self.states[nodes]
        state = self.model.jk_update(i, None if i == 0 else before.to(h.device), h)
        before.copy_(state)
        if self.embeddings is not None and self.model.jk == "cat":
            self.embeddings[nodes, i * h.shape[1] : (i + 1) * h.shape[1]] = h
        return self.model.readout(state) if i == self.model.num_layers - 1 else h


@dataclass(slots=True)
class Layer:
    """A layer that is being computed."""

    model: HeteroGNN
    i: int
    conv: HeteroConv
    node_types: tuple[NodeType, ...]
    """Whose rows it computes."""
    out_channels: int
    widest: int
    """The most numbers of a row that is read or computed."""
    passes: dict[NodeType, list[Stages]] = field(default_factory=dict)
    """The stages that are computed in one pass over the nodes of a type: one that aggregates rows
    of its own alone, so that these are not all held; the others together."""
    sources: dict[SourceKey, int] = field(default_factory=dict)
    """Widths of the transformed rows."""
    totals: dict[NodeType, int] = field(default_factory=dict)
    """Widths of the sum of the stages, by node type that has several passes."""
    keeps_aggregates: bool = False
    """Whether it maps aggregates of the features, which are kept from one evaluation to the next:
    a later one multiplies them by the new weights, and reads no edges in this layer."""
    inputs: Mapping[NodeType, Rows] = field(default_factory=dict)
    """The rows of all nodes that it reads."""
    transformed: dict[SourceKey, Rows] = field(default_factory=dict)
    """The transformed rows that are held."""

    def input(self, node_type: NodeType, key: SourceKey) -> Rows:
        """The columns of a type's input that `key` reads, see `HeteroConv.columns`."""
        rows, which = self.inputs[node_type], self.conv.columns(key)
        if which == slice(None):
            return rows
        assert isinstance(rows, LazyFeatures)  # learnt rows
        return rows.columns(which)


class View(NamedTuple):
    """A chunk: the in-edges of the nodes `a … b − 1`, the rows that their sources number, and the
    nodes' own input."""

    a: int
    b: int
    blocks: dict[EdgeType, Block]
    sources: dict[EdgeType, Tensor | LazyFeatures]
    h_dst: Tensor


class LayerwiseEvaluator(Evaluator):
    """Computes every layer for all nodes, over all in-neighbours, before the next; see `HeteroGNN`.

    A rank computes its destination nodes of each type, chunk by chunk, into one matrix a node type
    of the layer's activations, for all ranks of its machine. Memory of a machine: two such matrices
    a node type; the transformed rows that a stage aggregates instead of the layer's input; the sum
    of one type's stages, where several are computed one after the other; for each rank a chunk or
    two; and the aggregates that are kept, see `Layer`. Types that the outputs do not depend on are
    skipped. Where the device does not read rows in place, a chunk's in-neighbours are gathered,
    each once, and renumbered.
    """

    def __init__(self, access: GraphAccess, task: Task) -> None:
        self.access, self._task, self._context = access, task, access.context
        is_local = all(isinstance(rows, LazyFeatures) for rows in access.features.values())
        self._gathers = access.is_partitioned or not is_local
        self._aggregated_by: HeteroConv | None = None

    @property
    def is_faster_later(self) -> bool:
        """Whether an evaluation has kept what makes later ones faster."""
        return self._aggregated_by is not None

    @property
    def memory_hint(self) -> str:
        if is_gpu(self._context.device):
            return "Set evaluation=sampled: all in-neighbours of a node do not fit on the GPU."
        return (
            "Lower evaluation.memory_limit, beyond which layers go to disk, or the number of "
            "ranks; or set evaluation=sampled."
        )

    def evaluate(self, model: AnyModel) -> SplitMetrics:
        outputs, _ = self.outputs(model, keeps=True)
        computed = list(self.access.computed(self._task, outputs))
        metrics = exact_metrics(self._task, computed, self._context)
        del outputs, computed
        # Between evaluations training uses the memory.
        self.access.buffers.release(but="aggregates/")
        return metrics

    def infer(self, model: AnyModel, *, embed: bool = False) -> Inferred:
        """The outputs for every node of the target type, on all ranks; to `embed`, the rows that
        enter the last layer, too. Collective.

        The result is valid until the next call. If rank 0 computes alone, it is empty on the other
        machines. Not for a graph in parts.
        """
        (outputs, rows), graph = self.outputs(model, embed=embed), self.access.graph
        tables: Any = getattr(model, "tables", {})
        embeddings: Tensor | LazyFeatures | None = None
        if isinstance(rows, Tensor):
            embeddings = rows.cpu()
        elif embed and graph.target in tables:  # of a single layer that takes them as they are
            embeddings = tables[graph.target].weight.cpu()
        elif embed:
            embeddings = LazyFeatures(stored_rows(graph)[graph.target])
        return Inferred(self._task, graph, outputs.cpu(), embeddings)

    def outputs(
        self, model: AnyModel, *, embed: bool = False, keeps: bool = False
    ) -> tuple[Tensor, Rows | None]:
        """The model's outputs for the machine's nodes of the target type, float32
        `[n, num_outputs]`; and for `embed` the rows of all nodes of that type that enter the last
        layer. With `keeps` the next call may be faster, see `Layer.keeps_aggregates`. Valid until
        the next call; `Interrupted` as `evaluate` is. Collective."""
        assert isinstance(model, HeteroGNN)
        buffers, target = self.access.buffers, self.access.schema.target
        try:
            with evaluating(model):
                model = model.on(self.access.schema) if isinstance(model, GNN) else model
                layers = layers_of(model, self._context.device)
                layers[0].keeps_aggregates = keeps and self._keeps_aggregates(layers[0])
                buffers.begin(self._needed(model, layers, embed))
                if model.jk == "none":
                    return self._by_layer(model, layers, None, embed)
                states = rows = self._matrix(target, "states", model.jk_channels)
                if model.jk == "cat" and embed:  # the maximum is the state itself
                    rows = self._matrix(target, "embeddings", model.embedding_channels)
                jumping = _Jumping(model, states, rows if embed else None)
                return self._by_layer(model, layers, jumping, embed)
        finally:
            buffers.release("states")
            self.access.end()

    def _by_layer(
        self, model: HeteroGNN, layers: Sequence[Layer], jumping: _Jumping | None, embed: bool
    ) -> tuple[Tensor, Rows | None]:
        inputs = {t: self._start(model, t) for t in model.num_inputs}
        for layer in layers:
            layer.inputs, outputs = inputs, {}
            # Of one type, the next layer writes to the matrix that this one reads: no new memory.
            is_reused = len(layer.node_types) == 1 and layer.i + 2 < len(layers)
            for t in layer.node_types:
                name = "logits" if layer is layers[-1] else f"h{layer.i % 2}/{t}"
                out = self._output(layer, t, name, jumping)
                if t == layer.node_types[-1]:  # what the layer reads is read
                    self._drop_transformed(layer, tuple(layer.transformed))
                    for each in inputs:
                        keeps_memory = is_reused and each in layer.node_types
                        self._drop(f"h{(layer.i - 1) % 2}/{each}", keeps_memory=keeps_memory)
                outputs[t] = self.access.publish(t, name, out)
            if layer.keeps_aggregates:
                self._aggregated_by = layer.conv
            layer.inputs = {}
            if layer is not layers[-1]:
                inputs = outputs
        target = model.schema.target
        if jumping is not None and jumping.embeddings is not None:
            return out, self.access.publish(target, "embeddings", jumping.embeddings)
        return out, inputs[target] if embed else None

    def _start(self, model: HeteroGNN, node_type: NodeType) -> Rows:
        """The first layer's input for all nodes of a type."""
        rows: Rows
        if node_type in model.tables:
            weight = model.tables[node_type].weight
            assert isinstance(weight, Tensor)
            rows = self.access.learnt(node_type, LazyFeatures(weight))
        else:
            rows = self.access.features[node_type]
        if node_type not in model.projections:
            return rows
        name, hidden = f"h1/{node_type}", model.hidden_channels
        matrix = self._matrix(node_type, name, hidden)
        for a, b in self._chunks(node_type, max(model.num_inputs[node_type], hidden)):
            read = self._read(node_type, rows, a, b)
            matrix[self._rows_of(node_type, a, b)] = model.start(node_type, read)
        return self.access.publish(node_type, name, matrix)

    def _output(
        self, layer: Layer, node_type: NodeType, name: str, jumping: _Jumping | None
    ) -> Tensor:
        """A layer's output for this rank's nodes of a type, in the matrix `name`."""
        conv, model, passes = layer.conv, layer.model, layer.passes[node_type]
        out = self._matrix(node_type, name, layer.out_channels)
        kept: dict[EdgeType, Tensor] = {}
        if layer.keeps_aggregates:
            for edge in self.access.schema.into(node_type):
                matrix = f"aggregates/{'/'.join(edge)}"
                kept[edge] = self._matrix(node_type, matrix, model.num_inputs[edge[0]])
            # They are made in the first evaluation; later ones read no edges.
            passes = [[] if self._aggregated_by is conv else [[*kept]]]
        totals: Tensor | None = None
        if len(passes) > 1:
            totals = self._matrix(node_type, "total", layer.totals[node_type])
        for number, stages in enumerate(passes):
            for view in self._views(layer, node_type, stages):
                nodes = self._rows_of(node_type, view.a, view.b)
                if layer.keeps_aggregates:
                    assert isinstance(conv, LinearConv)
                    for edge, block in view.blocks.items():
                        kept[edge][nodes] = conv.aggregated(view.sources[edge], block)
                    rows = conv.finish(node_type, None, view.h_dst)
                    for edge, aggregates in kept.items():
                        rows = torch.addmm(rows, aggregates[nodes], conv.relation_weight(edge).t())
                else:
                    messages = (
                        conv.on_blocks(
                            {edge: view.blocks[edge] for edge in stage},
                            {edge: view.sources[edge] for edge in stage},
                            view.h_dst,
                        )
                        for stage in stages
                    )
                    total = reduce(torch.add, messages) if stages else None
                    if totals is not None:
                        assert total is not None
                        if number > 0:
                            total += totals[nodes].to(total.device)
                        if number < len(passes) - 1:
                            totals[nodes] = total
                            continue
                    rows = conv.finish(node_type, total, view.h_dst)
                rows = model.update(layer.i, node_type, rows, view.h_dst)
                out[nodes] = rows if jumping is None else jumping.add(layer.i, rows, nodes)
            of_edges = [key for key in layer.transformed if isinstance(key, tuple)]
            self._drop_transformed(layer, of_edges)
        del totals
        self.access.buffers.release("total")
        return out

    def _keeps_aggregates(self, layer: Layer) -> bool:
        """Whether a layer maps aggregates of rows that no training changes, few enough to keep."""
        model, num_nodes = layer.model, self.access.schema.num_nodes
        edges = [edge for t in layer.node_types for edge in self.access.schema.into(t)]
        is_constant = isinstance(layer.conv, LinearConv) and layer.conv.is_linear
        for t in {edge[0] for edge in edges}:
            is_constant = is_constant and not (t in model.tables or t in model.projections)
        size = sum(4 * num_nodes[edge[2]] * model.num_inputs[edge[0]] for edge in edges)
        return is_constant and size <= MOST_KEPT and not is_gpu(self._context.device)

    def _views(self, layer: Layer, node_type: NodeType, stages: Stages) -> Iterator[View]:
        """The chunks of the nodes of a type; where other machines are asked for rows, each is made
        while the one before is computed."""
        conv, h_dst = layer.conv, layer.input(node_type, node_type)
        reads_own = not conv.gives_layer
        if layer.keeps_aggregates and isinstance(conv, LinearConv):
            reads_own = conv.root(node_type)[0] is not None
        reads_own |= len(layer.model.residuals) > 0
        sources: dict[EdgeType, Rows] = {}
        for edge in chain(*stages):
            sources[edge] = self.access.cached(edge[0], self._source(layer, edge))

        def make(chunk: tuple[int, int]) -> View:
            set_current(self._context.device)  # of the thread
            blocks, rows = {}, {}
            for edge, source in sources.items():
                blocks[edge], rows[edge] = self._in_edges_and_rows(layer, edge, source, *chunk)
            own = self._read(node_type, h_dst, *chunk) if reads_own else _UNREAD
            return View(*chunk, blocks, rows, own)

        is_local = all(isinstance(rows, Tensor | LazyFeatures) for rows in sources.values())
        chunks = self._chunks(node_type, layer.widest)
        return map(make, chunks) if is_local else made_ahead(make, chunks, 1, 1)

    def _source(self, layer: Layer, edge_type: EdgeType) -> Rows:
        """The rows of all source nodes that an edge type aggregates."""
        key = layer.conv.source(edge_type)
        if key is None or layer.keeps_aggregates:
            return layer.input(edge_type[0], edge_type)
        if key not in layer.transformed:
            node_type, name, width = _node_type(key), _matrix_name(key), layer.sources[key]
            rows, matrix = layer.input(node_type, key), self._matrix(node_type, name, width)
            for a, b in self._chunks(node_type, layer.widest):
                read = self._read(node_type, rows, a, b)
                matrix[self._rows_of(node_type, a, b)] = layer.conv.transform(read, key)
            layer.transformed[key] = self.access.publish(node_type, name, matrix)
        return layer.transformed[key]

    def _in_edges_and_rows(
        self, layer: Layer, edge_type: EdgeType, rows: Rows, a: int, b: int
    ) -> tuple[Block, Tensor | LazyFeatures]:
        """The in-edges of one type of the nodes `a … b − 1`, and the rows that its sources number:
        where the device does not read all rows in place, those of the chunk, each once."""
        access, conv, needs = self.access, layer.conv, layer.model.needs
        block = access.in_edges(edge_type, a, b, needs)
        if isinstance(rows, Tensor | LazyFeatures) and self._is_here(rows):
            return replace(block, norm=access.norm(None) if needs.norm else None), rows
        if not layer.model.is_hetero:  # the sources' rows hold the destinations'
            nodes, block = renumbered(block)
        else:
            nodes, numbers = torch.unique(block.indices, return_inverse=True)
            indices, nodes = numbers.to(block.indices.dtype), nodes.long()
            block = replace(block, indices=indices, num_src=len(nodes), dst_offset=0)
        if needs.norm:
            block = replace(block, norm=access.norm(nodes))
        selected = (LazyFeatures(rows) if isinstance(rows, Tensor) else rows).select(nodes)
        is_input = conv.source(edge_type) is None or layer.keeps_aggregates
        is_input = is_input and not isinstance(rows, Tensor)
        if is_input and self._is_here(selected):
            return block, selected
        return block, selected.whole().to(self._context.device)

    def _is_here(self, rows: Tensor | LazyFeatures) -> bool:
        # Not the devices as such: "cuda" and "cuda:0" are the same one, but not equal.
        return rows.device.type == self._context.device.type

    def _chunks(self, node_type: NodeType, widest: int) -> Iterator[tuple[int, int]]:
        """This rank's nodes of a type, cut into ranges of bounded rows and edges, for rows of at
        most so many numbers. Ends early after a stop request: `GraphAccess.publish` then raises."""
        max_rows, max_edges = self.access.buffers.chunk_limits(max(1, widest))
        if self._gathers:
            max_edges = min(max_edges, most_gathered(widest))
        chunks, control = self.access.chunks(node_type, max_rows, max_edges), self._context.control
        return takewhile(lambda _: not control.stop_requested, chunks)

    def _read(self, node_type: NodeType, rows: Rows, a: int, b: int) -> Tensor:
        """The rows of this machine's nodes `a … b − 1`, on the model's device."""
        rows = rows.local_rows[0] if isinstance(rows, OwnedRows) else rows
        if isinstance(rows, Tensor):
            read = rows[self._rows_of(node_type, a, b)]
        elif isinstance(rows, LazyFeatures):
            read = rows.read(a, b)
        else:
            read = rows.select(torch.arange(a, b)).whole()
        return read.to(self._context.device)

    def _rows_of(self, node_type: NodeType, a: int, b: int) -> slice:
        """The rows of this machine's nodes `a … b − 1` in its matrices."""
        first = self.access.nodes[node_type].start
        return slice(a - first, b - first)

    def _matrix(self, node_type: NodeType, name: str, width: int) -> Tensor:
        return self.access.buffers.matrix(name, len(self.access.nodes[node_type]), width)

    def _drop_transformed(self, layer: Layer, keys: Iterable[SourceKey]) -> None:
        for key in keys:
            del layer.transformed[key]
            self._drop(_matrix_name(key))

    def _drop(self, name: str, *, keeps_memory: bool = False) -> None:
        """Drop a matrix that this rank has read."""
        if not keeps_memory:
            self.access.buffers.release(name)
        self.access.drop(name)

    def _needed(self, model: HeteroGNN, layers: Sequence[Layer], embed: bool) -> int:
        """Bytes of the matrices that exist at the same time, at most."""

        def size(key: SourceKey, width: int) -> int:
            return 4 * len(self.access.nodes[_node_type(key)]) * width

        most, before = 0, sum(size(t, model.hidden_channels) for t, _ in model.projections.items())
        for layer in layers:
            sources = {key: size(key, width) for key, width in layer.sources.items()}
            # Rows of an edge type's own are held for one pass, those of a node type for the layer.
            passes = chain(*layer.passes.values())
            own = (sum(sources.get(edge, 0) for edge in chain(*stages)) for stages in passes)
            shared = sum(held for key, held in sources.items() if isinstance(key, str))
            totals = (size(t, width) for t, width in layer.totals.items())
            after = sum(size(t, layer.out_channels) for t in layer.node_types)
            held = shared + max(own, default=0) + max(totals, default=0)
            most, before = max(most, before + after + held), after
        if layers[0].keeps_aggregates:
            into = {t: self.access.schema.into(t) for t in layers[0].node_types}
            most += sum(size(t, model.num_inputs[e[0]]) for t in into for e in into[t])
        width = model.embedding_channels if embed and model.jk == "cat" else 0
        return most + size(model.schema.target, model.jk_channels + width)


_UNREAD = torch.empty(0)


def layers_of(model: HeteroGNN, device: torch.device) -> list[Layer]:
    """The layers with the widths of their numbers, found by computing them for no nodes."""
    none = torch.empty(0, dtype=torch.int64, device=device)
    block = Block(torch.zeros(1, dtype=torch.int64, device=device), none, num_src=0)
    hidden, layers = model.hidden_channels, list[Layer]()
    widths = {
        t: hidden if t in model.projections else width for t, width in model.num_inputs.items()
    }
    for i in range(model.num_layers):
        conv, node_types = model.convs[i], model.computed[i]
        after = model.out_channels if i == model.num_layers - 1 else hidden
        layer = Layer(model, i, conv, node_types, after, max(after, hidden))
        inputs = {t: torch.empty(0, width, device=device) for t, width in widths.items()}
        for t in node_types:
            own, sources = inputs[t][:, conv.columns(t)], {}
            stages = conv.stages([edge for edge in model.schema.edge_types if edge[2] == t])
            for edge in chain(*stages):
                key = conv.source(edge)
                rows = inputs[edge[0]][:, conv.columns(edge if key is None else key)]
                sources[edge] = rows if key is None else conv.transform(rows, key)
                if key is not None:
                    layer.sources[key] = sources[edge].shape[1]
                layer.widest = max(layer.widest, rows.shape[1], sources[edge].shape[1])
            alone = [s for s in stages if any(isinstance(conv.source(e), tuple) for e in s)]
            together = [stage for stage in stages if stage not in alone]
            layer.passes[t] = [[stage] for stage in alone]
            if together or not alone:
                layer.passes[t].append(together)
            if len(layer.passes[t]) > 1:
                of_stage = {edge: sources[edge] for edge in stages[0]}
                total = conv.on_blocks(dict.fromkeys(stages[0], block), of_stage, own)
                layer.totals[t] = total.shape[1]
            layer.widest = max(layer.widest, own.shape[1])
        layers.append(layer)
        widths = dict.fromkeys(node_types, hidden)
    return layers


def renumbered(block: Block) -> tuple[Tensor, Block]:
    """The nodes of a block's edges, its destinations first (int64, in the block's numbers, on its
    device), and the block with these as its only sources."""
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
