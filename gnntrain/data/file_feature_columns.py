"""Which columns of a user's features file its features are made of.

A column is a feature unless it has another use or a name that speaks of one: a label, a split, a
mask, an id, an end of an edge. `dataset.feature_columns` and `dataset.categorical` may name such a
column all the same. A column that pandas wrote as an index is not a feature. Every column that is
left out is recorded with the reason.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gnntrain.data.array_files import ArrayTable
from gnntrain.data.file_columns import COLUMN_NAMES, is_pandas_index, matching_columns, named_column
from gnntrain.data.preprocessing import Preprocessing
from gnntrain.data.summary import first_names
from gnntrain.data.tables import Columns, Table
from gnntrain.errors import UserError

if TYPE_CHECKING:
    from gnntrain.config import FilesConfig

_logger = logging.getLogger("gnntrain")

_MASK = re.compile(r"(train|training|val|valid|validation|dev|test|testing)_(mask|idx)(_?\d+)?")
_CALLED = {
    "label": "it is called like a label",
    "split": "it is called like a split",
    "id": "it is called like a node id",
    "source": "it is called like the end of an edge",
    "target": "it is called like the end of an edge",
}
NUM_SHOWN = 10
_NUM_REASONS = 50


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


def has_names(table: Table) -> bool:
    """Whether a table's columns have names: without a header they are called by their places."""
    is_array = isinstance(table, ArrayTable)
    return not is_array and not all(name.isdecimal() for name in table.names)


def choose_features(
    columns: Columns,
    config: FilesConfig,
    elsewhere: Mapping[str, str],
    preprocessing: Preprocessing | None,
    *,
    strict: bool,
    required: bool = True,
) -> FeatureChoice:
    """Choose the columns that features are made of.

    Args:
        columns: The features file; its numbers are all columns without a role.
        config: `feature_columns`, `ignore` and `categorical`.
        elsewhere: Names of columns of other files that are no features, with what they hold.
        preprocessing: What a model was trained on, by whose names columns are found; or None.
        strict: Whether arrays, whose columns have no names, are refused such keys.
        required: Whether there must be features.

    Raises:
        UserError: A name is that of a column with another use, or no column is left.
    """
    table = columns.table
    if isinstance(table, ArrayTable):
        if strict:
            _refuse_keys_of_columns(table, config)
        choice = FeatureChoice(columns, columns.numbers)
    elif preprocessing is not None and preprocessing.has_names and has_names(table):
        return _columns_of_model(columns, preprocessing)
    else:
        choice = _chosen_columns(columns, config, elsewhere)
    if required and not choice.order:
        raise no_features(choice)
    return choice if preprocessing is None else _columns_by_place(choice, preprocessing)


def no_features(choice: FeatureChoice) -> UserError:
    """The error for a features file without features."""
    path = choice.columns.table.path
    left_out = "; ".join(f"{name}: {reason}" for name, reason in choice.left_out.items())
    if left_out:
        return UserError(
            f"{path} has no column of features. Left out: {left_out}.",
            "Name the columns of features with dataset.feature_columns.",
        )
    return UserError(
        f"{path} has no numbers beside the id.",
        "Give a file with one row of numbers a node. If there is nothing to tell, a column of "
        "ones or of the nodes' degrees will do.",
    )


def _refuse_keys_of_columns(table: Table, config: FilesConfig) -> None:
    given = {
        "feature_columns": config.feature_columns,
        "ignore": config.ignore,
        "categorical": config.categorical,
    }
    for key, names in given.items():
        if names:
            raise UserError(
                f"dataset.{key}={key_value(names)}: {table.path} is an array, whose columns have "
                "no names.",
                "Give a table (CSV or Parquet), or an array of the wanted columns.",
            )


def _chosen_columns(
    columns: Columns, config: FilesConfig, elsewhere: Mapping[str, str]
) -> FeatureChoice:
    table = columns.table
    named: set[int] = set()
    for key in ("feature_columns", "categorical"):
        named |= _named_columns(columns, key, getattr(config, key) or ())
    categorical = matching_columns(table, config.categorical)
    ignored = matching_columns(table, config.ignore)
    chosen = set(columns.numbers)
    if config.feature_columns is not None:
        chosen = matching_columns(table, config.feature_columns) | named
    order: list[int] = []
    left_out: dict[str, str] = {}
    for place in columns.numbers:
        reason = "" if place in named else _other_use(table.names[place], elsewhere)
        if place not in chosen:
            reason = "dataset.feature_columns does not name it"
        if place in ignored:
            reason = "dataset.ignore names it"
        if reason:
            left_out[unique_name(table, place)] = reason
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
        _shortened(left_out),
    )


def _named_columns(columns: Columns, key: str, names: Sequence[str]) -> set[int]:
    """Columns that a key names as they are, not by a pattern.

    Raises:
        UserError: One of them has another role.
    """
    table = columns.table
    found = {place for name in names for place in named_column(table, name)}
    for place in sorted(found.difference(columns.numbers)):
        is_id = place in columns.places.values()
        role, what = ("id", "the node ids") if is_id else ("label", "the labels or the split")
        raise UserError(
            f"dataset.{key} names {table.shown(place)}, the column of {table.path} that holds "
            f"{what}.",
            f"Leave it out of dataset.{key}, or name another column as dataset.{role}_column.",
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


def _shortened(left_out: Mapping[str, str]) -> dict[str, str]:
    """Not one entry for each of very many columns that were left out by the user's own keys."""
    if len(left_out) <= _NUM_REASONS:
        return dict(left_out)
    own = [name for name, reason in left_out.items() if reason.startswith("dataset.")]
    kept = {name: reason for name, reason in left_out.items() if name not in set(own[NUM_SHOWN:])}
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
        FeatureChoice(replace(columns, places=roles), order, left_out=_shortened(left_out)),
        preprocessing,
    )


def _columns_by_place(choice: FeatureChoice, preprocessing: Preprocessing) -> FeatureChoice:
    """The columns of a file without names, which must be as many as the model was trained on."""
    # An array's columns may be the numbers of a table's lists.
    widths = [max(1, column.width) for column in preprocessing.columns]
    if len(choice.order) not in (len(widths), sum(widths)):
        raise UserError(
            f"The model takes {len(widths)} columns of features; {choice.columns.table.path} has "
            f"{len(choice.order)}.",
            "Give the columns it was trained on, in the same order or with the same names.",
        )
    return _with_kinds_of_model(choice, preprocessing)


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


def key_value(names: Sequence[str]) -> str:
    """Names as a key on the command line has them."""
    plain = (name if re.fullmatch(r"[\w.*?-]+", name) else f'"{name}"' for name in names)
    return f"[{','.join(plain)}]"
