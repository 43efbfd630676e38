"""The features that a model was trained on, in numbers: what another graph is compared with."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from pydantic import BaseModel, ConfigDict

from gnntrain.data.graph import AnyArray, Int64Array, Nodes
from gnntrain.data.preprocessing import Preprocessing, chunks, mean_and_std
from gnntrain.data.summary import first_names

_MOST_ROWS = 100_000
_MOST_DEVIATIONS = 5


class FeatureStatistics(BaseModel):
    """Of the features of one node type, as a model reads them.

    Attributes:
        means: Their means over the training nodes; of other types than the target over all.
        stds: Their standard deviations; 1 where a feature is constant.
        is_binary: Whether its numbers in the user's table were all 0 or 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    means: tuple[float, ...]
    stds: tuple[float, ...]
    is_binary: tuple[bool, ...]

    @classmethod
    def of(cls, nodes: Nodes, made_by: Preprocessing | None) -> FeatureStatistics:
        """Of up to 100,000 nodes, evenly spread."""
        train = nodes.splits.get("train", ())
        rows = _spread(np.asarray(train) if len(train) else np.arange(len(nodes)))
        mean, std = mean_and_std(nodes.features, rows, None)
        is_binary = _all_in(nodes, rows, _images(nodes, made_by, 0), _images(nodes, made_by, 1))
        return cls(
            means=tuple(mean.tolist()),
            stds=tuple(std.tolist()),
            is_binary=tuple(is_binary.tolist()),
        )

    def unlike(self, nodes: Nodes, made_by: Preprocessing | None) -> Iterator[str]:
        """Sentences about the nodes of another graph whose features are unlike these."""
        rows = _spread(np.arange(len(nodes)))
        if not len(rows):
            return
        names = np.array([f"feature {at}" for at in range(nodes.num_features)], object)
        numbers = np.ones(nodes.num_features, bool)
        if made_by is not None:
            names = np.array(made_by.feature_names, object) if made_by.has_names else names
            numbers = np.array(made_by.is_number)
            yield from _unknown_categories(nodes, rows, made_by)
        mean, _ = mean_and_std(nodes.features, rows, None)
        fill = _images(nodes, made_by, np.nan)
        empty = numbers & _all_in(nodes, rows, fill, fill)
        zero, one = _images(nodes, made_by, 0), _images(nodes, made_by, 1)
        kind = numbers & _all_in(nodes, rows, zero, one) & ~np.array(self.is_binary) & ~empty
        far = np.abs(mean - np.array(self.means)) > _MOST_DEVIATIONS * np.array(self.stds)
        for found, what in (
            (empty, "empty: all nodes have the value for missing ones"),
            (kind, "0 or 1 (false or true) everywhere, and held other numbers in training"),
            (
                numbers & far & ~empty & ~kind,
                f"on average more than {_MOST_DEVIATIONS} standard deviations off the mean of the "
                "training nodes",
            ),
        ):
            if found.any():
                yield f"{first_names(names[found].tolist())}: {what}"


def _spread(nodes: Int64Array) -> Int64Array:
    return nodes[:: -(-len(nodes) // _MOST_ROWS) or 1]


def _images(nodes: Nodes, made_by: Preprocessing | None, number: float) -> AnyArray:
    """What a number of the user's table becomes, by feature."""
    image = np.full(nodes.num_features, number, np.float32)
    if made_by is not None:
        image = made_by.image(number)
    return image.astype(nodes.features.dtype)


def _all_in(nodes: Nodes, rows: Int64Array, *values: AnyArray) -> AnyArray:
    """By feature, whether all rows have one of the values."""
    found = np.ones(nodes.num_features, bool)
    for chunk in chunks(nodes.features, rows):
        found &= np.any([chunk == value for value in values], axis=0).all(axis=0)
    return found


def _unknown_categories(nodes: Nodes, rows: Int64Array, made_by: Preprocessing) -> Iterator[str]:
    first = 0
    for column in made_by.columns:
        last = first + len(column.feature_names)
        if column.categories is not None:
            # An indicator, the last of its features, marks missing values.
            known = sum(
                int((chunk[:, first:last] != 0).any(axis=1).sum())
                for chunk in chunks(nodes.features, rows)
            )
            share = 1 - known / len(rows)
            if share > 0:
                yield (
                    f"{column.name}: {share:.3g} of the nodes have no category, or one that was "
                    "not there in training"
                )
        first = last
