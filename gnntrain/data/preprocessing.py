"""From a user's columns to a model's features: one-hot, missing values, standardisation.

The statistics are those of the training split. They are kept with the graph and with the run, so
that another graph's columns become features in the same way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field

from gnntrain.config.types import Missing
from gnntrain.data.graph import (
    NODE,
    AnyArray,
    BoolArray,
    Float32Array,
    Float64Array,
    Int64Array,
    NodeType,
)
from gnntrain.data.summary import Meta, first_names
from gnntrain.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

MAX_CATEGORIES = 1000
_FEW_CATEGORIES = 10  # so many are taken however short the table is
_CHUNK_VALUES = 1 << 20
_MOST_VALUES = 1 << 22
_COARSE = 1e-6

_logger = logging.getLogger("gnntrain")


def loses_digits(values: AnyArray) -> BoolArray:
    """By column of `[num_rows, n]`, whether its spread is so small beside its values that float32
    is too coarse for it: less than 1/256 of them."""
    if np.can_cast(values.dtype, np.float32):
        return np.zeros(values.shape[1], bool)
    return _varies_within(values, 1 / 256)


def without_loss(values: AnyArray) -> AnyArray:
    """Numbers `[num_rows, n]` as float32, infinite if too large; as float64, with all digits of the
    columns that float32 is too coarse for, if it has some."""
    with np.errstate(over="ignore"):
        rounded: AnyArray = values.astype(np.float32, copy=False)
    coarse = loses_digits(values)
    if not coarse.any():
        return rounded
    keeps = coarse & (rounded != values).any(axis=0)
    return np.where(keeps & np.isfinite(rounded), values, rounded) if keeps.any() else rounded


def _varies_within(values: AnyArray, share: float) -> BoolArray:
    """Which columns vary, by less than a share of their finite values."""
    known = np.where(np.isfinite(values), values, np.nan)
    lowest, highest = (f.reduce(known, axis=0, initial=np.nan) for f in (np.fmin, np.fmax))
    largest = np.maximum(np.abs(lowest), np.abs(highest))
    return np.asarray((lowest < highest) & (highest - lowest < share * largest))


def warn_of_coarse_columns(raw: RawFeatures, names: Sequence[str], source: object) -> None:
    """Tell, in one line, which columns of numbers a model is given almost nothing of: they are not
    to be standardised, and of very many rows a sample is looked at."""
    step = 1 + len(raw) * max(1, len(names)) // _MOST_VALUES
    coarse = _varies_within(raw.numbers[::step].astype(np.float64), _COARSE)
    if coarse.any():
        _logger.warning(
            "%s: columns that vary by less than a millionth of their values, which is almost "
            "nothing in float32: %s. dataset.standardize=true makes it their scale.",
            source,
            first_names(np.array(names, object)[coarse].tolist()),
        )


class FeatureColumn(Meta):
    """A column of the user's table that features are made of."""

    name: str  # without a header, its number
    width: Annotated[int, Field(ge=0)] = 1  # of its lists; 0 for categories
    categories: tuple[str, ...] | None = None  # each is a feature of 0 and 1; None: numbers
    indicator: bool = False  # a feature behind the others says that a value is missing

    @property
    def feature_names(self) -> list[str]:
        """Names of the features that this column becomes."""
        names = [self.name]
        if self.categories is not None:
            names = [f"{self.name}={value}" for value in self.categories]
        elif self.width != 1:
            names = [f"{self.name}_{at}" for at in range(self.width)]
        return [*names, f"{self.name}_missing"] if self.indicator else names


@dataclass(frozen=True)
class RawFeatures:
    """A user's columns as they were read, in the order of a `Preprocessing`'s columns."""

    numbers: AnyArray  # [num_rows, num_numbers], NaN where one is missing
    categories: Sequence[pa.DictionaryArray] = ()  # null where one is missing

    def __len__(self) -> int:
        return len(self.numbers)

    def rows(self, start: int, stop: int) -> RawFeatures:
        """The rows from `start` up to `stop`."""
        categories = [column[start:stop] for column in self.categories]
        return RawFeatures(self.numbers[start:stop], categories)


def _by_column(
    columns: Iterable[FeatureColumn], raw: RawFeatures
) -> Iterator[tuple[FeatureColumn, slice | pa.DictionaryArray]]:
    """Each column with its place among the numbers, or its categories."""
    categories, first = iter(raw.categories), 0
    for column in columns:
        if column.categories is not None:
            yield column, next(categories)
        else:
            yield column, slice(first, first + column.width)
            first += column.width


