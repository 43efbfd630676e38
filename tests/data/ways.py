"""One small graph, written in many ways, and what must be read from each.

A node's first feature tells which node it is, whatever its id, its row and its number.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from hypothesis import strategies as st
from pyarrow import feather, parquet
from scipy import sparse
from torch_geometric.data import Data

from gnntrain.config import FilesConfig
from gnntrain.data.graph import SPLITS, GraphData
from gnntrain.data.read.files import FilesBuilder
from gnntrain.errors import UserError

AnyArray = npt.NDArray[Any]
Row = list[Any]
Keys = dict[str, Any]

NUM_NODES = 18
FEATURES: Mapping[str, list[float]] = {
    "size": [0.25 + 0.5 * node for node in range(NUM_NODES)],
    "age": [20 + node * 7 % 11 for node in range(NUM_NODES)],
    "income": [1000 + 37 * node for node in range(NUM_NODES)],
}
"""Fractions, whole numbers that repeat, and whole numbers that could pass for ids."""
UNLABELLED = (2, 9, 16)
CLASSES = [None if node in UNLABELLED else node * 5 % 3 for node in range(NUM_NODES)]
SPLIT_OF = [
    None if node in UNLABELLED else SPLITS[(0, 0, 1, 2, 0)[node % 5]] for node in range(NUM_NODES)
]
EDGES = sorted(
    {(node, (node * m + a) % NUM_NODES) for node in range(18) for m, a in ((5, 1), (1, 3))}
)
WEIGHTS = [0.5 + 0.25 * (place % 8) for place in range(len(EDGES))]

IDS: Mapping[str, Callable[[int], Any]] = {
    "plain": lambda node: node,
    "sparse": lambda node: 100 + node * node,
    "negative": lambda node: node - 5,
    "float": lambda node: float(40 + 3 * node),
    "text": lambda node: f"Straße {node}",
    "word": lambda node: f"n{node:02}",
    "hex": lambda node: f"{node * 0x11A:06x}z",
    "huge": lambda node: 2**62 + node,
}
LABELS: Mapping[str, Sequence[Any]] = {
    "text": ["rot", "grün", "blau"],
    "ints": [0, 1, 2],
    "sparse": [3, 7, 1000],
    "floats": [0.0, 1.0, 2.0],
    "bools": [True, False, False],
    "binary": [1, 0, 0],
}
STRAYS: Mapping[str, Callable[[int], Any]] = {
    **dict.fromkeys(("label", "labels", "class", "y"), lambda node: CLASSES[node] or 0),
    "train_mask": lambda node: SPLIT_OF[node] == "train",
    "val_mask": lambda node: int(SPLIT_OF[node] == "val"),
    "test_mask": lambda node: int(SPLIT_OF[node] == "test"),
    "Unnamed: 0": lambda node: node,
    "__index_level_0__": lambda node: node,
}
"""Columns that must not become features where something else holds labels, splits and ids."""
MISSING = ["-1", "", "nan", "NaN", "NA", "N/A", "None", "null", "?"]


@dataclass(frozen=True)
class Text:
    """How delimited text is written."""

    suffix: str = ".csv"
    delimiter: str = ","
    quoting: Literal[0, 1] = csv.QUOTE_MINIMAL
    encoding: str = "utf-8"
    line_end: str = "\n"
    header: bool = True
    index: str | None = None
    comment: str | None = None
    decimal: str = "."
    packed: str = ""
    last_line_end: bool = True
    blank_lines: bool = False
    spaces: bool = False


@dataclass(frozen=True)
class Way:
    """One way to write the graph.

    Attributes:
        nodes: Container of the nodes' table: a `Text`, or a suffix.
        edges: Container of the edges.
        labels: Container of a labels file; None: labels are columns of the nodes' table.
        split: How splits are told: a column of names, masks, a file of them, or not at all.
        ids: Key of `IDS`; None: rows are the nodes.
        label: Key of `LABELS`.
        missing: How a missing label is written.
        keys: Whether all columns are named by keys of the configuration.
        stray: Columns of the nodes' table that are used elsewhere, or by nobody, but no features.
    """

    nodes: Text | str = field(default_factory=Text)
    edges: Text | str = field(default_factory=Text)
    labels: Text | str | None = None
    split: str = "column"
    ids: str | None = "sparse"
    id_name: str = "id"
    label: str = "text"
    label_name: str = "label"
    missing: str = ""
    missing_split: str = ""
    ends: tuple[str, str] = ("source", "target")
    swapped: bool = False
    edge_id: bool = False
    weight: bool = False
    keys: bool = False
    row_seed: int = 0
    column_seed: int = 0
    stray: Sequence[str] = ()


def shuffled(values: Iterable[Any], seed: int) -> list[Any]:
    """The values in the order of a seed; 0 leaves them as they are."""
    found = list(values)
    return (
        [found[i] for i in np.random.default_rng(seed).permutation(len(found))] if seed else found
    )


def label_of(way: Way, node: int) -> Any:
    """A node's label as it is written; None without one."""
    code = CLASSES[node]
    return None if code is None else LABELS[way.label][code]


