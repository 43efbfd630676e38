"""Edges from a user's file.

**Which columns are the ends?** `source_column` and `target_column`; else the two of a usual pair of
names (`source` and `target`, `src` and `dst`, `from` and `to`, …); else the only two columns, the
weight and an index that pandas wrote left aside. Of three columns without names, the first two are
the ends if they hold node ids and the third does not. Anything else is asked about.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gnntrain.data.array_files import (
    NODE_ARRAYS,
    PAIR_ARRAYS,
    SPLIT_ARRAYS,
    WEIGHT_ARRAYS,
    Arrays,
    ArrayTable,
    load_arrays,
    pick,
)
from gnntrain.data.bad_rows import BadRows, Record
from gnntrain.data.file_columns import (
    is_array_file,
    is_pandas_index,
    open_table,
    place_of,
)
from gnntrain.data.graph import AnyArray, Int64Array, index_dtype
from gnntrain.data.node_index import NodeIndex
from gnntrain.data.sparse import unpack_edges
from gnntrain.data.table_files import GRAPHML_SUFFIX, open_graphml
from gnntrain.data.tables import Columns, Role, Rows, Table, listed
from gnntrain.errors import UserError

if TYPE_CHECKING:
    from gnntrain.config import FilesConfig

PAIRS_OF_ENDS = (
    *(("source", "target"), ("src", "dst"), ("from", "to"), ("head", "tail"), ("u", "v")),
    *(("source_id", "target_id"), ("src_id", "dst_id"), ("from_id", "to_id")),
    *(("from_node", "to_node"), ("node1", "node2"), ("node_1", "node_2"), ("id1", "id2")),
    *(("id_1", "id_2"), (":start_id", ":end_id")),
)
"""Names of the source's and the target's column, in lower case."""
# A single letter may be a node's id at the top of a list.
_HEADER_NAMES = frozenset(name for name in chain(*PAIRS_OF_ENDS) if len(name) > 1)
ENDS: tuple[Role, Role] = ("source", "target")
_WEIGHT_NAMES = (*WEIGHT_ARRAYS, "w")
MOST_ROWS = 1 << 24  # of edges at a time: about 1 GiB of ids that are texts


@dataclass(frozen=True)
class FileEdges:
    """Edges between known nodes.

    Attributes:
        src: Source nodes `[num_edges]`, int32 where the number of nodes allows, else int64.
        dst: Target nodes, likewise.
        weight: float32 `[num_edges]`, or None.
        phrase: See `DataSummary.edges`.
        left_out: See `DataSummary.left_out`.
    """

    src: AnyArray
    dst: AnyArray
    weight: AnyArray | None
    phrase: str
    left_out: dict[str, str]


def read_edges(table: Table, config: FilesConfig, index: NodeIndex, bad: BadRows) -> FileEdges:
    """Read a table of `edge_table`. Only a batch of rows is held at a time: as many as nodes.

    Raises:
        UserError: The file cannot be read, or does not say which columns are the ends.
    """
    columns = edge_columns(table, config, index)
    dtype = index_dtype(index.num_nodes)
    sources, targets = [np.empty(0, dtype)], [np.empty(0, dtype)]
    weights = [np.empty(0, np.float32)]
    for src, dst, batch in known_edges(columns, {"source": index, "target": index}, bad):
        usable = (np.isfinite(batch.matrix) & (batch.matrix >= 0)).all(axis=1)
        bad.add(columns.table, batch.rows[~usable], partial(_wrong_weight, columns))
        sources.append(src[usable].astype(dtype))
        targets.append(dst[usable].astype(dtype))
        weights.append(batch.matrix[usable].reshape(-1))
    src = np.concatenate(sources)
    weight = np.concatenate(weights) if columns.numbers else None
    phrase = _phrase(columns, len(src))
    return FileEdges(src, np.concatenate(targets), weight, phrase, _left_out(columns))


def known_edges(
    columns: Columns, nodes: Mapping[Role, NodeIndex], bad: BadRows
) -> Iterator[tuple[Int64Array, Int64Array, Rows]]:
    """Edges between known nodes: sources, targets and their rows, a batch at a time.

    Args:
        columns: The columns of an edges file.
        nodes: The nodes at each end, "source" and "target".
        bad: Takes the rows with an unknown end.
    """
    most_hashed = max(nodes[end].num_hashed for end in ENDS)
    unknown_end = partial(_unknown_end, columns, nodes)
    for batch in columns.batches(min(most_hashed, MOST_ROWS)):
        src, dst = (nodes[end].find(batch.columns[end], columns.table.decimal) for end in ENDS)
        known = (src >= 0) & (dst >= 0)
        wrong = [
            nodes[end] for end, found in zip(ENDS, (src, dst), strict=True) if (found < 0).any()
        ]
        hint = " ".join(dict.fromkeys(index.hint for index in wrong if index.hint))
        bad.add(columns.table, batch.rows[~known], unknown_end, hint)
        yield src[known], dst[known], batch if known.all() else batch.keep(known)


def _unknown_end(columns: Columns, nodes: Mapping[Role, NodeIndex], record: Record) -> str:
    for end in ENDS:
        field = record[columns.places[end]]
        if not field.strip():
            return f"the {end} node is missing"
        if not nodes[end].knows(field, columns.table.decimal):
            return nodes[end].unknown(field)
    return "its nodes are unknown"


def _wrong_weight(columns: Columns, record: Record) -> str:
    return f"weight {record[columns.numbers[0]]!r} is not a number from 0 on"


def _phrase(columns: Columns, num_edges: int) -> str:
    shown, places = columns.table.shown, columns.places
    ends = f"from column {shown(places['source'])} to column {shown(places['target'])}"
    weight = f"weight column {shown(columns.numbers[0])}" if columns.numbers else "no weight"
    file = f"{columns.table.path.name}{columns.table.note}"
    return f"{num_edges:,} of {file}, {ends}; {weight}"


def _left_out(columns: Columns) -> dict[str, str]:
    table = columns.table
    used = {*columns.places.values(), *columns.numbers}
    unused = [place for place in range(len(table.names)) if place not in used]
    names = [*map(table.shown, unused), *unread_arrays(table)]
    return {f"{name} of {table.path.name}": _why_unused(name) for name in names}


def unread_arrays(table: Table) -> list[str]:
    """Arrays beside the edges in their file, but for those that nodes have."""
    arrays = table.arrays if isinstance(table, ArrayTable) else {}
    known = {*table.names, *NODE_ARRAYS, *chain(*SPLIT_ARRAYS.values())}
    return [name for name in arrays if name not in known]


def _why_unused(name: str) -> str:
    if name.lower() in _WEIGHT_NAMES:
        return f"a weight only by dataset.weight_column={name}"
    return "edges have ends and a weight only"


def edge_columns(table: Table, config: FilesConfig, index: NodeIndex) -> Columns:
    """The edges file: sources, targets and perhaps weights, which are its only numbers.

    Raises:
        UserError: The file cannot be read, has no column of a name that is asked for, or does not
            say which columns are the ends.
    """
    wanted = config.weight_column
    if isinstance(table, ArrayTable):
        # Whoever calls an array so means PyG's; of a table it may be any column.
        wanted = wanted or next((name for name in WEIGHT_ARRAYS if name in table.names), None)
    weights = [] if wanted is None else [place_of(table, "weight_column", wanted)]
    source, target = find_ends(table, config, weights, index)
    return Columns(table, {"source": source, "target": target}, weights)


def edge_table(
    path: Path,
    config: FilesConfig,
    bad: BadRows,
    *,
    names: Collection[str] = (),
    square: bool = True,
) -> Table:
    """An edges file as a table.

    Args:
        path: The file.
        config: How it is read.
        bad: Takes its bad rows.
        names: More names that mark a first line as a header, in lower case.
        square: Whether a sparse matrix must be square: both ends are nodes of one type.

    Raises:
        UserError: The file cannot be read, or has one column only.
    """
    if is_array_file(path):
        arrays = unpack_edges(path, load_arrays(path), square=square)
        return _table_of_arrays(path, arrays, config)
    if path.suffix.lower() == GRAPHML_SUFFIX:
        return open_graphml(path, "edges")
    table = open_table(path, config, bad, _HEADER_NAMES.union(names))
    if len(table.names) < 2:
        raise UserError(f"{path} has only one column.", "It needs two: source and target.")
    return table


def find_ends(
    table: Table,
    config: FilesConfig,
    others: Sequence[int],
    index: NodeIndex | None = None,
) -> tuple[int, int]:
    """Places of the columns of the sources and the targets.

    Args:
        table: The edges file.
        config: `source_column` and `target_column`.
        others: Places of columns with another use, such as the weight.
        index: The nodes, by which two of three columns without names are seen to be the ends.

    Raises:
        UserError: It is not plain which columns they are.
    """
    names = [name.lower() for name in table.names]
    found = [
        (names.index(source), names.index(target))
        for source, target in PAIRS_OF_ENDS
        if source in names and target in names
    ]
    rest = [
        place
        for place, name in enumerate(names)
        if place not in others
        and name not in _WEIGHT_NAMES
        and not is_pandas_index(table.names[place])
    ]
    if not found and len(names) == 2 and not _has_other_use(names):
        found = [(0, 1)]
    if not found and len(rest) == 2 and not _has_other_use([names[place] for place in rest]):
        found = [(rest[0], rest[1])]
    if not found and index is not None and _are_ends_and_weight(table, index):
        found = [(0, 1)]
    source, target = found[0] if len(found) == 1 else (None, None)
    if config.source_column is not None:
        source = place_of(table, "source_column", config.source_column)
    if config.target_column is not None:
        target = place_of(table, "target_column", config.target_column)
    if source is None or target is None or source == target:
        raise UserError(
            f"{table.path}: it is not plain which columns are the ends of an edge; it has "
            f"{listed(table.names)}.",
            "Set dataset.source_column and dataset.target_column.",
        )
    return source, target


def _has_other_use(names: Sequence[str]) -> bool:
    """Whether one of two columns is called a weight, or like the other end of an edge."""
    source, target = names
    targets, sources = {pair[1] for pair in PAIRS_OF_ENDS}, {pair[0] for pair in PAIRS_OF_ENDS}
    return source in targets or target in sources or not {*names}.isdisjoint(_WEIGHT_NAMES)


def _are_ends_and_weight(table: Table, index: NodeIndex) -> bool:
    """Whether of three columns without names the first two hold node ids, and the third does not.

    The first rows decide.
    """
    if table.names != ("0", "1", "2"):
        return False
    first = next(Columns(table, {"source": 0, "target": 1, "id": 2}, ()).batches()).columns
    source, target, third = (index.find(first[role]) for role in ("source", "target", "id"))
    return bool((source >= 0).all() and (target >= 0).all() and not (third >= 0).all())


def _table_of_arrays(path: Path, arrays: Arrays, config: FilesConfig) -> ArrayTable:
    """Arrays of edges as columns, pairs `[2, num_edges]` or `[num_edges, 2]` as two of them."""
    weight_names = {config.weight_column, *WEIGHT_ARRAYS}
    weights = {name: array for name, array in arrays.items() if name in weight_names}
    others = {name: array for name, array in arrays.items() if name not in weights}
    pairs = pick(others, PAIR_ARRAYS) if len(others) != 1 else next(iter(others.values()))
    if pairs is None:
        named = {config.source_column, config.target_column, *chain(*PAIRS_OF_ENDS)}
        ends = {name: array for name, array in others.items() if name in named}
        columns = ends or {name: array for name, array in others.items() if array.ndim == 1}
    else:
        columns = dict(zip(PAIRS_OF_ENDS[0], _both_ends(path, pairs), strict=True))
    columns |= {name: array.reshape(-1) for name, array in weights.items()}
    _refuse_wrong_columns(path, columns, weights)
    return ArrayTable(path, columns, arrays={n: a for n, a in arrays.items() if a is not pairs})


def _refuse_wrong_columns(path: Path, columns: Arrays, weights: Arrays) -> None:
    if len({array.shape for array in columns.values()}) != 1:
        found = ", ".join(f"{name} {list(array.shape)}" for name, array in columns.items())
        raise UserError(
            f"{path}: the arrays are not one value an edge each: {found or 'there are none'}.",
            "Call the arrays source and target, or give them as one called edge_index.",
        )
    for name, array in columns.items():
        if name in weights and array.dtype.kind not in "biuf":
            raise UserError(f"{path}: the weights are not one number an edge.")
        if name not in weights and array.dtype.kind == "b":
            raise UserError(
                f"{path}: the edges are truth values, not node ids.",
                "List the edges of an adjacency matrix as pairs of nodes.",
            )


def _both_ends(path: Path, pairs: AnyArray) -> tuple[AnyArray, AnyArray]:
    """The ends of `[2, num_edges]` or `[num_edges, 2]`; two by two is taken as the former."""
    if pairs.ndim != 2 or 2 not in pairs.shape:
        raise UserError(
            f"{path}: shape {list(pairs.shape)} instead of [2, num_edges] or [num_edges, 2]."
        )
    return (pairs[0], pairs[1]) if pairs.shape[0] == 2 else (pairs[:, 0], pairs[:, 1])
