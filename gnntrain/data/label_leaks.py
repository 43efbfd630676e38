"""Features that determine the class of every training node, perhaps copies of the label."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator

import numpy as np

from gnntrain.data.columns import to_categories
from gnntrain.data.graph import AnyArray, Int64Array
from gnntrain.data.tables import Rows

_logger = logging.getLogger("gnntrain")

_NODES_A_CLASS = 5  # with fewer, a feature may look like the class by chance
_MOST_VALUES = 1 << 24


def warn_of_label_leaks(
    features: Rows, categorical: Collection[int], classes: AnyArray, train: Int64Array
) -> None:
    """Warn of each column whose values and the classes of the training nodes are one to one.

    Args:
        features: The rows of the features file, in the order of the nodes.
        categorical: Places of its columns of categories.
        classes: int32 `[num_nodes]`.
        train: The training nodes; of very many, the first are looked at.
    """
    nodes = train[: max(1, _MOST_VALUES // max(1, features.matrix.shape[1]))]
    known = classes[nodes]
    num_classes = len(np.unique(known))
    if num_classes < 2 or len(nodes) < _NODES_A_CLASS * num_classes:
        return
    for name, values in _columns(features, categorical, nodes):
        if _is_one_to_one(values, known, num_classes):
            _logger.warning(
                "%s: column %s tells the class of every training node. If it is the label under "
                "another name, leave it out with dataset.ignore=[%s].",
                features.path,
                name,
                name,
            )


def _columns(
    features: Rows, categorical: Collection[int], nodes: Int64Array
) -> Iterator[tuple[str, AnyArray]]:
    """Names and values of the columns of single numbers, and of categories."""
    table = features.source.table
    matrix, place = features.matrix[nodes], 0
    widths = features.widths or [1] * len(features.source.numbers)
    for column, width in zip(features.source.numbers, widths, strict=True):
        if width == 1:
            yield table.shown(column), matrix[:, place]
        place += width
    for column in categorical:
        codes = to_categories(features.others[column]).indices.fill_null(-1)
        yield table.shown(column), codes.to_numpy()[nodes]


def _is_one_to_one(values: AnyArray, classes: AnyArray, num_classes: int) -> bool:
    different, codes = np.unique(values, return_inverse=True)
    if len(different) != num_classes:
        return False
    return len(np.unique(np.stack([codes, classes]), axis=1).T) == num_classes