def id_of(way: Way, node: int, order: Sequence[int]) -> Any:
    return order.index(node) if way.ids is None else IDS[way.ids](node)


# Writing.


def shown(value: object, text: Text) -> str:
    if isinstance(value, float):
        return str(value).replace(".", text.decimal)
    return str(value)


def text_bytes(names: Sequence[str], rows: Sequence[Row], text: Text) -> bytes:
    out = io.StringIO(newline="")
    for _ in range(text.comment is not None):
        out.write(f"{text.comment} exported{text.line_end}")
    writer = csv.writer(
        out,
        delimiter=text.delimiter,
        quoting=text.quoting,
        lineterminator=text.line_end,
    )
    if text.index is not None:
        names = [text.index, *names]
        rows = [[place, *row] for place, row in enumerate(rows)]
    if text.header:
        writer.writerow(names)
    for row in rows:
        fields = [shown(value, text) for value in row]
        writer.writerow([f" {f} " for f in fields] if text.spaces else fields)
        if text.blank_lines:
            out.write(text.line_end)
    written = out.getvalue()
    if not text.last_line_end:
        written = written.removesuffix(text.line_end)
    return written.encode(text.encoding)


def pack(content: bytes, packed: str) -> bytes:
    if packed == ".zst":
        return bytes(pa.Codec("zstd").compress(content, asbytes=True))
    if packed == ".gz":
        return gzip.compress(content)
    return bz2.compress(content) if packed == ".bz2" else content


def write_table(
    folder: Path, role: str, names: Sequence[str], rows: Sequence[Row], kind: Text | str
) -> str:
    """A table as text, Parquet or Feather."""
    if isinstance(kind, Text):
        path = folder / f"{role}{kind.suffix}{kind.packed}"
        path.write_bytes(pack(text_bytes(names, rows, kind), kind.packed))
        return str(path)
    path = folder / f"{role}{kind}"
    columns = [[None if v == "" else v for v in column] for column in zip(*rows, strict=True)]
    arrays = []
    for column in columns:
        kinds = {type(v) for v in column if v is not None}
        mixed = len(kinds) > 1
        arrays.append(pa.array([None if v is None else str(v) if mixed else v for v in column]))
    table = pa.Table.from_arrays(arrays, list(names))
    if kind == ".parquet":
        parquet.write_table(table, path)
    else:
        feather.write_feather(table, str(path))
    return str(path)


def write_arrays(folder: Path, role: str, arrays: Mapping[str, AnyArray], kind: str) -> str:
    path = folder / f"{role}{kind}"
    if kind == ".npz":
        np.savez(path, **arrays)  # type: ignore[arg-type]  # its stub wants allow_pickle
    elif kind == ".npy":
        np.save(path, next(iter(arrays.values())))
    else:
        torch.save({name: torch.from_numpy(np.asarray(a)) for name, a in arrays.items()}, path)
    return str(path)


def is_table(kind: Text | str) -> bool:
    return isinstance(kind, Text) or kind in (".parquet", ".feather")


