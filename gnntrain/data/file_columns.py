"""The files of a user's graph as tables, and which of their columns is what.

**Which column is the id?** `id_column`, by name or by number from 0; else the one called `id`,
`node_id`, `node` or `nid`; else the first column without another use (such as the unnamed one that
pandas writes), if there are others and its first value is not a fraction; else the index that
pandas writes into Parquet. Without an id (`id_column=none` says
so), the rows are the nodes 0, 1, 2, …. Arrays (npy, npz, pt) have no id unless an npz or pt
file holds an array called `ids`, `id` or `node_id`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from gnntrain.config.problems import did_you_mean, nearest
from gnntrain.data.array_files import (
    ARRAY_SUFFIXES,
    Arrays,
    ArrayTable,
    load_arrays,
    pick,
    pick_or_only,
)
from gnntrain.data.arrow_tables import (
    GRAPHML_SUFFIX,
    READERS,
    open_arrow_table,
    open_graphml,
)
from gnntrain.data.bad_rows import BadRows
from gnntrain.data.conversions import conversion_hint
from gnntrain.data.graph import AnyArray
from gnntrain.data.preprocessing import Preprocessing
from gnntrain.data.sparse import unpack_edges, unpack_features
from gnntrain.data.tables import MAX_COLUMNS, PARQUET_SUFFIXES, Columns, ParquetTable, Role, Table
from gnntrain.data.text_table import TEXT_SUFFIXES, TextTable, is_number, table_suffix
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
ID_ARRAYS = ("ids", "id", "node_id")
_FEATURE_ARRAYS = ("features", "feature", "x", "feat")
_LABEL_ARRAYS = ("labels", "label", "y")
_EDGE_ARRAYS = ("edge_index", "edges")
_WEIGHT_ARRAYS = ("edge_weight", "weight", "weights")

NO_ID = "none"

# An empty name, what pandas makes of it when it reads, its index in Parquet, a reset index.
_PANDAS_INDEX = re.compile(r"|Unnamed: \d+(\.\d+)?|__index_level_\d+__|index|level_0")


def is_array_file(path: Path) -> bool:
    """Whether a file holds arrays, not a table."""
    return path.suffix.lower() in ARRAY_SUFFIXES


def feature_columns(
    path: Path,
    config: FilesConfig,
    bad: BadRows,
    *,
    labelled: bool,
    preprocessing: Preprocessing | None = None,
) -> Columns:
    """The features file: ids and, where they have no file of their own, labels and splits.

    Args:
        path: The file.
        config: How it is read.
        bad: Takes its bad rows.
        labelled: Whether there must be labels.
        preprocessing: What the model was trained on that the graph is read for, if any.

    Returns:
        The columns by role; all others are the `numbers`.

    Raises:
        UserError: The file cannot be read, has no column of a name that is asked for, or no
            labels though it should.
    """
    if is_array_file(path):
        if labelled and config.labels is None:
            raise UserError(
                f"dataset.labels is not given, and {path} has no columns with names.",
                "Give a file of labels.",
            )
        return _columns_of_arrays(path, _FEATURE_ARRAYS)
    table = _open_user_table(path, config, bad)
    ignored = matching_columns(table, "ignore", config.ignore, strict=labelled)
    places = _find_node_id(table, config, ignored, preprocessing)
    # A graph to predict for may lack the columns that the run's configuration names.
    label = config.label_column[0] if config.label_column else None
    if config.labels is None and (labelled or label in (None, *table.names)):
        places |= _find(table, "label", label)
    is_split_here = config.labels is None and config.split is None
    if is_split_here and (labelled or config.split_column in (None, *table.names)):
        places |= _find(table, "split", config.split_column)
    _drop_ignored(table, places, ignored, config)
    if labelled and config.labels is None and "label" not in places:
        raise UserError(
            f"dataset.labels is not given, and {path} has no column called "
            f"{' or '.join(COLUMN_NAMES['label'])} (it has {_listed(table.names)}).",
            "Give a file of labels, or the column's name as dataset.label_column.",
        )
    return Columns(table, places, _others(table, places))


def _find_node_id(
    table: Table, config: FilesConfig, ignored: Collection[int], preprocessing: Preprocessing | None
) -> dict[Role, int]:
    """The id's column: in a graph to predict for, first the one that it was in training."""
    if config.id_column is not None or preprocessing is None or not preprocessing.has_names:
        return _find_id(table, config, ignored)
    if preprocessing.id_name in table.names:
        return {"id": table.names.index(preprocessing.id_name)}
    known = {column.name for column in preprocessing.columns}
    features = {place for place, name in enumerate(table.names) if name in known}
    return _find_id(table, config, features.union(ignored))


