"""The Open Graph Benchmark (Hu et al., 2020): its node data sets and evaluators.

OGB's package gives their table (names, numbers of classes, download addresses), its downloader and
its evaluators. The raw files are read here: OGB's reader needs several times the graph in memory,
returns a wrong graph of a table with missing rows or numbers, and opens its own pickle with a
`torch.load` that PyTorch 2.6 refuses. A test compares the graphs with those of OGB's own class.
"""

from __future__ import annotations

import csv
import gzip
import importlib
import shutil
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gnntrain.data.graph import (
    EDGE,
    JSON,
    NODE,
    AnyArray,
    EdgeData,
    EdgeType,
    GraphData,
    NodeData,
    index_dtype,
)
from gnntrain.data.npz_members import StreamedRows, open_member
from gnntrain.data.raw_files import PublishedBuilder, RawLayout
from gnntrain.errors import UserError

# Raised when the same raw files of a data set with inverse edges give another graph.
# 2: self loops are doubled.
_READING = 2

_SPLIT_FILES = {"train": "train.csv.gz", "val": "valid.csv.gz", "test": "test.csv.gz"}
_METRICS = {"acc": "accuracy", "rocauc": "roc_auc"}
_CHUNK = 1 << 24

# ogbn-mag is typed: it has a folder for each node type and each edge type. The list of its edge
# types in the files would come too late for `layout`.
_PAPER = "paper"
_MAG: tuple[EdgeType, ...] = (
    ("author", "affiliated_with", "institution"),
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "has_topic", "field_of_study"),
)


def ogb_nodeproppred() -> Any:
    """The module `ogb.nodeproppred`: OGB's data sets and evaluators."""
    # OGB's import starts a thread that asks PyPI for a newer version by the package `outdated`;
    # without network it would keep the process from ending.
    sys.modules["outdated"] = None  # type: ignore[assignment]  # makes its import fail
    try:
        return importlib.import_module("ogb.nodeproppred")
    finally:
        del sys.modules["outdated"]


