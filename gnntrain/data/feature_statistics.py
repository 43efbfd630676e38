"""The features that a model was trained on, in numbers: what another graph is compared with."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from pydantic import BaseModel, ConfigDict

from gnntrain.data.arrays import encoded
from gnntrain.data.graph import AnyArray, Float32Array, Int64Array, Nodes
from gnntrain.data.preprocessing import Preprocessing, mean_and_std
from gnntrain.data.summary import first_names

_MOST_ROWS, _MOST_VALUES = 100_000, 1 << 24
_MOST_DEVIATIONS = 5


class FeatureStatistics(BaseModel):
    """Of the features of one node type, as a model reads them.

    Attributes:
        means: Their means over the training nodes; of other types than the target over all.
        stds: Their standard deviations; 0 where a feature is constant.
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
        sample = _sample(nodes, np.asarray(train) if len(train) else np.arange(len(nodes)))
        mean, std = mean_and_std(sample, np.arange(len(sample)), None)
        zero, one = _images(nodes, made_by, 0), _images(nodes, made_by, 1)
        return cls(
            means=tuple(mean.tolist()),
            stds=tuple(np.where((sample == sample[:1]).all(axis=0), 0.0, std).tolist()),
            is_binary=tuple(((sample == zero) | (sample == one)).all(axis=0).tolist()),
        )

    def unlike(self, nodes: Nodes, made_by: Preprocessing | None) -> Iterator[str]:
        """Sentences about the nodes of another graph whose features are unlike these."""
        sample = _sample(nodes, np.arange(len(nodes)))
        if not len(sample):
            return
        names = np.array([f"feature {at}" for at in range(nodes.num_features)], object)
        numbers = np.ones(nodes.num_features, bool)
        if made_by is not None:
            names = np.array(made_by.feature_names, object) if made_by.has_names else names
            numbers = np.array(made_by.is_number)
            yield from _unknown_categories(sample, made_by)
        mean, _ = mean_and_std(sample, np.arange(len(sample)), None)
        zero, one = _images(nodes, made_by, 0), _images(nodes, made_by, 1)
        means, stds = np.array(self.means), np.array(self.stds)
        varied = stds > 0  # the mean of what did not vary also stands for missing values
        empty = numbers & varied & (sample == _images(nodes, made_by, np.nan)).all(axis=0)
        binary = ((sample == zero) | (sample == one)).all(axis=0)
        kind = numbers & binary & ~np.array(self.is_binary) & ~empty
        far = np.abs(mean - means) > _MOST_DEVIATIONS * stds
        # A word that no training node has some others may have.
        far &= varied | (sample != means.astype(np.float32)).all(axis=0)
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


def _sample(nodes: Nodes, among: Int64Array) -> Float32Array:
    """The features of up to 100,000 of these nodes, fewer where they are wide."""
    most = max(1, min(_MOST_ROWS, _MOST_VALUES // max(1, nodes.num_features)))
    rows = among[:: max(1, -(-len(among) // most))]
    return _decoded(nodes.features[rows], nodes)


def _images(nodes: Nodes, made_by: Preprocessing | None, number: float) -> Float32Array:
    """What a number of the user's table becomes, by feature."""
    image = np.full(nodes.num_features, number, np.float32)
    if made_by is not None:
        image = made_by.image(number)
    return _decoded(encoded(image, nodes.feature_dtype), nodes)


def _decoded(stored: AnyArray, nodes: Nodes) -> Float32Array:
    if nodes.feature_dtype == "bfloat16":  # the upper half of float32's bits
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32, copy=False)


def _unknown_categories(sample: Float32Array, made_by: Preprocessing) -> Iterator[str]:
    first = 0
    for column in made_by.columns:
        last = first + len(column.feature_names)
        # An indicator, the last of a column's features, marks missing values.
        share = float((sample[:, first:last] == 0).all(axis=1).mean())
        if column.categories is not None and share > 0:
            yield (
                f"{column.name}: {share:.3g} of the nodes have no category, or one that was not "
                "there in training"
            )
        first = last
