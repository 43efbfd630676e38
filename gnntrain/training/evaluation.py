"""Exact metrics over splits, layer by layer over all neighbours; or sampled ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from gnntrain.compute.features import LazyFeatures, as_tensor
from gnntrain.data.graph import AnyArray, Graph
from gnntrain.devices import float_type
from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.features import stored_rows
from gnntrain.loading.graph import in_edges
from gnntrain.loading.loader import Loader
from gnntrain.models import GNN, AnyModel
from gnntrain.sampling.block import Block
from gnntrain.tasks import Columns, NodeClassification, Task
from gnntrain.training.buffers import Buffers
from gnntrain.training.forward import OnBatch
from gnntrain.training.layerwise import (
    LayerwiseInference,
    Rows,
    RowSource,
    View,
    balanced_range,
    chunks,
    most_gathered,
)
from gnntrain.training.split_metrics import marked

if TYPE_CHECKING:
    import pandas as pd

    from gnntrain.loading.graph import GraphTensors

SPLITS = ("train", "val", "test")
SplitMetrics = dict[str, dict[str, float]]
"""Metrics by split and by name; and `CONSTANT`."""


class Evaluator(Protocol):
    """Gives the metrics of a model on every split."""

    def evaluate(self, model: AnyModel) -> SplitMetrics:
        """The metrics by split, equal on all ranks. Collective.

        Raises:
            Interrupted: On all ranks, if a stop was requested meanwhile.
        """
        ...


def why_estimated(evaluator: Evaluator) -> str:
    """Why the metrics are not those of the model over the whole graph; "" if they are."""
    return str(getattr(evaluator, "estimated", ""))


@dataclass(frozen=True, slots=True)
class Inferred:
    """A model's outputs for every node (of a typed graph: of the target type), on the CPU.

    Numbers are tensors; texts, which tensors cannot hold, are NumPy arrays.

    Attributes:
        task: The task, which says what the outputs mean.
        graph: The graph.
        outputs: float32 `[num_nodes, num_outputs]`, as the model gives them.
        embeddings: float32 `[num_nodes, embedding_channels]`, the rows that enter the model's last
            layer (of a single layer the features, as they are stored); None: not kept.
    """

    task: Task
    graph: Graph
    outputs: Tensor
    embeddings: Tensor | LazyFeatures | None = None

    def columns(self, what: str | None = None) -> Columns:
        """The columns of `predict --what`; None: of its default."""
        kinds = self.task.predictions()
        return kinds[what or next(iter(kinds))]()

    @property
    def ids(self) -> Any:
        """The nodes' ids as their user gave them, or their numbers: `[num_nodes]`."""
        return _tensor(self.graph.ids_of(np.arange(len(self.outputs))))

    @property
    def predictions(self) -> Any:
        """The most probable class of each node, as the labels call it: `[num_nodes]`; of several
        labels 0 or 1 for each: `[num_nodes, num_labels]`. Of a regression the quantity in the
        targets' units: `[num_nodes]`, or `[num_nodes, num_targets]`."""
        values = self.columns().columns[0].values(self.outputs)
        is_one_quantity = not self._has_logits and values.shape[1:] == (1,)
        return _tensor(values[:, 0] if is_one_quantity else values)

    @property
    def logits(self) -> Tensor:
        """The outputs of a classification: a column a class, but of two classes a single one, the
        second class's."""
        self._refuse_regression("logits")
        return self.outputs

    @property
    def probabilities(self) -> Tensor:
        """float32 `[num_nodes, num_classes]`: a column for each of `classes`."""
        self._refuse_regression("probabilities")
        return as_tensor(self.columns("probabilities").columns[0].values(self.outputs))

    @property
    def classes(self) -> Any:
        """The classes, or labels, as the user calls them: `[num_classes]`."""
        self._refuse_regression("classes")
        return _tensor(self.columns("probabilities").notes["class_names"])

    def to_pandas(self) -> pd.DataFrame:
        """A row a node: the table that `predict` writes."""
        import pandas as pd

        table = {"node": self.graph.ids_of(np.arange(len(self.outputs)))}
        for column in self.columns().columns:
            values = column.values(self.outputs)
            parts = values.T if column.titles else [values]
            table |= zip(column.titles or [column.name], parts, strict=True)
        return pd.DataFrame(table)

    @property
    def _has_logits(self) -> bool:
        return "logits" in self.task.predictions()

    def _refuse_regression(self, name: str) -> None:
        if not self._has_logits:
            raise AttributeError(
                f"A regression has no {name}: its quantities are in `predictions`, in the targets' "
                "units."
            )


