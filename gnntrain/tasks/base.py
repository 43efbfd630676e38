"""The interface of tasks to trainer, loaders, evaluators and `predict`; and tasks of nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from gnntrain.data.graph import AnyArray, Graph, Int64Array
from gnntrain.devices import float_type
from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.graph import BatchValues, node_seeds
from gnntrain.metrics import LabelKind, Metric
from gnntrain.sampling.base import SampleKey, Seeds

# Bounds the outputs of a slice of a split: 16 MiB of float32.
_MAX_SLICE_NUMBERS = 1 << 22
_NUM_SHOWN = 5


class Labels(Protocol):
    """What nodes are to be predicted by; a graph and the signature of a trained model have it.

    Attributes:
        task: The kind of labels.
        metric: Name of the deciding metric.
        num_classes: Number of classes, of labels, or of the targets of a regression.
        class_names: As the user calls them; None: they have no names.
    """

    @property
    def task(self) -> LabelKind: ...
    @property
    def metric(self) -> str: ...
    @property
    def num_classes(self) -> int: ...
    @property
    def class_names(self) -> Sequence[str] | Sequence[int] | None: ...


@dataclass(frozen=True)
class Column:
    """A column of `predict`'s output: for each node (or edge) a value, or a row of values.

    Attributes:
        name: Name of the array in an npz file.
        dtype: Type of its values; for texts, as wide as the longest.
        values: From float32 outputs `[n, num_outputs]` on the CPU to `[n]`, or `[n, len(titles)]`.
        titles: Titles of a matrix's columns in a table; empty: one value a node.
    """

    name: str
    dtype: np.dtype[Any]
    values: Callable[[Tensor], AnyArray]
    titles: Sequence[str] = ()


@dataclass(frozen=True)
class Columns:
    """One kind of prediction.

    Attributes:
        columns: The columns; an npy file holds the first only.
        notes: Further small arrays of an npz file, such as the classes' names.
    """

    columns: Sequence[Column]
    notes: Mapping[str, AnyArray] = field(default_factory=dict)


class ComputedRows(NamedTuple):
    """The outputs of consecutive nodes, which one rank has computed.

    Attributes:
        nodes: The nodes.
        outputs: `[len(nodes), num_outputs]`.
        targets: Their rows of `Task.targets`.
    """

    nodes: range
    outputs: Tensor
    targets: Tensor


class SplitSlice(NamedTuple):
    """A rank's examples of a slice of a split, with their outputs and targets.

    Attributes:
        positions: Of the rank's examples in the slice, int64 `[n]`.
        outputs: float32 `[n, num_outputs]`.
        targets: Their rows of `Task.targets`.
    """

    positions: Tensor
    outputs: Tensor
    targets: Tensor

    @classmethod
    def joined(cls, slices: Sequence[SplitSlice], task: Task | NodeTask) -> SplitSlice:
        """Some slices as one; of none that of no example."""
        if slices:
            return cls(*map(torch.cat, zip(*slices, strict=True)))
        none = torch.empty(0, dtype=torch.int64)
        return cls(none, torch.empty(0, task.num_outputs), task.targets[:0])


class Task(Protocol):
    """A learning task on a graph: examples, seeds, targets, loss, metrics.

    The outputs are the model's `num_outputs` numbers a seed; the loss compares them with a target.
    """

    @property
    def metric(self) -> Metric:
        """The metric that decides which epoch is the best."""
        ...

    @property
    def num_outputs(self) -> int:
        """Width of the model's last layer."""
        ...

    def examples(self, split: str) -> Int64Array:
        """The examples of "train", "val" or "test": node ids, int64 `[n]`, or rows `[n, …]`."""
        ...

    def seeds(self, examples: Int64Array, key: SampleKey, values: BatchValues) -> Seeds:
        """The nodes whose outputs some examples need, and their targets: a function of these
        arguments alone, in any thread.

        Args:
            examples: Of a rank in a step.
            key: Of the step, for what the task draws itself.
            values: Gives targets of nodes, which other machines may hold.
        """
        ...

    @property
    def head(self) -> nn.Module | None:
        """Part of the model: takes the model's rows of the seeds and `Seeds.pairs`, returns the
        outputs of the examples. None: an example is a seed, and its output the model's."""
        ...

    def in_words(self, examples: Int64Array) -> str:
        """The first examples as the user calls them, as in "nodes a, b, ..."."""
        ...

    @property
    def targets(self) -> Tensor:
        """The targets by seed id, `[num_nodes, ...]` on the CPU; may be mapped from disk.

        Those of a mini-batch's seeds become its `y`.
        """
        ...

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss, a float32 scalar: the sum over the seeds of a mini-batch.

        The trainer divides by the seeds of all ranks. Called under autocast and inside a CUDA
        graph, so it must not wait for the device.

        Args:
            outputs: `[n, num_outputs]`, of any float type.
            targets: Rows of `targets`, on the same device.
        """
        ...

    @property
    def reported(self) -> Sequence[Metric]:
        """The metrics of a split, the deciding one first."""
        ...

    def judge(
        self, split: str, computed: Sequence[ComputedRows], context: DistributedContext
    ) -> Iterator[SplitSlice]:
        """This rank's share of a split's examples, slice by slice; equally many slices on all
        ranks, which may call collectives.

        Args:
            split: "train", "val" or "test".
            computed: The model's outputs for the nodes that this rank has computed.
            context: This rank.
        """
        ...

    def metric_inputs(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and targets as the metrics take them, of the seeds that have a target."""
        ...

    def predictions(self) -> Mapping[str, Callable[[], Columns]]:
        """The columns of `predict`, by the value of `--what`."""
        ...

    def warnings(self) -> list[str]:
        """Warnings about seeds and targets; logged once, at the start of a run."""
        ...