def columns_of_split(way: Way, nodes: Sequence[int]) -> dict[str, list[Any]]:
    if way.split == "column":
        return {"split": [SPLIT_OF[node] or way.missing_split for node in nodes]}
    if way.split in ("masks 0/1", "masks"):
        as_flag = int if way.split == "masks 0/1" else bool
        return {f"{s}_mask": [as_flag(SPLIT_OF[node] == s) for node in nodes] for s in SPLITS}
    return {}


def table_of(
    way: Way, kind: Text | str, columns: dict[str, list[Any]], *, first: str | None = None
) -> tuple[list[str], list[Row]]:
    """Columns in the way's order; ids first where nothing names them."""
    names = shuffled(columns, way.column_seed)
    is_found = way.keys or first in ("id", "node_id", "node", "nid")
    if first in names and not (is_found and (not isinstance(kind, Text) or kind.header)):
        names.remove(first)
        names.insert(0, first)
    rows = [list(row) for row in zip(*(columns[name] for name in names), strict=True)]
    return names, rows


def key(names: Sequence[str], name: str, kind: Text | str) -> str:
    """How a key of the configuration names a column."""
    if not isinstance(kind, Text) or kind.header:
        return name
    return str(names.index(name) + (kind.index is not None))


def needs_keys(way: Way, kind: Text | str) -> bool:
    return way.keys or (isinstance(kind, Text) and not kind.header)


def write(way: Way, folder: Path) -> Keys:
    """Write the graph; the keys that read it."""
    order = shuffled(range(NUM_NODES), way.row_seed)
    keys: Keys = {}
    if way.nodes in ("data", "to_dict"):
        return write_data(way, folder)
    if way.nodes in ("bundle.npz", "bundle.pt"):
        return write_bundle(way, folder, order)
    write_nodes(way, folder, order, keys)
    write_edges(way, folder, order, keys)
    if any(isinstance(k, Text) and k.decimal == "," for k in (way.nodes, way.edges, way.labels)):
        keys["decimal"] = ","
    return keys


def write_data(way: Way, folder: Path) -> Keys:
    labels = [-1 if code is None else code for code in CLASSES]
    data = Data(
        x=torch.tensor(list(FEATURES.values())).T.contiguous(),
        edge_index=torch.tensor(EDGES).T.contiguous(),
        y=torch.tensor(labels),
        **{f"{s}_mask": torch.tensor([s == of for of in SPLIT_OF]) for s in SPLITS},
    )
    torch.save(data if way.nodes == "data" else data.to_dict(), folder / "graph.pt")
    return {"data": str(folder / "graph.pt")}


def write_bundle(way: Way, folder: Path, order: list[int]) -> Keys:
    """Everything as arrays of one file, which all the keys name, or two of them."""
    arrays = {
        "x": np.array(list(FEATURES.values()), np.float32).T[order],
        "y": np.array([-1 if CLASSES[node] is None else label_of(way, node) for node in order]),
        "edge_index": np.array([[id_of(way, n, order) for n in edge] for edge in EDGES]).T,
    }
    if way.ids is not None:
        arrays["ids"] = np.array([id_of(way, node, order) for node in order])
    arrays |= {name: np.array(mask) for name, mask in columns_of_split(way, order).items()}
    path = write_arrays(folder, "graph", arrays, str(way.nodes).removeprefix("bundle"))
    keys = {"edges": path, "features": path}
    if way.keys:
        keys["labels"] = path
        if way.split != "none":
            keys["split"] = path
    return keys


def write_nodes(way: Way, folder: Path, order: list[int], keys: Keys) -> None:
    has_labels_file = way.labels is not None
    if is_table(way.nodes):
        columns: dict[str, list[Any]] = {}
        if way.ids is not None:
            columns[way.id_name] = [id_of(way, node, order) for node in order]
        columns |= {name: [values[node] for node in order] for name, values in FEATURES.items()}
        if not has_labels_file:
            columns[way.label_name] = [written_label(way, node) for node in order]
            columns |= columns_of_split(way, order)
        columns |= {name: [STRAYS[name](node) for node in order] for name in way.stray}
        names, rows = table_of(way, way.nodes, columns, first=way.id_name)
        keys["features"] = write_table(folder, "nodes", names, rows, way.nodes)
        if needs_keys(way, way.nodes):
            name_columns(way, keys, names, way.nodes, has_labels=not has_labels_file)
    else:
        matrix = np.array([FEATURES[name] for name in FEATURES], np.float32).T[order]
        arrays = {"x": matrix}
        if way.ids is not None and way.nodes != ".npy":
            arrays["ids"] = np.array([id_of(way, node, order) for node in order])
        keys["features"] = write_arrays(folder, "nodes", arrays, str(way.nodes))
    if way.labels is not None:
        write_labels(way, folder, order, keys)
    if way.split.startswith("file"):
        write_split(way, folder, order, keys)


