"""Features from the columns of a table of nodes: which columns, their values, preprocessing.

A column is a feature unless it has another use, or, if no key names it, a name that speaks of one:
a label, a split, a mask, an id, an end of an edge, an index of pandas. Columns that are left out
are recorded, each with the reason.
"""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from gnntrain.config import FilesConfig
from gnntrain.config.graph_spec import NodeSpec
from gnntrain.data.array_files import ArrayTable
from gnntrain.data.graph import AnyArray, FeatureRows, Int64Array, NodeType
from gnntrain.data.names import COLUMN_NAMES, Role, is_pandas_index
from gnntrain.data.preprocessing import (
    FeatureColumn,
    PreparedFeatures,
    Preprocessing,
    RawFeatures,
    warn_of_coarse_columns,
)
from gnntrain.data.read.columns import ignored_columns, matching_columns, named_column
from gnntrain.data.read.nodes import NodeIndex, drop_repeated
from gnntrain.data.summary import first_names
from gnntrain.data.tables import BadRows, Columns, Record, Rows, Table
from gnntrain.data.values import (
    TEXT,
    is_finite,
    is_number,
    listed_marks,
    missing_marks,
    number_of,
    to_categories,
    to_int64,
)
from gnntrain.errors import UserError

_logger = logging.getLogger("gnntrain")

_MASK = re.compile(r"(train|training|val|valid|validation|dev|test|testing)_(mask|idx)(_?\d+)?")
_USES: Mapping[Role, str] = {
    "label": "a label",
    "split": "a split",
    "id": "a node id",
    "source": "the end of an edge",
    "target": "the end of an edge",
}
_CALLED = {name: use for role, use in _USES.items() for name in COLUMN_NAMES[role]}
_NUM_SHOWN = 10
_LARGEST = float(np.finfo(np.float32).max)
_KEEP_MARK = "A category that is really called so is kept under another name, such as NA_."


@dataclass(frozen=True)
class NodeRows:
    """The nodes of a type, read: a row a node, in the order of their numbers."""

    spec: NodeSpec
    rows: Rows
    index: NodeIndex
    order: Sequence[int] = ()  # places of the columns of features, in their order
    # Of these, by place, those that hold no numbers.
    categories: Mapping[int, pa.DictionaryArray] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)  # columns, each with the reason


