"""Exact metrics over splits, layer by layer over all neighbours; or sampled ones."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import takewhile
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from gnntrain.data.store import GraphStore
from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.features import FeatureSource, StoredRows, share
from gnntrain.loading.loader import Loader, whole_graph_block
from gnntrain.models import GNN, PlainModel
from gnntrain.sampling.base import Int64Array
from gnntrain.training.forward import OnBatch, needs_of
from gnntrain.training.metrics import Metrics, compute_metrics
from gnntrain.training.scratch import Scratch

SPLITS = ("train", "val", "test")
SplitMetrics = dict[str, Metrics]

# One chunk of layer-wise inference: bounds what is held beside the activations themselves.
_MAX_CHUNK_NUMBERS = 1 << 20  # rows × width: 4 MiB of float32
_MAX_CHUNK_EDGES = 1 << 20

# What a row costs in layer-wise inference beside its edges, counted in edges.
_ROW_COST = 16


class Evaluator(Protocol):
    """Gives the metrics of a model on every split."""

    def evaluate(self, model: GNN | PlainModel) -> SplitMetrics:
        """Collective: all ranks call it, and all get the same answer.

        Raises:
            Interrupted: On all ranks, where the run was asked to stop meanwhile.
        """
        ...


class LayerwiseEvaluator:
    """Exact evaluation: every layer for all nodes, over all in-neighbours, before the next.

    A rank computes its share of the destination nodes, chunk by chunk; the ranks of a machine
    write into one shared copy of a layer's activations. Beside two such matrices (three where a
    model transforms rows before it aggregates) it holds no more than a chunk.

    Args:
        all_ranks: Share the nodes out over all ranks, or let rank 0 compute alone.
    """

    def __init__(
        self,
        store: GraphStore,
        features: FeatureSource,
        context: DistributedContext,
        scratch: Scratch,
        *,
        all_ranks: bool = True,
    ) -> None:
        self._store = store
        self._features = features
        self._context = context
        self._scratch = scratch
        self._norm_on_device: Tensor | None = None
        if all_ranks:
            self._rows = balanced_range(store.indptr, context.rank, context.world_size)
        else:
            self._rows = (0, store.num_nodes if context.is_main else 0)

    def evaluate(self, model: GNN | PlainModel) -> SplitMetrics:
        """See `Evaluator.evaluate`; `model` is a `GNN`."""
        assert isinstance(model, GNN)
        logits = self.logits(model)
        metrics: SplitMetrics = {}
        if self._context.is_main:
            for split in SPLITS:
                nodes = self._store.split(split)
                labels = torch.from_numpy(self._store.labels[nodes])
                metrics[split] = _metrics(self._store, logits[share(nodes)], labels)
        # Between evaluations the memory is the training's.
        self._scratch.release()
        return self._context.broadcast(metrics)

    @torch.no_grad()
    def logits(self, model: GNN) -> Tensor:
        """float32 `[num_nodes, num_outputs]` on the CPU, shared by all ranks. Collective.

        Belongs to the caller until the next call.
        """
        was_training = model.training
        model.eval()
        try:
            return self._by_layer(model) if model.uses_graph else self._by_row(model)
        finally:
            model.train(was_training)

    def _by_row(self, model: GNN) -> Tensor:
        out = self._matrix("logits", self._store.num_outputs)
        for start, stop in self._chunks(model):
            rows = self._features.named().read(start, stop)
            out[start:stop] = model(self._on_device(rows), ()).cpu()
        self._context.meet()
        return out

    def _by_layer(self, model: GNN) -> Tensor:
        start, stop = self._rows
        source: StoredRows | Tensor = self._features.named()
        readout = model.readout_start(stop - start) if model.state_channels else None
        for i in range(model.num_layers):
            is_last = i == model.num_layers - 1
            given = self._given(model, i, source)
            if is_last:
                target = self._matrix("logits", self._store.num_outputs)
            else:
                target = self._matrix(f"h{i % 2}", model.hidden_channels)
            for a, b in self._chunks(model):
                h = self._layer(model, i, source, given, a, b)
                if readout is not None:
                    state = readout[a - start : b - start]
                    state[:] = model.readout_add(i, state, h)
                    h = state if is_last else h
                target[a:b] = (model.readout(h) if is_last else h).cpu()
            self._context.meet()
            source = target
            del given
            self._scratch.release("z")
        return target

    def _layer(
        self,
        model: GNN,
        i: int,
        source: StoredRows | Tensor,
        given: StoredRows | Tensor,
        a: int,
        b: int,
    ) -> Tensor:
        """Layer `i`'s output for the nodes `a … b − 1`."""
        needs = replace(needs_of(model), norm=False)
        block = whole_graph_block(self._store, needs, a, b).to(self._context.device)
        block = replace(block, norm=self._norm(model))
        if not model.has_transform(i):
            return model.layer(i, given, block)
        assert isinstance(given, Tensor)
        h_dst = self._input(model, i, source, a, b)
        return model.finish(i, model.combine(i, given, h_dst, given[a:b], block), h_dst)

    def _given(self, model: GNN, i: int, source: StoredRows | Tensor) -> StoredRows | Tensor:
        """What layer `i` aggregates, for all nodes: on this rank's device, or stored rows."""
        if model.has_transform(i):
            width = model.transform(i, self._input(model, i, source, 0, 0)).shape[1]
            z = self._matrix("z", width)
            for a, b in self._chunks(model):
                z[a:b] = model.transform(i, self._input(model, i, source, a, b)).cpu()
            self._context.meet()
            return self._on_device(z)
        if isinstance(source, Tensor):
            return self._on_device(source)
        return source if model.reads_rows else model.start(self._on_device(source.whole()))

    def _input(self, model: GNN, i: int, source: StoredRows | Tensor, a: int, b: int) -> Tensor:
        """What layer `i` gets for the nodes `a … b − 1`."""
        rows = source[a:b] if isinstance(source, Tensor) else source.read(a, b)
        rows = self._on_device(rows)
        return model.start(rows) if i == 0 else rows

    def _norm(self, model: GNN) -> Tensor | None:
        """The normalisation of all nodes on this rank's device, moved there once."""
        if not model.uses_norm:
            return None
        if self._norm_on_device is None:
            self._norm_on_device = self._on_device(share(self._store.gcn_norm))
        return self._norm_on_device

    def _chunks(self, model: GNN) -> Iterator[tuple[int, int]]:
        widest = max(self._features.num_features, model.hidden_channels, model.out_channels, 1)
        max_rows = max(1, _MAX_CHUNK_NUMBERS // widest)
        # A rank that sees that the run is to stop leaves the rest, and tells it where all meet.
        board = self._context.board
        return takewhile(
            lambda _: not board.stop_asked, chunks(self._store.indptr, *self._rows, max_rows)
        )

    def _matrix(self, name: str, num_columns: int) -> Tensor:
        return self._scratch.matrix(name, self._store.num_nodes, num_columns)

    def _on_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._context.device)


