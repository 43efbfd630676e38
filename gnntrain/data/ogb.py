"""The Open Graph Benchmark (Hu et al., 2020): its node data sets and evaluators.

OGB's package gives their table (names, numbers of classes, download addresses), its downloader and
its evaluators. The raw files are read here, for three reasons:

- OGB's reader needs several times the graph in memory: it holds each table as 64-bit numbers, then
  as a converted copy, edges in both directions with 16 bytes each (2.0 GB for ogbn-products, whose
  stored edges take 0.5 GB).
- It accepts a table with missing rows or numbers, and returns a wrong graph without a warning.
- It pickles what it read, and opens the pickle with a `torch.load` that PyTorch 2.6 refuses.

A test compares the graphs with those of OGB's own class.
"""

from __future__ import annotations

import csv
import gzip
import importlib
import shutil
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gnntrain.data.graph import (
    JSON,
    AnyArray,
    EdgeData,
    EdgeType,
    GraphData,
    HeteroGraphData,
    Int64Array,
    NodeData,
    NodeType,
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


def ogb_nodeproppred() -> Any:
    """The module `ogb.nodeproppred`: OGB's data sets and evaluators."""
    if "ogb" not in sys.modules:
        # OGB's import starts a thread that asks PyPI for a newer version by the package
        # `outdated`; without network it would keep the process from ending.
        before = sys.modules.get("outdated")
        sys.modules["outdated"] = None  # type: ignore[assignment]  # makes its import fail
        try:
            importlib.import_module("ogb")
        finally:
            del sys.modules["outdated"]
            if before is not None:
                sys.modules["outdated"] = before
    return importlib.import_module("ogb.nodeproppred")


def ogb_evaluator(name: str) -> Any:
    """OGB's evaluator of a node data set, such as "ogbn-arxiv"."""
    return ogb_nodeproppred().Evaluator(name)


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

    def layout(self) -> RawLayout:
        own = self.dataset.replace("-", "_")
        places = (own, f"ogb/{own}", self._meta["download_name"], "")
        if self._has("binary"):
            raw = ["data.npz", "node-label.npz"]
        else:
            raw = ["edge.csv.gz", "num-node-list.csv.gz", "num-edge-list.csv.gz"]
            raw += ["node-label.csv.gz"]
            raw += ["node-feat.csv.gz"] if self._has("has_node_attr") else []
            raw += ["edge-feat.csv.gz"] if self._has("has_edge_attr") else []
        split = [f"split/{self._meta['split']}/{name}" for name in _SPLIT_FILES.values()]
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

    def read(self, raw_dir: Path) -> HeteroGraphData:
        self._check_release(raw_dir)
        raw = raw_dir / "raw"
        features: AnyArray | StreamedRows
        if self._has("binary"):
            archive = raw / "data.npz"
            with np.load(archive, allow_pickle=False) as small:
                num_nodes = int(small["num_nodes_list"][0])
            src, dst = edge_rows(open_member(archive, "edge_index"), num_nodes)
            features = open_member(archive, "node_feat")
            with np.load(raw / "node-label.npz", allow_pickle=False) as file:
                labels = file["node_label"]
        else:
            num_nodes = _single_number(raw / "num-node-list.csv.gz")
            edges = _read_edges(raw, num_nodes)
            src, dst = edges.T
            labels = _read_table(raw / "node-label.csv.gz", num_nodes, np.float32)
            if self._has("has_node_attr"):
                features = _read_table(raw / "node-feat.csv.gz", num_nodes, np.float32)
            else:
                features = _mean_edge_features(raw / "edge-feat.csv.gz", edges, num_nodes)
        is_multiclass = int(self._meta["num tasks"]) == 1
        if is_multiclass:
            labels = _class_numbers(labels)
        elif np.isin(labels, (0, 1)).all():
            labels = labels.astype(np.uint8)
        else:
            raise ValueError("labels other than 0 and 1")
        return GraphData(
            dataset=self.dataset,
            num_nodes=num_nodes,
            src=src,
            dst=dst,
            labels=labels,
            num_classes=int(self._meta["num classes" if is_multiclass else "num tasks"]),
            task="multiclass" if is_multiclass else "multilabel",
            splits=self._splits(raw_dir),
            features=features,
            # The files hold one direction of each edge; OGB adds the other.
            symmetric=self._has("add_inverse_edge"),
            metric=_METRICS[self._meta["eval metric"]],
            ogb_name=self.dataset,
        )

    def _check_release(self, folder: Path) -> None:
        """OGB marks a data set's version with an empty file, and asks what to do with others."""
        releases = sorted(file.name for file in folder.glob("RELEASE_v*.txt"))
        expected = f"RELEASE_v{self._meta['version']}.txt"
        if releases and expected not in releases:
            raise UserError(
                f"dataset={self.dataset}: {folder} holds another version of the data "
                f"({releases[0]}, expected {expected}).",
                "Move that folder away to have the right one downloaded.",
            )

    def _splits(self, folder: Path, below: str = "") -> dict[str, Int64Array]:
        split = folder / "split" / self._meta["split"] / below
        return {
            name: np.concatenate([ids for _, (ids,) in _table_blocks(split / file, np.int64)])
            for name, file in _SPLIT_FILES.items()
        }


_SIZES = "num-node-dict.csv.gz"
_PAPER: NodeType = "paper"
_MAG: tuple[EdgeType, ...] = (
    ("author", "affiliated_with", "institution"),
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "has_topic", "field_of_study"),
)
"""The edge types of ogbn-mag; the list in the files would come too late for `layout`."""


