"""The columns of labels and splits in a user's files.

**Labels** are the columns that `label_column` names; else one called `label`, `labels`, `class` or
`y`; else, in a labels file, all that have no other use. **Splits** are a column called `split`
(`split_column`), or masks called `train_mask`, `val_mask` and `test_mask`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gnntrain.data.array_files import (
    LABEL_ARRAYS,
    MASK_NAMES,
    ArrayTable,
    load_all,
    open_arrays,
    pick,
)
from gnntrain.data.bad_rows import BadRows
from gnntrain.data.file_columns import (
    COLUMN_NAMES,
    find_column,
    find_id,
    find_masks,
    is_array_file,
    matching_columns,
    named_column,
    open_table,
    place_of,
    refuse_ignored,
)
from gnntrain.data.tables import Columns, Role, Table, listed
from gnntrain.errors import UserError

if TYPE_CHECKING:
    from gnntrain.config import FilesConfig


def _label_arrays(config: FilesConfig) -> tuple[str, ...]:
    return config.label_column or LABEL_ARRAYS


def _ignored(table: Table, config: FilesConfig) -> set[int]:
    return matching_columns(table, config.ignore)


def _others(table: Table, places: Collection[int]) -> list[int]:
    return [place for place in range(len(table.names)) if place not in places]


def open_labels(paths: Sequence[Path], config: FilesConfig, bad: BadRows) -> Table:
    """The labels file, or several of the same columns.

    Raises:
        UserError: One cannot be read, or has other columns than the first.
    """
    if is_array_file(paths[0]):
        return open_arrays(paths[0], load_all(paths), _label_arrays(config), config)
    return Table.of_files([open_table(path, config, bad) for path in paths])


def label_columns(table: Table, config: FilesConfig) -> Columns:
    """The labels file: ids, labels and perhaps splits; several labels, and quantities, are numbers.

    Raises:
        UserError: It has no labels, or no array of a name that is asked for.
    """
    ignored = _ignored(table, config)
    places = {**split_places(table, config), **find_id(table, config, ignored)}
    labels = _named_labels(table, config, ignored)
    if not labels:
        splits = find_column(table, "split", None) | find_masks(table, ())
        taken = ignored.union(places.values(), splits.values())
        labels = _others(table, taken)
    if not labels:
        raise UserError(f"{table.path} has no column of labels.", "Set dataset.label_column.")
    return _with_labels(table, places, labels, config)


def label_columns_within(features: Table, config: FilesConfig) -> Columns:
    """As `label_columns`, but of the features file, and without ids.

    Raises:
        UserError: It has no labels, or no column of a name that is asked for.
    """
    table = features
    if isinstance(features, ArrayTable):
        usual = _label_arrays(config)
        if pick(features.arrays, usual) is None:
            raise _no_labels(features.path, "array", usual, features.arrays)
        table = open_arrays(features.path, features.arrays, usual, config)
    labels = _named_labels(table, config, _ignored(table, config))
    if not labels:
        raise _no_labels(features.path, "column", COLUMN_NAMES["label"], features.names)
    return _with_labels(table, split_places(table, config), labels, config)


def _no_labels(path: Path, kind: str, usual: Sequence[str], names: Collection[str]) -> UserError:
    found = f"it has {listed(tuple(names))}" if any(names) else f"its {kind} has no name"
    return UserError(
        f"dataset.labels is not given, and {path} has no {kind} called {' or '.join(usual)} "
        f"({found}).",
        f"Give a file of labels, or the {kind}'s name as dataset.label_column.",
    )


def _named_labels(table: Table, config: FilesConfig, ignored: Collection[int]) -> list[int]:
    """Columns that are named, by the configuration or as labels are."""
    given = config.label_column or ()
    refuse_ignored(table, "label_column", given, ignored)
    if isinstance(table, ArrayTable) and len(given) < 2:
        return list(table.main)
    if given:
        return [place_of(table, "label_column", name) for name in given]
    return [*find_column(table, "label", None, ignored).values()]


def _with_labels(
    table: Table, places: Mapping[Role, int], labels: Sequence[int], config: FilesConfig
) -> Columns:
    if len(labels) > 1 or config.task == "regression":
        return Columns(table, places, labels)
    return Columns(table, {**places, "label": labels[0]}, ())


def split_places(table: Table, config: FilesConfig) -> dict[Role, int]:
    """The column of split names, and those of masks."""
    ignored = _ignored(table, config)
    if config.split_column is not None:
        refuse_ignored(table, "split_column", (config.split_column,), ignored)
        found = named_column(table, config.split_column)
        return {"split": found[0]} if found else {}
    return find_column(table, "split", None, ignored) | find_masks(table, ignored)


def has_split(columns: Columns) -> bool:
    """Whether the labels file has the split."""
    return bool(columns.places.keys() & {"split", *MASK_NAMES})


def split_columns(table: Table, config: FilesConfig) -> Columns:
    """A table of ids and the names of their splits, or masks.

    Raises:
        UserError: It is not plain which column they are.
    """
    ids, places = find_id(table, config), split_places(table, config)
    if not places:
        others = _others(table, _ignored(table, config).union(ids.values()))
        if len(others) != 1:
            raise UserError(
                f"{table.path}: it is not plain which column is the split; it has "
                f"{listed(table.names)}.",
                "It needs two, id and split; or set dataset.split_column.",
            )
        places = {"split": others[0]}
    return Columns(table, {**ids, **places}, [])
