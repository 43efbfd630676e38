"""The files of a user's graph as tables, and the roles of their columns.

**Which column is the id?** `NodeSpec.id`, by name or by number from 0; else the one called `id`,
`node_id`, `node` or `nid` (of a type `author`, `author_id`); else the index that pandas writes into
Parquet; else the first column without another use, if there are others and its first value is not a
fraction (40.0 is one among features). Where both an index and another column may be meant, it is
asked. Without an id ("none" says so), the rows are the nodes 0, 1, 2, ….

**Labels** are the columns that are named; else one called `label`, `labels`, `class` or `y`; else,
in a labels file, all that have no other use. **Splits** are a column called `split` or named, or
masks called `train_mask`, `val_mask` and `test_mask`.

`gnntrain.data.read.edges` finds the ends of edges.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa

from gnntrain.config import FilesConfig
from gnntrain.config.graph_spec import NO_ID, ColumnSpec, NodeSpec
from gnntrain.config.problems import Problem, did_you_mean
from gnntrain.data.array_files import (
    Arrays,
    ArrayTable,
    densified,
    is_array_file,
    load_arrays,
    pick,
    pick_or_only,
    saved_matrix,
)
from gnntrain.data.names import (
    COLUMN_NAMES,
    EDGE_ARRAYS,
    FEATURE_ARRAYS,
    ID_ARRAYS,
    LABEL_ARRAYS,
    MASK_ARRAYS,
    MASK_NAMES,
    NODE_ARRAYS,
    PLAIN_MASK_NAMES,
    Role,
    is_pandas_index,
)
from gnntrain.data.preprocessing import Preprocessing
from gnntrain.data.summary import first_names
from gnntrain.data.table_files import open_table
from gnntrain.data.tables import MAX_COLUMNS, BadRows, Columns, Table
from gnntrain.data.targets import check_split_number
from gnntrain.data.values import TEXT, is_number, is_repeated
from gnntrain.errors import UserError

# Keys whose names may be patterns.
_KEYS_OF_PATTERNS = ("feature_columns", "features", "categorical", "ignore")
_WRITTEN_INDEX = "__index_level_"


# Files as tables.


def open_nodes(
    paths: Sequence[Path],
    spec: NodeSpec,
    own: NodeSpec | ColumnSpec,
    options: FilesConfig,
    bad: BadRows,
) -> Table:
    """Files of nodes, or of their labels (`own` is then said of these), as one table."""
    if not is_array_file(paths[0]):
        splits = () if own is spec else spec.split.column or ()
        return open_table(paths, (*own.header, *splits), options, bad)
    usual = FEATURE_ARRAYS if own is spec else spec.label.column or LABEL_ARRAYS
    return _open_arrays(paths[0], load_arrays(paths), usual, spec, own.id, options)


def _open_arrays(
    path: Path,
    arrays: Arrays,
    names: Sequence[str],
    spec: NodeSpec,
    id_name: str | None,
    options: FilesConfig,
) -> ArrayTable:
    """Arrays as a table: the main one, by these names or the only one, and ids, labels and masks.

    The main array is the table's matrix, or its last column.
    """
    if (matrix := saved_matrix(path, arrays)) is not None:
        arrays = {"features": densified(matrix, path)}
    of_others = {*NODE_ARRAYS, *EDGE_ARRAYS}.difference(names)
    candidates = {name: array for name, array in arrays.items() if name not in of_others}
    main = pick_or_only(path, candidates, names)
    is_features = names is FEATURE_ARRAYS
    if main.ndim not in (1, 2) or (main.ndim == 1 and is_features):
        raise UserError(f"{path}: shape {list(main.shape)} instead of one row a node.")
    if main.ndim == 2 and main.shape[1] > MAX_COLUMNS:
        raise UserError(f"{path} has {main.shape[1]:,} columns, more than {MAX_COLUMNS:,}.")
    if main.ndim == 2 and main.dtype.kind not in "biuf":
        raise UserError(f"{path}: its values are of type {main.dtype}, not numbers.")
    number = options.split if isinstance(options.split, int) else 0
    columns = {}
    for name, array in arrays.items():
        is_label = name in (spec.label.column or ()) and array.ndim == 1
        if array is main or not (is_label or name in (*ID_ARRAYS, *MASK_ARRAYS, id_name)):
            continue
        if array.ndim == 2 and name in MASK_ARRAYS:  # [num_rows, num_splits]
            check_split_number(f"{path}: {name}", number, range(array.shape[1]))
            array = array[:, number]
        if array.shape != (len(main),):
            raise UserError(f"{path}: {len(main)} rows, and {name} of shape {list(array.shape)}.")
        columns[name] = array
    if main.ndim == 1 or (main.shape[1] == 1 and not is_features):
        main_name = next(name for name, array in arrays.items() if array is main)
        return ArrayTable(path, {**columns, main_name: main.reshape(-1)}, arrays=arrays)
    return ArrayTable(path, columns, main, arrays)


def id_column(paths: Sequence[Path], bad: BadRows) -> Columns:
    """The column of ids of a list of nodes: one called so, or else the first."""
    path = paths[0]
    if is_array_file(path):
        ids = pick_or_only(path, load_arrays(paths), (*ID_ARRAYS, "node", "nodes"))
        if ids.ndim != 1 or ids.dtype.kind == "b":
            raise UserError(f"{path}: {ids.dtype} {list(ids.shape)} instead of a list of ids.")
        return Columns(ArrayTable(path, {"id": ids}), {"id": 0})
    table = open_table(paths, (), FilesConfig(), bad, COLUMN_NAMES["id"])
    return Columns(table, {"id": 0, **find_column(table, "id")})


# Columns by their names.


def named_column(table: Table, name: str) -> list[int]:
    """The column of that name or number from 0, if there is one."""
    if name in table.names:
        return [table.names.index(name)]
    return [int(name)] if name.isdecimal() and int(name) < len(table.names) else []


def matching_columns(table: Table, patterns: Iterable[str]) -> set[int]:
    """Places of the columns that names, numbers from 0 and patterns with `*` and `?` stand for."""
    found: set[int] = set()
    for pattern in patterns:
        plain = pattern.replace("[", "[[]")  # of fnmatch's signs, only * and ? mean something
        alike = (place for place, name in enumerate(table.names) if fnmatchcase(name, plain))
        found.update(named_column(table, pattern) or alike)
    return found


def place_of(table: Table, key: str, wanted: str) -> int:
    """Which column a key names."""
    found = named_column(table, wanted)
    if found:
        return found[0]
    raise UserError(
        f"{key}={wanted}: {table.path} has no such column; it has {first_names(table.names)}.",
        did_you_mean(wanted, table.names, "Give a column's name, or its number from 0."),
    )


def unknown_names(asked: Iterable[tuple[str, str]], tables: Sequence[Table]) -> list[Problem]:
    """The names or patterns, each with its key, that are no column of any of the tables.

    Columns of arrays have no names. Of the keys that name one, those of features alone are told.
    """
    named = [table for table in tables if not isinstance(table, ArrayTable)]
    is_array = any(isinstance(table, ArrayTable) for table in tables[:1])
    there = list(dict.fromkeys(chain(*(table.heading or table.names for table in named))))
    columns = first_names(there) or "an array, whose columns have no names"
    expected = f"a column of {' or '.join(str(table.path) for table in tables)} ({columns})"
    problems = []
    for key, name in asked if tables else ():
        may_be_pattern = key.endswith(_KEYS_OF_PATTERNS)
        if (may_be_pattern or not is_array) and not any(
            matching_columns(table, [name]) if may_be_pattern else named_column(table, name)
            for table in named
        ):
            problems.append(Problem(key, name, expected, did_you_mean(name, there)))
    return problems


def find_column(
    table: Table, role: Role, ignored: Collection[int] = (), usual: Sequence[str] = ()
) -> dict[Role, int]:
    """The first column with a usual name, if any."""
    names = ["" if at in ignored else name.lower() for at, name in enumerate(table.names)]
    wanted = usual or COLUMN_NAMES[role]
    return next(({role: names.index(name)} for name in wanted if name in names), {})


def _find_masks(table: Table, ignored: Collection[int]) -> dict[Role, int]:
    """The columns of masks: `train_mask` and the like, else two of `train`, `val` and `test`."""
    for usual, least in ((MASK_NAMES, 1), (PLAIN_MASK_NAMES, 2)):
        found: dict[Role, int] = {}
        for role, names in usual.items():
            found |= find_column(table, role, ignored, names)
        if len(found) >= least:
            return found
    return {}


def _find_split(table: Table, ignored: Collection[int]) -> dict[Role, int]:
    """The columns that by their names tell the split."""
    return find_column(table, "split", ignored) | _find_masks(table, ignored)


def ignored_columns(table: Table, spec: NodeSpec) -> set[int]:
    """Places of the columns of the nodes' table that are not used."""
    unused = chain(*(named_column(table, name) for name in spec.unused))
    return matching_columns(table, spec.ignore).union(unused)