class Preprocessing(Meta):
    """The transformation of a user's columns to a model's features.

    Missing numbers are filled first, then all numbers are scaled; features of 0 and 1 are not.
    """

    columns: tuple[FeatureColumn, ...]  # in the order of the features
    has_names: bool = True  # by which the columns of another file are found
    id_name: str | None = None  # of the node ids in training, by which those of it are found
    fills: tuple[float, ...] | None = None  # for missing numbers; None: there may be none
    means: tuple[float, ...] | None = None  # subtracted from each number; None: not scaled
    stds: tuple[float, ...] | None = None  # then each number is divided by this

    @property
    def num_numbers(self) -> int:
        """Numbers in a row of the user's table."""
        return sum(column.width for column in self.columns)

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features, in their order."""
        return tuple(name for column in self.columns for name in column.feature_names)

    @property
    def num_features(self) -> int:
        """Number of the features."""
        return len(self.feature_names)

    @property
    def is_number(self) -> tuple[bool, ...]:
        """By feature, whether it is a number of the table, not a category or an indicator."""
        return tuple(
            column.categories is None and at < column.width
            for column in self.columns
            for at in range(len(column.feature_names))
        )

    @property
    def is_identity(self) -> bool:
        """Whether the features are the numbers as they are."""
        has_categories = any(column.categories is not None for column in self.columns)
        return self.fills is None and self.means is None and not has_categories

    @classmethod
    def fit(
        cls,
        columns: Sequence[FeatureColumn],
        raw: RawFeatures,
        train: Int64Array,
        *,
        missing: Missing = "refuse",
        standardize: bool = False,
        has_names: bool = True,
        id_name: str | None = None,
        key: Callable[[str], str] = "dataset.{}".format,
    ) -> Preprocessing:
        """Learn categories and missing values from all rows, statistics from the training rows;
        UserError where a column has too many categories, or no value in the training split.

        Of `columns`, those of categories have an empty tuple of them. `missing` is that of
        `FilesConfig`; `key` makes the keys `missing`, `categorical`, `ignore` that messages name.
        """
        lacks_number = np.zeros(raw.numbers.shape[1], bool)
        if raw.numbers.dtype.kind == "f":  # the least of numbers with NaN is NaN
            lacks_number = np.isnan(raw.numbers.min(axis=0, initial=np.inf))
        fitted = []
        for column, values in _by_column(columns, raw):
            if isinstance(values, slice):
                found, lacks = {}, lacks_number[values].any()
            else:
                found = {"categories": _sorted_values(column.name, values, key)}
                lacks = values.null_count > 0
            has_indicator = missing == "indicator" and bool(lacks)
            fitted.append(column.model_copy(update={**found, "indicator": has_indicator}))

        fills = means = stds = None
        if missing == "zero":
            fills = np.zeros(len(lacks_number))
        elif missing != "refuse":
            sums, counts = np.zeros((2, len(lacks_number)))
            for chunk in _chunks(raw.numbers, train):
                sums += np.nansum(chunk, axis=0)
                counts += (~np.isnan(chunk)).sum(axis=0)
            names = [column.name for column in columns for _ in range(column.width)]
            if unknown := ",".join(dict.fromkeys(names[at] for at in np.flatnonzero(counts == 0))):
                if not len(train):
                    raise UserError("The training split is empty.", "Put nodes into it.")
                raise UserError(
                    f"{key('missing')}: no node of the training split has a value of {unknown}: "
                    "there is no mean.",
                    f"Leave it out with {key('ignore')}=[{unknown}], or set {key('missing')}=zero.",
                )
            fills = sums / counts
        if standardize:
            means, stds = mean_and_std(raw.numbers, train, fills)
        return cls(
            columns=tuple(fitted),
            has_names=has_names,
            id_name=id_name,
            fills=None if fills is None else tuple(fills.tolist()),
            means=None if means is None else tuple(means.tolist()),
            stds=None if stds is None else tuple(stds.tolist()),
        )

    def apply(self, raw: RawFeatures) -> Float32Array:
        """The features: float32 `[num_rows, num_features]`; an unknown category is 0 in all."""
        numbers: AnyArray = raw.numbers.astype(np.float64)
        missing = np.isnan(numbers)
        if self.fills is not None:
            numbers = np.where(missing, np.array(self.fills), numbers)
        if self.means is not None:
            numbers = (numbers - np.array(self.means)) / np.array(self.stds)
        features = np.zeros((len(raw), self.num_features), np.float32)
        place = 0
        for column, values in _by_column(self.columns, raw):
            if isinstance(values, slice):
                with np.errstate(over="ignore"):  # infinite, hence reported
                    features[:, place : place + column.width] = numbers[:, values]
                is_missing = missing[:, values].any(axis=1)
                place += column.width
            else:
                known = {value: at for at, value in enumerate(column.categories or ())}
                found = [known.get(value, _UNKNOWN) for value in values.dictionary.to_pylist()]
                codes = np.array([*found, _MISSING])[values.indices.fill_null(-1).to_numpy()]
                rows = np.flatnonzero(codes >= 0)
                features[rows, place + codes[rows]] = 1
                is_missing = codes == _MISSING
                place += len(known)
            if column.indicator:
                features[:, place] = is_missing
                place += 1
        return features

    def image(self, number: float) -> Float32Array:
        """The features of a row all of whose numbers are this one; NaN: missing."""
        import pyarrow as pa

        missing = pa.array([None], pa.large_string()).dictionary_encode()
        categories = [missing for column in self.columns if column.categories is not None]
        row = RawFeatures(np.full((1, self.num_numbers), number), categories)
        features: Float32Array = self.apply(row)[0]
        return features


_MISSING, _UNKNOWN = -1, -2


@dataclass(frozen=True)
class PreparedFeatures:
    """A graph's features (`FeatureRows`), made of a user's columns as they are asked for."""

    raw: RawFeatures
    preprocessing: Preprocessing

    @property
    def num_features(self) -> int:
        return self.preprocessing.num_features

    def rows(self, start: int, stop: int) -> Float32Array:
        return self.preprocessing.apply(self.raw.rows(start, stop))


AnyPreprocessing = Preprocessing | Mapping[NodeType, Preprocessing]
"""The preprocessing of a graph; of a typed graph, by node type."""


def by_node_type(given: AnyPreprocessing | None) -> Mapping[NodeType, Preprocessing]:
    """The preprocessing of each node type that has one."""
    return {NODE: given} if isinstance(given, Preprocessing) else given or {}


def _sorted_values(
    name: str, found: pa.DictionaryArray, key: Callable[[str], str]
) -> tuple[str, ...]:
    """The values that rows have: in the order of numbers if all are numbers, else of texts."""
    values = found.unique().drop_null().cast("large_string").to_pylist()
    most = min(MAX_CATEGORIES, max(_FEW_CATEGORIES, len(found) // 2))
    if len(values) > most:
        raise UserError(
            f"{key('categorical')}: column {name} has {len(values):,} different values in "
            f"{len(found):,} rows; each would become a feature.",
            f"Leave it out with {key('ignore')}=[{name}]; or join values to {most:,} or fewer.",
        )
    try:
        return tuple(sorted(values, key=lambda value: (float(value), value)))
    except ValueError:
        return tuple(sorted(values))


def _chunks(numbers: AnyArray, rows: Int64Array) -> Iterator[Float64Array]:
    """Some rows of numbers, some MiB at a time."""
    step = max(1, _CHUNK_VALUES // max(1, numbers.shape[1]))
    for start in range(0, len(rows), step):
        yield numbers[rows[start : start + step]].astype(np.float64)


def mean_and_std(
    numbers: AnyArray, train: Int64Array, fills: Float64Array | None = None
) -> tuple[Float64Array, Float64Array]:
    """Mean and standard deviation (of the population) of the filled numbers; constant: 1."""

    def filled() -> Iterator[Float64Array]:
        for chunk in _chunks(numbers, train):
            yield chunk if fills is None else np.where(np.isnan(chunk), fills, chunk)

    count = max(1, len(train))
    zeros = np.zeros(numbers.shape[1])
    mean = sum((chunk.sum(axis=0) for chunk in filled()), zeros) / count
    squares = (((chunk - mean) ** 2).sum(axis=0) for chunk in filled())
    variance = sum(squares, zeros) / count
    # Rounding errors of equal numbers, as in scikit-learn's StandardScaler.
    epsilon = np.finfo(np.float64).eps
    noise = count * epsilon * variance + (count * mean * epsilon) ** 2
    std = np.sqrt(variance)
    # A subnormal deviation would scale other nodes' numbers beyond float32.
    is_constant = (variance <= noise) | (std < np.finfo(np.float32).tiny)
    return mean, np.where(is_constant, 1.0, std)