def read_nodes(
    node_type: NodeType,
    columns: Columns,
    spec: NodeSpec,
    elsewhere: Mapping[str, str],
    preprocessing: Preprocessing | None,
    options: FilesConfig,
    bad: BadRows,
    *,
    required: bool,
) -> NodeRows:
    """Read the rows that define a node, by an id of its own, and have usable features.

    Of the nodes' table, `columns.numbers` are all columns without a role; `elsewhere` are names of
    columns of other files that are no features, each with the reason; columns are found by the
    names of a model's `preprocessing`, if there is one. UserError: A name is that of a column with
    another use; there are no rows, or no features where they are `required`; or rows are bad, and
    are to be errors or, without ids, cannot be left out.
    """
    table = columns.table
    order, categorical, left_out = _choose_features(columns, spec, elsewhere, preprocessing)
    if required and not order:
        reasons = first_names([f"{name}: {reason}" for name, reason in left_out.items()])
        raise UserError(
            f"{table.path} has no column of features." + f" Left out: {reasons}." * bool(left_out),
            f"Name the columns of features with {spec.key('features')}. If there is nothing to "
            "tell, a column of ones or of the nodes' degrees will do.",
        )
    # A name that a model knows says more than a role that was guessed.
    places: dict[Role, int] = {r: at for r, at in columns.places.items() if at not in order}
    numbers = [place for place in order if place not in categorical]
    others = {*columns.others}.difference(order) | categorical
    columns = Columns(table, places, numbers, sorted(others))
    rows, has_ids = columns.read(), "id" in places
    if has_ids:
        hint = (
            f"If the features file has no column of node ids, set {spec.key('id')}=none: its rows "
            "are then the nodes 0, 1, 2, …."
        )
        rows = rows.drop(rows.is_missing("id"), bad, "the node id is missing", hint)
        rows = drop_repeated(rows, rows.columns["id"], bad, hint)
    _refuse_text_columns(rows, spec)

    # A number is finite, and a value missing only where it may be. Without ids a row's place is its
    # node: none can be left out.
    bad_values = bad if has_ids else BadRows("error", bad.source)
    refuse, key = spec.missing == "refuse", spec.key("missing")
    suspects = ~is_finite(rows.matrix)
    if not refuse and suspects.any():
        suspects[suspects] = np.isinf(rows.matrix[suspects]).any(axis=1)
    lacks_some = refuse and np.isnan(rows.matrix[suspects]).any()

    def wrong_number(record: Record) -> str:
        for place in rows.source.numbers:
            field, number = record[place], number_of(record[place], table.decimal)
            is_wrong = abs(number) > _LARGEST or (refuse and math.isnan(number))
            if is_wrong and not field.startswith("["):
                return f"column {table.shown(place)} is {field!r} instead of a finite number"
        return "the list of numbers is missing, not finite, or of another length than the first"

    hint = f"{key}=mean, zero or indicator fills missing numbers." * bool(lacks_some)
    rows = rows.drop(suspects, bad_values, wrong_number, hint)
    for place in sorted(categorical):
        name, column = table.shown(place), to_categories(rows.columns[place])
        marks = missing_marks(rows.columns[place])
        if refuse:
            lacks = column.is_null().to_numpy(zero_copy_only=False)
            hint = f"With {key}=mean, zero or indicator, they get 0 for every category."
            hint += f" {_KEEP_MARK}" * bool(marks)
            rows = rows.drop(lacks, bad_values, f"column {name} has no category: {{}}", hint, place)
        elif marks and not all(map(is_number, column.dictionary.to_pylist())):
            _logger.warning(
                "%s: column %s: these values are read as missing, not as categories: %s. %s",
                rows.path,
                name,
                listed_marks(marks),
                _KEEP_MARK,
            )
    bad_values.report()
    bad.report()
    if not has_ids and len(rows) < rows.end:
        raise UserError(
            f"{table.path} has bad rows and no node ids.",
            "Correct it or give it node ids: left out, they would move the rows behind them.",
        )
    if not len(rows):
        raise UserError(f"{table.path} has no rows.", "Give it a row of numbers a node.")
    index = NodeIndex(rows.columns.get("id"), len(rows), node_type, rows.path.name, options.decimal)
    categories = {at: to_categories(rows.columns[at]) for at in order if at in categorical}
    return NodeRows(spec, rows, index, order, categories, left_out)


def _choose_features(
    columns: Columns,
    spec: NodeSpec,
    elsewhere: Mapping[str, str],
    preprocessing: Preprocessing | None,
) -> tuple[list[int], set[int], dict[str, str]]:
    """The columns of features in their order, and which of them are categories; `left_out` of
    `NodeRows`."""
    table, order = columns.table, list(columns.numbers)
    categorical: set[int] = set()
    left_out: dict[str, str] = {}
    if preprocessing is not None and preprocessing.has_names and table.has_names:
        order = _columns_of_model(table, preprocessing)
        used = {*order, *columns.places.values(), *columns.others}
        extra = [place for place in range(len(table.names)) if place not in used]
        left_out = {_unique_name(table, at): "the model was not trained on it" for at in extra}
        if extra:
            _logger.warning(
                "%s has columns that the model was not trained on; they are left out: %s",
                table.path,
                first_names([table.shown(place) for place in extra]),
            )
    elif not isinstance(table, ArrayTable):
        order, left_out = _columns_of_table(columns, spec, elsewhere)
        categorical = matching_columns(table, spec.categorical).intersection(order)
    if preprocessing is not None:
        known = preprocessing.columns
        categorical = {at for at, c in zip(order, known, strict=False) if c.categories is not None}
        names = [column.name for column in known if column.categories is not None]
        if names and (len(order) != len(known) or isinstance(table, ArrayTable)):
            raise UserError(
                f"The model was trained on {len(known)} columns, with categories of "
                f"{first_names(names)}; {table.path} has {len(order)} columns of features.",
                "Give a table (CSV or Parquet) with the columns it was trained on.",
            )
    return order, categorical, left_out