def _refuse_ignored(
    table: Table, key: str, names: Iterable[str], ignored: Collection[int], spec: NodeSpec
) -> None:
    """Raise a UserError where a key names a column that is to be left out, too."""
    for name in names:
        if set(named_column(table, name)).intersection(ignored):
            raise UserError(
                f"{spec.key('ignore')} names column {name}, and so does {key}.",
                "Leave it out of one of the two.",
            )


# The roles of columns.


def columns_of_nodes(
    table: Table,
    spec: NodeSpec,
    *,
    split_elsewhere: bool = False,
    preprocessing: Preprocessing | None = None,
) -> Columns:
    """The nodes' table: ids, and as `numbers` all columns that hold neither labels nor splits."""
    if isinstance(table, ArrayTable):
        main = () if spec.features == () else table.main
        return Columns(table, find_id(table, spec, spec), main)
    foreign = [place_of(table, spec.key("foreign_keys"), name) for name in spec.foreign_keys]
    ignored = ignored_columns(table, spec)
    passed_over = ignored.union(foreign)
    places: dict[Role, int] = {}
    if spec.id is not None:
        _refuse_ignored(table, spec.key("id"), (spec.id,), passed_over, spec)
    elif preprocessing is not None and preprocessing.has_names:
        # The column that it was in training, and none that was a feature.
        if preprocessing.id_name in table.names:
            places = {"id": table.names.index(preprocessing.id_name)}
        known = {column.name for column in preprocessing.columns}
        passed_over |= {at for at in range(len(table.names)) if table.shown(at) in known}
    places = places or find_id(table, spec, spec, passed_over)
    taken = {*places.values(), *foreign}
    if not spec.label.files:
        given = spec.label.column or ()
        usual = {} if given else find_column(table, "label", ignored)
        taken |= {*usual.values(), *chain(*(named_column(table, name) for name in given))}
    if not split_elsewhere:
        taken |= {*_find_split(table, ignored).values(), *named_split(table, spec)}
    numbers = [at for at in range(len(table.names)) if at not in taken]
    # Labels and splits are read in the same pass.
    return Columns(table, places, numbers, sorted(taken.difference(places.values())))