def name_columns(
    way: Way, keys: Keys, names: Sequence[str], kind: Text | str, *, has_labels: bool
) -> None:
    if way.ids is not None:
        keys["id_column"] = key(names, way.id_name, kind)
    elif not (isinstance(kind, Text) and kind.index is not None):
        keys["id_column"] = "none"
    if has_labels:
        keys["label_column"] = key(names, way.label_name, kind)
        if way.split == "column":
            keys["split_column"] = key(names, "split", kind)


def written_label(way: Way, node: int) -> Any:
    label = label_of(way, node)
    number = -1.0 if way.label == "floats" else -1
    missing = number if way.missing == "-1" else way.missing
    return missing if label is None else label


def write_labels(way: Way, folder: Path, order: list[int], keys: Keys) -> None:
    kind = way.labels
    assert kind is not None
    if is_table(kind):
        # Another order of rows than the nodes' is only possible with ids.
        nodes = order if way.ids is None else shuffled(order, way.row_seed)
        columns: dict[str, list[Any]] = {}
        if way.ids is not None:
            columns[way.id_name] = [id_of(way, node, order) for node in nodes]
        columns[way.label_name] = [written_label(way, node) for node in nodes]
        columns |= columns_of_split(way, nodes)
        names, rows = table_of(way, kind, columns, first=way.id_name)
        keys["labels"] = write_table(folder, "labels", names, rows, kind)
        if needs_keys(way, kind):
            name_columns(way, keys, names, kind, has_labels=True)
        return
    missing = way.missing if way.label == "text" else np.nan if way.label == "floats" else -1
    values = [label_of(way, node) for node in order]
    if way.label == "bools":
        values = [None if v is None else int(v) for v in values]
    array = np.array([missing if value is None else value for value in values])
    arrays = {"y": array}
    if way.ids is not None and kind != ".npy":
        arrays["ids"] = np.array([id_of(way, node, order) for node in order])
    if way.split in ("masks", "masks 0/1"):
        arrays |= {name: np.array(mask) for name, mask in columns_of_split(way, order).items()}
    keys["labels"] = write_arrays(folder, "labels", arrays, str(kind))


def write_split(way: Way, folder: Path, order: list[int], keys: Keys) -> None:
    if way.split == "file table":
        nodes = [node for node in order if way.ids is None or SPLIT_OF[node] is not None]
        columns: dict[str, list[Any]] = {}
        if way.ids is not None:
            columns[way.id_name] = [id_of(way, node, order) for node in nodes]
        columns["split"] = [SPLIT_OF[node] or way.missing_split for node in nodes]
        rows = [list(row) for row in zip(*columns.values(), strict=True)]
        keys["split"] = write_table(folder, "split", list(columns), rows, Text())
        if way.ids is not None and "id_column" in keys and keys["id_column"].isdecimal():
            keys["id_column"] = way.id_name if way.id_name == keys["id_column"] else "0"
    elif way.split == "file masks":
        masks = {s: np.array([SPLIT_OF[node] == s for node in order]) for s in SPLITS}
        keys["split"] = write_arrays(folder, "split", masks, ".npz")
    else:
        ids = {
            s: np.array([id_of(way, node, order) for node in order if SPLIT_OF[node] == s])
            for s in SPLITS
        }
        keys["split"] = write_arrays(folder, "split", ids, ".npz")


