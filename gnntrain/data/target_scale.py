"""Mean and standard deviation of a graph's quantities, by which a regression scales its targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from gnntrain.data.graph import Graph


@dataclass(frozen=True)
class TargetScale:
    """How standardised targets become quantities in the user's units: `value * std + mean`.

    Attributes:
        mean: Mean of each target over the training nodes that have it; 0 without such a node.
        std: Standard deviation likewise; 1 for a target that does not vary.
    """

    mean: list[float]
    std: list[float]

    @classmethod
    def of(cls, graph: Graph) -> TargetScale:
        """The scale of a graph's quantities, over its training nodes alone."""
        targets = np.asarray(graph.labels[graph.split("train")], np.float64)
        columns = [column[~np.isnan(column)] for column in targets.T]
        return cls(
            mean=[float(column.mean()) if len(column) else 0.0 for column in columns],
            std=[float(column.std()) if varies(column) else 1.0 for column in columns],
        )


def varies(values: npt.NDArray[np.floating]) -> bool:
    """Whether two of the values, none of them NaN, differ; rounding alone gives a deviation."""
    return len(values) > 0 and bool(values.min() < values.max())