def find_id(
    table: Table,
    spec: NodeSpec,
    own: NodeSpec | ColumnSpec,
    passed_over: Collection[int] = (),
) -> dict[Role, int]:
    """The column of ids, if there is one, of a table of nodes, their labels or their splits.

    `own` is what is said of this table; columns that are `passed_over` are guessed to be none.
    """
    if own.id == NO_ID:
        return {}
    if isinstance(table, ArrayTable):
        columns = table.names[: table.main.start]
        names = (own.id, *ID_ARRAYS)
        return next(({"id": columns.index(name)} for name in names if name in columns), {})
    if own.id is not None:
        return {"id": place_of(table, own.key("id"), own.id)}
    has_features = own is spec
    usual = (*COLUMN_NAMES["id"], *(spec.id_names if has_features else ()))
    found = find_column(table, "id", (), usual)
    if found or len(table.names) == 1:
        return found
    others = {*COLUMN_NAMES["label"], *COLUMN_NAMES["split"], *MASK_ARRAYS}
    asked = {*(spec.label.column or ()), *(spec.split.column or ())}
    not_free = {*passed_over, *_find_masks(table, passed_over).values()}
    free = [
        place
        for place, name in enumerate(table.names)
        if place not in not_free and name.lower() not in others and name not in asked
    ]
    written = [place for place in free if table.names[place].startswith(_WRITTEN_INDEX)]
    first_row = table.fields(np.zeros(1, np.int64))

    def may_hold_ids(place: int) -> bool:
        """Whether its first field is no fraction: 40.0 is one among features."""
        field = first_row[0][1][place]
        if not is_number(field, table.decimal):
            return True
        if has_features:
            return field.strip().lstrip("+-").isdecimal()
        return float(field.replace(table.decimal, ".")).is_integer()

    guesses = [place for place in free[:1] + written if first_row and may_hold_ids(place)]
    if not guesses:
        return {}
    place = guesses[0]
    second = free[1:2] if place in written else written or free[1:2]
    if has_features and place == free[0] and second:
        if is_pandas_index(table.names[place]):
            _refuse_two_ids(table, place, second[0], own.key("id"))
        elif second[0] in written:
            _refuse_two_ids(table, second[0], place, own.key("id"))
            place = second[0]
    return {"id": place}