def write_edges(way: Way, folder: Path, order: list[int], keys: Keys) -> None:
    ends = [[id_of(way, node, order) for node in edge] for edge in EDGES]
    kind = way.edges
    if is_table(kind):
        columns: dict[str, list[Any]] = {"edge_id": list(range(len(EDGES)))} if way.edge_id else {}
        pair = list(zip(way.ends, zip(*ends, strict=True), strict=True))
        for name, values in reversed(pair) if way.swapped else pair:
            columns[name] = list(values)
        if way.weight:
            columns["w"] = WEIGHTS
        rows = shuffled((list(row) for row in zip(*columns.values(), strict=True)), way.row_seed)
        names = list(columns)
        keys["edges"] = write_table(folder, "edges", names, rows, kind)
        if needs_keys(way, kind):
            keys["source_column"] = key(names, way.ends[0], kind)
            keys["target_column"] = key(names, way.ends[1], kind)
        if way.weight:
            keys["weight_column"] = key(names, "w", kind)
        return
    pairs = np.array(ends)
    weight = {"edge_weight": np.array(WEIGHTS)} if way.weight else {}
    if kind == "scipy":
        assert way.ids is None or way.nodes == ".npy"
        numbers = np.array([[order.index(node) for node in edge] for edge in EDGES])
        shape = (NUM_NODES, NUM_NODES)
        matrix = sparse.coo_array((np.ones(len(EDGES)), numbers.T), shape).tocsr()
        keys["edges"] = str(folder / "edges.npz")
        sparse.save_npz(keys["edges"], matrix)
    elif kind == "columns.npz":
        columns_ = {"source": pairs[:, 0], "target": pairs[:, 1], **weight}
        keys["edges"] = write_arrays(folder, "edges", columns_, ".npz")
    elif kind == ".npy":
        array = pairs if way.swapped else pairs.T
        keys["edges"] = write_arrays(folder, "edges", {"": array}, ".npy")
    else:
        keys["edges"] = write_arrays(folder, "edges", {"edge_index": pairs.T, **weight}, str(kind))


# Reading, and what must be found.


def plain(value: object) -> str:
    """A label or an id however it is written: 1, 1.0, True and 01 are one."""
    text = value.decode() if isinstance(value, bytes) else str(value)
    text = {"true": "1", "false": "0"}.get(text.strip().lower(), text.strip())
    try:
        return str(int(text)) if text.lstrip("+-").isdecimal() else str(int(float(text)))
    except (ValueError, OverflowError):
        return text


@dataclass(frozen=True)
class Found:
    """A graph, whatever the order of its nodes and columns."""

    features: dict[int, list[float]]
    labels: dict[int, str | None]
    splits: dict[str, set[int]]
    edges: Counter[tuple[int, int, float | None]]
    ids: dict[int, str]


def found_in(data: GraphData) -> Found:
    matrix = np.asarray(data.features, np.float64)
    assert matrix.shape == (NUM_NODES, len(FEATURES)), "other columns are features"
    place = column_of(matrix, data, "size")
    node_of = [round((value - 0.25) / 0.5) for value in matrix[:, place]]
    assert sorted(node_of) == list(range(NUM_NODES))
    others = [column_of(matrix, data, name) for name in FEATURES]
    names = data.class_names
    labels = {
        node_of[row]: None if code < 0 else plain(code if names is None else names[code])
        for row, code in enumerate(np.asarray(data.labels).tolist())
    }
    weights = [None] * len(data.src) if data.edge_weight is None else data.edge_weight.tolist()
    ends = zip(data.src.tolist(), data.dst.tolist(), weights, strict=True)
    ids = range(NUM_NODES) if data.node_ids is None else data.node_ids.tolist()
    return Found(
        features={node_of[row]: matrix[row, others].tolist() for row in range(NUM_NODES)},
        labels=labels,
        splits={
            name: {node_of[row] for row in rows.tolist()} for name, rows in data.splits.items()
        },
        edges=Counter((node_of[src], node_of[dst], weight) for src, dst, weight in ends),
        ids={node_of[row]: plain(value) for row, value in enumerate(ids)},
    )


def column_of(matrix: AnyArray, data: GraphData, name: str) -> int:
    """A feature by its name or, where the store keeps no names, by its values."""
    if data.feature_names is not None and name in (found := list(data.feature_names)):
        return found.index(name)
    places = [
        place
        for place in range(matrix.shape[1])
        if sorted(matrix[:, place].tolist()) == sorted(map(float, FEATURES[name]))
    ]
    assert len(places) == 1, f"{name} is in columns {places}"
    return places[0]


