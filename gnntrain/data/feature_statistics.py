"""The features that a model was trained on, in numbers: what another graph is compared with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from gnntrain.data.build import decoded, encoded
from gnntrain.data.graph import AnyArray, BoolArray, Float32Array, Int64Array, Nodes
from gnntrain.data.preprocessing import Preprocessing, mean_and_std
from gnntrain.data.summary import Meta, first_names

_MOST_ROWS, _MOST_VALUES = 100_000, 1 << 24
_MOST_DEVIATIONS = 5
_FAR_SPREADS, _SMALL_SPREAD = 100, 10


class FeatureStatistics(Meta):
    """Of the features of one node type, as a model reads them."""

    means: tuple[float, ...]  # over the training nodes; of other types than the target over all
    stds: tuple[float, ...]  # likewise; 0 where a feature is constant
    is_binary: tuple[bool, ...]  # all of a feature's numbers in the user's table were 0 or 1
    # By column of categories, the share of all nodes that have none; empty in older runs.
    without_category: Mapping[str, float] = {}

    @classmethod
    def of(cls, nodes: Nodes, made_by: Preprocessing | None) -> FeatureStatistics:
        """Of up to 100,000 nodes, evenly spread."""
        train = nodes.splits.get("train", ())
        sample = _sample(nodes, np.asarray(train) if len(train) else np.arange(len(nodes)))
        mean, std = mean_and_std(sample, np.arange(len(sample)))
        return cls(
            means=tuple(mean.tolist()),
            stds=tuple(np.where((sample == sample[:1]).all(axis=0), 0.0, std).tolist()),
            is_binary=tuple(_is_binary(sample, nodes, made_by).tolist()),
            without_category=_without_category(_sample(nodes, np.arange(len(nodes))), made_by),
        )

    def apart(self, made_by: Preprocessing | None) -> list[str]:
        """Names of the features whose spread is 100 times the others' median, or a hundredth.

        A layer begins with weights of one size for all features, and an optimiser's steps are of
        one size. Where both spreads are below 10, as of an embedding, no number drowns the rest.
        Features of 0 and 1 are not named; their spread counts as 1/2, however rare the 1 is.
        """
        names, numbers = _names_and_numbers(len(self.stds), made_by)
        flags = np.array(self.is_binary) | ~numbers
        stds = np.where(flags, 0.5, self.stds)
        varies = flags | (stds > 0)
        names, flags, stds = names[varies], flags[varies], stds[varies]
        order = np.argsort(stds)
        spread, place = stds[order], np.arange(len(stds))
        # The median of all spreads but one: those behind it move up by a place.
        middle = ((len(stds) - 2) // 2, (len(stds) - 1) // 2)
        others = sum(spread[(at + (place <= at)).clip(max=len(stds) - 1)] for at in middle) / 2
        low, high = np.minimum(spread, others), np.maximum(spread, others)
        far = (high > _FAR_SPREADS * low) & (high > _SMALL_SPREAD) & ~flags[order]
        return [str(names[at]) for at in sorted(order[far])]

    def unlike(self, nodes: Nodes, made_by: Preprocessing | None) -> Iterator[str]:
        """Sentences about the nodes of another graph whose features are unlike these."""
        sample = _sample(nodes, np.arange(len(nodes)))
        if not len(sample):
            return
        for name, share in _without_category(sample, made_by).items():
            known = self.without_category.get(name, 0.0)
            if share > min(2 * known, (1 + known) / 2):
                yield (
                    f"{name}: {share:.1%} of the nodes have no category, or one that was not "
                    "there in training" + f" ({known:.1%} in training)" * (known > 0)
                )
        names, numbers = _names_and_numbers(nodes.num_features, made_by)
        mean, _ = mean_and_std(sample, np.arange(len(sample)))
        means, stds = np.array(self.means), np.array(self.stds)
        varied = stds > 0  # the mean of what did not vary also stands for missing values
        empty = numbers & varied & (sample == _image(nodes, made_by, np.nan)).all(axis=0)
        binary = _is_binary(sample, nodes, made_by)
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


def _names_and_numbers(
    num_features: int, made_by: Preprocessing | None
) -> tuple[AnyArray, BoolArray]:
    """By feature: its name, and whether it is a number of the user's table."""
    names: Sequence[str] = [f"feature {at}" for at in range(num_features)]
    numbers: Sequence[bool] = [True] * num_features
    if made_by is not None:
        names = made_by.feature_names if made_by.has_names else names
        numbers = made_by.is_number
    return np.array(names, object), np.array(numbers, bool)


def _without_category(sample: Float32Array, made_by: Preprocessing | None) -> dict[str, float]:
    """By column of categories, the share of nodes that have none or an unknown one. An indicator,
    the last of a column's features, marks those that have none."""
    shares, first = dict[str, float](), 0
    for column in made_by.columns if made_by is not None else ():
        last = first + len(column.feature_names)
        if column.categories is not None:
            shares[column.name] = float((sample[:, first:last] == 0).all(axis=1).mean())
        first = last
    return shares


def _sample(nodes: Nodes, among: Int64Array) -> Float32Array:
    """The features of up to 100,000 of these nodes, fewer where they are wide."""
    most = max(1, min(_MOST_ROWS, _MOST_VALUES // max(1, nodes.num_features)))
    return decoded(nodes.features[among[:: max(1, -(-len(among) // most))]], nodes.feature_dtype)


def _is_binary(sample: Float32Array, nodes: Nodes, made_by: Preprocessing | None) -> BoolArray:
    """Whether all of a feature's numbers in the user's table were 0 or 1."""
    zero, one = (_image(nodes, made_by, number) for number in (0, 1))
    return np.asarray(((sample == zero) | (sample == one)).all(axis=0))


def _image(nodes: Nodes, made_by: Preprocessing | None, number: float) -> Float32Array:
    """What a number of the user's table becomes, by feature."""
    image = np.full(nodes.num_features, number, np.float32)
    image = image if made_by is None else made_by.image(number)
    return decoded(encoded(image, nodes.feature_dtype), nodes.feature_dtype)
