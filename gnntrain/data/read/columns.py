"""The files of a user's graph as tables, and the roles of their columns.

**Which column is the id?** `NodeSpec.id`, by name or by number from 0; else the one called `id`,
`node_id`, `node` or `nid` (of a type `author`, `author_id`); else the index that pandas writes into
Parquet; else the first column without another use (such as the unnamed one that pandas writes into
CSV), if there are others and its first value is not a fraction (40.0 is one among features). Where
both an index and another column may be meant, it is asked. Without an id ("none" says so), the rows
are the nodes 0, 1, 2, …. Arrays (npy, npz, pt) have no id unless an npz or pt file holds an array
called `ids`, `id` or `node_id`.

**Labels** are the columns that are named; else one called `label`, `labels`, `class` or `y`; else,
in a labels file, all that have no other use. **Splits** are a column called `split` or named, or
masks called `train_mask`, `val_mask` and `test_mask`.

`gnntrain.data.read.edges` finds the ends of edges.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gnntrain.config.graph_spec import NO_ID, NodeSpec
from gnntrain.config.problems import Problem, did_you_mean, nearest
from gnntrain.data import table_files
from gnntrain.data.array_files import (
    ARRAY_SUFFIXES,
    Arrays,
    ArrayTable,
    load_all,
    open_arrays,
    pick,
    pick_or_only,
)
from gnntrain.data.names import (
    COLUMN_NAMES,
    FEATURE_ARRAYS,
    ID_ARRAYS,
    LABEL_ARRAYS,
    MASK_ARRAYS,
    MASK_NAMES,
    PLAIN_MASK_NAMES,
    USUAL_NAMES,
    Role,
    is_pandas_index,
)
from gnntrain.data.preprocessing import Preprocessing
from gnntrain.data.tables import BadRows, Columns, Table, listed
from gnntrain.data.text_table import is_number
from gnntrain.data.values import TEXT, is_repeated
from gnntrain.errors import UserError

if TYPE_CHECKING:
    from gnntrain.config import FilesConfig

# Keys whose names may be patterns.
_KEYS_OF_PATTERNS = ("feature_columns", "features", "categorical", "ignore")


def is_array_file(path: Path) -> bool:
    """Whether a file holds arrays, not a table."""
    return path.suffix.lower() in ARRAY_SUFFIXES


def open_nodes(paths: Sequence[Path], spec: NodeSpec, options: FilesConfig, bad: BadRows) -> Table:
    """Files of nodes as one table.

    Raises:
        UserError: One cannot be read, or has other columns than the first.
    """
    if not is_array_file(paths[0]):
        return Table.of_files([open_table(path, spec.header, options, bad) for path in paths])
    return _arrays_of_nodes(paths[0], load_all(paths), FEATURE_ARRAYS, spec, spec.id, options)


def open_labels(paths: Sequence[Path], spec: NodeSpec, options: FilesConfig, bad: BadRows) -> Table:
    """Files of labels as one table.

    Raises:
        UserError: One cannot be read, or has other columns than the first.
    """
    if not is_array_file(paths[0]):
        names = (*spec.label.header, *(spec.split.columns or ()))
        return Table.of_files([open_table(path, names, options, bad) for path in paths])
    usual = spec.label.columns or LABEL_ARRAYS
    return _arrays_of_nodes(paths[0], load_all(paths), usual, spec, spec.label.id, options)


def _arrays_of_nodes(
    path: Path,
    arrays: Arrays,
    names: Sequence[str],
    spec: NodeSpec,
    id_name: str | None,
    options: FilesConfig,
) -> ArrayTable:
    number = options.split if isinstance(options.split, int) else 0
    labels = spec.label.columns or ()
    return open_arrays(path, arrays, names, labels=labels, id_name=id_name, split=number)


def columns_of_nodes(
    table: Table,
    spec: NodeSpec,
    *,
    split_elsewhere: bool = False,
    preprocessing: Preprocessing | None = None,
) -> Columns:
    """The nodes' table: ids, and as `numbers` all columns that hold neither labels nor splits.

    Args:
        table: The table.
        spec: The names of its columns.
        split_elsewhere: Whether another file says the split.
        preprocessing: What the model was trained on that the graph is read for, if any.

    Raises:
        UserError: It has no column of a name that is asked for.
    """
    if isinstance(table, ArrayTable):
        main = () if spec.features == () else table.main
        return Columns(table, find_id(table, spec.id), main)
    foreign = [place_of(table, spec.key("foreign_keys"), name) for name in spec.foreign_keys]
    ignored = ignored_columns(table, spec)
    places = _find_node_id(table, spec, ignored.union(foreign), preprocessing)
    taken = {*places.values(), *foreign}
    if not spec.label.files:
        given = spec.label.columns or ()
        usual = {} if given else find_column(table, "label", ignored)
        taken |= {*usual.values(), *chain(*(named_column(table, name) for name in given))}
    if not split_elsewhere:
        found = find_column(table, "split", ignored) | find_masks(table, ignored)
        taken |= {*found.values(), *named_split(table, spec)}
    numbers = [at for at in range(len(table.names)) if at not in taken]
    # Labels and splits are read in the same pass.
    return Columns(table, places, numbers, sorted(taken.difference(places.values())))


def ignored_columns(table: Table, spec: NodeSpec) -> set[int]:
    """Places of the columns that are not used."""
    unused = chain(*(named_column(table, name) for name in spec.unused))
    return matching_columns(table, spec.ignore).union(unused)


def named_split(table: Table, spec: NodeSpec) -> list[int]:
    """The named column of the splits in the nodes' table, if it is there."""
    names = () if spec.split.files else spec.split.columns or ()
    # A number counts the columns of the labels file, if there is one.
    counts_elsewhere = bool(spec.label.files)
    return [
        place
        for name in names
        if not (counts_elsewhere and name.isdecimal())
        for place in named_column(table, name)
    ]