def expected(way: Way) -> Found:
    order = shuffled(range(NUM_NODES), way.row_seed)
    is_data = way.nodes in ("data", "to_dict")
    weights = WEIGHTS if way.weight else [None] * len(EDGES)
    labels = [label_of(way, node) for node in range(NUM_NODES)]
    return Found(
        features={n: [float(FEATURES[name][n]) for name in FEATURES] for n in range(NUM_NODES)},
        labels={n: None if label is None else plain(label) for n, label in enumerate(labels)},
        splits={s: {n for n in range(NUM_NODES) if SPLIT_OF[n] == s} for s in SPLITS},
        edges=Counter((*edge, w) for edge, w in zip(EDGES, weights, strict=True)),
        ids={n: plain(n if is_data else id_of(way, n, order)) for n in range(NUM_NODES)},
    )


def check(found: Found, wanted: Found, *, drawn: bool) -> None:
    assert found.features == wanted.features
    assert found.labels == wanted.labels
    assert found.edges == wanted.edges
    assert found.ids == wanted.ids
    if drawn:
        labelled = {node for node, label in wanted.labels.items() if label is not None}
        assert set.union(*found.splits.values()) == labelled
        assert sum(map(len, found.splits.values())) == len(labelled)
    else:
        assert found.splits == wanted.splits


def read(way: Way) -> str | None:
    """Read the graph as it is written; what a refusal says, or None.

    Raises:
        AssertionError: It is read as another graph, or refused without a hint.
    """
    with TemporaryDirectory() as folder:
        keys = write(way, Path(folder))
        try:
            data = FilesBuilder(FilesConfig.model_validate(keys)).build()
        except UserError as error:
            if not (error.message and error.hint):
                raise AssertionError("refused without a hint") from error
            return f"{error.message} {error.hint}".replace(folder, "")
        assert isinstance(data, GraphData)
        check(found_in(data), expected(way), drawn=way.split == "none")
    return None


# The ways.

ENCODINGS = ["utf-8"] * 6 + ["utf-8-sig", "utf-16", "utf-16-le", "latin-1"]
ENDS = [("source", "target"), ("src", "dst"), ("From", "To")]
DELIMITERS = [(".csv", ",")] * 4 + [
    (".csv", ";"),
    (".csv", "\t"),
    (".csv", "|"),
    (".tsv", "\t"),
    (".txt", ","),
    (".txt", " "),
    (".txt", "\t"),
    (".txt", "|"),
]


@st.composite
def texts(draw: st.DrawFn) -> Text:
    suffix, delimiter = draw(st.sampled_from(DELIMITERS))
    header = draw(st.sampled_from([True, True, True, False]))
    return Text(
        suffix=suffix,
        delimiter=delimiter,
        quoting=draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_MINIMAL, csv.QUOTE_ALL])),
        encoding=draw(st.sampled_from(ENCODINGS)),
        line_end=draw(st.sampled_from(["\n", "\n", "\n", "\r\n", "\r"])),
        header=header,
        index=draw(st.sampled_from([None, None, "", "Unnamed: 0"])) if header else None,
        comment=draw(st.sampled_from([None, None, None, None, "#", "%"])),
        decimal="." if delimiter == "," else draw(st.sampled_from([".", ".", ".", ","])),
        packed=draw(st.sampled_from(["", "", "", ".gz", ".bz2", ".zst"])),
        last_line_end=draw(st.sampled_from([True, True, True, False])),
        blank_lines=draw(st.sampled_from([False, False, False, False, True])),
        spaces=delimiter != " " and draw(st.sampled_from([False, False, False, False, True])),
    )


@st.composite
def containers(draw: st.DrawFn, style: Text, others: Sequence[str]) -> Text | str:
    """Text like the other files', text of its own, or another container."""
    kind = draw(st.sampled_from(["style", "style", "style", "own", "other", "other"]))
    if kind == "other":
        return draw(st.sampled_from(others))
    text = style if kind == "style" else draw(texts())
    # A key of the configuration holds for all files.
    return replace(text, header=style.header, index=None, decimal=style.decimal)


