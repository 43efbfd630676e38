"""The files of a user's graph as tables, and the roles of their columns.

**Which column is the id?** `id_column`, by name or by number from 0; else the one called `id`,
`node_id`, `node` or `nid`; else the index that pandas writes into Parquet; else the first column
without another use (such as the unnamed one that pandas writes into CSV), if there are others and
its first value is not a fraction (40.0 is one among features). Where both an index and another
column may be meant, it is asked. Without an id (`id_column=none` says so),
the rows are the nodes 0, 1, 2, …. Arrays (npy, npz, pt) have no id unless an npz or pt
file holds an array called `ids`, `id` or `node_id`.

`gnntrain.data.file_target_columns` finds labels and splits, `gnntrain.data.file_edges` the ends of
edges.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gnntrain.config.problems import Problem, did_you_mean, nearest
from gnntrain.data import table_files
from gnntrain.data.array_files import (
    ARRAY_SUFFIXES,
    FEATURE_ARRAYS,
    ID_ARRAYS,
    MASK_ARRAYS,
    MASK_NAMES,
    ArrayTable,
    load_all,
    load_arrays,
    open_arrays,
    pick_or_only,
)
from gnntrain.data.bad_rows import BadRows
from gnntrain.data.columns import TEXT, is_repeated
from gnntrain.data.preprocessing import Preprocessing
from gnntrain.data.tables import Columns, Role, Table, listed
from gnntrain.data.text_table import is_number
from gnntrain.errors import UserError

if TYPE_CHECKING:
    from gnntrain.config import FilesConfig

COLUMN_NAMES: Mapping[Role, tuple[str, ...]] = {
    "id": ("id", "node_id", "node", "nid"),
    "label": ("label", "labels", "class", "y"),
    "split": ("split",),
    "source": ("source", "src", "from"),
    "target": ("target", "dst", "to"),
}
# One such name may be an ordinary feature; two or three of them are masks.
_PLAIN_MASK_NAMES: Mapping[Role, tuple[str, ...]] = {
    "train": ("train", "is_train"),
    "val": ("val", "valid", "is_val", "is_valid"),
    "test": ("test", "is_test"),
}
USUAL_NAMES = frozenset(chain(*COLUMN_NAMES.values(), MASK_ARRAYS))
"""Names that mark the first line of a text as a header, in lower case."""

NO_ID = "none"
# Keys whose names may be patterns, as a configuration and as a schema calls them.
_KEYS_OF_PATTERNS = ("feature_columns", "features", "categorical", "ignore")

# An empty name, pandas' name for it, its index in Parquet, a reset index.
_PANDAS_INDEX = re.compile(r"|Unnamed: \d+(\.\d+)?|__index_level_\d+__|index|level_0")


def is_array_file(path: Path) -> bool:
    """Whether a file holds arrays, not a table."""
    return path.suffix.lower() in ARRAY_SUFFIXES


def open_features(path: Path, config: FilesConfig, bad: BadRows) -> Table:
    """The features file.

    Raises:
        UserError: It cannot be read.
    """
    if is_array_file(path):
        return open_arrays(path, load_arrays(path), FEATURE_ARRAYS, config)
    return open_table(path, config, bad)


def columns_of_nodes(
    table: Table,
    config: FilesConfig,
    *,
    split_elsewhere: bool = False,
    preprocessing: Preprocessing | None = None,
    others: Collection[int] = (),
) -> Columns:
    """The features file: ids, and as `numbers` all columns that hold neither labels nor splits.

    Args:
        table: The table.
        config: The names of its columns.
        split_elsewhere: Whether another file says the split.
        preprocessing: What the model was trained on that the graph is read for, if any.
        others: Places of columns with a use of their own, which are read as they are written.

    Raises:
        UserError: It has no column of a name that is asked for.
    """
    if isinstance(table, ArrayTable):
        return Columns(table, find_id(table, config), table.main)
    ignored = matching_columns(table, config.ignore)
    places = _find_node_id(table, config, ignored.union(others), preprocessing)
    taken = {*places.values(), *others}
    taken |= set() if config.labels is not None else _label_places(table, config, ignored)
    taken |= set() if split_elsewhere else _split_places(table, config, ignored)
    numbers = [at for at in range(len(table.names)) if at not in taken]
    # Labels and splits are read in the same pass.
    return Columns(table, places, numbers, sorted(taken.difference(places.values())))


def _label_places(table: Table, config: FilesConfig, ignored: Collection[int]) -> set[int]:
    given = config.label_column or ()
    usual = {} if given else find_column(table, "label", None, ignored)
    return {*usual.values(), *chain(*(named_column(table, name) for name in given))}


def _split_places(table: Table, config: FilesConfig, ignored: Collection[int]) -> set[int]:
    found = find_column(table, "split", None, ignored) | find_masks(table, ignored)
    return {*found.values(), *named_split(table, config)}


def named_split(features: Table, config: FilesConfig) -> list[int]:
    """The column that `dataset.split_column` is in the features file, if it is there."""
    wanted = config.split_column
    # A number counts the columns of the labels file, if there is one.
    if wanted is None or (config.labels is not None and wanted.isdecimal()):
        return []
    return named_column(features, wanted)


def _find_node_id(
    table: Table, config: FilesConfig, ignored: Collection[int], preprocessing: Preprocessing | None
) -> dict[Role, int]:
    """The id's column: in a graph to predict for, first the one that it was in training."""
    if config.id_column is not None:
        refuse_ignored(table, "id_column", (config.id_column,), ignored)
    if config.id_column is not None or preprocessing is None or not preprocessing.has_names:
        return find_id(table, config, ignored, has_features=True)
    if preprocessing.id_name in table.names:
        return {"id": table.names.index(preprocessing.id_name)}
    known = {column.name for column in preprocessing.columns}
    features = {place for place in range(len(table.names)) if table.shown(place) in known}
    return find_id(table, config, features.union(ignored), has_features=True)