def _drop_ignored(
    table: Table, places: dict[Role, int], ignored: Collection[int], config: FilesConfig
) -> None:
    """Forget columns that `dataset.ignore` names and that were found by themselves.

    Raises:
        UserError: Another key names one of them.
    """
    for role, place in list(places.items()):
        if place in ignored:
            if getattr(config, f"{role}_column") is not None:
                raise UserError(
                    f"dataset.ignore names column {table.shown(place)}, and so does "
                    f"dataset.{role}_column.",
                    "Leave it out of one of the two.",
                )
            del places[role]


def matching_columns(
    table: Table, key: str, patterns: Sequence[str], *, strict: bool = True
) -> set[int]:
    """Places of the columns that the names, numbers and patterns of `dataset.<key>` stand for.

    Args:
        table: The table.
        key: The key, for the message.
        patterns: Names as they are, numbers from 0, or patterns with `*` and `?`.
        strict: Whether each must match a column.

    Raises:
        UserError: One matches no column.
    """
    found: set[int] = set()
    for pattern in patterns:
        matches = named_column(table, pattern) or _places_like(table, pattern)
        if strict and not matches:
            hint = did_you_mean(pattern, table.names) or "give a name, a number from 0 or a pattern"
            raise UserError(
                f"dataset.{key}: {pattern} is no column of {table.path}; it has "
                f"{_listed(table.names)}.",
                f"{hint[0].upper()}{hint[1:]}" + "." * (not hint.endswith("?")),
            )
        found.update(matches)
    return found


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


def label_columns(path: Path, config: FilesConfig, bad: BadRows) -> Columns:
    """The labels file: ids, one column of labels (or several of 0 and 1), perhaps splits.

    Raises:
        UserError: The file cannot be read, or has no column of a name that is asked for.
    """
    if is_array_file(path):
        return _columns_of_arrays(path, _LABEL_ARRAYS)
    table = _open_user_table(path, config, bad)
    places = _find_id(table, config)
    if config.split is None:
        places |= _find(table, "split", config.split_column)
    places |= _find(table, "label", config.label_column[0] if config.label_column else None)
    others = _others(table, places)
    if "label" not in places and len(others) == 1:
        places["label"] = others[0]
    return Columns(table, places, [] if "label" in places else others)


def split_columns(path: Path, config: FilesConfig, bad: BadRows) -> Columns:
    """A table of ids and the names of their splits.

    Raises:
        UserError: The file cannot be read, or has no column of a name that is asked for.
    """
    table = _open_user_table(path, config, bad)
    places = _find_id(table, config)
    places |= _find(table, "split", config.split_column)
    if "split" not in places:
        others = _others(table, places)
        if not others:
            raise UserError(f"{path} has only one column.", "It needs two: id and split.")
        places["split"] = others[0]
    return Columns(table, places, [])


