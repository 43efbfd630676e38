"""Features from the columns of a table of nodes: which columns, their values, preprocessing.

A column is a feature unless it has another use or a name that speaks of one: a label, a split, a
mask, an id, an end of an edge. `NodeSpec.features` and `categorical` may name such a column all the
same. A column that pandas wrote as an index is not a feature. Every column that is left out is
recorded with the reason.
"""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from gnntrain.config.graph_spec import NodeSpec
from gnntrain.data.array_files import ArrayTable
from gnntrain.data.graph import AnyArray, FeatureRows, Int64Array
from gnntrain.data.names import COLUMN_NAMES, is_pandas_index
from gnntrain.data.preprocessing import (
    Categories,
    Exact,
    FeatureColumn,
    PreparedFeatures,
    Preprocessing,
    RawFeatures,
    warn_of_coarse_columns,
)
from gnntrain.data.read.columns import ignored_columns, matching_columns, named_column
from gnntrain.data.summary import first_names
from gnntrain.data.tables import BadRows, Columns, Record, Rows, Table
from gnntrain.data.values import (
    TEXT,
    is_finite,
    number_of,
    to_categories,
    to_int64,
    to_matrix,
    with_decimal_point,
)
from gnntrain.errors import UserError

_logger = logging.getLogger("gnntrain")

_MASK = re.compile(r"(train|training|val|valid|validation|dev|test|testing)_(mask|idx)(_?\d+)?")
_CALLED = {
    "label": "it is called like a label",
    "split": "it is called like a split",
    "id": "it is called like a node id",
    "source": "it is called like the end of an edge",
    "target": "it is called like the end of an edge",
}
_NUM_SHOWN = 10
_NUM_REASONS = 50
_INDEX = "it holds row numbers (a pandas index)"
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class FeatureChoice:
    """The columns that features are made of.

    Attributes:
        columns: What is read of the file; its `others` are categories and what may be an index.
        order: Places of the columns of features, in the order of the features.
        categorical: Those that hold categories.
        doubtful: Those that are left out if they hold row numbers.
        left_out: Columns that are not used, each with the reason.
    """

    columns: Columns
    order: Sequence[int]
    categorical: Collection[int] = ()
    doubtful: Collection[int] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)


def choose_features(
    columns: Columns,
    spec: NodeSpec,
    elsewhere: Mapping[str, str],
    preprocessing: Preprocessing | None,
    *,
    strict: bool,
    required: bool = True,
) -> FeatureChoice:
    """Choose the columns that features are made of.

    Args:
        columns: The nodes' table; its numbers are all columns without a role.
        spec: The columns of features, of categories, and those to leave out.
        elsewhere: Names of columns of other files that are no features, with what they hold.
        preprocessing: What a model was trained on, by whose names columns are found; or None.
        strict: Whether arrays, whose columns have no names, are refused such keys.
        required: Whether there must be features.

    Raises:
        UserError: A name is that of a column with another use, or no column is left.
    """
    table = columns.table
    if preprocessing is not None and preprocessing.has_names and table.has_names:
        return _columns_of_model(columns, preprocessing)
    if isinstance(table, ArrayTable):
        asked = {
            "features": spec.features,
            "ignore": spec.ignore,
            "categorical": spec.categorical,
        }
        for word, names in asked.items() if strict else ():
            if names:
                raise UserError(
                    f"{spec.key(word)}={_key_value(names)}: {table.path} is an array, whose "
                    "columns have no names.",
                    "Give a table (CSV or Parquet), or an array of the wanted columns.",
                )
        choice = FeatureChoice(columns, columns.numbers)
    else:
        choice = _chosen_columns(columns, spec, elsewhere)
    if required and not choice.order:
        raise _no_features(choice, spec)
    if preprocessing is None:
        return choice
    # The columns of a file without names must be as many as the model was trained on. An array's
    # columns may be the numbers of a table's lists.
    widths = [max(1, column.width) for column in preprocessing.columns]
    if len(choice.order) not in (len(widths), sum(widths)):
        raise UserError(
            f"The model takes {len(widths)} columns of features; {table.path} has "
            f"{len(choice.order)}.",
            "Give the columns it was trained on, in the same order or with the same names.",
        )
    return _with_kinds_of_model(choice, preprocessing)


