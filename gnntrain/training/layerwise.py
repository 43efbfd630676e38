"""Exact inference: every layer for all nodes, over all in-neighbours, before the next layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import takewhile
from typing import Protocol, SupportsInt, TypeVar

import torch
from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.devices import set_current
from gnntrain.distributed.context import DistributedContext
from gnntrain.models import GNN
from gnntrain.models.mlp import edgeless
from gnntrain.sampling.block import Block
from gnntrain.training.buffers import Buffers

# What a row costs in layer-wise inference beside its edges, counted in edges.
ROW_COST = 16

# Bounds the rows that a chunk gathers: 64 MiB of float32.
_MAX_GATHERED_NUMBERS = 1 << 24


T = TypeVar("T")


class Offsets(Protocol):
    """The number of in-edges of the nodes before each node, and of all nodes: as an `indptr`."""

    def __len__(self) -> int: ...

    def __getitem__(self, node: int) -> SupportsInt: ...


class RowSource(Protocol):
    """Gives rows of nodes, of which some lie on other machines; a `FeatureSource` is one."""

    def select(self, nodes: Tensor) -> LazyFeatures:
        """The rows of `nodes`, int64 `[n]`."""
        ...


Rows = Tensor | LazyFeatures | RowSource
"""The rows of all nodes, wherever they lie."""

View = tuple[Block, Tensor | LazyFeatures]
"""The in-edges of some nodes, and the rows that their sources number."""


class LayerwiseInference(ABC):
    """Computes every layer for all nodes, over all in-neighbours, before the next.

    A rank computes its destination nodes, chunk by chunk, into one matrix of a layer's activations
    for all ranks of its machine. Memory of a machine: two such matrices (three if a model
    transforms rows before it aggregates), and for each rank a chunk or two. A chunk's in-neighbours
    are gathered, each once, and renumbered.

    Args:
        context: This rank.
        buffers: Allocates the matrices.
        features: The rows of all nodes.
        num_features: Their width.
        nodes: The nodes that the machine's matrices hold.
    """

    def __init__(
        self,
        context: DistributedContext,
        buffers: Buffers,
        features: LazyFeatures | RowSource,
        num_features: int,
        nodes: range,
    ) -> None:
        self._context = context
        self.buffers = buffers
        self._features = features
        self._num_features = num_features
        self._nodes = nodes

    def chunks(self, model: GNN) -> Iterator[tuple[int, int]]:
        """This rank's nodes, cut into chunks.

        Ends early after a stop request; `_finished` then raises `Interrupted` on all ranks.
        """
        control = self._context.control
        widest = max(self._num_features, model.hidden_channels, model.out_channels, 1)
        widest = max(widest, *self._message_widths(model))
        return takewhile(lambda _: not control.stop_requested, self._all_chunks(widest))

    def transform(self, model: GNN, i: int, source: Rows, a: int, b: int) -> Tensor:
        """The messages of the nodes `a … b − 1` in layer `i`, whose input is `source`."""
        return model.conv(i).transform(self._input(model, i, source, a, b))

    def layer(self, model: GNN, i: int, source: Rows, view: View, a: int, b: int) -> Tensor:
        """Layer `i`'s output for the nodes `a … b − 1`.

        Args:
            model: In evaluation mode.
            i: The layer.
            source: Its input, for all nodes.
            view: The nodes' in-edges, and the rows to aggregate: `transform`'s, or of `source`.
            a, b: See above.
        """
        block, rows = view
        if not model.conv(i).has_transform:
            return model.layer(i, rows, block)
        assert isinstance(rows, Tensor)
        h_dst = self._input(model, i, source, a, b)
        z_dst = rows[block.dst_offset : block.dst_offset + block.num_dst]
        return model.propagate(i, block, rows, h_dst, z_dst)

    @abstractmethod
    def _all_chunks(self, widest: int) -> Iterator[tuple[int, int]]:
        """This rank's nodes, cut into ranges of bounded rows and edges.

        Args:
            widest: The most numbers that a row has in a layer.
        """

    @abstractmethod
    def _in_edges(self, model: GNN, a: int, b: int) -> Block:
        """The in-edges of the nodes `a … b − 1`, on the device, without norms."""

    @abstractmethod
    def _norm_of(self, nodes: Tensor) -> Tensor:
        """The normalisation of `nodes`, float32 on the device, see `Block.norm`."""

    @abstractmethod
    def _finished(self, name: str, matrix: Tensor) -> Rows:
        """Wait until all ranks have computed their rows of a matrix; the rows of all nodes.

        Raises:
            Interrupted: On all ranks, if any of them knows of a stop request.
        """

    @torch.no_grad()
    def _inferred(self, model: GNN, *, embed: bool = False) -> tuple[Tensor, Rows | None]:
        """The outputs of the machine's nodes; with `embed` the rows that enter the last layer."""
        was_training = model.training
        model.eval()
        self.buffers.begin(self._needed(model, embed))
        try:
            return self._by_layer(model, embed) if model.uses_graph else self._by_row(model, embed)
        finally:
            model.train(was_training)

    def _needed(self, model: GNN, embed: bool) -> int:
        """Bytes of the matrices that exist at the same time."""
        widths = [model.hidden_channels] * (2 if model.num_layers > 1 else 0)
        widths += [max(self._message_widths(model)), model.out_channels, model.jk_channels]
        widths += [model.embedding_channels] * embed
        return 4 * len(self._nodes) * sum(widths)

    def _message_widths(self, model: GNN) -> list[int]:
        """By layer: the width of the transformed rows, 0 if it aggregates its input."""
        widths = [self._num_features, *[model.hidden_channels] * (model.num_layers - 1)]
        none = [torch.empty(0, width, device=self._context.device) for width in widths]
        none[0] = model.start(none[0])
        convs = map(model.conv, range(model.num_layers))
        return [
            conv.transform(rows).shape[1] if conv.has_transform else 0
            for conv, rows in zip(convs, none, strict=True)
        ]

    def _by_row(self, model: GNN, embed: bool) -> tuple[Tensor, Rows | None]:
        """For a model without edges: all layers of a chunk at once."""
        out = self._matrix("logits", model.out_channels)
        kept = self._matrix("embeddings", model.embedding_channels) if embed else None
        for a, b in self.chunks(model):
            rows = self._read(self._features, a, b)
            into = None if kept is None else self._own(kept, a, b)
            self._own(out, a, b)[:] = _rows_alone(model, rows, into)
        self._finished("logits", out)
        if kept is not None:
            self._finished("embeddings", kept)
        return out, kept

    def _by_layer(self, model: GNN, embed: bool) -> tuple[Tensor, Rows | None]:
        source: Rows = self._features
        states = self._matrix("states", model.jk_channels) if model.jk_channels else None
        embeddings: Rows | None = None
        if embed and model.jk != "none":
            embeddings = self._matrix("embeddings", model.embedding_channels)
        for i in range(model.num_layers):
            is_last = i == model.num_layers - 1
            given = self._given(model, i, source)
            if embed and embeddings is None and is_last:
                embeddings = source
            name = "logits" if is_last else f"h{i % 2}"
            target = self._matrix(name, model.out_channels if is_last else model.hidden_channels)
            for a, b, view in self._views(model, i, given):
                h = self.layer(model, i, source, view, a, b)
                before = None if states is None else self._own(states, a, b)
                earlier = None if before is None or i == 0 else before.to(h.device)
                state = model.jk_update(i, earlier, h)
                if before is not None:
                    before.copy_(state)
                    if isinstance(embeddings, Tensor):
                        _put_embeddings(model, i, h, state, self._own(embeddings, a, b))
                self._own(target, a, b)[:] = model.readout(state) if is_last else h
            source = self._finished(name, target)
            del given
            self.buffers.release("z")
        del states
        self.buffers.release("states")
        if isinstance(embeddings, Tensor) and model.jk != "none":
            self._finished("embeddings", embeddings)
        return target, embeddings

    def _given(self, model: GNN, i: int, source: Rows) -> Rows:
        """The rows that layer `i` aggregates, for all nodes."""
        if not model.conv(i).has_transform:
            return source
        z = self._matrix("z", self._message_widths(model)[i])
        for a, b in self.chunks(model):
            self._own(z, a, b)[:] = self.transform(model, i, source, a, b)
        return self._finished("z", z)

    def _input(self, model: GNN, i: int, source: Rows, a: int, b: int) -> Tensor:
        """The input of layer `i` for the nodes `a … b − 1`."""
        rows = self._read(source, a, b)
        return model.start(rows) if i == 0 else rows

    def _read(self, source: Rows, a: int, b: int) -> Tensor:
        """The rows of this machine's nodes `a … b − 1`, on the model's device."""
        return read_rows(source, self._nodes, a, b).to(self._context.device)

    def _views(self, model: GNN, i: int, given: Rows) -> Iterator[tuple[int, int, View]]:
        """Each chunk with its `View`; where other machines are asked for rows, one chunk ahead."""
        if isinstance(given, Tensor | LazyFeatures):
            for a, b in self.chunks(model):
                yield a, b, self._view(model, i, given, a, b)
            return
        make = lambda chunk: (*chunk, self._view(model, i, given, *chunk))  # noqa: E731
        yield from one_ahead(make, self.chunks(model), self._context.device)

    def _view(self, model: GNN, i: int, given: Rows, a: int, b: int) -> View:
        """The in-edges of the nodes `a … b − 1`, and the rows that their sources number."""
        nodes, block = renumbered(self._in_edges(model, a, b))
        norm = self._norm_of(nodes) if model.needs.norm else None
        block = replace(block, norm=norm)
        source = LazyFeatures(given) if isinstance(given, Tensor) else given
        selected = source.select(nodes)
        is_input = i == 0 and not model.conv(i).has_transform
        if is_input and model.needs.rows and selected.device.type == self._context.device.type:
            return block, selected
        rows = selected.whole().to(self._context.device)
        return block, model.start(rows) if is_input else rows

    def _own(self, matrix: Tensor, a: int, b: int) -> Tensor:
        """The rows of this machine's nodes `a … b − 1` in one of its matrices."""
        return matrix[a - self._nodes.start : b - self._nodes.start]

    def _matrix(self, name: str, num_columns: int) -> Tensor:
        return self.buffers.matrix(name, len(self._nodes), num_columns)