TABLES = [".parquet", ".feather"]
ARRAYS = [".npz", ".pt", ".npy"]
TEXT_IDS = ("text", "word", "hex")


WHOLE = ["data", "to_dict", "bundle.npz", "bundle.pt"]


@st.composite
def ways_of_one_file(draw: st.DrawFn) -> Way:
    nodes = draw(st.sampled_from(WHOLE))
    is_data = nodes in ("data", "to_dict")
    return Way(
        nodes=nodes,
        ids=None
        if is_data
        else draw(st.sampled_from([None, *(i for i in IDS if i not in TEXT_IDS)])),
        label=draw(st.sampled_from(["ints"] if is_data else ["ints", "sparse", "binary"])),
        split="masks" if is_data else draw(st.sampled_from(["none", "masks", "masks 0/1"])),
        keys=draw(st.booleans()),
        row_seed=0 if is_data else draw(st.integers(0, 3)),
    )


@st.composite
def ways_of_files(draw: st.DrawFn) -> Way:
    style = draw(texts())
    # Columns are named by their places in all files, or in none.
    others = [*TABLES, *ARRAYS] if style.header else ARRAYS
    nodes = draw(st.one_of(st.just(style), st.just(style), st.sampled_from(others)))
    ids = draw(st.sampled_from([None, *IDS]))
    if nodes == ".npy" or (nodes == ".pt" and ids in TEXT_IDS):
        ids = None
    label = draw(st.sampled_from(list(LABELS)))
    labels: Text | str | None = None
    if not is_table(nodes) or draw(st.booleans()):
        labels = draw(containers(style, others))
        lacks_text = labels == ".pt" and (label == "text" or ids in TEXT_IDS)
        if lacks_text or (labels == ".npy" and ids is not None):
            labels = ".npz"
    home = nodes if labels is None else labels
    splits = ["none", "file table", "file masks", "file ids"]
    if is_table(home):
        # Without a header nothing says what masks are.
        splits += ["column"] * 3 + ["masks", "masks 0/1"] * style.header
    elif home != ".npy":
        splits += ["masks", "masks 0/1"]
    edges = draw(containers(style, [*TABLES, *ARRAYS, "columns.npz", "scipy"]))
    if (edges == "scipy" and ids is not None) or (edges == ".pt" and ids in TEXT_IDS):
        edges = ".npz"
    keys = not style.header or draw(st.booleans())
    ends = draw(st.sampled_from([*ENDS, ("user_a", "user_b")]))
    return Way(
        nodes=nodes,
        edges=edges,
        labels=labels,
        split=draw(st.sampled_from(splits)),
        ids=ids,
        id_name=draw(st.sampled_from(["id", "id", "node_id", "Node", "user"])),
        label=label,
        label_name=draw(st.sampled_from(["label", "labels", "class", "y"])),
        missing=draw(st.sampled_from(MISSING[label in ("text", "bools") :])),
        missing_split=draw(st.sampled_from(["", "", "nan", "NA", "None"])),
        ends=ends,
        swapped=(ends in ENDS or keys) and draw(st.sampled_from([False, False, True])),
        edge_id=draw(st.sampled_from([False, False, True])),
        weight=edges not in (".npy", "scipy") and draw(st.sampled_from([False, False, True])),
        keys=keys,
        row_seed=draw(st.integers(0, 3)),
        column_seed=draw(st.integers(0, 3)),
    )


ways = st.one_of(*[ways_of_files()] * 9, ways_of_one_file())


def has_strays(way: Way) -> bool:
    """Whether the nodes' table can have columns that its header tells are no features."""
    has_names = is_table(way.nodes) and getattr(way.nodes, "header", True)
    return has_names and way.labels is not None


@st.composite
def ways_with_strays(draw: st.DrawFn) -> Way:
    """Ways whose labels and splits have files of their own; the nodes' table has them, too."""
    way = draw(ways_of_files().filter(has_strays))
    stray = draw(st.lists(st.sampled_from(list(STRAYS)), min_size=1, max_size=3, unique=True))
    split = draw(st.sampled_from(["file table", "file masks", "file ids"]))
    return replace(way, split=split, stray=tuple(stray))