class SampledEvaluator:
    """Metrics from mini-batches: every node of a split once, each with a sampled neighbourhood.

    With fan-outs of −1 it is exact, if slow.

    Args:
        loaders: By split. They share each batch out over the ranks that take part.
    """

    def __init__(
        self,
        store: GraphStore,
        loaders: Mapping[str, Loader],
        context: DistributedContext,
    ) -> None:
        self._store = store
        self._loaders = loaders
        self._context = context

    def evaluate(self, model: GNN | PlainModel) -> SplitMetrics:
        """See `Evaluator.evaluate`."""
        module = OnBatch(model)
        was_training = model.training
        model.eval()
        try:
            return self._context.broadcast(
                {split: self._split(module, self._loaders[split]) for split in SPLITS}
            )
        finally:
            model.train(was_training)

    @torch.no_grad()
    def _split(self, module: OnBatch, loader: Loader) -> Metrics:
        """The split's metrics on rank 0, none elsewhere."""
        logits: list[Tensor] = []
        labels: list[Tensor] = []
        # A rank that does not take part has its plan, but draws nothing.
        idle = loader.plan.world_size == 1 and not self._context.is_main
        loader.set_epoch(0)
        for batch in () if idle else loader:
            if self._context.board.stop_asked:
                break
            if batch.num_counted:
                logits.append(module(batch.to(self._context.device)).float().cpu())
                labels.append(batch.y.cpu())
        self._context.meet()
        parts = self._context.gather_to_main(list(zip(logits, labels, strict=True)))
        batches = [batch for part in parts for batch in part]
        if not batches:
            return {}
        return _metrics(
            self._store, torch.cat([b for b, _ in batches]), torch.cat([b for _, b in batches])
        )


def balanced_range(indptr: Int64Array, rank: int, world_size: int) -> tuple[int, int]:
    """The contiguous nodes that `rank` computes, so that all ranks have equal work.

    A node's work is taken as its in-edges plus a constant for its own row.
    """
    num_nodes = len(indptr) - 1
    total = int(indptr[-1]) + _ROW_COST * num_nodes

    def boundary(part: int) -> int:
        wanted = total * part // world_size
        key = lambda node: int(indptr[node]) + _ROW_COST * node  # noqa: E731
        return bisect_left(range(num_nodes + 1), wanted, key=key)

    return boundary(rank), boundary(rank + 1)


def chunks(indptr: Int64Array, start: int, stop: int, max_rows: int) -> Iterator[tuple[int, int]]:
    """Cut the nodes `start … stop − 1` into ranges of bounded rows and edges, one node at least."""
    while start < stop:
        limit = int(indptr[start]) + _MAX_CHUNK_EDGES
        end = int(np.searchsorted(indptr[start + 1 : stop + 1], limit, side="right")) + start
        end = min(max(end, start + 1), start + max_rows)
        yield start, end
        start = end


def _metrics(store: GraphStore, logits: Tensor, labels: Tensor) -> Metrics:
    return compute_metrics(logits, labels, store.task, store.metric, store.ogb_name)
