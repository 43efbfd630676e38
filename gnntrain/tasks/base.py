"""The seam between what is learnt and everything else: trainer, loaders, evaluators, `predict`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from gnntrain.data.graph import AnyArray, Int64Array
from gnntrain.metrics import Metric


@dataclass(frozen=True)
class Column:
    """What `predict` writes of each node (or edge): a value, or a row of values.

    Attributes:
        name: Of the array in an npz file.
        dtype: Of its values; of texts, as wide as the longest.
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
        columns: The first is all that an npy file holds.
        notes: Small arrays that an npz file holds as well, such as the classes' names.
    """

    columns: Sequence[Column]
    notes: Mapping[str, AnyArray] = field(default_factory=dict)


class Task(Protocol):
    """What is learnt from a graph and how it is judged.

    The model gives `num_outputs` numbers a seed, the outputs; a target is what they should say.
    """

    @property
    def metric(self) -> Metric:
        """The metric that decides which epoch is the best."""
        ...

    @property
    def num_outputs(self) -> int:
        """Width of the model's last layer."""
        ...

    def seeds(self, split: str) -> Int64Array:
        """The seeds of "train", "val" or "test": int64 `[n]`, node ids."""
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

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """The metrics of one split by name, the deciding one first; empty where nothing has a
        target.

        Args:
            outputs: float32 `[n, num_outputs]`, on the CPU or a GPU.
            targets: Rows of `targets`, on the same device.
        """
        ...

    def predictions(self) -> Mapping[str, Callable[[], Columns]]:
        """What `predict` can write of the outputs, by the word that asks for it."""
        ...

    def warnings(self) -> list[str]:
        """A sentence for each surprise about seeds and targets; told once, when a run begins."""
        ...
