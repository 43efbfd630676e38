"""Features from the columns of a user's features file: values and preprocessing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gnntrain.data.array_files import ArrayTable
from gnntrain.data.bad_rows import BadRows, Record
from gnntrain.data.columns import (
    TEXT,
    is_finite,
    number_of,
    to_categories,
    to_int64,
    to_matrix,
    with_decimal_point,
)
from gnntrain.data.file_feature_columns import (
    NUM_SHOWN,
    FeatureChoice,
    has_names,
    key_value,
    no_features,
    unique_name,
)
from gnntrain.data.graph import AnyArray, FeatureRows, Int64Array
from gnntrain.data.preprocessing import (
    Categories,
    Exact,
    FeatureColumn,
    PreparedFeatures,
    Preprocessing,
    RawFeatures,
    warn_of_coarse_columns,
)
from gnntrain.data.summary import first_names
from gnntrain.data.tables import Columns, Rows, Table
from gnntrain.errors import UserError

if TYPE_CHECKING:
    from gnntrain.config import FilesConfig

_INDEX = "it holds row numbers (a pandas index)"
_LARGEST = float(np.finfo(np.float32).max)
_NO_VALUE_HINT = "With dataset.missing=mean, zero or indicator, they get 0 for every category."


def resolve_indices(
    choice: FeatureChoice, nodes: Rows, *, required: bool = True
) -> tuple[FeatureChoice, Rows]:
    """Leave out doubtful columns that hold row numbers; the others join the numbers.

    Raises:
        UserError: Features are required, and no column is left.
    """
    table = choice.columns.table
    indices = [p for p in choice.doubtful if _holds_row_numbers(table, p, nodes)]
    left_out = {unique_name(table, place): _INDEX for place in indices}
    order = [place for place in choice.order if place not in indices]
    numbers = [place for place in order if place not in choice.categorical]
    columns = replace(choice.columns, numbers=numbers, others=sorted(choice.categorical))
    done = FeatureChoice(columns, order, choice.categorical, (), {**choice.left_out, **left_out})
    if required and not order:
        raise no_features(done)
    nodes = replace(nodes, source=columns)
    return done, _joined(nodes, choice) if len(indices) < len(choice.doubtful) else nodes


def _holds_row_numbers(table: Table, place: int, nodes: Rows) -> bool:
    """Whether a column with the name of an index holds one.

    A column that pandas calls so for want of a name may count the rows of a larger table, or of
    one in another order; one called `index` must count these rows from 0 or 1.
    """
    values = table.to_plain(nodes.others[place], labels=True)
    if values.type == TEXT:
        values = to_int64(values)
    if not pa.types.is_integer(values.type) or values.null_count or not len(values):
        return False
    found = values.to_numpy()
    if table.names[place] in ("index", "level_0"):
        return bool((found - found[0] == nodes.rows - nodes.rows[0]).all() and found[0] in (0, 1))
    return bool(found.min() >= 0 and len(np.unique(found)) == len(found))


def _joined(nodes: Rows, choice: FeatureChoice) -> Rows:
    """Rows whose matrix has the columns of `nodes.source.numbers`, wherever they were read."""
    widths = nodes.widths or [1] * len(choice.columns.numbers)
    ends = np.cumsum(widths)
    parts: dict[int, tuple[AnyArray, int, Exact]] = {}
    for place, end, width in zip(choice.columns.numbers, ends.tolist(), widths, strict=True):
        first = end - width
        found = {at - first: nodes.exact[at] for at in range(first, end) if at in nodes.exact}
        parts[place] = nodes.matrix[:, first:end], width, found
    for place in choice.doubtful:
        column = nodes.others[place]
        if column.type == TEXT:
            column = with_decimal_point(column, nodes.source.table.decimal)
        matrix, (width,), exact = to_matrix([column], len(nodes), [None])
        parts[place] = matrix, width, exact
    joined = [parts[place] for place in nodes.source.numbers]
    firsts = np.cumsum([0, *(width for _, width, _ in joined)]).tolist()
    return replace(
        nodes,
        matrix=np.concatenate([matrix for matrix, _, _ in joined], axis=1),
        exact={
            first + at: values
            for first, (_, _, exact) in zip(firsts, joined, strict=False)
            for at, values in exact.items()
        },
        widths=[width for _, width, _ in joined],
    )


def refuse_text_columns(nodes: Rows) -> None:
    """Raise a UserError that names columns of numbers most values of which are texts."""
    finite = is_finite(nodes.matrix)
    if finite.all() or isinstance(nodes.source.table, ArrayTable):
        return
    table, found, start = nodes.source.table, dict[str, str](), 0
    for place, width in zip(
        nodes.source.numbers, nodes.widths or [1] * len(nodes.source.numbers), strict=True
    ):
        values = nodes.matrix[:, start : start + width]
        start += width
        wrong = np.isinf(values).any(axis=1)
        if 2 * wrong.sum() > (~np.isnan(values).any(axis=1)).sum():
            ((_, record),) = table.fields(nodes.rows[wrong][:1])
            field = record[place]
            if number_of(field, table.decimal) is None and not field.startswith("["):
                found[table.shown(place)] = field
    if found:
        raise _text_columns(table, found)


def _text_columns(table: Table, found: Mapping[str, str]) -> UserError:
    names = list(found)[:NUM_SHOWN]
    samples = " and ".join(repr(found[name]) for name in names[:3])
    what = "Column {} of {} holds" if len(found) == 1 else "Columns {} of {} hold"
    shown = ", ".join(names) + ", …" * (len(found) > len(names))
    other = "," if table.decimal == "." else "."
    if all(number_of(field, other) is not None for field in found.values()):
        return UserError(
            f"{what.format(shown, table.path)} text, not numbers, such as {samples}: the decimal "
            f"mark is {other!r}, not {table.decimal!r}.",
            f"Set dataset.decimal='{other}'.",
        )
    return UserError(
        f"{what.format(shown, table.path)} text, not numbers, such as {samples}.",
        f"Leave out a column with dataset.ignore={key_value(names)}, or make each of its values a "
        f"feature with dataset.categorical={key_value(names)}.",
    )


def drop_bad_values(nodes: Rows, choice: FeatureChoice, config: FilesConfig, bad: BadRows) -> Rows:
    """Rows whose values can be used: a number is finite, and missing only where it may be."""
    refuse = config.missing == "refuse"
    suspects = ~is_finite(nodes.matrix)
    if not refuse and suspects.any():
        suspects[suspects] = np.isinf(nodes.matrix[suspects]).any(axis=1)
    lacks_some = refuse and np.isnan(nodes.matrix[suspects]).any()
    nodes = nodes.drop(
        suspects,
        bad,
        lambda row: _wrong_number(row, nodes.source, refuse=refuse),
        "dataset.missing=mean, zero or indicator fills missing numbers." * bool(lacks_some),
    )
    for place in choice.categorical if refuse else ():
        name = choice.columns.table.shown(place)
        lacks = to_categories(nodes.others[place]).is_null().to_numpy(zero_copy_only=False)
        nodes = nodes.drop(np.asarray(lacks, bool), bad, partial(_no_value, name), _NO_VALUE_HINT)
    return nodes


def _no_value(name: str, _: Record) -> str:
    return f"column {name} has no value"


def _wrong_number(record: Record, columns: Columns, *, refuse: bool) -> str:
    """The reason for a bad row: the column with a wrong number or list."""
    for place, name in columns.names_of_numbers.items():
        field = record[place]
        if field.startswith("["):
            continue
        number = number_of(field, columns.table.decimal)
        if number is None or abs(number) > _LARGEST or (refuse and math.isnan(number)):
            return f"column {name} is {field!r} instead of a finite number"
    return "the list of numbers is missing, not finite, or of another length than the first"


def make_features(
    nodes: Rows,
    choice: FeatureChoice,
    train: Int64Array,
    config: FilesConfig,
    preprocessing: Preprocessing | None,
) -> tuple[AnyArray | FeatureRows, Preprocessing | None]:
    """The graph's features and the preprocessing of the columns.

    Args:
        nodes: The rows of the nodes.
        choice: The columns.
        train: Nodes of the training split.
        config: `missing` and `standardize`.
        preprocessing: A model's own; None: it is learnt here.

    Returns:
        The features, and the preprocessing; None if it is the identity.

    Raises:
        UserError: The columns do not fit the model, or a statistic cannot be computed.
    """
    encoded = {place: to_categories(nodes.others[place]) for place in choice.categorical}
    raw = RawFeatures(
        nodes.matrix,
        [
            Categories(
                encoded[place].dictionary.to_pylist(),
                encoded[place].indices.fill_null(-1).to_numpy(),
            )
            for place in choice.order
            if place in choice.categorical
        ],
        nodes.exact,
    )
    if preprocessing is None:
        preprocessing = Preprocessing.fit(
            _feature_columns(nodes, choice),
            raw,
            train,
            missing=config.missing,
            standardize=config.standardize,
            has_names=has_names(choice.columns.table),
            id_name=_name_of_id(choice.columns),
        )
        if preprocessing.means is None:
            names = np.array(preprocessing.feature_names, object)[[*preprocessing.is_number]]
            warn_of_coarse_columns(raw, names.tolist(), nodes.path)
    else:
        _check_numbers(nodes, preprocessing)
    if not preprocessing.is_identity:
        return PreparedFeatures(raw, preprocessing), preprocessing
    return nodes.matrix, preprocessing if preprocessing.has_names else None


def _name_of_id(columns: Columns) -> str | None:
    place = columns.places.get("id")
    return None if place is None else columns.table.names[place]


def _feature_columns(nodes: Rows, choice: FeatureChoice) -> list[FeatureColumn]:
    table = choice.columns.table
    numbers = nodes.source.numbers
    widths = dict(zip(numbers, nodes.widths or [1] * len(numbers), strict=True))
    return [
        FeatureColumn(name=table.shown(place), width=0, categories=())
        if place in choice.categorical
        else FeatureColumn(name=table.shown(place), width=widths[place])
        for place in choice.order
    ]


def _check_numbers(nodes: Rows, preprocessing: Preprocessing) -> None:
    found, expected = nodes.matrix.shape[1], preprocessing.num_numbers
    if found != expected:
        raise UserError(
            f"The model takes {expected} numbers a node; {nodes.path} has {found}.",
            "Give the columns it was trained on, with lists of the same length.",
        )


def describe_features(
    nodes: Rows,
    preprocessing: Preprocessing | None,
    missing: str,
    *,
    fitted: bool,
) -> str:
    """A phrase for `DataSummary.features`."""
    path = nodes.path.name
    number = f"{_counted(nodes.matrix.shape[1], 'number')} of {path}"
    if preprocessing is None:
        return number
    columns = preprocessing.columns
    names = [_described(c) for c in columns if c.categories is None]
    parts = [number + (f": {first_names(names)}" if preprocessing.has_names and names else "")]
    parts += [f"{len(c.categories):,} categories of {c.name}" for c in columns if c.categories]
    by = "of the training split" if fitted else "of the run's training split"
    if preprocessing.fills is not None:
        fill = "0" if missing == "zero" else f"the mean {by}"
        count = sum(c.indicator for c in columns)
        marked = f", marked by {_counted(count, 'indicator')}" if count else ""
        parts.append(f"missing values are {fill}{marked}")
    if preprocessing.means is not None:
        parts.append("standardised " + by.replace("of", "on", 1))
    parts += [f"column {name} holds row numbers" for name in _row_number_columns(nodes)]
    return "; ".join(parts)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + "s" * (count != 1)


def _described(column: FeatureColumn) -> str:
    return column.name if column.width == 1 else f"{column.name} ({column.width:,} numbers)"


def _row_number_columns(nodes: Rows) -> list[str]:
    """Columns of features, with ordinary names, that count the rows from 0 or 1."""
    matrix, count = nodes.matrix, len(nodes)
    if count < 3 or len(nodes.source.numbers) != matrix.shape[1]:
        return []
    likely = np.isin(matrix[0], (0, 1)) & (matrix[-1] - matrix[0] == count - 1)
    return [
        nodes.source.table.shown(nodes.source.numbers[place])
        for place in np.flatnonzero(likely).tolist()
        if (matrix[:, place] - matrix[0, place] == np.arange(count)).all()
    ]
