"""Files with one row a node: features, labels, splits, and which column of them is what.

**Which column is the id?** `id_column`, by name or by number from 0; else the one called `id`,
`node_id`, `node` or `nid`, or the unnamed first one that pandas writes; else the first column,
if there are others and its first value is not a fraction. Without an id (`id_column=none` says
so), the rows are the nodes 0, 1, 2, …. Arrays (npy, npz, pt) have no id unless an npz or pt
file holds an array called `ids`, `id` or `node_id`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from gnntrain.data.array_files import (
    ARRAY_SUFFIXES,
    ArraySource,
    load_arrays,
    pick,
    pick_or_only,
)
from gnntrain.data.bad_rows import BadRows, Record
from gnntrain.data.columns import BoolArray, Column, Rows, column_of_array
from gnntrain.data.graph import AnyArray, Int64Array
from gnntrain.data.node_index import NodeIndex
from gnntrain.data.tables import (
    MAX_COLUMNS,
    PARQUET_SUFFIXES,
    TEXT_SUFFIXES,
    Table,
    open_table,
    table_suffix,
)
from gnntrain.errors import UserError

if TYPE_CHECKING:
    from gnntrain.config import FilesConfig

Role = Literal["id", "label", "split"]

ID_NAMES = ("id", "node_id", "node", "nid")
LABEL_NAMES = ("label", "labels", "class", "y")
SPLIT_NAMES = ("split",)
SOURCE_NAMES = ("source", "src", "from")
TARGET_NAMES = ("target", "dst", "to")

NO_ID = "none"

ID_ARRAYS = ("ids", "id", "node_id")
FEATURE_ARRAYS = ("features", "feature", "x", "feat")
LABEL_ARRAYS = ("labels", "label", "y")


@dataclass(frozen=True)
class NodeRows:
    """Rows about nodes.

    Attributes:
        rows: What was read; its matrix holds the columns of numbers.
        places: For each column of `rows.columns`, in order: its role, and its place among the
            fields of a row.
        numbers: Names of the matrix's columns by their place among the fields of a row.
        nodes: int64 `[num_rows]`: which node each row speaks of, once `located`.
    """

    rows: Rows
    places: Mapping[Role, int]
    numbers: Mapping[int, str]
    nodes: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))

    def column(self, role: Role) -> Column:
        """The column in this role; there must be one (`role in places`)."""
        return self.rows.columns[list(self.places).index(role)]

    def drop(
        self, mask: BoolArray, bad: BadRows, reason: Callable[[Record], str], hint: str = ""
    ) -> NodeRows:
        """The rows outside `mask`; those inside are bad, for this reason."""
        nodes = self.nodes[~mask] if len(self.nodes) else self.nodes
        return replace(self, rows=self.rows.drop(mask, bad, reason, hint), nodes=nodes)

    def drop_by_field(
        self, mask: BoolArray, bad: BadRows, role: Role, reason: str, hint: str = ""
    ) -> NodeRows:
        """As `drop`; `{}` in the reason stands for the row's field in a role."""
        place = self.places[role]
        return self.drop(mask, bad, lambda row: reason.format(repr(row[place])), hint)

    def located(self, index: NodeIndex, bad: BadRows) -> NodeRows:
        """The rows that speak of a known node, each of another, with their `nodes`.

        Raises:
            UserError: The rows have no ids and are not one a node.
        """
        if "id" not in self.places:
            return self._located_by_order(index)
        known = self.drop(self.column("id").missing, bad, lambda _: "the node id is missing")
        nodes = index.find(known.column("id"))
        known = replace(known, nodes=nodes)
        known = known.drop_by_field(nodes < 0, bad, "id", UNKNOWN_NODE, unknown_hint(index))
        return known.drop_by_field(repeated(nodes[nodes >= 0]), bad, "id", REPEATED_NODE)

    def _located_by_order(self, index: NodeIndex) -> NodeRows:
        nodes = np.arange(len(self.rows)) if self.rows.origin is None else self.rows.origin
        is_whole = len(nodes) == index.num_nodes or self.rows.origin is not None
        if not is_whole or nodes.max(initial=-1) >= index.num_nodes:
            raise UserError(
                f"{self.rows.source.path} has {len(nodes)} rows and no node ids, but there are "
                f"{index.num_nodes} nodes.",
                "Give it one row a node, or node ids (dataset.id_column).",
            )
        return replace(self, nodes=nodes)