def _find_node_id(
    table: Table, spec: NodeSpec, ignored: Collection[int], preprocessing: Preprocessing | None
) -> dict[Role, int]:
    """The id's column: in a graph to predict for, first the one that it was in training."""
    if spec.id is not None:
        refuse_ignored(table, spec.key("id"), (spec.id,), ignored, spec)
    elif preprocessing is not None and preprocessing.has_names:
        if preprocessing.id_name in table.names:
            return {"id": table.names.index(preprocessing.id_name)}
        known = {column.name for column in preprocessing.columns}
        features = {place for place in range(len(table.names)) if table.shown(place) in known}
        ignored = features.union(ignored)
    return find_id(
        table,
        spec.id,
        spec.key("id"),
        usual=(*COLUMN_NAMES["id"], *spec.id_names),
        asked=(*(spec.label.columns or ()), *(spec.split.columns or ())),
        passed_over=ignored,
        has_features=True,
    )


def refuse_ignored(
    table: Table, key: str, names: Sequence[str], ignored: Collection[int], spec: NodeSpec
) -> None:
    """Raise a UserError where a key names a column that is to be left out, too."""
    for name in names:
        if set(named_column(table, name)).intersection(ignored):
            raise UserError(
                f"{spec.key('ignore')} names column {name}, and so does {key}.",
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
    table = Table.of_files([open_table(path, (), None, bad, COLUMN_NAMES["id"]) for path in paths])
    return Columns(table, {"id": 0, **find_column(table, "id")}, [])


def open_table(
    path: Path,
    names: Iterable[str],
    options: FilesConfig | None,
    bad: BadRows,
    usual: Collection[str] = USUAL_NAMES,
) -> Table:
    """Open a table; `names` and the usual ones mark a header.

    Raises:
        UserError: It cannot be read.
    """
    marks = {*usual, *(name.lower() for name in names if not name.isdecimal())}
    text = {} if options is None else options.model_dump(include={"header", "decimal", "encoding"})
    return table_files.open_table([path], bad, marks, other_suffixes=ARRAY_SUFFIXES, **text)


def find_column(
    table: Table, role: Role, ignored: Collection[int] = (), usual: Sequence[str] = ()
) -> dict[Role, int]:
    """The first column with a usual name, if any."""
    names = ["" if at in ignored else name.lower() for at, name in enumerate(table.names)]
    wanted = usual or COLUMN_NAMES[role]
    return next(({role: names.index(name)} for name in wanted if name in names), {})


def find_masks(table: Table, ignored: Collection[int]) -> dict[Role, int]:
    """The columns of masks: `train_mask` and the like, else two of `train`, `val` and `test`."""
    found = _masks_called(table, MASK_NAMES, ignored)
    plain = {} if found else _masks_called(table, PLAIN_MASK_NAMES, ignored)
    return plain if len(plain) > 1 else found


def _masks_called(
    table: Table, usual: Mapping[Role, tuple[str, ...]], ignored: Collection[int]
) -> dict[Role, int]:
    found: dict[Role, int] = {}
    for role, names in usual.items():
        found |= find_column(table, role, ignored, names)
    return found


def place_of(table: Table, key: str, wanted: str) -> int:
    """Which column a key names.

    Raises:
        UserError: There is no such column.
    """
    found = named_column(table, wanted)
    if found:
        return found[0]
    near = nearest(wanted, table.names)
    raise UserError(
        f"{key}={wanted}: {table.path} has no such column; it has {listed(table.names)}.",
        f"Did you mean {near}?" if near else "Give a column's name, or its number from 0.",
    )


def find_id(
    table: Table,
    wanted: str | None,
    key: str = "",
    *,
    usual: Sequence[str] = COLUMN_NAMES["id"],
    asked: Collection[str] = (),
    passed_over: Collection[int] = (),
    has_features: bool = False,
) -> dict[Role, int]:
    """The column of ids, if there is one.

    Args:
        table: The table.
        wanted: Its name; None: it is recognised; "none": there is none.
        key: The key that names it.
        usual: Names by which it is recognised, in lower case.
        asked: Names of columns with another use.
        passed_over: Places of columns that are guessed to be none.
        has_features: Whether there are features: a whole number written as a fraction, as 40.0, is
            no id then.

    Raises:
        UserError: There is no column of that name; or either of two may hold the ids.
    """
    if wanted == NO_ID:
        return {}
    if isinstance(table, ArrayTable):
        columns = table.names[: table.main.start]
        names = (wanted, *ID_ARRAYS)
        return next(({"id": columns.index(name)} for name in names if name in columns), {})
    if wanted is not None:
        return {"id": place_of(table, key, wanted)}
    found = find_column(table, "id", (), usual)
    if found or len(table.names) == 1:
        return found
    others = {*COLUMN_NAMES["label"], *COLUMN_NAMES["split"], *MASK_ARRAYS}
    masks = find_masks(table, passed_over).values()
    free = [
        place
        for place, name in enumerate(table.names)
        if place not in (*passed_over, *masks) and name.lower() not in others and name not in asked
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
    second = free[1:2] if place in written else written or free[1:2]
    if has_features and place == free[0] and second:
        return {"id": _index_or(table, place, second[0], key)}
    return {"id": place}


def _index_or(table: Table, first: int, other: int, key: str) -> int:
    """Of the first column and another, the index that pandas wrote; else the first.

    Raises:
        UserError: The one that is no index may hold the ids, too.
    """
    if is_pandas_index(table.names[first]):
        _refuse_two_ids(table, first, other, key)
        return first
    if table.names[other].startswith("__index_level_"):
        _refuse_two_ids(table, other, first, key)
        return other
    return first


def _refuse_two_ids(table: Table, index: int, other: int, key: str) -> None:
    """Ask which of two columns holds the ids: what pandas calls an index, or the other one.

    Raises:
        UserError: The other one holds whole numbers or texts, each once.
    """
    rows = Columns(table, {}, (), (index, other)).read()
    first, second = (table.to_plain(rows.columns[place], labels=True) for place in (index, other))
    may_be_ids = pa.types.is_integer(second.type) or second.type == TEXT
    is_index = pa.types.is_integer(first.type)
    if not is_index or not may_be_ids or second.null_count or is_repeated(second).any():
        return
    name = table.shown(other)
    raise UserError(
        f"{table.path} has a column that is called as pandas calls an index, and a column "
        f"{name}, whose values are all different: either may hold the node ids.",
        f"Set {key}={name}; or {key}=none, if the rows are the nodes 0, 1, 2, ….",
    )


def _is_fraction(field: str, decimal: str, *, as_written: bool) -> bool:
    if not is_number(field, decimal):
        return False
    if as_written:
        return not field.strip().lstrip("+-").isdecimal()
    return not float(field.replace(decimal, ".")).is_integer()


def label_columns(table: Table, spec: NodeSpec, options: FilesConfig) -> Columns:
    """The labels file: ids, labels and perhaps splits; several labels, and quantities, are numbers.

    Raises:
        UserError: It has no labels, or no array of a name that is asked for.
    """
    own = spec.label
    ignored = matching_columns(table, own.ignore)
    ids = find_id(
        table,
        own.id,
        own.key("id"),
        asked=(*(own.columns or ()), *(spec.split.columns or ())),
        passed_over=ignored,
    )
    places = {**split_places(table, spec, ignored), **ids}
    labels = _named_labels(table, spec, ignored)
    if not labels:
        splits = find_column(table, "split") | find_masks(table, ())
        taken = ignored.union(places.values(), splits.values())
        labels = [place for place in range(len(table.names)) if place not in taken]
    if not labels:
        raise UserError(f"{table.path} has no column of labels.", f"Set {own.key('column')}.")
    return _with_labels(table, places, labels, options)


def label_columns_within(features: Table, spec: NodeSpec, options: FilesConfig) -> Columns:
    """As `label_columns`, but of the nodes' table, and without ids.

    Raises:
        UserError: It has no labels, or no column of a name that is asked for.
    """
    table, kind, usual = features, "column", COLUMN_NAMES["label"]
    if isinstance(features, ArrayTable):
        kind, usual = "array", spec.label.columns or LABEL_ARRAYS
        if pick(features.arrays, usual) is not None:
            table = _arrays_of_nodes(features.path, features.arrays, usual, spec, spec.id, options)
    ignored = ignored_columns(table, spec)
    labels = [] if table is features and kind == "array" else _named_labels(table, spec, ignored)
    if not labels:
        names = features.arrays if isinstance(features, ArrayTable) else features.names
        found = f"it has {listed(tuple(names))}" if any(names) else f"its {kind} has no name"
        raise UserError(
            f"{spec.key('labels')} is not given, and {features.path} has no {kind} called "
            f"{' or '.join(usual)} ({found}).",
            f"Give a file of labels, or the {kind}'s name as {spec.label.key('column')}.",
        )
    # Where a file says the split, the table's own columns of splits are not read.
    has_split_file = bool(spec.split.files or spec.split.parts)
    places = {} if has_split_file else split_places(table, spec, ignored)
    return _with_labels(table, places, labels, options)


def _named_labels(table: Table, spec: NodeSpec, ignored: Collection[int]) -> list[int]:
    """Columns that are named, by the specification or as labels are."""
    given, key = spec.label.columns or (), spec.label.key("column")
    refuse_ignored(table, key, given, ignored, spec)
    if isinstance(table, ArrayTable) and len(given) < 2:
        return list(table.main)
    if given:
        return [place_of(table, key, name) for name in given]
    return [*find_column(table, "label", ignored).values()]


def _with_labels(
    table: Table, places: Mapping[Role, int], labels: Sequence[int], options: FilesConfig
) -> Columns:
    if len(labels) > 1 or options.task == "regression":
        return Columns(table, places, labels)
    return Columns(table, {**places, "label": labels[0]}, ())


def split_places(table: Table, spec: NodeSpec, ignored: Collection[int]) -> dict[Role, int]:
    """The column of split names, and those of masks."""
    named = spec.split.columns
    if named is None:
        return find_column(table, "split", ignored) | find_masks(table, ignored)
    refuse_ignored(table, spec.split.key("column"), named, ignored, spec)
    found = named_column(table, named[0])
    return {"split": found[0]} if found else {}


def split_columns(table: Table, spec: NodeSpec) -> Columns:
    """A table of ids and the names of their splits, or masks.

    Raises:
        UserError: It is not plain which column they are.
    """
    own = spec.split
    ignored = matching_columns(table, own.ignore)
    asked = (*(spec.label.columns or ()), *(own.columns or ()))
    ids = find_id(table, own.id, own.key("id"), asked=asked)
    places = split_places(table, spec, ignored)
    if not places:
        taken = ignored.union(ids.values())
        others = [place for place in range(len(table.names)) if place not in taken]
        if len(others) != 1:
            raise UserError(
                f"{table.path}: it is not plain which column is the split; it has "
                f"{listed(table.names)}.",
                f"It needs two, id and split; or set {own.key('column')}.",
            )
        places = {"split": others[0]}
    return Columns(table, {**ids, **places}, [])


def has_split(columns: Columns) -> bool:
    """Whether the labels file has the split."""
    return bool(columns.places.keys() & {"split", *MASK_NAMES})