def _no_features(choice: FeatureChoice, spec: NodeSpec) -> UserError:
    path = choice.columns.table.path
    left_out = "; ".join(f"{name}: {reason}" for name, reason in choice.left_out.items())
    if left_out:
        return UserError(
            f"{path} has no column of features. Left out: {left_out}.",
            f"Name the columns of features with {spec.key('features')}.",
        )
    return UserError(
        f"{path} has no numbers beside the id.",
        "Give a file with one row of numbers a node. If there is nothing to tell, a column of "
        "ones or of the nodes' degrees will do.",
    )


def _chosen_columns(
    columns: Columns, spec: NodeSpec, elsewhere: Mapping[str, str]
) -> FeatureChoice:
    table = columns.table
    named = _named_columns(columns, spec, "features", spec.features or ())
    named |= _named_columns(columns, spec, "categorical", spec.categorical)
    categorical = matching_columns(table, spec.categorical)
    ignored = ignored_columns(table, spec)
    chosen = set(columns.numbers)
    if spec.features is not None:
        chosen = matching_columns(table, spec.features) | named
    order: list[int] = []
    left_out: dict[str, str] = {}
    own: list[str] = []  # left out by the user's own keys
    for place in columns.numbers:
        name = unique_name(table, place)
        reason = "" if place in named else _other_use(table.names[place], elsewhere)
        if place in ignored or place not in chosen:
            own.append(name)
            reason = f"{spec.key('features')} does not name it"
        if place in ignored:
            reason = spec.unused.get(table.names[place], f"{spec.key('ignore')} names it")
        if reason:
            left_out[name] = reason
        else:
            order.append(place)
    doubtful = [p for p in order if p not in named and is_pandas_index(table.names[p])]
    read_apart = {*doubtful, *categorical.intersection(order)}
    return FeatureChoice(
        replace(
            columns,
            numbers=[place for place in order if place not in read_apart],
            others=sorted(read_apart.union(columns.others)),
        ),
        order,
        categorical.intersection(order),
        doubtful,
        _shortened(left_out, own),
    )


def _named_columns(columns: Columns, spec: NodeSpec, word: str, names: Sequence[str]) -> set[int]:
    """Columns that a key names as they are, not by a pattern.

    Raises:
        UserError: One of them has another role.
    """
    table, key = columns.table, spec.key(word)
    found = {place for name in names for place in named_column(table, name)}
    for place in sorted(found.difference(columns.numbers)):
        is_id = place in columns.places.values()
        what = "the node ids" if is_id else "the labels or the split"
        other = spec.key("id") if is_id else spec.label.key("column")
        raise UserError(
            f"{key} names {table.shown(place)}, the column of {table.path} that holds {what}.",
            f"Leave it out of {key}, or name another column as {other}.",
        )
    return found


def _other_use(name: str, elsewhere: Mapping[str, str]) -> str:
    """What a column's name says that it is, if not a feature."""
    if name in elsewhere:
        return elsewhere[name]
    if _MASK.fullmatch(name.lower()):
        return _CALLED["split"]
    uses = (_CALLED[role] for role, names in COLUMN_NAMES.items() if name.lower() in names)
    return next(uses, "")


def unique_name(table: Table, place: int) -> str:
    """A column's name; its number too where the name is empty or another column's."""
    name = table.names[place]
    if not name:
        return f"column {place} (without a name)"
    return name if table.names.count(name) == 1 else f"{name} (column {place})"