def refuse_ignored(table: Table, key: str, names: Sequence[str], ignored: Collection[int]) -> None:
    """Raise a UserError where `dataset.<key>` names a column that `dataset.ignore` names, too."""
    for name in names:
        if set(named_column(table, name)).intersection(ignored):
            raise UserError(
                f"dataset.ignore names column {name}, and so does dataset.{key}.",
                "Leave it out of one of the two.",
            )


def unknown_names(asked: Iterable[tuple[str, str]], tables: Sequence[Table]) -> list[Problem]:
    """The names that are no column of any of the tables.

    Args:
        asked: Names or patterns, each with its key.
        tables: The tables; nothing is told if the first one holds arrays, which have no header.
    """
    if not tables or isinstance(tables[0], ArrayTable):
        return []
    there = list(dict.fromkeys(chain(*(table.heading or table.names for table in tables))))
    expected = f"a column of {' or '.join(str(table.path) for table in tables)} ({listed(there)})"
    problems = []
    for key, name in asked:
        found = chain(*(named_column(table, name) for table in tables))
        if key.endswith(_KEYS_OF_PATTERNS):
            found = chain(*(matching_columns(table, [name]) for table in tables))
        if next(found, None) is None:
            problems.append(Problem(key, name, expected, did_you_mean(name, there)))
    return problems


def matching_columns(table: Table, patterns: Sequence[str]) -> set[int]:
    """Places of the columns that names, numbers from 0 and patterns with `*` and `?` stand for."""
    found = (named_column(table, pattern) or _places_like(table, pattern) for pattern in patterns)
    return set(chain(*found))


def named_column(table: Table, name: str) -> list[int]:
    """The column of that name or number from 0, if there is one."""
    if name in table.names:
        return [table.names.index(name)]
    return [int(name)] if name.isdecimal() and int(name) < len(table.names) else []


def _places_like(table: Table, pattern: str) -> list[int]:
    plain = pattern.replace("[", "[[]")  # of fnmatch's signs, only * and ? mean something
    return [place for place, name in enumerate(table.names) if fnmatchcase(name, plain)]


def is_pandas_index(name: str) -> bool:
    """Whether a column is called as pandas calls an index that it writes or resets."""
    return _PANDAS_INDEX.fullmatch(name) is not None


def id_column(paths: Sequence[Path], bad: BadRows) -> Columns:
    """The column of ids of a list of nodes: one called so, or else the first.

    Raises:
        UserError: A file cannot be read, or has other columns than the first.
    """
    path = paths[0]
    if is_array_file(path):
        ids = pick_or_only(path, load_all(paths), (*ID_ARRAYS, "node", "nodes"))
        if ids.ndim != 1 or ids.dtype.kind == "b":
            raise UserError(f"{path}: {ids.dtype} {list(ids.shape)} instead of a list of ids.")
        return Columns(ArrayTable(path, {"id": ids}), {"id": 0}, [])
    table = table_files.open_table(paths, bad, COLUMN_NAMES["id"], other_suffixes=ARRAY_SUFFIXES)
    return Columns(table, {"id": 0, **find_column(table, "id", None)}, [])