class OGBBuilder(PublishedBuilder):
    """Builds a data set of `PUBLISHED` that is OGB's."""

    def identity(self) -> dict[str, JSON]:
        """As for all; data sets with inverse edges have a version of how they are read, too."""
        doubled = self.published.edges_once  # OGB's table says so too, after seconds
        return super().identity() | ({"reading": _READING} if doubled else {})

    @cached_property
    def _meta(self) -> Mapping[str, str]:
        """The data set's column of OGB's master table."""
        table = Path(ogb_nodeproppred().__file__).with_name("master.csv")
        with table.open(newline="") as file:
            return {row[""]: row[self.dataset] for row in csv.DictReader(file)}

    def _has(self, flag: str) -> bool:
        return self._meta[flag] == "True"

    @property
    def _split_folder(self) -> str:
        return f"split/{self._meta['split']}{f'/{_PAPER}' if self._has('is hetero') else ''}"

    def layout(self) -> RawLayout:
        own = self.dataset.replace("-", "_")
        places = (own, f"ogb/{own}", self._meta["download_name"], "")
        if self._has("binary"):
            raw = ["data.npz", "node-label.npz"]
        elif self._has("is hetero"):
            raw = ["num-node-dict.csv.gz"]
            raw += [f"node-{part}/{_PAPER}/node-{part}.csv.gz" for part in ("feat", "label")]
            for edge_type in _MAG:
                folder = f"relations/{'___'.join(edge_type)}"
                raw += [f"{folder}/edge.csv.gz", f"{folder}/num-edge-list.csv.gz"]
        else:
            raw = ["edge.csv.gz", "num-node-list.csv.gz", "num-edge-list.csv.gz"]
            raw += ["node-label.csv.gz"]
            raw += ["node-feat.csv.gz"] if self._has("has_node_attr") else []
            raw += ["edge-feat.csv.gz"] if self._has("has_edge_attr") else []
        split = [f"{self._split_folder}/{name}" for name in _SPLIT_FILES.values()]
        return RawLayout(places, (*(f"raw/{name}" for name in raw), *split))

    def download(self, scratch: Path) -> Path:
        ogb_nodeproppred()
        from ogb.utils.url import download_url, extract_zip

        url = self._meta["url"]
        with urllib.request.urlopen(url) as reply:
            packed = int(reply.headers["Content-Length"])
        free = shutil.disk_usage(scratch).free
        if free < 2.5 * packed:  # the archive, and what comes out of it
            raise OSError(f"{packed / 2**30:.1f} GiB to unpack, {free / 2**30:.1f} GiB disk free")
        archive = download_url(url, str(scratch))
        extract_zip(archive, str(scratch))
        Path(archive).unlink()
        return scratch / self._meta["download_name"]

    def read(self, raw_dir: Path) -> GraphData:
        # OGB marks a data set's version with an empty file, and asks what to do with others.
        releases = sorted(file.name for file in raw_dir.glob("RELEASE_v*.txt"))
        expected = f"RELEASE_v{self._meta['version']}.txt"
        if releases and expected not in releases:
            raise UserError(
                f"dataset={self.dataset}: {raw_dir} holds another version of the data "
                f"({releases[0]}, expected {expected}).",
                "Move that folder away to have the right one downloaded.",
            )
        if self._has("is hetero"):
            nodes, edges, labels = _read_mag(raw_dir / "raw")
        else:
            nodes, edges, labels = self._read_one_type(raw_dir / "raw")
        is_multiclass = int(self._meta["num tasks"]) == 1
        if is_multiclass:  # integers, or floats with NaN for "no label"
            labels = np.where(np.isnan(labels), -1, labels)[:, 0].astype(np.int32)
        elif np.isin(labels, (0, 1)).all():
            labels = labels.astype(np.uint8)
        else:
            raise ValueError("labels other than 0 and 1")
        split_folder = raw_dir / self._split_folder
        return GraphData(
            dataset=self.dataset,
            nodes=nodes,
            edges=edges,
            target=_PAPER if self._has("is hetero") else NODE,
            labels=labels,
            num_classes=int(self._meta["num classes" if is_multiclass else "num tasks"]),
            task="multiclass" if is_multiclass else "multilabel",
            splits={
                name: np.loadtxt(split_folder / file, np.int64, ndmin=1)
                for name, file in _SPLIT_FILES.items()
            },
            metric=_METRICS[self._meta["eval metric"]],
            ogb_name=self.dataset,
        )

    def _read_one_type(
        self, raw: Path
    ) -> tuple[dict[str, NodeData], dict[EdgeType, EdgeData], AnyArray]:
        """Nodes, edges and labels, as in the files."""
        features: AnyArray | StreamedRows
        if self._has("binary"):
            with np.load(raw / "data.npz", allow_pickle=False) as small:
                num_nodes = int(small["num_nodes_list"][0])
            src, dst = edge_rows(open_member(raw / "data.npz", "edge_index"), num_nodes)
            features = open_member(raw / "data.npz", "node_feat")
            with np.load(raw / "node-label.npz", allow_pickle=False) as file:
                labels = file["node_label"]
        else:
            num_nodes = int(_read_table(raw / "num-node-list.csv.gz", 1, np.int64)[0, 0])
            edges = _read_edges(raw, num_nodes)
            src, dst = edges.T
            labels = _read_table(raw / "node-label.csv.gz", num_nodes, np.float32)
            if self._has("has_node_attr"):
                features = _read_table(raw / "node-feat.csv.gz", num_nodes, np.float32)
            else:
                features = _mean_edge_features(raw / "edge-feat.csv.gz", edges, num_nodes)
        # The files hold one direction of each edge; OGB adds the other.
        symmetric = self._has("add_inverse_edge")
        nodes = {NODE: NodeData(num_nodes, features)}
        return nodes, {EDGE: EdgeData(src, dst, symmetric=symmetric)}, labels


def _read_mag(raw: Path) -> tuple[dict[str, NodeData], dict[EdgeType, EdgeData], AnyArray]:
    """Nodes, edges and labels of ogbn-mag."""
    with gzip.open(raw / "num-node-dict.csv.gz", "rt", newline="") as file:
        (row,) = csv.DictReader(file)  # the number of nodes of the type each column names
    nodes = {name: NodeData(int(number)) for name, number in row.items()}
    features, labels = (
        _read_table(raw / part / _PAPER / f"{part}.csv.gz", nodes[_PAPER].num_nodes, np.float32)
        for part in ("node-feat", "node-label")
    )
    nodes[_PAPER].features = features
    edges = {}
    for edge_type in _MAG:
        most_nodes = max(nodes[edge_type[0]].num_nodes, nodes[edge_type[2]].num_nodes)
        src, dst = _read_edges(raw / "relations" / "___".join(edge_type), most_nodes).T
        edges[edge_type] = EdgeData(src, dst)
    return nodes, edges, labels