UNKNOWN_NODE = "node {} is not in the features file"
REPEATED_NODE = "node {} is there already"


def unknown_hint(index: NodeIndex) -> str:
    """What to say of a node that is not there."""
    return f"The features file defines the nodes ({index.shown()}); no other file may add any."


def repeated(values: AnyArray) -> BoolArray:
    """Which values are there already, further up."""
    import pandas as pd

    return np.asarray(pd.Series(values).duplicated(), bool)


def read_features(
    path: Path, config: FilesConfig, bad: BadRows, *, labelled: bool = True
) -> NodeRows:
    """The features file: ids, numbers and, where they have no file of their own, labels and splits.

    Args:
        path: The file.
        config: How it is read.
        bad: Takes its bad rows.
        labelled: Whether there must be labels. Columns of labels and splits are no features either
            way.

    Raises:
        UserError: The file cannot be read, has no column of a name that is asked for, or no
            labels though it should.
    """
    if path.suffix.lower() in ARRAY_SUFFIXES:
        if labelled and config.labels is None:
            raise UserError(
                f"dataset.labels is not given, and {path} has no columns with names.",
                "Give a file of labels.",
            )
        return _of_arrays(path, FEATURE_ARRAYS)
    table = open_user_table(path, config, bad)
    places = _id_place(table, config)
    if config.labels is None:
        if labelled or config.label_column is None or config.label_column in table.names:
            places |= _named_place(table, "label", config.label_column, LABEL_NAMES)
        if labelled and "label" not in places:
            raise UserError(
                f"dataset.labels is not given, and {path} has no column called "
                f"{' or '.join(LABEL_NAMES)} (it has {_listed(table.names)}).",
                "Give a file of labels, or the column's name as dataset.label_column.",
            )
        if config.split is None and (
            labelled or config.split_column is None or config.split_column in table.names
        ):
            places |= _named_place(table, "split", config.split_column, SPLIT_NAMES)
    return _read(table, places, _left_over(table, places))


def read_labels(path: Path, config: FilesConfig, bad: BadRows) -> NodeRows:
    """The labels file: ids, one column of labels (or several of 0 and 1), perhaps splits.

    Raises:
        UserError: The file cannot be read, or has no column of a name that is asked for.
    """
    if path.suffix.lower() in ARRAY_SUFFIXES:
        return _of_arrays(path, LABEL_ARRAYS)
    table = open_user_table(path, config, bad)
    places = _id_place(table, config)
    if config.split is None:
        places |= _named_place(table, "split", config.split_column, SPLIT_NAMES)
    places |= _named_place(table, "label", config.label_column, LABEL_NAMES)
    rest = _left_over(table, places)
    if "label" not in places and len(rest) == 1:
        places["label"] = rest[0]
    return _read(table, places, [] if "label" in places else rest)


def read_splits(path: Path, config: FilesConfig, bad: BadRows) -> NodeRows:
    """A table of ids and the names of their splits.

    Raises:
        UserError: The file cannot be read, or has no column of a name that is asked for.
    """
    table = open_user_table(path, config, bad)
    places = _id_place(table, config)
    places |= _named_place(table, "split", config.split_column, SPLIT_NAMES)
    if "split" not in places:
        rest = _left_over(table, places)
        if not rest:
            raise UserError(f"{path} has only one column.", "It needs two: id and split.")
        places["split"] = rest[0]
    return _read(table, places, [])


def open_user_table(path: Path, config: FilesConfig, bad: BadRows) -> Table:
    """Open a table with the configuration's names marking a header.

    Raises:
        UserError: The file cannot be read or its suffix is none we know.
    """
    if table_suffix(path) not in (*TEXT_SUFFIXES, *PARQUET_SUFFIXES):
        known = ", ".join((*TEXT_SUFFIXES, *PARQUET_SUFFIXES, *ARRAY_SUFFIXES))
        raise UserError(
            f"{path}: the suffix {path.suffix!r} does not say what the file is.",
            f"Name it with one of {known} (text also with .gz, .bz2 or .zst).",
        )
    given = (
        config.source_column,
        config.target_column,
        config.weight_column,
        config.id_column,
        config.label_column,
        config.split_column,
    )
    names = {name.lower() for name in given if name is not None and not name.isdecimal()}
    usual = (*ID_NAMES, *LABEL_NAMES, *SPLIT_NAMES, *SOURCE_NAMES, *TARGET_NAMES)
    return open_table(path, config.header, names.union(usual), bad)


