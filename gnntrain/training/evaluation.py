"""Metrics of splits; exact ones are computed from `gnntrain.training.layerwise`'s outputs."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.data.graph import SPLITS, AnyArray, Graph
from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.loader import Loader
from gnntrain.models import AnyModel
from gnntrain.tasks import Columns, Task
from gnntrain.tasks.base import ComputedRows, SplitSlice
from gnntrain.training.forward import OnBatch, evaluating

if TYPE_CHECKING:
    import pandas as pd

_log = logging.getLogger("gnntrain")

SplitMetrics = dict[str, dict[str, float]]
"""Metrics by split and by name; and `CONSTANT`."""

CONSTANT = "constant_outputs"
"""Stands among a split's metrics where a model gives all of its nodes the same outputs."""

# Of equal rows float32 makes these differences: in other chunks a product adds in another order.
_ROUNDING = 1e-6


class Evaluator(ABC):
    """Gives the metrics of a model on every split.

    Attributes:
        estimated: Why the metrics are not those of the model over the whole graph; "" if they are.
            Known after the first evaluation.
        memory_hint: The keys to lower if an evaluation runs out of memory.
    """

    estimated = ""

    @property
    def memory_hint(self) -> str:
        return "Lower evaluation.batch_size or evaluation.fan_outs."

    @abstractmethod
    def evaluate(self, model: AnyModel) -> SplitMetrics:
        """The metrics by split, equal on all ranks; `Interrupted` on all ranks, if a stop was
        requested meanwhile. Collective."""

    def infer(self, model: AnyModel, *, embed: bool = False) -> Inferred:
        """The outputs for every node, by an exact evaluator. Collective."""
        raise NotImplementedError


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
        return torch.from_numpy(self.columns("probabilities").columns[0].values(self.outputs))

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
    return values if values.dtype.kind == "U" else torch.from_numpy(values)


def exact_metrics(
    task: Task, computed: Sequence[ComputedRows], context: DistributedContext
) -> SplitMetrics:
    """The metrics of all splits, equal on all ranks; one rank computes a node. Collective."""
    return context.broadcast(
        {
            split: split_metrics(task, task.judge(split, computed, context), context)
            for split in SPLITS
        }
    )


def split_metrics(
    task: Task, slices: Iterable[SplitSlice], context: DistributedContext
) -> dict[str, float]:
    """The metrics of a split on rank 0, those of `Task.reported`, and `CONSTANT` where all outputs
    are equal; empty on other ranks. All ranks have equally many slices. Collective.

    A metric with `counts` takes memory for a slice. For others rank 0 collects all outputs and
    targets of the split, in its order.
    """
    counts = {m.name: m.counts for m in task.reported if m.counts is not None}
    collects = len(counts) < len(task.reported)

    total: dict[str, Any] = {}
    ends: list[Tensor] = []  # the least and the largest outputs so far
    collected: list[SplitSlice] = []
    for part in slices:
        outputs, targets = task.metric_inputs(part.outputs, part.targets)
        if len(targets):
            for name, counted in counts.items():
                total[name] = total.get(name, 0) + counted(outputs, targets)
        if len(part.outputs):
            rows = torch.cat([*ends, part.outputs])
            ends = [torch.stack(rows.aminmax(dim=0))[: len(rows)]]
        if collects and (everyone := context.gather_to_main(part)):
            positions, *columns = map(torch.cat, zip(*everyone, strict=True))
            order = positions.argsort(stable=True)
            collected.append(
                SplitSlice(positions, *(rows[order.to(rows.device)] for rows in columns))
            )
    of_ranks = context.gather_to_main((total, ends))
    if not of_ranks:
        return {}
    totals = [of_rank for of_rank, _ in of_ranks if of_rank]
    total = {name: sum(of_rank[name] for of_rank in totals) for name in counts if totals}
    whole: tuple[Tensor, Tensor] | None = None
    if collected:
        _, outputs, targets = map(torch.cat, zip(*collected, strict=True))
        whole = task.metric_inputs(outputs, targets)
    values: dict[str, float] = {}
    for metric in task.reported:
        if metric.counts is None and whole is not None and len(whole[1]):
            values[metric.name] = metric.compute(*whole)
        elif metric.counts is not None and total:
            values[metric.name] = metric.function(total[metric.name])
    every_end = [rows for _, found in of_ranks for rows in found]
    if values and sum(map(len, every_end)) > 1:
        low, high = torch.cat(every_end).aminmax(dim=0)
        size = torch.maximum(low.abs(), high.abs()).clamp(min=1)
        if bool((high - low <= _ROUNDING * size).all()):
            values[CONSTANT] = 1.0
    return values


def take_marks(metrics: Mapping[str, dict[str, float]]) -> tuple[str, ...]:
    """The splits whose metrics are marked with `CONSTANT`, which is removed."""
    return tuple(split for split, found in metrics.items() if found.pop(CONSTANT, 0))


def warn_of_constant(splits: Sequence[str], epoch: int) -> None:
    """Warn that the model of an epoch gives all nodes of these splits the same outputs."""
    _log.warning(
        "The model of epoch %d gives all nodes of %s the same outputs: it tells none apart. Try a "
        "lower trainer.lr, another model.norm or model.activation; or are all features equal?",
        epoch,
        ", ".join(splits),
    )


class SampledEvaluator(Evaluator):
    """Metrics from mini-batches: every node of a split once, each with a sampled neighbourhood.

    The loader of each split divides each batch among the ranks that take part.
    """

    def __init__(
        self,
        task: Task,
        loaders: Mapping[str, Loader],
        context: DistributedContext,
        *,
        estimated: str = "",
    ) -> None:
        self.loaders, self.estimated = loaders, estimated
        self._task, self._context = task, context

    def evaluate(self, model: AnyModel) -> SplitMetrics:
        module = OnBatch(model)
        with evaluating(model):
            return self._context.broadcast(
                {split: self._split(module, self.loaders[split]) for split in SPLITS}
            )

    def _split(self, module: OnBatch, loader: Loader) -> dict[str, float]:
        """The split's metrics on rank 0; empty on other ranks."""
        found: list[SplitSlice] = []
        # A rank that does not take part has a plan, but samples nothing.
        idle = loader.plan.world_size == 1 and not self._context.is_main
        loader.set_epoch(0)
        for batch in () if idle else loader:
            if self._context.control.stop_requested:
                break
            if batch.num_counted:
                outputs = module(batch).float().cpu()
                targets = batch.y.cpu()
                found.append(SplitSlice(torch.arange(len(outputs)), outputs, targets))
        self._context.meet()
        return split_metrics(self._task, [SplitSlice.joined(found, self._task)], self._context)
