"""One small graph, written in many ways: each is read as this graph, or refused with a sentence.

A node's first feature tells which node it is, whatever its id, its row and its number. Files of a
whole graph are in `test_files_in_containers.py`.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnntrain.data.graph import SPLITS, GraphData
from gnntrain.errors import UserError
from tests.data.files import build, save, told
from tests.examples import share

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
TEXT_IDS = ("text", "word", "hex")
LABELS: Mapping[str, Sequence[Any]] = {
    "text": ["rot", "grün", "blau"],
    "ints": [0, 1, 2],
    "sparse": [3, 7, 1000],
    "floats": [0.0, 1.0, 2.0],
    "bools": [True, False, False],
    "binary": [1, 0, 0],
}
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
    packed: str = ""


@dataclass(frozen=True)
class Way:
    """One way to write the graph."""

    nodes: Text | str = field(default_factory=Text)  # or a suffix
    edges: Text | str = field(default_factory=Text)
    labels: Text | str | None = None  # of a file of their own; None: they are beside the nodes
    split: str = "column"  # of names; or masks, a file of them, or "none"
    ids: str | None = "sparse"  # a key of `IDS`; None: rows are the nodes
    label: str = "text"  # a key of `LABELS`
    label_name: str = "label"
    missing: str = ""  # how a missing label is written
    keys: bool = False  # all columns are named by keys of the configuration
    row_seed: int = 0
    column_seed: int = 0


def shuffled(values: Iterable[Any], seed: int) -> list[Any]:
    """The values in the order of a seed; 0 leaves them as they are."""
    found = list(values)
    order = np.random.default_rng(seed).permutation(len(found)) if seed else range(len(found))
    return [found[i] for i in order]


def is_table(kind: Text | str) -> bool:
    return isinstance(kind, Text) or kind in (".parquet", ".feather")


# Writing.


def text_bytes(names: Sequence[str], rows: Sequence[Sequence[Any]], text: Text) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.writer(
        out, delimiter=text.delimiter, quoting=text.quoting, lineterminator=text.line_end
    )
    if text.index is not None:
        names = [text.index, *names]
        rows = [[place, *row] for place, row in enumerate(rows)]
    if text.header:
        writer.writerow(names)
    writer.writerows(rows)
    content = out.getvalue().encode(text.encoding)
    if not text.packed:
        return content
    sink = pa.BufferOutputStream()
    kind = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}[text.packed]
    with pa.CompressedOutputStream(sink, kind) as stream:
        stream.write(content)
    return bytes(sink.getvalue())


def as_column(values: Sequence[Any]) -> Any:
    """A column of Parquet or Feather: texts where its values are of several kinds."""
    values = [None if value == "" else value for value in values]
    mixed = len({type(value) for value in values if value is not None}) > 1
    texts = [value if value is None or not mixed else str(value) for value in values]
    return pd.Series(pd.arrays.ArrowExtensionArray(pa.array(texts)))


def write(way: Way, folder: Path) -> dict[str, Any]:
    """Write the graph; the keys that read it."""
    order = shuffled(range(NUM_NODES), way.row_seed)
    keys: dict[str, Any] = {}

    def id_of(node: int) -> Any:
        return order.index(node) if way.ids is None else IDS[way.ids](node)

    def put(role: str, kind: Text | str, columns: dict[str, list[Any]], **named: str) -> None:
        """Write columns as a table; `named` are those that keys of the configuration name."""
        names = shuffled(columns, 0 if role == "edges" else way.column_seed)
        has_header = not isinstance(kind, Text) or kind.header
        if "id" in names and not has_header:  # the id is the first column
            names = ["id", *(name for name in names if name != "id")]
        rows = list(zip(*(columns[name] for name in names), strict=True))
        if isinstance(kind, Text):
            path = folder / f"{role}{kind.suffix}{kind.packed}"
            keys[role] = save(path, text_bytes(names, rows, kind))
        else:
            table = pd.DataFrame({name: as_column(columns[name]) for name in names})
            keys[role] = save(folder / f"{role}{kind}", table)
        has_index = isinstance(kind, Text) and kind.index is not None
        if way.keys or not has_header:
            if way.ids is None and not has_index and role in ("features", "labels"):
                keys["id_column"] = "none"
            for key, name in named.items():
                if name in names:
                    keys[key] = name if has_header else str(names.index(name) + has_index)

    def node_columns(nodes: list[int], *, has_labels: bool) -> dict[str, list[Any]]:
        columns = {} if way.ids is None else {"id": [id_of(node) for node in nodes]}
        if has_labels:
            missing: Any = way.missing
            if missing == "-1":
                missing = -1.0 if way.label == "floats" else -1
            classes = [CLASSES[node] for node in nodes]
            columns[way.label_name] = [
                missing if code is None else LABELS[way.label][code] for code in classes
            ]
            if way.split == "column":
                columns["split"] = [SPLIT_OF[node] or "" for node in nodes]
            columns |= masks(nodes)
        return columns

    def masks(nodes: list[int]) -> dict[str, list[Any]]:
        as_flag = int if way.split == "masks 0/1" else bool
        if way.split not in ("masks", "masks 0/1"):
            return {}
        return {f"{s}_mask": [as_flag(SPLIT_OF[node] == s) for node in nodes] for s in SPLITS}

    # The nodes, and labels beside them or in a file of their own.
    of_nodes = {"id_column": "id"}
    of_labels = of_nodes | {"label_column": way.label_name, "split_column": "split"}
    ids = {} if way.ids is None else {"ids": np.array([id_of(node) for node in order])}
    features = {name: [values[node] for node in order] for name, values in FEATURES.items()}
    if is_table(way.nodes):
        columns = node_columns(order, has_labels=way.labels is None)
        put(
            "features",
            way.nodes,
            columns | features,
            **of_labels if way.labels is None else of_nodes,
        )
    else:
        x = np.array(list(features.values()), np.float32).T
        arrays: Any = x if way.nodes == ".npy" else {"x": x, **ids}
        keys["features"] = save(folder / f"nodes{way.nodes}", arrays)
    if way.labels is not None and is_table(way.labels):
        # Another order of rows than the nodes' is only possible with ids.
        nodes = order if way.ids is None else shuffled(order, way.row_seed)
        put("labels", way.labels, node_columns(nodes, has_labels=True), **of_labels)
    elif way.labels is not None:
        missing = {"text": way.missing, "floats": np.nan}.get(way.label, -1)
        kind = LABELS[way.label] if way.label != "bools" else [1, 0, 0]
        y = np.array([missing if (c := CLASSES[n]) is None else kind[c] for n in order])
        of_masks = {name: np.array(mask) for name, mask in masks(order).items()}
        arrays = y if way.labels == ".npy" else {"y": y, **ids, **of_masks}
        keys["labels"] = save(folder / f"labels{way.labels}", arrays)

    # A split in a file of its own.
    if way.split == "file table":
        nodes = [node for node in order if way.ids is None or SPLIT_OF[node] is not None]
        columns = {} if way.ids is None else {"id": [id_of(node) for node in nodes]}
        columns["split"] = [SPLIT_OF[node] or "" for node in nodes]
        table = text_bytes(list(columns), list(zip(*columns.values(), strict=True)), Text())
        keys["split"] = save(folder / "split.csv", table)
        if way.ids is not None and keys.get("id_column", "").isdecimal():
            keys["id_column"] = "0"
    elif way.split == "file masks":
        of_splits = {s: np.array([SPLIT_OF[node] == s for node in order]) for s in SPLITS}
        keys["split"] = save(folder / "split.npz", of_splits)
    elif way.split == "file ids":
        of_splits = {s: np.array([id_of(n) for n in order if SPLIT_OF[n] == s]) for s in SPLITS}
        keys["split"] = save(folder / "split.npz", of_splits)

    # The edges.
    pairs = [[id_of(node) for node in edge] for edge in EDGES]
    if is_table(way.edges):
        sources, targets = map(list, zip(*shuffled(pairs, way.row_seed), strict=True))
        columns = {"source": sources, "target": targets}
        put("edges", way.edges, columns, source_column="source", target_column="target")
    else:
        index = np.array(pairs).T
        arrays = index if way.edges == ".npy" else {"edge_index": index}
        keys["edges"] = save(folder / f"edges{way.edges}", arrays)
    return keys


# Reading, and what must be found.


def plain(value: object) -> str:
    """A label or an id however it is written: 1, 1.0, True and 01 are one."""
    text = {"true": "1", "false": "0"}.get(str(value).strip().lower(), str(value).strip())
    try:
        return str(int(text)) if text.lstrip("+-").isdecimal() else str(int(float(text)))
    except (ValueError, OverflowError):
        return text


def found_in(data: GraphData) -> dict[str, Any]:
    """The graph that was read, whatever the order of its nodes and columns."""
    found = told(data)
    matrix = np.array(found["features"], np.float64)
    assert matrix.shape == (NUM_NODES, len(FEATURES)), "other columns are features"
    wanted = {name: sorted(values) for name, values in FEATURES.items()}
    places = {
        name: place
        for name, values in wanted.items()
        for place in range(len(FEATURES))
        if sorted(matrix[:, place].tolist()) == values
    }
    node_of = [round((value - 0.25) / 0.5) for value in matrix[:, places["size"]]]
    classes = found["classes"]
    return {
        "features": {
            node: [row[places[name]] for name in FEATURES]
            for node, row in zip(node_of, matrix.tolist(), strict=True)
        },
        "labels": {
            node: None if code < 0 else plain(code if classes is None else classes[code])
            for node, code in zip(node_of, found["labels"], strict=True)
        },
        "splits": [{node_of[row] for row in rows} for rows in found["splits"]],
        "edges": Counter((node_of[source], node_of[target]) for source, target in found["edges"]),
        "ids": {node: plain(one) for node, one in zip(node_of, found["ids"], strict=True)},
    }


def expected(way: Way) -> dict[str, Any]:
    order = shuffled(range(NUM_NODES), way.row_seed)
    return {
        "features": {
            node: [float(values[node]) for values in FEATURES.values()] for node in range(NUM_NODES)
        },
        "labels": {
            node: None if code is None else plain(LABELS[way.label][code])
            for node, code in enumerate(CLASSES)
        },
        "splits": [{node for node in range(NUM_NODES) if SPLIT_OF[node] == s} for s in SPLITS],
        "edges": Counter(EDGES),
        "ids": {
            node: plain(order.index(node) if way.ids is None else IDS[way.ids](node))
            for node in range(NUM_NODES)
        },
    }


def read(way: Way) -> str | None:
    """Read the graph as it is written; what a refusal says, or None.

    Raises:
        AssertionError: It is read as another graph, or refused without a hint.
    """
    with TemporaryDirectory() as folder:
        keys = write(way, Path(folder))
        try:
            found = found_in(build(keys))
        except UserError as error:
            if not (error.message and error.hint):
                raise AssertionError("refused without a hint") from error
            return f"{error.message} {error.hint}".replace(folder, "")
    wanted = expected(way)
    if way.split == "none":  # it is drawn
        splits = found.pop("splits")
        labelled = {node for node, label in wanted["labels"].items() if label is not None}
        assert set.union(*splits) == labelled
        assert sum(map(len, splits)) == len(labelled)
        del wanted["splits"]
    assert found == wanted
    return None


# The ways.

_texts = st.builds(
    Text,
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    encoding=st.sampled_from(["utf-8"] * 6 + ["utf-8-sig", "utf-16", "utf-16-le", "latin-1"]),
    line_end=st.sampled_from(["\n", "\n", "\n", "\r\n", "\r"]),
    header=st.sampled_from([True, True, True, False]),
    index=st.sampled_from([None, None, "", "Unnamed: 0"]),
    packed=st.sampled_from(["", "", "", ".gz", ".bz2", ".zst"]),
)
_DELIMITERS = [(".csv", ",")] * 4
_DELIMITERS += [(".csv", sign) for sign in ";\t|"] + [(".txt", sign) for sign in ", \t|"]
_DELIMITERS += [(".tsv", "\t")]
_TABLES, _ARRAYS = [".parquet", ".feather"], [".npz", ".pt", ".npy"]


@st.composite
def texts(draw: st.DrawFn) -> Text:
    suffix, delimiter = draw(st.sampled_from(_DELIMITERS))
    text = draw(_texts)
    return replace(
        text, suffix=suffix, delimiter=delimiter, index=text.index if text.header else None
    )


@st.composite
def ways(draw: st.DrawFn) -> Way:
    style = draw(texts())
    # Columns are named by their places in all files, or in none.
    others = [*_TABLES, *_ARRAYS] if style.header else _ARRAYS

    def container() -> Text | str:
        """Text like the other files', text of its own, or another container."""
        kind = draw(st.sampled_from(["style", "style", "style", "own", "other", "other"]))
        if kind == "other":
            return draw(st.sampled_from(others))
        text = style if kind == "style" else draw(texts())
        # A key of the configuration holds for all files.
        return replace(text, header=style.header, index=None)

    nodes = draw(st.one_of(st.just(style), st.just(style), st.sampled_from(others)))
    ids = draw(st.sampled_from([None, *IDS]))
    if nodes == ".npy" or (nodes == ".pt" and ids in TEXT_IDS):
        ids = None
    label = draw(st.sampled_from(list(LABELS)))
    labels = container() if not is_table(nodes) or draw(st.booleans()) else None
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
    edges = container()
    if edges == ".pt" and ids in TEXT_IDS:
        edges = ".npz"
    return Way(
        nodes=nodes,
        edges=edges,
        labels=labels,
        split=draw(st.sampled_from(splits)),
        ids=ids,
        label=label,
        label_name=draw(st.sampled_from(["label", "labels", "class", "y"])),
        missing=draw(st.sampled_from(MISSING[label in ("text", "bools") :])),
        keys=not style.header or draw(st.booleans()),
        row_seed=draw(st.integers(0, 3)),
        column_seed=draw(st.integers(0, 3)),
    )