def _tensor(values: AnyArray) -> Tensor | AnyArray:
    return values if values.dtype.kind == "U" else as_tensor(values)


class LayerwiseEvaluator(LayerwiseInference):
    """Exact evaluation of a graph that each machine has, in whole.

    The nodes are divided among all ranks; after a layer machines exchange their rows.

    Args:
        store: The graph.
        context: This rank.
        buffers: Allocates the matrices, for all nodes.
        task: Seeds, targets and metrics; None: classifying the nodes by the store's labels.
        all_ranks: Divide the nodes among all ranks, or let rank 0 compute alone.
        features: The rows of all nodes, perhaps some on other machines; None: the store's pages.
        graph: The edges on the device; None: the store's.
    """

    def __init__(
        self,
        store: Graph,
        context: DistributedContext,
        buffers: Buffers,
        *,
        task: Task | None = None,
        all_ranks: bool = True,
        features: LazyFeatures | RowSource | None = None,
        graph: GraphTensors | None = None,
    ) -> None:
        self._store = store
        self._task = task or NodeClassification(store)
        self._stored = LazyFeatures(next(iter(stored_rows(store).values())))
        self._graph = graph
        self._norm_on_device: Tensor | None = None
        size, rank = context.world_size if all_ranks else 1, context.rank
        self._ranges = [balanced_range(store.indptr, part, size) for part in range(size)]
        self._rows = self._ranges[rank] if rank < size else (0, 0)
        # If rank 0 computes alone, nothing reads the rows on another machine.
        is_read = all_ranks or context.machine == 0
        super().__init__(
            context,
            buffers,
            self._stored if features is None else features,
            store.num_features,
            nodes=range(store.num_nodes if is_read else 0),
        )

    def evaluate(self, model: AnyModel) -> SplitMetrics:
        """See `Evaluator.evaluate`; `model` is a `GNN`."""
        assert isinstance(model, GNN)
        logits, _ = self._inferred(model)
        metrics = metrics_of(self._task, logits) if self._context.is_main else {}
        del logits
        # Between evaluations training uses the memory.
        self.buffers.release()
        return self._context.broadcast(metrics)

    def infer(self, model: AnyModel, *, embed: bool = False) -> Inferred:
        """The outputs of a `GNN` for every node, on all ranks. Collective.

        The result is valid until the next call. If rank 0 computes alone, it is empty on the other
        machines.

        Args:
            embed: Keep the rows that enter the last layer, too.
        """
        assert isinstance(model, GNN)
        logits, rows = self._inferred(model, embed=embed)
        if rows is not None:
            rows = rows.cpu() if isinstance(rows, Tensor) else self._stored
        return Inferred(self._task, self._store, logits.cpu(), rows)

    def _all_chunks(self, widest: int) -> Iterator[tuple[int, int]]:
        max_rows, max_edges = self.buffers.chunk_limits(widest)
        if not isinstance(self._features, LazyFeatures):
            max_edges = min(max_edges, most_gathered(widest))
        return chunks(self._store.indptr, *self._rows, max_rows, max_edges)

    def _view(self, model: GNN, i: int, given: Rows, a: int, b: int) -> View:
        # Rows that the device can read are not gathered: the block numbers all nodes.
        if isinstance(given, LazyFeatures) and not model.needs.rows:
            return super()._view(model, i, given, a, b)
        if isinstance(given, Tensor | LazyFeatures) and self._is_here(given):
            norm = self._norm() if model.needs.norm else None
            return replace(self._in_edges(model, a, b), norm=norm), given
        return super()._view(model, i, given, a, b)

    def _is_here(self, rows: Tensor | LazyFeatures) -> bool:
        # Not the devices as such: "cuda" and "cuda:0" are the same one, but not equal.
        return rows.device.type == self._context.device.type

    def _in_edges(self, model: GNN, a: int, b: int) -> Block:
        needs, graph, device = model.needs, self._graph, self._context.device
        first, last = int(self._store.indptr[a]), int(self._store.indptr[b])
        if graph is None:
            store = self._store
            weight = store.edge_weight if needs.weight else None
            block = in_edges(store.indptr, store.indices, weight, a, b)
            return replace(block, num_src=store.num_nodes, dst_offset=a).to(device)
        block = graph.only_edges.in_edges(a, b, (first, last)).to(device, non_blocking=True)
        return block if needs.weight else replace(block, weight=None)

    def _norm_of(self, nodes: Tensor) -> Tensor:
        return self._norm()[nodes]

    def _norm(self) -> Tensor:
        """The normalisation of all nodes on this rank's device, moved there once."""
        if self._norm_on_device is None:
            norm = as_tensor(self._store.gcn_norm)
            self._norm_on_device = norm.to(self._context.device)
        return self._norm_on_device

    def _finished(self, name: str, matrix: Tensor) -> Tensor:
        del name
        self._context.meet()
        self.buffers.sync(matrix, self._ranges)
        return matrix