def open_table(
    path: Path, config: FilesConfig, bad: BadRows, usual: Collection[str] = USUAL_NAMES
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
    return table_files.open_table(
        [path],
        bad,
        names,
        header=config.header,
        decimal=config.decimal,
        encoding=config.encoding,
        other_suffixes=ARRAY_SUFFIXES,
    )


def find_column(
    table: Table, role: Role, wanted: str | None, ignored: Collection[int] = ()
) -> dict[Role, int]:
    """The column that is configured, or else the first with a usual name, if any.

    Raises:
        UserError: The configured column does not exist.
    """
    if wanted is not None:
        return {role: place_of(table, f"{role}_column", wanted)}
    return _first_called(table, role, COLUMN_NAMES[role], ignored)


def find_masks(table: Table, ignored: Collection[int]) -> dict[Role, int]:
    """The columns of masks: `train_mask` and the like, else two of `train`, `val` and `test`."""
    found = _masks_called(table, MASK_NAMES, ignored)
    plain = {} if found else _masks_called(table, _PLAIN_MASK_NAMES, ignored)
    return plain if len(plain) > 1 else found


def _masks_called(
    table: Table, usual: Mapping[Role, tuple[str, ...]], ignored: Collection[int]
) -> dict[Role, int]:
    found: dict[Role, int] = {}
    for role, names in usual.items():
        found |= _first_called(table, role, names, ignored)
    return found


def _first_called(
    table: Table, role: Role, usual: Sequence[str], ignored: Collection[int]
) -> dict[Role, int]:
    names = ["" if at in ignored else name.lower() for at, name in enumerate(table.names)]
    return next(({role: names.index(name)} for name in usual if name in names), {})


def place_of(table: Table, key: str, wanted: str) -> int:
    """Which column `dataset.<key>=wanted` is.

    Raises:
        UserError: There is no such column.
    """
    found = named_column(table, wanted)
    if found:
        return found[0]
    near = nearest(wanted, table.names)
    raise UserError(
        f"dataset.{key}={wanted}: {table.path} has no such column; it has {listed(table.names)}.",
        f"Did you mean {near}?" if near else "Give a column's name, or its number from 0.",
    )


def find_id(
    table: Table,
    config: FilesConfig,
    passed_over: Collection[int] = (),
    *,
    has_features: bool = False,
) -> dict[Role, int]:
    """The column of ids, which is guessed to be none in `passed_over`.

    A whole number written as a fraction, as 40.0, may be an id only where there are no features.
    """
    if config.id_column == NO_ID:
        return {}
    if isinstance(table, ArrayTable):
        columns = table.names[: table.main.start]
        names = (config.id_column, *ID_ARRAYS)
        return next(({"id": columns.index(name)} for name in names if name in columns), {})
    found = find_column(table, "id", config.id_column)
    if found or len(table.names) == 1:
        return found
    usual = {*COLUMN_NAMES["label"], *COLUMN_NAMES["split"], *MASK_ARRAYS}
    masks = find_masks(table, passed_over).values()
    asked = {*(config.label_column or ()), config.split_column}
    free = [
        place
        for place, name in enumerate(table.names)
        if place not in (*passed_over, *masks) and name.lower() not in usual and name not in asked
    ]
    written = [place for place in free if table.names[place].startswith("__index_level_")]
    rows = table.fields(np.zeros(1, np.int64))
    is_id = (
        place
        for place in free[:1] + written
        if rows and not _is_fraction(rows[0][1][place], table.decimal, as_written=has_features)
    )
    place = next(is_id, None)
    if place is None:
        return {}
    others = free[1:2] if place in written else written or free[1:2]
    if has_features and place == free[0] and others:
        return {"id": _index_or(table, place, others[0])}
    return {"id": place}


def _index_or(table: Table, first: int, other: int) -> int:
    """Of the first column and another, the index that pandas wrote; else the first.

    Raises:
        UserError: The one that is no index may hold the ids, too.
    """
    if is_pandas_index(table.names[first]):
        _refuse_two_ids(table, first, other)
        return first
    if table.names[other].startswith("__index_level_"):
        _refuse_two_ids(table, other, first)
        return other
    return first


def _refuse_two_ids(table: Table, index: int, other: int) -> None:
    """Ask which of two columns holds the ids: what pandas calls an index, or the other one.

    Raises:
        UserError: The other one holds whole numbers or texts, each once.
    """
    rows = Columns(table, {}, (), (index, other)).read()
    first, second = (table.to_plain(rows.others[place], labels=True) for place in (index, other))
    may_be_ids = pa.types.is_integer(second.type) or second.type == TEXT
    is_index = pa.types.is_integer(first.type)
    if not is_index or not may_be_ids or second.null_count or is_repeated(second).any():
        return
    name = table.shown(other)
    raise UserError(
        f"{table.path} has a column that is called as pandas calls an index, and a column "
        f"{name}, whose values are all different: either may hold the node ids.",
        f"Set dataset.id_column={name}; or dataset.id_column=none, if the rows are the nodes "
        "0, 1, 2, ….",
    )


def _is_fraction(field: str, decimal: str, *, as_written: bool) -> bool:
    if not is_number(field, decimal):
        return False
    if as_written:
        return not field.strip().lstrip("+-").isdecimal()
    return not float(field.replace(decimal, ".")).is_integer()