def edge_columns(path: Path, config: FilesConfig, bad: BadRows) -> Columns:
    """The edges file: sources, targets and perhaps weights, which are its only numbers.

    Raises:
        UserError: The file cannot be read, or has no column of a name that is asked for.
    """
    if is_array_file(path):
        arrays = unpack_edges(path, load_arrays(path))
        return _edge_columns_of_arrays(path, arrays, config.weight_column)
    is_graphml = path.suffix.lower() == GRAPHML_SUFFIX
    table = open_graphml(path, "edges") if is_graphml else _open_user_table(path, config, bad)
    if len(table.names) < 2:
        raise UserError(f"{path} has only one column.", "It needs two: source and target.")
    places: dict[Role, int] = {"source": 0, "target": 1}
    places |= _find(table, "source", config.source_column)
    places |= _find(table, "target", config.target_column)
    weight = config.weight_column
    weights = [] if weight is None else [_place_of(table, "weight_column", weight)]
    return Columns(table, places, weights)


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
    return Columns(table, {"id": 0, **_find(table, "id", None)}, [])


def _open_user_table(path: Path, config: FilesConfig, bad: BadRows) -> Table:
    """Open a table; the configuration's names and the usual ones mark a header."""
    roles = ("id", "split", "source", "target", "weight")
    given = [getattr(config, f"{role}_column") for role in roles]
    given += config.label_column or ()
    names = {name.lower() for name in given if name is not None and not name.isdecimal()}
    known_names = names.union(*COLUMN_NAMES.values())
    return _open_table(path, bad, known_names, config.header, config.decimal, config.encoding)


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
    if path.suffix.lower() in READERS:
        return open_arrow_table(path, header)
    if suffix == GRAPHML_SUFFIX:
        return open_graphml(path, "nodes")
    known = ", ".join((*TEXT_SUFFIXES, *PARQUET_SUFFIXES, *READERS, *ARRAY_SUFFIXES))
    raise UserError(
        f"{path}: the suffix {path.suffix!r} does not say what the file is.",
        conversion_hint(path) or f"Name it with one of {known} (text also with .gz, .bz2 or .zst).",
    )


def _find(table: Table, role: Role, wanted: str | None) -> dict[Role, int]:
    """The column that is wanted, or else the first with a usual name, if any."""
    if wanted is not None:
        return {role: _place_of(table, f"{role}_column", wanted)}
    names = [name.lower() for name in table.names]
    return next(({role: names.index(usual)} for usual in COLUMN_NAMES[role] if usual in names), {})


def _place_of(table: Table, key: str, wanted: str) -> int:
    """Which column `dataset.<key>=wanted` is.

    Raises:
        UserError: There is no such column.
    """
    if wanted in table.names:
        return table.names.index(wanted)
    if wanted.isdecimal() and int(wanted) < len(table.names):
        return int(wanted)
    near = nearest(wanted, table.names)
    raise UserError(
        f"dataset.{key}={wanted}: {table.path} has no such column; it has {_listed(table.names)}.",
        f"Did you mean {near}?" if near else "Give a column's name, or its number from 0.",
    )


def _find_id(
    table: Table, config: FilesConfig, passed_over: Collection[int] = ()
) -> dict[Role, int]:
    """The column of ids; those in `passed_over` are not guessed to be it."""
    if config.id_column == NO_ID:
        return {}
    found = _find(table, "id", config.id_column)
    if found or len(table.names) == 1:
        return found
    usual = {*COLUMN_NAMES["label"], *COLUMN_NAMES["split"]}
    asked = {*(config.label_column or ()), config.split_column}
    free = [
        place
        for place, name in enumerate(table.names)
        if place not in passed_over and name.lower() not in usual and name not in asked
    ]
    written = [place for place in free if table.names[place].startswith("__index_level_")]
    rows = table.records(np.zeros(1, np.int64))
    is_id = (place for place in free[:1] + written if rows and not _is_fraction(rows[0][1][place]))
    return next(({"id": place} for place in is_id), {})


def _is_fraction(field: str) -> bool:
    return is_number(field) and not field.strip().lstrip("+-").isdecimal()