def _shortened(left_out: Mapping[str, str], own: Sequence[str]) -> dict[str, str]:
    """Not one entry for each of very many columns that were left out by the user's own keys."""
    if len(left_out) <= _NUM_REASONS:
        return dict(left_out)
    kept = {name: reason for name, reason in left_out.items() if name not in {*own[_NUM_SHOWN:]}}
    if len(kept) < len(left_out):
        kept[f"{len(left_out) - len(kept):,} other columns"] = left_out[own[-1]]
    return kept


def _columns_of_model(columns: Columns, preprocessing: Preprocessing) -> FeatureChoice:
    """The columns that a model was trained on, found by their names.

    Raises:
        UserError: Some are missing.
    """
    table = columns.table
    places: dict[str, list[int]] = {}
    for place in range(len(table.names)):
        places.setdefault(table.shown(place), []).append(place)
    wanted = Counter(column.name for column in preprocessing.columns)
    missing = [name for name, number in wanted.items() if len(places.get(name, ())) < number]
    if missing:
        raise UserError(
            f"{table.path} lacks columns that the model was trained on: {first_names(missing)}. "
            f"It has {first_names(table.names)}.",
            "Give all of them under the names that they had in training.",
        )
    repeated = [name for name, number in wanted.items() if len(places[name]) > number]
    if repeated:
        raise UserError(
            f"{table.path} has several columns called {first_names(repeated)}: which of them the "
            "model was trained on is not known.",
            "Give it with those columns alone.",
        )
    order = [places[column.name].pop(0) for column in preprocessing.columns]
    if order != sorted(order):
        _logger.warning(
            "%s has the features in another order than in training; they are matched by name",
            table.path,
        )
    used = {*order, *columns.places.values(), *columns.others}
    extra = [place for place in range(len(table.names)) if place not in used]
    if extra:
        shown = [table.shown(place) for place in extra]
        _logger.warning(
            "%s has columns that the model was not trained on; they are left out: %s",
            table.path,
            first_names(shown),
        )
    left_out = {unique_name(table, place): "the model was not trained on it" for place in extra}
    # A name says more than a role that was guessed.
    roles = {role: place for role, place in columns.places.items() if place not in order}
    return _with_kinds_of_model(
        FeatureChoice(replace(columns, places=roles), order, left_out=_shortened(left_out, ())),
        preprocessing,
    )


def _with_kinds_of_model(choice: FeatureChoice, preprocessing: Preprocessing) -> FeatureChoice:
    if not preprocessing.has_categories:
        columns = replace(choice.columns, numbers=choice.order, others=())
        return replace(choice, columns=columns, categorical=(), doubtful=())
    categorical = [
        place
        for place, column in zip(choice.order, preprocessing.columns, strict=True)
        if column.categories is not None
    ]
    if isinstance(choice.columns.table, ArrayTable):
        names = [c.name for c in preprocessing.columns if c.categories is not None]
        raise UserError(
            f"The model was trained on categories of {first_names(names)}; "
            f"{choice.columns.table.path} holds an array of numbers.",
            "Give a table (CSV or Parquet) with the columns it was trained on.",
        )
    numbers = [place for place in choice.order if place not in categorical]
    columns = replace(choice.columns, numbers=numbers, others=categorical)
    return replace(choice, columns=columns, categorical=categorical, doubtful=())


def _key_value(names: Sequence[str]) -> str:
    """Names as a key on the command line has them."""
    plain = (name if re.fullmatch(r"[\w.*?-]+", name) else f'"{name}"' for name in names)
    return f"[{','.join(plain)}]"