def _columns_of_table(
    columns: Columns, spec: NodeSpec, elsewhere: Mapping[str, str]
) -> tuple[list[int], dict[str, str]]:
    """The columns of features, and those that are left out, each with the reason."""
    table, named = columns.table, set[int]()  # as they are, not by a pattern
    for word, names in (("features", spec.features or ()), ("categorical", spec.categorical)):
        found = {place for name in names for place in named_column(table, name)}
        for place in sorted(found.difference(columns.numbers)):
            what, other = "the labels or the split", spec.label.key("column")
            if place in columns.places.values():
                what, other = "the node ids", spec.key("id")
            raise UserError(
                f"{spec.key(word)} names {table.shown(place)}, the column of {table.path} that "
                f"holds {what}.",
                f"Leave it out of {spec.key(word)}, or name another column as {other}.",
            )
        named |= found
    ignored, chosen = ignored_columns(table, spec), {*columns.numbers}
    if spec.features is not None:
        chosen = matching_columns(table, spec.features) | named
    left_out: dict[str, str] = {}
    for place in columns.numbers:
        name, reason = table.names[place], ""
        if place in ignored:
            reason = spec.unused.get(name, f"{spec.key('ignore')} names it")
        elif place not in chosen:
            reason = f"{spec.key('features')} does not name it"
        elif place not in named:
            use = "a split" if _MASK.fullmatch(name.lower()) else _CALLED.get(name.lower())
            reason = elsewhere.get(name, f"it is called like {use}" if use else "")
            if not reason and is_pandas_index(name) and _holds_row_numbers(table, place):
                reason = "it holds row numbers (a pandas index)"
        if reason:
            left_out[_unique_name(table, place)] = reason
            chosen.discard(place)
    return [place for place in columns.numbers if place in chosen], left_out


def _unique_name(table: Table, place: int) -> str:
    """A column's name; its number too where the name is empty or another column's."""
    name = table.names[place]
    if not name:
        return f"column {place} (without a name)"
    return name if table.names.count(name) == 1 else f"{name} (column {place})"


def _columns_of_model(table: Table, preprocessing: Preprocessing) -> list[int]:
    """The columns that a model was trained on, found by their names."""
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
    return order


def _holds_row_numbers(table: Table, place: int) -> bool:
    """Whether a column with the name of an index holds one.

    A column that pandas calls so for want of a name may count the rows of a larger table, or of
    one in another order; one called `index` must count these rows from 0 or 1.
    """
    rows = Columns(table, {}, (), (place,)).read()
    values = table.to_plain(rows.columns[place], labels=True)
    if values.type == TEXT:
        values = to_int64(values)
    if not pa.types.is_integer(values.type) or values.null_count or not len(values):
        return False
    found = values.to_numpy()
    if table.names[place] in ("index", "level_0"):
        return bool((found - found[0] == rows.rows - rows.rows[0]).all() and found[0] in (0, 1))
    return bool(found.min() >= 0 and len(np.unique(found)) == len(found))