def _others(table: Table, places: Mapping[Role, int]) -> list[int]:
    taken = set(places.values())
    return [place for place in range(len(table.names)) if place not in taken]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (", …" if len(names) > 20 else "")


def _columns_of_arrays(path: Path, names: Sequence[str]) -> Columns:
    """A file of arrays: one of the given names or the only one, and perhaps one of ids."""
    arrays = unpack_features(path, load_arrays(path))
    ids = pick(arrays, ID_ARRAYS)
    main = pick_or_only(path, {n: a for n, a in arrays.items() if n not in ID_ARRAYS}, names)
    if main.ndim == 2 and main.shape[1] == 1 and names is _LABEL_ARRAYS:
        main = main[:, 0]
    if main.ndim not in (1, 2) or (main.ndim == 1 and names is _FEATURE_ARRAYS):
        raise UserError(f"{path}: shape {list(main.shape)} instead of one row a node.")
    if main.ndim == 2 and main.shape[1] > MAX_COLUMNS:
        raise UserError(f"{path} has {main.shape[1]:,} columns, more than {MAX_COLUMNS:,}.")
    if main.ndim == 2 and main.dtype.kind not in "biuf":
        raise UserError(f"{path}: its values are of type {main.dtype}, not numbers.")
    if ids is not None and ids.shape != (len(main),):
        raise UserError(f"{path}: {len(main)} rows and ids of shape {list(ids.shape)}.")
    columns: dict[str, AnyArray] = {}
    places: dict[Role, int] = {}
    if ids is not None:
        columns["id"], places["id"] = ids, 0
    if main.ndim == 1:
        columns["label"], places["label"] = main, len(places)
    table = ArrayTable(path, columns, main if main.ndim == 2 else None)
    return Columns(table, places, range(len(places), len(table.names)))


def _edge_columns_of_arrays(path: Path, arrays: Arrays, weight_name: str | None) -> Columns:
    source, target = (pick(arrays, COLUMN_NAMES[end]) for end in ("source", "target"))
    if source is None or target is None:
        weights = {weight_name, *_WEIGHT_ARRAYS}
        others = {name: array for name, array in arrays.items() if name not in weights}
        source, target = _both_ends(path, pick_or_only(path, others, _EDGE_ARRAYS))
    weight = pick(arrays, _WEIGHT_ARRAYS if weight_name is None else (weight_name,))
    if weight is None and weight_name is not None:
        raise UserError(
            f"dataset.weight_column={weight_name}: {path} has no such array; it has "
            f"{', '.join(arrays)}."
        )
    if source.ndim != 1 or source.shape != target.shape:
        raise UserError(
            f"{path}: sources of shape {list(source.shape)}, targets of {list(target.shape)}."
        )
    if "b" in (source.dtype.kind, target.dtype.kind):
        raise UserError(
            f"{path}: the edges are truth values, not node ids.",
            "List the edges of an adjacency matrix as pairs of nodes.",
        )
    if weight is not None and (weight.size != len(source) or weight.dtype.kind not in "biuf"):
        raise UserError(f"{path}: the weights are not one number an edge.")
    columns = {"source": source, "target": target}
    if weight is not None:
        columns["weight"] = weight.reshape(-1)
    return Columns(ArrayTable(path, columns), {"source": 0, "target": 1}, range(2, len(columns)))


def _both_ends(path: Path, pairs: AnyArray) -> tuple[AnyArray, AnyArray]:
    """The ends of `[2, num_edges]` or `[num_edges, 2]`; two by two is taken as the former."""
    if pairs.ndim != 2 or 2 not in pairs.shape:
        raise UserError(
            f"{path}: shape {list(pairs.shape)} instead of [2, num_edges] or [num_edges, 2]."
        )
    return (pairs[0], pairs[1]) if pairs.shape[0] == 2 else (pairs[:, 0], pairs[:, 1])