# The tests.

TSV = Text(suffix=".tsv", delimiter="\t")
EXCEL = Text(delimiter=";", encoding="utf-8-sig", line_end="\r\n")
NO_HEADER = Text(header=False)
LIST = Text(suffix=".txt", delimiter=" ", header=False)

PLAIN_WAYS = {
    "ids of labels that pandas made fractions": Way(nodes=".npz", labels=Text(), ids="float"),
    "any order of rows and columns": Way(labels=Text(), row_seed=1, column_seed=1),
    "no header": Way(nodes=NO_HEADER, edges=NO_HEADER, keys=True),
    "tabs": Way(nodes=TSV, edges=TSV),
    "spaces": Way(edges=LIST, ids="sparse", keys=True),
    "Excel's own in Europe": Way(nodes=EXCEL, edges=EXCEL),
    "packed": Way(nodes=Text(packed=".gz"), edges=Text(packed=".bz2"), labels=Text(packed=".zst")),
    "npy": Way(nodes=".npy", edges=".npy", labels=".npy", split="none", ids=None, label="ints"),
    "pt": Way(nodes=".pt", edges=".pt", labels=".pt", split="masks", label="ints"),
}


@pytest.mark.parametrize("way", PLAIN_WAYS.values(), ids=PLAIN_WAYS.keys())
def test_a_plain_way_is_read(way: Way) -> None:
    assert read(way) is None


@pytest.mark.hypothesis
def test_every_way_is_read_as_the_same_graph_or_refused_with_a_hint() -> None:
    refusals: list[str] = []
    num_read = 0

    @settings(
        max_examples=share(500),
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(ways())
    def try_one(way: Way) -> None:
        nonlocal num_read
        refused = read(way)
        if refused is None:
            num_read += 1
        else:
            refusals.append(refused)

    try_one()
    assert num_read + len(refusals) >= 0.75 * share(500)
    assert num_read > len(refusals), refusals