def _refuse_text_columns(rows: Rows, spec: NodeSpec) -> None:
    """Raise a UserError that names columns of numbers most values of which are texts."""
    table, found, start = rows.source.table, dict[str, str](), 0
    if isinstance(table, ArrayTable) or is_finite(rows.matrix).all():
        return
    for place, width in rows.widths.items():
        values = rows.matrix[:, start : start + width]
        start += width
        wrong = np.isinf(values).any(axis=1)
        if 2 * wrong.sum() > (~np.isnan(values).any(axis=1)).sum():
            ((_, record),) = table.fields(rows.rows[wrong][:1])
            text = record[place]
            is_infinite = text.strip().lower().lstrip("+-") in ("inf", "infinity")
            if math.isinf(number_of(text, table.decimal)) and not is_infinite and text[:1] != "[":
                found[table.shown(place)] = text
    if not found:
        return
    names, other = list(found)[:_NUM_SHOWN], "," if table.decimal == "." else "."
    samples = " and ".join(repr(found[name]) for name in names[:3])
    plain = [name if re.fullmatch(r"[\w.*?-]+", name) else f'"{name}"' for name in names]
    choices = spec.key("ignore"), spec.key("categorical")
    ignore, categorical = (f"{key}=[{','.join(plain)}]" for key in choices)
    hint = f"Leave out a column with {ignore}, or make each of its values a feature with "
    why, hint = "", f"{hint}{categorical}."
    if not any(math.isinf(number_of(field, other)) for field in found.values()):
        why = f": the decimal mark is {other!r}, not {table.decimal!r}"
        hint = f"Set dataset.decimal='{other}'."
    raise UserError(
        f"Column{'s' * (len(found) > 1)} {first_names(list(found))} of {table.path}: text, not "
        f"numbers, such as {samples}{why}.",
        hint,
    )


def make_features(
    nodes: NodeRows, train: Int64Array, preprocessing: Preprocessing | None
) -> tuple[AnyArray | FeatureRows, Preprocessing | None]:
    """The features, and the preprocessing of the columns; None if it is the identity. It is a
    model's own, or learnt here, with the statistics of the nodes `train`."""
    rows, spec, table = nodes.rows, nodes.spec, nodes.rows.source.table
    raw = RawFeatures(rows.matrix, [*nodes.categories.values()])
    if preprocessing is None:
        id_place = rows.source.places.get("id")
        preprocessing = Preprocessing.fit(
            [
                FeatureColumn(
                    name=table.shown(place),
                    width=rows.widths.get(place, 0),
                    categories=None if place in rows.widths else (),
                )
                for place in nodes.order
            ],
            raw,
            train,
            missing=spec.missing,
            standardize=spec.standardize,
            has_names=table.has_names,
            id_name=None if id_place is None else table.names[id_place],
            key=spec.key,
        )
        if preprocessing.means is None:
            names = np.array(preprocessing.feature_names, object)[[*preprocessing.is_number]]
            warn_of_coarse_columns(raw, names.tolist(), rows.path)
    elif rows.matrix.shape[1] != preprocessing.num_numbers:
        raise UserError(
            f"The model takes {preprocessing.num_numbers} numbers a node; {rows.path} has "
            f"{rows.matrix.shape[1]}.",
            "Give the columns it was trained on, with lists of the same length.",
        )
    if not preprocessing.is_identity:
        return PreparedFeatures(raw, preprocessing), preprocessing
    return rows.matrix, preprocessing if preprocessing.has_names else None


def describe_features(nodes: NodeRows, preprocessing: Preprocessing | None, *, fitted: bool) -> str:
    """A phrase for `DataSummary.features`."""
    phrase = f"{_counted(nodes.rows.matrix.shape[1], 'number')} of {nodes.rows.path.name}"
    if preprocessing is None:
        return phrase
    columns = preprocessing.columns
    of_numbers = [c for c in columns if c.categories is None]
    if preprocessing.has_names and of_numbers:
        lists = {c: f" ({c.width:,} numbers)" for c in of_numbers if c.width != 1}
        phrase += f": {first_names([c.name + lists.get(c, '') for c in of_numbers])}"
    parts = [
        phrase,
        *(f"{len(c.categories):,} categories of {c.name}" for c in columns if c.categories),
    ]
    by = "of the training split" if fitted else "of the run's training split"
    if preprocessing.fills is not None:
        fill = "0" if nodes.spec.missing == "zero" else f"the mean {by}"
        num_marks = sum(c.indicator for c in columns)
        marked = f", marked by {_counted(num_marks, 'indicator')}" if num_marks else ""
        missing = [f"missing numbers are {fill}"] if of_numbers else []
        missing += ["missing categories are 0 in each"] if len(of_numbers) < len(columns) else []
        parts.append(f"{' and '.join(missing)}{marked}")
    if preprocessing.means is not None:
        parts.append("standardised " + by.replace("of", "on", 1))
    return "; ".join(parts)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + "s" * (count != 1)