class NodeTask:
    """Examples are nodes, an example's output is the model's; see `Task`.

    Args:
        graph: Nodes, splits and labels.
        num_outputs: See `Task.num_outputs`.
    """

    head = None
    seeds = staticmethod(node_seeds)

    def __init__(self, graph: Graph, num_outputs: int) -> None:
        self._graph = graph
        self.num_outputs = num_outputs

    def examples(self, split: str) -> Int64Array:
        """The nodes of a split, int64 `[n]`."""
        return self._graph.split(split)

    def in_words(self, examples: Int64Array) -> str:
        """See `Graph.in_words`."""
        return self._graph.in_words(examples)

    @property
    def targets(self) -> Tensor:
        """See `Task.targets`: the graph's labels."""
        return torch.from_numpy(self._graph.labels)

    def judge(
        self, split: str, computed: Sequence[ComputedRows], context: DistributedContext
    ) -> Iterator[SplitSlice]:
        """See `Task.judge`: each node is judged by the rank that has computed it."""
        seeds = self.examples(split)
        size = max(1, _MAX_SLICE_NUMBERS // self.num_outputs)
        for start in range(0, len(seeds), size):
            nodes = np.asarray(seeds[start : start + size])
            found: list[SplitSlice] = []
            for part in computed:
                is_here = (nodes >= part.nodes.start) & (nodes < part.nodes.stop)
                rows = torch.from_numpy(nodes[is_here] - part.nodes.start)
                of_part = part.outputs[rows.to(part.outputs.device)]
                # Metrics compute in float64; only what lies in host memory is gathered.
                if context.world_size > 1 or float_type(of_part.device) != torch.float64:
                    of_part = of_part.cpu()
                positions = torch.from_numpy(np.flatnonzero(is_here))
                targets = part.targets[rows].to(of_part.device)
                found.append(SplitSlice(positions, of_part, targets))
            yield SplitSlice.joined(found, self)


def listed(names: Sequence[str]) -> str:
    """The first names, for a warning."""
    return ", ".join(names[:_NUM_SHOWN]) + (", …" if len(names) > _NUM_SHOWN else "")
