"""The files of a user's graph as tables, and which of their columns is what.

**Which column is the id?** `id_column`, by name or by number from 0; else the one called `id`,
`node_id`, `node` or `nid`, or the unnamed first one that pandas writes; else the first column,
if there are others and its first value is not a fraction. Without an id (`id_column=none` says
so), the rows are the nodes 0, 1, 2, …. Arrays (npy, npz, pt) have no id unless an npz or pt
file holds an array called `ids`, `id` or `node_id`.

Labels and splits may be columns of the features file; a column called `split`, or masks called
`train_mask`, `val_mask` and `test_mask`, say the split. They are no features.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from gnntrain.data.array_files import (
    ARRAY_SUFFIXES,
    Arrays,
    ArrayTable,
    load_arrays,
    pick,
    pick_or_only,
)
from gnntrain.data.bad_rows import BadRows
from gnntrain.data.graph import AnyArray
from gnntrain.data.tables import MAX_COLUMNS, PARQUET_SUFFIXES, Columns, ParquetTable, Role, Table
from gnntrain.data.targets import check_split_number
from gnntrain.data.text_table import TEXT_SUFFIXES, TextTable, is_number, table_suffix
from gnntrain.errors import UserError

if TYPE_CHECKING:
    from gnntrain.config import FilesConfig

COLUMN_NAMES: Mapping[Role, tuple[str, ...]] = {
    "id": ("id", "node_id", "node", "nid"),
    "label": ("label", "labels", "class", "y"),
    "split": ("split",),
    "train": ("train_mask",),
    "val": ("val_mask", "valid_mask"),
    "test": ("test_mask",),
}
MASKS: tuple[Role, ...] = ("train", "val", "test")
_MASKS_OF_SPLIT_FILES: Mapping[str, Role] = {
    "train": "train",
    "val": "val",
    "valid": "val",
    "test": "test",
}
_USUAL_NAMES = frozenset(chain(*COLUMN_NAMES.values()))
ID_ARRAYS = ("ids", "id", "node_id")
_FEATURE_ARRAYS = ("features", "feature", "x", "feat")
_LABEL_ARRAYS = ("labels", "label", "y")
_MASK_ARRAYS = tuple(chain(*(COLUMN_NAMES[mask] for mask in MASKS)))
_OTHER_ARRAYS = (
    *(*ID_ARRAYS, *_FEATURE_ARRAYS, *_LABEL_ARRAYS, *_MASK_ARRAYS),
    *("edge_index", "edges", "edge_attr", "edge_weight", "weight", "weights"),
)

NO_ID = "none"


def is_array_file(path: Path) -> bool:
    """Whether a file holds arrays, not a table."""
    return path.suffix.lower() in ARRAY_SUFFIXES


def feature_columns(path: Path, config: FilesConfig, bad: BadRows) -> Columns:
    """The features file: ids, and numbers that are neither labels nor splits.

    Raises:
        UserError: The file cannot be read, or has no column of a name that is asked for.
    """
    if is_array_file(path):
        arrays = _open_arrays(path, load_arrays(path), _FEATURE_ARRAYS, config)
        return Columns(arrays, _find_id(arrays, config), arrays.main)
    table = open_user_table(path, config, bad)
    places = _find_id(table, config)
    taken = {*places.values(), *_target_places(table, config)}
    return Columns(table, places, [at for at in range(len(table.names)) if at not in taken])


def _target_places(table: Table, config: FilesConfig) -> set[int]:
    """Columns of the features file that are labels or splits, used or not: never features."""
    names = {*(config.label_column or ()), config.split_column}
    if config.labels is not None:  # a number is a column of that file
        names = {name for name in names if name in table.names}
    roles: tuple[Role, ...] = ("label", "split", *MASKS)
    places = {named_place(table, name) for name in names if name is not None}
    usual = [find_column(table, role, None).values() for role in roles]
    return {place for place in (*places, *chain(*usual)) if place is not None}


def open_labels(path: Path, config: FilesConfig, bad: BadRows) -> Table:
    """The labels file.

    Raises:
        UserError: It cannot be read.
    """
    if is_array_file(path):
        return _open_arrays(path, load_arrays(path), _label_arrays(config), config)
    return open_user_table(path, config, bad)


def labels_within(features: Table, config: FilesConfig) -> Table:
    """The features file as one of labels.

    Raises:
        UserError: It is one of arrays, and none is called as labels are.
    """
    if not isinstance(features, ArrayTable):
        return features
    names = _label_arrays(config)
    if pick(features.arrays, names) is None:
        raise _no_labels(features.path, "array", names, features.arrays)
    return _open_arrays(features.path, features.arrays, names, config)


def label_columns(table: Table, config: FilesConfig, *, is_own_file: bool) -> Columns:
    """Columns of labels and splits; several labels, and quantities, are numbers.

    Args:
        table: See `open_labels` and `labels_within`.
        config: How it is read.
        is_own_file: Whether it is not the features file, so that it has ids of its own and no
            other columns than those of labels.

    Raises:
        UserError: There is no column of a name that is asked for, or none of labels.
    """
    places = split_places(table, config)
    if is_own_file:
        places |= _find_id(table, config)
    if isinstance(table, ArrayTable) and len(config.label_column or ()) < 2:
        labels = list(table.main)
    elif config.label_column:
        labels = [place_of(table, "label_column", name) for name in config.label_column]
    else:
        labels = [*find_column(table, "label", None, config.ignore).values()]
        labels = labels or (_others(table, places, config.ignore) if is_own_file else [])
    if not labels and is_own_file:
        raise UserError(f"{table.path} has no column of labels.", "Set dataset.label_column.")
    if not labels:
        raise _no_labels(table.path, "column", COLUMN_NAMES["label"], table.names)
    if len(labels) > 1 or config.task == "regression":
        return Columns(table, places, labels)
    return Columns(table, {**places, "label": labels[0]}, ())


def _no_labels(path: Path, kind: str, expected: Sequence[str], names: Collection[str]) -> UserError:
    found = f"it has {listed(tuple(names))}" if any(names) else "its array has no name"
    return UserError(
        f"dataset.labels is not given, and {path} has no {kind} called {' or '.join(expected)} "
        f"({found}).",
        f"Give a file of labels, or the {kind}'s name as dataset.label_column.",
    )


def split_places(table: Table, config: FilesConfig) -> dict[Role, int]:
    """The column of split names, or those of masks, if there are any.

    Raises:
        UserError: There are both, or masks without one of training nodes.
    """
    if config.split_column is not None:
        wanted = named_place(table, config.split_column)
        return {} if wanted is None else {"split": wanted}
    found = find_column(table, "split", None, config.ignore)
    for mask in MASKS:
        found |= find_column(table, mask, None, config.ignore)
    names = [table.names[place] for place in found.values()]
    if "split" in found and len(found) > 1:
        raise UserError(
            f"{table.path} says the split twice: in its columns {' and '.join(names)}.",
            f"Set dataset.split_column={names[0]}, or name it in dataset.ignore.",
        )
    if found and not found.keys() & {"split", "train"}:
        raise UserError(
            f"{table.path} has {' and '.join(names)}, but no train_mask.",
            "Add the mask of the training nodes.",
        )
    return found


def split_columns(path: Path, config: FilesConfig, bad: BadRows) -> Columns:
    """A table of ids and the names of their splits, or masks.

    Raises:
        UserError: The file cannot be read, or has no column of a name that is asked for.
    """
    table = open_user_table(path, config, bad)
    if config.split_column is not None:
        place_of(table, "split_column", config.split_column)
    ids, places = _find_id(table, config), split_places(table, config)
    if not places:
        masks = {_MASKS_OF_SPLIT_FILES.get(name.lower()): at for at, name in enumerate(table.names)}
        places = {mask: at for mask, at in masks.items() if mask is not None}
        places = places if len(places) > 1 else {}
    if not places:
        others = _others(table, ids, config.ignore)
        if len(others) != 1:
            raise UserError(
                f"{path}: it is not plain which column is the split; it has {listed(table.names)}.",
                "It needs two, id and split; or set dataset.split_column.",
            )
        places = {"split": others[0]}
    return Columns(table, {**ids, **places}, [])


def id_column(path: Path, bad: BadRows) -> Columns:
    """The column of ids of a list of nodes: one called so, or else the first.

    Raises:
        UserError: The file cannot be read.
    """
    if is_array_file(path):
        ids = pick_or_only(path, load_arrays(path), (*ID_ARRAYS, "node", "nodes"))
        if ids.ndim != 1 or ids.dtype.kind == "b":
            raise UserError(f"{path}: {ids.dtype} {list(ids.shape)} instead of a list of ids.")
        return Columns(ArrayTable(path, {"id": ids}), {"id": 0}, [])
    table = _open_table(path, bad, COLUMN_NAMES["id"])
    return Columns(table, {"id": 0, **find_column(table, "id", None)}, [])


def open_user_table(
    path: Path, config: FilesConfig, bad: BadRows, usual: Collection[str] = _USUAL_NAMES
) -> Table:
    """Open a table; the configuration's names and the usual ones mark a header.

    Raises:
        UserError: It cannot be read.
    """
    roles = ("id", "split", "source", "target", "weight")
    given = [getattr(config, f"{role}_column") for role in roles]
    given += config.label_column or ()
    names = {name.lower() for name in given if name is not None and not name.isdecimal()}
    names.update(usual)
    return _open_table(path, bad, names, config.header, config.decimal, config.encoding)


def _open_table(
    path: Path,
    bad: BadRows,
    known_names: Collection[str],
    header: Literal["auto"] | bool = "auto",
    decimal: str = ".",
    encoding: str = "auto",
) -> Table:
    suffix = table_suffix(path)
    if suffix in TEXT_SUFFIXES:
        return TextTable(path, header, known_names, bad, decimal=decimal, encoding=encoding)
    if suffix in PARQUET_SUFFIXES:
        return ParquetTable(path)
    known = ", ".join((*TEXT_SUFFIXES, *PARQUET_SUFFIXES, *ARRAY_SUFFIXES))
    raise UserError(
        f"{path}: the suffix {path.suffix!r} does not say what the file is.",
        f"Name it with one of {known} (text also with .gz, .bz2 or .zst).",
    )


def find_column(
    table: Table, role: Role, wanted: str | None, ignored: Sequence[str] = ()
) -> dict[Role, int]:
    """The column that is wanted, or else the first with a usual name, if any.

    Raises:
        UserError: The one that is wanted is not there.
    """
    if wanted is not None:
        return {role: place_of(table, f"{role}_column", wanted)}
    names = ["" if _is_ignored(name, ignored) else name.lower() for name in table.names]
    return next(({role: names.index(usual)} for usual in COLUMN_NAMES[role] if usual in names), {})


def _is_ignored(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def place_of(table: Table, key: str, wanted: str) -> int:
    """Which column `dataset.<key>=wanted` is.

    Raises:
        UserError: There is no such column.
    """
    place = named_place(table, wanted)
    if place is None:
        raise UserError(
            f"dataset.{key}={wanted}: {table.path} has no such column; it has "
            f"{listed(table.names)}.",
            "Give a column's name, or its number from 0.",
        )
    return place


def named_place(table: Table, name: str) -> int | None:
    """The column of that name or number from 0, if there is one."""
    if name in table.names:
        return table.names.index(name)
    return int(name) if name.isdecimal() and int(name) < len(table.names) else None


def _find_id(table: Table, config: FilesConfig) -> dict[Role, int]:
    if config.id_column == NO_ID:
        return {}
    if isinstance(table, ArrayTable):
        names = (config.id_column,) if config.id_column is not None else ID_ARRAYS
        return next(({"id": table.names.index(name)} for name in names if name in table.names), {})
    found = find_column(table, "id", config.id_column)
    if found or len(table.names) == 1:
        return found
    first = table.records(np.zeros(1, np.int64))
    return {"id": 0} if first and not _is_fraction(first[0][1][0], table.decimal) else {}


def _is_fraction(field: str, decimal: str) -> bool:
    return is_number(field, decimal) and not field.strip().lstrip("+-").isdecimal()


def _others(table: Table, places: Mapping[Role, int], ignored: Sequence[str] = ()) -> list[int]:
    taken = set(places.values())
    return [
        place
        for place, name in enumerate(table.names)
        if place not in taken and not _is_ignored(name, ignored)
    ]


def listed(names: Sequence[str]) -> str:
    """Names of columns for a message, the first twenty."""
    return ", ".join(names[:20]) + (", …" if len(names) > 20 else "")


def _label_arrays(config: FilesConfig) -> tuple[str, ...]:
    return config.label_column or _LABEL_ARRAYS


def _open_arrays(
    path: Path, arrays: Arrays, names: Sequence[str], config: FilesConfig
) -> ArrayTable:
    """A file of arrays as a table: the array of one of these names or the only one, and columns.

    Columns are ids, masks (of several splits, the one with number `dataset.split`) and arrays that
    `dataset.label_column` names. The main array is the table's matrix, or its last column.
    """
    candidates = {n: a for n, a in arrays.items() if n in names or n not in _OTHER_ARRAYS}
    main = pick_or_only(path, candidates, names)
    main_name = next(name for name, array in candidates.items() if array is main)
    _refuse_wrong_main(path, main, is_matrix=names is _FEATURE_ARRAYS)
    columns = {
        name: _column_of_array(path, name, array, len(main), config)
        for name, array in arrays.items()
        if name != main_name and _is_column(name, array, config)
    }
    if main.ndim == 1 or (main.shape[1] == 1 and names is not _FEATURE_ARRAYS):
        return ArrayTable(path, {**columns, main_name: main.reshape(-1)}, arrays=arrays)
    return ArrayTable(path, columns, main, arrays)


def _refuse_wrong_main(path: Path, main: AnyArray, *, is_matrix: bool) -> None:
    if main.ndim not in (1, 2) or (main.ndim == 1 and is_matrix):
        raise UserError(f"{path}: shape {list(main.shape)} instead of one row a node.")
    if main.ndim == 2 and main.shape[1] > MAX_COLUMNS:
        raise UserError(f"{path} has {main.shape[1]:,} columns, more than {MAX_COLUMNS:,}.")
    if main.ndim == 2 and main.dtype.kind not in "biuf":
        raise UserError(f"{path}: its values are of type {main.dtype}, not numbers.")


def _is_column(name: str, array: AnyArray, config: FilesConfig) -> bool:
    is_label = name in (config.label_column or ()) and array.ndim == 1
    return is_label or name in (*ID_ARRAYS, *_MASK_ARRAYS, config.id_column)


def _column_of_array(
    path: Path, name: str, array: AnyArray, num_rows: int, config: FilesConfig
) -> AnyArray:
    """An array `[num_rows]`, or the column of a mask `[num_rows, num_splits]`."""
    if len(array.shape) == 2 and name in _MASK_ARRAYS:
        number = config.split if isinstance(config.split, int) else 0
        check_split_number(f"{path}: {name}", number, array.shape[1])
        array = array[:, number]
    if array.shape != (num_rows,):
        raise UserError(f"{path}: {num_rows} rows, and {name} of shape {list(array.shape)}.")
    return array