def place_of(table: Table, key: str, wanted: str | None, usual: Sequence[str]) -> int | None:
    """Which column `dataset.<key>=wanted` is, or else the first with a usual name, if any.

    Raises:
        UserError: There is no such column.
    """
    names = [name.lower() for name in table.names]
    if wanted is None:
        return next((names.index(name) for name in usual if name in names), None)
    if wanted in table.names:
        return table.names.index(wanted)
    if wanted.isdecimal() and int(wanted) < len(names):
        return int(wanted)
    raise UserError(
        f"dataset.{key}={wanted}: {table.path} has no such column; it has {_listed(table.names)}.",
        "Give a column's name, or its number from 0.",
    )


def _named_place(
    table: Table, role: Role, wanted: str | None, usual: Sequence[str]
) -> dict[Role, int]:
    place = place_of(table, f"{role}_column", wanted, usual)
    return {} if place is None else {role: place}


def _id_place(table: Table, config: FilesConfig) -> dict[Role, int]:
    if config.id_column == NO_ID:
        return {}
    named = place_of(table, "id_column", config.id_column, ID_NAMES)
    if named is not None:
        return {"id": named}
    first = table.records(np.zeros(1, np.int64))
    if len(table.names) == 1 or not first or _is_fraction(first[0][1][0]):
        return {}
    return {"id": 0}


def _is_fraction(field: str) -> bool:
    try:
        int(field)
    except ValueError:
        try:
            float(field)
        except ValueError:
            return False
        return True
    return False


def _left_over(table: Table, places: Mapping[Role, int]) -> list[int]:
    return [place for place in range(len(table.names)) if place not in places.values()]


def _read(table: Table, places: Mapping[Role, int], numbers: Sequence[int]) -> NodeRows:
    rows = table.read(tuple(places.values()), numbers, places.get("label"))
    return NodeRows(rows, places, {place: table.names[place] for place in numbers})


def _of_arrays(path: Path, names: Sequence[str]) -> NodeRows:
    """A file of arrays: one of the given names or the only one, and perhaps one of ids."""
    arrays = load_arrays(path)
    ids = pick(arrays, ID_ARRAYS)
    main = pick_or_only(path, {n: a for n, a in arrays.items() if n not in ID_ARRAYS}, names)
    if main.ndim == 2 and main.shape[1] == 1 and names is LABEL_ARRAYS:
        main = main[:, 0]
    if main.ndim not in (1, 2) or (main.ndim == 1 and names is FEATURE_ARRAYS):
        raise UserError(f"{path}: shape {list(main.shape)} instead of one row a node.")
    if main.ndim == 2 and main.shape[1] > MAX_COLUMNS:
        raise UserError(f"{path} has {main.shape[1]:,} columns, more than {MAX_COLUMNS:,}.")
    if ids is not None and ids.shape != (len(main),):
        raise UserError(f"{path}: {len(main)} rows and ids of shape {list(ids.shape)}.")
    places: dict[Role, int] = {}
    columns: list[Column] = []
    fields: list[AnyArray] = []
    if ids is not None:
        places["id"] = 0
        columns.append(column_of_array(ids))
        fields.append(ids)
    if main.ndim == 1:
        places["label"] = len(fields)
        columns.append(column_of_array(main))
    source = ArraySource(path, (*fields, main))
    matrix = main if main.ndim == 2 else np.empty((len(main), 0), np.float32)
    if matrix.dtype.kind not in "biuf":
        raise UserError(f"{path}: its values are of type {matrix.dtype}, not numbers.")
    numbers = {len(fields) + column: str(column) for column in range(matrix.shape[1])}
    return NodeRows(Rows(source, tuple(columns), matrix), places, numbers)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