def metrics_of(task: Task, outputs: Tensor) -> SplitMetrics:
    """The metrics of all splits.

    Args:
        task: Seeds, targets and metrics.
        outputs: float32 `[num_nodes, num_outputs]`, of all nodes.
    """
    metrics: SplitMetrics = {}
    for split in SPLITS:
        rows = as_tensor(task.examples(split))
        found = outputs[rows.to(outputs.device)]
        if float_type(found.device) != torch.float64:  # in which metrics compute
            found = found.cpu()
        values = task.metrics(found, task.targets[rows].to(found.device))
        metrics[split] = marked(values, found)
    return metrics


class SampledEvaluator:
    """Metrics from mini-batches: every node of a split once, each with a sampled neighbourhood.

    Args:
        task: Targets and metrics.
        loaders: By split. They divide each batch among the ranks that take part.
        estimated: See `why_estimated`.
    """

    def __init__(
        self,
        task: Task,
        loaders: Mapping[str, Loader],
        context: DistributedContext,
        *,
        estimated: str = "",
    ) -> None:
        self._task = task
        self.loaders = loaders
        self.estimated = estimated
        self._context = context

    def evaluate(self, model: AnyModel) -> SplitMetrics:
        """See `Evaluator.evaluate`."""
        module = OnBatch(model)
        was_training = model.training
        model.eval()
        try:
            return self._context.broadcast(
                {split: self._split(module, self.loaders[split]) for split in SPLITS}
            )
        finally:
            model.train(was_training)

    @torch.no_grad()
    def _split(self, module: OnBatch, loader: Loader) -> dict[str, float]:
        """The split's metrics on rank 0; empty on other ranks."""
        outputs: list[Tensor] = []
        targets: list[Tensor] = []
        # A rank that does not take part has a plan, but samples nothing.
        idle = loader.plan.world_size == 1 and not self._context.is_main
        loader.set_epoch(0)
        for batch in () if idle else loader:
            if self._context.control.stop_requested:
                break
            if batch.num_counted:
                outputs.append(module(batch.to(self._context.device)).float().cpu())
                targets.append(batch.y.cpu())
        self._context.meet()
        parts = self._context.gather_to_main(list(zip(outputs, targets, strict=True)))
        batches = [batch for part in parts for batch in part]
        if not batches:
            return {}
        whole, labels = map(torch.cat, zip(*batches, strict=True))
        return marked(self._task.metrics(whole, labels), whole)
