"""Random splits of a user's graph, by `dataset.split_ratio` and related keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gnntrain.data.graph import SPLITS, AnyArray, Int64Array
from gnntrain.data.summary import split_sizes
from gnntrain.data.targets import draw_split
from gnntrain.errors import UserError
from gnntrain.metrics import LabelKind

if TYPE_CHECKING:
    from gnntrain.config import FilesConfig

_NUM_BINS = 10


@dataclass(frozen=True)
class Splits:
    """The nodes of the splits.

    Attributes:
        nodes: Sorted node ids of "train", "val" and "test".
        phrase: See `DataSummary.split`.
    """

    nodes: Mapping[str, Int64Array]
    phrase: str


def no_splits() -> Splits:
    """Splits of a graph to predict on only: they are empty."""
    return Splits({name: np.empty(0, np.int64) for name in SPLITS}, "")


def drawn_splits(
    labels: AnyArray, task: LabelKind, nodes: Int64Array, config: FilesConfig
) -> Splits:
    """Splits that are drawn from the nodes that have a label.

    Args:
        labels: See `GraphData.labels`.
        task: Kind of labels.
        nodes: The nodes that have a label.
        config: Ratio, seed and number of the split, and whether it is stratified.

    Raises:
        UserError: The split is to be stratified, and a node has several labels.
    """
    number = config.split if isinstance(config.split, int) else 0
    strata, within = _strata(labels[nodes], task) if config.stratify else (None, "")
    splits = draw_split(nodes, config.split_ratio, config.split_seed, number, strata)
    ratio = "/".join(f"{100 * share:g}" for share in config.split_ratio)
    how = f"drawn at random{within}: {ratio}, seed {config.split_seed}, number {number}"
    return Splits(splits, f"{how}; {split_sizes(splits)}")


def _strata(labels: AnyArray, task: LabelKind) -> tuple[AnyArray, str]:
    """The strata: classes, or deciles of a quantity.

    Raises:
        UserError: A node has several labels.
    """
    if labels.ndim == 1:
        return labels, " within each class"
    if task != "continuous" or labels.shape[1] > 1:
        raise UserError(
            f"dataset.stratify=true: a node has {labels.shape[1]} labels, and the split can be "
            "alike in one only.",
            "Leave dataset.stratify=false.",
        )
    bounds = np.quantile(labels[:, 0], np.arange(1, _NUM_BINS) / _NUM_BINS)
    return np.searchsorted(bounds, labels[:, 0], side="right"), " within each tenth of the quantity"