def resolve_indices(
    choice: FeatureChoice, nodes: Rows, spec: NodeSpec, *, required: bool = True
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
        raise _no_features(done, spec)
    nodes = replace(nodes, source=columns)
    return done, _joined(nodes, choice) if len(indices) < len(choice.doubtful) else nodes


def _holds_row_numbers(table: Table, place: int, nodes: Rows) -> bool:
    """Whether a column with the name of an index holds one.

    A column that pandas calls so for want of a name may count the rows of a larger table, or of
    one in another order; one called `index` must count these rows from 0 or 1.
    """
    values = table.to_plain(nodes.columns[place], labels=True)
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
    widths = nodes.widths
    ends = np.cumsum(widths)
    parts: dict[int, tuple[AnyArray, int, Exact]] = {}
    for place, end, width in zip(choice.columns.numbers, ends.tolist(), widths, strict=True):
        first = end - width
        found = {at - first: nodes.exact[at] for at in range(first, end) if at in nodes.exact}
        parts[place] = nodes.matrix[:, first:end], width, found
    for place in choice.doubtful:
        column = nodes.columns[place]
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


def refuse_text_columns(nodes: Rows, spec: NodeSpec) -> None:
    """Raise a UserError that names columns of numbers most values of which are texts."""
    finite = is_finite(nodes.matrix)
    if finite.all() or isinstance(nodes.source.table, ArrayTable):
        return
    table, found, start = nodes.source.table, dict[str, str](), 0
    for place, width in zip(nodes.source.numbers, nodes.widths, strict=True):
        values = nodes.matrix[:, start : start + width]
        start += width
        wrong = np.isinf(values).any(axis=1)
        if 2 * wrong.sum() > (~np.isnan(values).any(axis=1)).sum():
            ((_, record),) = table.fields(nodes.rows[wrong][:1])
            field = record[place]
            if number_of(field, table.decimal) is None and not field.startswith("["):
                found[table.shown(place)] = field
    if found:
        raise _text_columns(table, found, spec)


def _text_columns(table: Table, found: Mapping[str, str], spec: NodeSpec) -> UserError:
    names = list(found)[:_NUM_SHOWN]
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
        f"Leave out a column with {spec.key('ignore')}={_key_value(names)}, or make each of its "
        f"values a feature with {spec.key('categorical')}={_key_value(names)}.",
    )


def drop_bad_values(nodes: Rows, choice: FeatureChoice, spec: NodeSpec, bad: BadRows) -> Rows:
    """Rows whose values can be used: a number is finite, and missing only where it may be."""
    refuse, key = spec.missing == "refuse", spec.key("missing")
    suspects = ~is_finite(nodes.matrix)
    if not refuse and suspects.any():
        suspects[suspects] = np.isinf(nodes.matrix[suspects]).any(axis=1)
    lacks_some = refuse and np.isnan(nodes.matrix[suspects]).any()
    nodes = nodes.drop(
        suspects,
        bad,
        lambda row: _wrong_number(row, nodes.source, refuse=refuse),
        f"{key}=mean, zero or indicator fills missing numbers." * bool(lacks_some),
    )
    for place in choice.categorical if refuse else ():
        name = choice.columns.table.shown(place)
        lacks = to_categories(nodes.columns[place]).is_null().to_numpy(zero_copy_only=False)
        hint = f"With {key}=mean, zero or indicator, they get 0 for every category."
        nodes = nodes.drop(np.asarray(lacks, bool), bad, f"column {name} has no value", hint)
    return nodes


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
    spec: NodeSpec,
    preprocessing: Preprocessing | None,
) -> tuple[AnyArray | FeatureRows, Preprocessing | None]:
    """The graph's features and the preprocessing of the columns.

    Args:
        nodes: The rows of the nodes.
        choice: The columns.
        train: Nodes of the training split.
        spec: What is done to missing values, and whether numbers are scaled.
        preprocessing: A model's own; None: it is learnt here.

    Returns:
        The features, and the preprocessing; None if it is the identity.

    Raises:
        UserError: The columns do not fit the model, or a statistic cannot be computed.
    """
    encoded = {place: to_categories(nodes.columns[place]) for place in choice.categorical}
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
            missing=spec.missing,
            standardize=spec.standardize,
            has_names=choice.columns.table.has_names,
            id_name=_name_of_id(choice.columns),
            key=spec.key,
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
    widths = dict(zip(numbers, nodes.widths, strict=True))
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