def _read_edges(folder: Path, num_nodes: int) -> AnyArray:
    """The edges in a folder, `[num_edges, 2]`, each column contiguous."""
    num_edges = int(_read_table(folder / "num-edge-list.csv.gz", 1, np.int64)[0, 0])
    return _read_table(folder / "edge.csv.gz", num_edges, index_dtype(num_nodes), order="F")


def _read_table(path: Path, num_rows: int, dtype: Any, *, order: str = "C") -> AnyArray:
    """A headerless csv.gz of `num_rows` rows → `[num_rows, num_columns]`, see `_blocks`."""
    table: AnyArray = np.empty((num_rows, 0), dtype)
    for rows, columns in _blocks(path, dtype, num_rows):
        if rows.start == 0:
            table = np.empty((num_rows, len(columns)), dtype, order)  # type: ignore[call-overload]
        for index, column in enumerate(columns):
            table[rows, index] = column
    return table


def _blocks(path: Path, dtype: Any, num_rows: int) -> Iterator[tuple[slice, list[AnyArray]]]:
    """Columns of a headerless csv.gz, some thousands of rows at a time, and which rows they are;
    ValueError where a whole number is missing, or there are not `num_rows` rows."""
    import pyarrow as pa
    from pyarrow import csv as pa_csv

    with gzip.open(path, "rt") as file:
        num_columns = file.readline().count(",") + 1
    names = [str(index) for index in range(num_columns)]
    types = dict.fromkeys(names, pa.from_numpy_dtype(dtype))
    reader = pa_csv.open_csv(
        path,
        read_options=pa_csv.ReadOptions(column_names=names, block_size=1 << 23),
        convert_options=pa_csv.ConvertOptions(column_types=types),
    )
    end = 0
    for batch in reader:
        rows = slice(end, end + batch.num_rows)
        end = rows.stop
        if end > num_rows:
            raise ValueError(f"{path.name} has more than the {num_rows} rows it should have")
        if np.dtype(dtype).kind == "i" and any(column.null_count for column in batch.columns):
            raise ValueError(f"{path.name} has a row with a missing number")
        yield rows, [column.to_numpy(zero_copy_only=False) for column in batch.columns]
    if end < num_rows:
        raise ValueError(f"{path.name} has {end} rows instead of {num_rows}")


def _mean_edge_features(path: Path, edges: AnyArray, num_nodes: int) -> AnyArray:
    """Mean over each node's in-edges of the edges' features: `[num_nodes, num_edge_features]`, as
    OGB's own examples make node features for ogbn-proteins. Each edge is given once and holds both
    ways; a self loop counts twice."""
    sums: AnyArray = np.zeros((num_nodes, 0))
    num_in_edges = np.zeros(num_nodes)
    for rows, columns in _blocks(path, np.float32, len(edges)):
        if rows.start == 0:
            sums = np.zeros((num_nodes, len(columns)))
        for ends in (edges[rows, 1], edges[rows, 0]):
            num_in_edges += np.bincount(ends, minlength=num_nodes)
            for index, column in enumerate(columns):
                sums[:, index] += np.bincount(ends, column, minlength=num_nodes)
    return (sums / np.maximum(num_in_edges, 1)[:, None]).astype(np.float32)


def edge_rows(edge_index: AnyArray | StreamedRows, num_nodes: int) -> tuple[AnyArray, AnyArray]:
    """Both rows of `[2, num_edges]`: mapped as they lie, or unpacked in chunks to 32 bits;
    ValueError where a node is out of range then."""
    if isinstance(edge_index, np.ndarray):
        return edge_index[0], edge_index[1]
    num_edges = edge_index.shape[1]
    ends = np.empty(2 * num_edges, index_dtype(num_nodes))
    for start in range(0, len(ends), _CHUNK):
        stop = min(start + _CHUNK, len(ends))
        chunk = edge_index.values(start, stop)
        if chunk.min() < 0 or chunk.max() >= num_nodes:
            raise ValueError(f"edge_index names nodes outside 0 … {num_nodes - 1}")
        ends[start:stop] = chunk
    return ends[:num_edges], ends[num_edges:]