class HeteroOGBBuilder(OGBBuilder):
    """Builds ogbn-mag, OGB's typed graph: a folder for each node type and each edge type."""

    def layout(self) -> RawLayout:
        raw = [_SIZES, *(f"node-{part}/{_PAPER}/node-{part}.csv.gz" for part in ("feat", "label"))]
        for edge_type in _MAG:
            folder = f"relations/{'___'.join(edge_type)}"
            raw += [f"{folder}/edge.csv.gz", f"{folder}/num-edge-list.csv.gz"]
        split = f"split/{self._meta['split']}/{_PAPER}"
        files = [f"raw/{name}" for name in raw]
        files += [f"{split}/{name}" for name in _SPLIT_FILES.values()]
        return replace(super().layout(), files=tuple(files))

    def read(self, raw_dir: Path) -> HeteroGraphData:
        self._check_release(raw_dir)
        raw = raw_dir / "raw"
        with gzip.open(raw / _SIZES, "rt", newline="") as file:
            (row,) = csv.DictReader(file)  # the number of nodes of the type each column names
        sizes = {name: int(number) for name, number in row.items()}
        features, labels = (
            _read_table(
                raw / f"node-{part}" / _PAPER / f"node-{part}.csv.gz", sizes[_PAPER], np.float32
            )
            for part in ("feat", "label")
        )
        edges = {}
        for edge_type in _MAG:
            most_nodes = max(sizes[edge_type[0]], sizes[edge_type[2]])
            src, dst = _read_edges(raw / "relations" / "___".join(edge_type), most_nodes).T
            edges[edge_type] = EdgeData(src, dst)
        return HeteroGraphData(
            dataset=self.dataset,
            nodes={
                name: NodeData(size, features if name == _PAPER else None)
                for name, size in sizes.items()
            },
            edges=edges,
            target=_PAPER,
            labels=_class_numbers(labels),
            num_classes=int(self._meta["num classes"]),
            task="multiclass",
            splits=self._splits(raw_dir, _PAPER),
            metric=_METRICS[self._meta["eval metric"]],
            ogb_name=self.dataset,
        )


def _class_numbers(labels: AnyArray) -> AnyArray:
    """`[num_nodes, 1]` integers, or floats with NaN for "no label" → `[num_nodes]`, −1 there."""
    column = labels[:, 0]
    if column.dtype.kind == "f":
        column = np.where(np.isnan(column), -1, column)
    return column.astype(np.int32)


def _single_number(path: Path) -> int:
    return int(_read_table(path, 1, np.int64)[0, 0])


def _read_edges(folder: Path, num_nodes: int) -> AnyArray:
    """The edges in a folder, `[num_edges, 2]`, each column contiguous."""
    num_edges = _single_number(folder / "num-edge-list.csv.gz")
    return _read_table(folder / "edge.csv.gz", num_edges, index_dtype(num_nodes), order="F")


def _read_table(path: Path, num_rows: int, dtype: Any, *, order: str = "C") -> AnyArray:
    """A headerless csv.gz of `num_rows` rows → `[num_rows, num_columns]`.

    Raises:
        ValueError: A number is missing, or there are not `num_rows` rows.
    """
    table: AnyArray = np.empty((num_rows, 0), dtype)
    end = 0
    for rows, columns in _table_blocks(path, dtype):
        end = rows.stop
        if end > num_rows:
            raise ValueError(f"{path.name} has more than the {num_rows} rows it should have")
        if rows.start == 0:
            table = np.empty((num_rows, len(columns)), dtype, order)  # type: ignore[call-overload]
        for index, column in enumerate(columns):
            table[rows, index] = column
    if end < num_rows:
        raise ValueError(f"{path.name} has {end} rows instead of {num_rows}")
    return table


def _table_blocks(path: Path, dtype: Any) -> Iterator[tuple[slice, list[AnyArray]]]:
    """Columns of a headerless csv.gz, some thousands of rows at a time, and which rows they are.

    Raises:
        ValueError: A whole number is missing.
    """
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
        if np.dtype(dtype).kind == "i" and any(column.null_count for column in batch.columns):
            raise ValueError(f"{path.name} has a row with a missing number")
        yield rows, [column.to_numpy(zero_copy_only=False) for column in batch.columns]


def _mean_edge_features(path: Path, edges: AnyArray, num_nodes: int) -> AnyArray:
    """Mean over each node's in-edges of the edges' features: `[num_nodes, num_edge_features]`.

    Each edge is given once and holds both ways; a self loop counts twice. OGB's own examples make
    node features for ogbn-proteins in this way; it has none. One block of rows is in memory at a
    time.
    """
    sums: AnyArray = np.zeros((num_nodes, 0))
    num_in_edges = np.zeros(num_nodes)
    end = 0
    for rows, columns in _table_blocks(path, np.float32):
        end = rows.stop
        if end > len(edges):
            break
        if rows.start == 0:
            sums = np.zeros((num_nodes, len(columns)))
        for ends in (edges[rows, 1], edges[rows, 0]):
            num_in_edges += np.bincount(ends, minlength=num_nodes)
            for index, column in enumerate(columns):
                sums[:, index] += np.bincount(ends, column, minlength=num_nodes)
    if end != len(edges):
        raise ValueError(f"{path.name} has not the {len(edges)} rows it should have")
    return (sums / np.maximum(num_in_edges, 1)[:, None]).astype(np.float32)


def edge_rows(edge_index: AnyArray | StreamedRows, num_nodes: int) -> tuple[AnyArray, AnyArray]:
    """Both rows of `[2, num_edges]`: mapped as they lie, or unpacked in chunks to 32 bits.

    Raises:
        ValueError: A node of a compressed array is out of range.
    """
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