def _refuse_two_ids(table: Table, index: int, other: int, key: str) -> None:
    """Ask which of two columns holds the ids: what pandas calls an index, or the other one.

    The other one may, if it holds whole numbers or texts, each once.
    """
    rows = Columns(table, {}, (), (index, other)).read()
    first, second = (table.to_plain(rows.columns[place], labels=True) for place in (index, other))
    may_be_ids = pa.types.is_integer(second.type) or second.type == TEXT
    may_be_ids = may_be_ids and not (second.null_count or is_repeated(second).any())
    if not (pa.types.is_integer(first.type) and may_be_ids):
        return
    name = table.shown(other)
    raise UserError(
        f"{table.path} has a column that is called as pandas calls an index, and a column "
        f"{name}, whose values are all different: either may hold the node ids.",
        f"Set {key}={name}; or {key}=none, if the rows are the nodes 0, 1, 2, ….",
    )


def label_columns(
    table: Table, spec: NodeSpec, options: FilesConfig, *, within: bool = False
) -> Columns:
    """Labels, as `numbers` several of them or quantities, and splits.

    Of a labels file, which has ids, too; or `within` the nodes' table.
    """
    key, given, features = spec.label.key("column"), spec.label.column or (), table
    usual: Sequence[str] = COLUMN_NAMES["label"]
    if within and isinstance(features, ArrayTable):
        usual = given or LABEL_ARRAYS
        if pick(features.arrays, usual) is not None:
            table = _open_arrays(features.path, features.arrays, usual, spec, spec.id, options)
    ignored = ignored_columns(table, spec) if within else matching_columns(table, spec.label.ignore)
    _refuse_ignored(table, key, given, ignored, spec)
    places: dict[Role, int] = {}
    # Where a file says the split, the nodes' own columns of splits are not read.
    if not (within and (spec.split.files or spec.split.parts)):
        places = split_places(table, spec, ignored)
    if not within:
        places |= find_id(table, spec, spec.label, ignored)
    if within and table is features and isinstance(table, ArrayTable):
        labels = []
    elif isinstance(table, ArrayTable) and len(given) < 2:
        labels = list(table.main)
    elif given:
        labels = [place_of(table, key, name) for name in given]
    else:
        labels = [*find_column(table, "label", ignored).values()]
    if not labels and within:
        names = features.arrays if isinstance(features, ArrayTable) else features.names
        raise UserError(
            f"{spec.key('labels')} is not given, and {features.path} has no column or array called "
            f"{' or '.join(usual)} (it has {first_names([*filter(None, names)]) or 'no names'}).",
            f"Give a file of labels, or the name as {key}.",
        )
    if not labels:
        taken = ignored.union(places.values(), _find_split(table, ()).values())
        labels = [place for place in range(len(table.names)) if place not in taken]
    if not labels:
        raise UserError(f"{table.path} has no column of labels.", f"Set {key}.")
    if len(labels) > 1 or options.task == "regression":
        return Columns(table, places, labels)
    return Columns(table, {**places, "label": labels[0]})


def named_split(table: Table, spec: NodeSpec) -> list[int]:
    """The named column of the splits in the nodes' table, if it is there."""
    names = () if spec.split.files else spec.split.column or ()
    # A number counts the columns of the labels file, if there is one.
    return [
        place
        for name in names
        if not (spec.label.files and name.isdecimal())
        for place in named_column(table, name)
    ]


def split_places(table: Table, spec: NodeSpec, ignored: Collection[int]) -> dict[Role, int]:
    """The column of split names, and those of masks."""
    named = spec.split.column
    if named is None:
        return _find_split(table, ignored)
    _refuse_ignored(table, spec.split.key("column"), named, ignored, spec)
    found = named_column(table, named[0])
    return {"split": found[0]} if found else {}


def split_columns(table: Table, spec: NodeSpec) -> Columns:
    """A table of ids and the names of their splits, or masks."""
    ignored = matching_columns(table, spec.split.ignore)
    ids = find_id(table, spec, spec.split)
    places = split_places(table, spec, ignored)
    if not places:
        taken = ignored.union(ids.values())
        others = [place for place in range(len(table.names)) if place not in taken]
        if len(others) != 1:
            raise UserError(
                f"{table.path}: it is not plain which column is the split; it has "
                f"{first_names(table.names)}.",
                f"It needs two, id and split; or set {spec.split.key('column')}.",
            )
        places = {"split": others[0]}
    return Columns(table, {**ids, **places})