def read_rows(source: Rows, nodes: range, a: int, b: int) -> Tensor:
    """The rows of the nodes `a … b − 1`, of which a machine's matrix holds those of `nodes`."""
    if isinstance(source, Tensor):
        return source[a - nodes.start : b - nodes.start]
    if isinstance(source, LazyFeatures):
        return source.read(a, b)
    return source.select(torch.arange(a, b)).whole()


def one_ahead(
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


def most_gathered(widest: int) -> int:
    """The most rows of this width that a chunk may gather, and so the most edges that it has."""
    return max(1, _MAX_GATHERED_NUMBERS // widest)


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


def balanced_range(offsets: Offsets, rank: int, world_size: int) -> tuple[int, int]:
    """The contiguous nodes that `rank` computes, so that all ranks have equal work.

    A node's work is taken as its in-edges plus a constant for its own row.
    """
    num_nodes = len(offsets) - 1
    total = int(offsets[num_nodes]) + ROW_COST * num_nodes

    def boundary(part: int) -> int:
        wanted = total * part // world_size
        key = lambda node: int(offsets[node]) + ROW_COST * node  # noqa: E731
        return bisect_left(range(num_nodes + 1), wanted, key=key)

    return boundary(rank), boundary(rank + 1)


def chunks(
    offsets: Offsets, start: int, stop: int, max_rows: int, max_edges: int
) -> Iterator[tuple[int, int]]:
    """Cut the nodes `start … stop − 1` into ranges of bounded rows and edges, one node at least."""
    while start < stop:
        limit = int(offsets[start]) + max_edges
        key = lambda node: int(offsets[node])  # noqa: E731
        end = bisect_right(range(stop + 1), limit, lo=start + 1, key=key) - 1
        end = min(max(end, start + 1), start + max_rows)
        yield start, end
        start = end


def _rows_alone(model: GNN, x: Tensor, kept: Tensor | None) -> Tensor:
    """The logits of nodes without edges; the input of the last layer is written to `kept`."""
    block, h, state = edgeless(len(x)).to(x.device), model.start(x), None
    for i in range(model.num_layers):
        if kept is not None and model.jk == "none" and i == model.num_layers - 1:
            kept[:] = h
        h = model.layer(i, h, block)
        state = model.jk_update(i, state, h)
        if kept is not None and model.jk != "none":
            _put_embeddings(model, i, h, state, kept)
    assert state is not None
    return model.readout(state)


def _put_embeddings(model: GNN, i: int, h: Tensor, state: Tensor, out: Tensor) -> None:
    """With jumping knowledge: write the input of `lin` that the output `h` of layer `i` gives."""
    if model.jk == "cat":
        out[:, i * h.shape[1] : (i + 1) * h.shape[1]] = h
    else:
        out.copy_(state)  # whole after the last layer
