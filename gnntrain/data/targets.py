"""What is predicted and on which nodes: the task behind a set of labels, and random splits."""

from __future__ import annotations

import numpy as np

from gnntrain.data.graph import SPLITS, AnyArray, Int64Array, IntArray
from gnntrain.errors import UserError
from gnntrain.metrics import LabelKind

TRAIN_SHARE, VAL_SHARE = 0.6, 0.2


def infer_label_kind(labels: AnyArray, num_classes: int) -> LabelKind:
    """Multi-label for a 0/1 matrix, binary for two classes, multi-class for more."""
    if labels.ndim == 2:
        return "multilabel"
    return "binary" if num_classes == 2 else "multiclass"


def random_split(nodes: Int64Array, number: int) -> dict[str, Int64Array]:
    """Share out `nodes` at random, 60 % train, 20 % val, 20 % test.

    The split with a given number is always the same: NumPy's PCG64, seeded with the number.

    Args:
        nodes: int64 node ids, each once.
        number: Which split, 0 or more.

    Returns:
        Sorted node ids of "train", "val" and "test".
    """
    order = np.random.default_rng(number).permutation(nodes)
    first = round(TRAIN_SHARE * len(nodes))
    second = first + round(VAL_SHARE * len(nodes))
    parts = np.split(order, [first, min(second, len(nodes))])
    return {name: np.sort(part) for name, part in zip(SPLITS, parts, strict=True)}


def check_split_number(dataset: str, number: int, num_splits: int) -> None:
    """Raise a UserError unless `number` names one of the data set's splits."""
    if 0 <= number < num_splits:
        return
    offer = "has one split" if num_splits == 1 else f"has {num_splits} splits"
    choice = "0" if num_splits == 1 else f"a number from 0 to {num_splits - 1}"
    raise UserError(
        f"dataset.split={number}: {dataset} {offer}.", f"Set dataset.split to {choice}."
    )


def smallest_int(ids: AnyArray, num_nodes: int) -> IntArray:
    """Node ids as int32 where `num_nodes` allows, else int64.

    Ids that are out of range stay int64: cut to 32 bits they could look right.
    """
    fits = num_nodes <= np.iinfo(np.int32).max
    in_range = ids.size == 0 or (ids.min() >= 0 and ids.max() < num_nodes)
    dtype = np.int32 if fits and in_range else np.int64
    return ids.astype(dtype, copy=False)
