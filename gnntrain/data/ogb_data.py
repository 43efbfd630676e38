"""The Open Graph Benchmark's node data sets (Hu et al., 2020).

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
import shutil
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
    FeatureRows,
    GraphData,
    HeteroGraphData,
    Int64Array,
    IntArray,
    NodeData,
    NodeType,
    index_dtype,
)
from gnntrain.data.npz_members import StreamedRows, open_member
from gnntrain.data.ogb import ogb_nodeproppred
from gnntrain.data.raw_files import PublishedBuilder, RawLayout
from gnntrain.errors import UserError
from gnntrain.metrics import LabelKind

# Raised when the same raw files of a data set with inverse edges give another graph.
# 2: self loops are doubled.
_READING = 2

_SPLIT_FILES = {"train": "train.csv.gz", "val": "valid.csv.gz", "test": "test.csv.gz"}
_METRICS = {"acc": "accuracy", "rocauc": "roc_auc"}
_CHUNK = 1 << 24


class OGBBuilder(PublishedBuilder):
    """Builds a data set of `PUBLISHED` that is OGB's."""

    def identity(self) -> dict[str, JSON]:
        """As for all; data sets with inverse edges have a version of how they are read, too."""
        doubled = self.published.edges_once  # OGB's table says so too, after seconds
        return super().identity() | ({"reading": _READING} if doubled else {})

    @cached_property
    def _meta(self) -> Mapping[str, str]:
        """The data set's column of OGB's master table."""
        import pandas as pd

        table = Path(ogb_nodeproppred().__file__).with_name("master.csv")
        column = pd.read_csv(table, index_col=0, keep_default_na=False)[self.dataset]
        return {str(key): str(value) for key, value in column.items()}

    @property
    def is_doubled(self) -> bool:
        """Whether the files hold one direction of each edge, and OGB adds the other."""
        return self._meta["add_inverse_edge"] == "True"

    def layout(self) -> RawLayout:
        own = self.dataset.replace("-", "_")
        places = (own, f"ogb/{own}", self._meta["download_name"], "")
        if self._meta["binary"] == "True":
            raw = ["data.npz", "node-label.npz"]
        else:
            raw = ["edge.csv.gz", "num-node-list.csv.gz", "num-edge-list.csv.gz"]
            raw += ["node-label.csv.gz"]
            raw += ["node-feat.csv.gz"] if self._meta["has_node_attr"] == "True" else []
            raw += ["edge-feat.csv.gz"] if self._meta["has_edge_attr"] == "True" else []
        split = [f"split/{self._meta['split']}/{name}" for name in _SPLIT_FILES.values()]
        return RawLayout(self.dataset, places, (*(f"raw/{name}" for name in raw), *split))

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

    def _check_release(self, folder: Path) -> None:
        """OGB marks a data set's version with an empty file, and asks what to do with others."""
        found = sorted(file.name for file in folder.glob("RELEASE_v*.txt"))
        wanted = f"RELEASE_v{self._meta['version']}.txt"
        if found and wanted not in found:
            raise UserError(
                f"dataset={self.dataset}: {folder} holds another version of the data "
                f"({found[0]}, expected {wanted}).",
                "Move that folder away to have the right one downloaded.",
            )

    def read(self, folder: Path) -> HeteroGraphData:
        self._check_release(folder)
        read = _read_binary if self._meta["binary"] == "True" else _read_tables
        num_nodes, src, dst, features, labels = read(folder / "raw", self._meta)
        num_tasks, num_classes = int(self._meta["num tasks"]), int(self._meta["num classes"])
        task: LabelKind = "multiclass" if num_tasks == 1 else "multilabel"
        if task == "multiclass":
            labels = _class_numbers(labels)
        elif np.isin(labels, (0, 1)).all():
            labels, num_classes = labels.astype(np.uint8), num_tasks
        else:
            raise ValueError("labels other than 0 and 1")
        return GraphData(
            dataset=self.dataset,
            num_nodes=num_nodes,
            src=src,
            dst=dst,
            labels=labels,
            num_classes=num_classes,
            task=task,
            splits=self._splits(folder / "split" / self._meta["split"]),
            features=features,
            symmetric=self.is_doubled,
            metric=_METRICS[self._meta["eval metric"]],
            ogb_name=self.dataset,
        )

    def _splits(self, folder: Path) -> dict[str, Int64Array]:
        ids = np.dtype(np.int64)
        return {
            split: np.concatenate(
                [found for _, (found,) in _table_blocks(folder / name, ids, None)]
            )
            for split, name in _SPLIT_FILES.items()
        }


class HeteroOGBBuilder(OGBBuilder):
    """Builds ogbn-mag, OGB's typed graph: a folder for each node type and each edge type."""

    def layout(self) -> RawLayout:
        paper, split = f"{_PAPER}/node", f"split/{self._meta['split']}/{_PAPER}"
        raw = [_SIZES, f"node-feat/{paper}-feat.csv.gz", f"node-label/{paper}-label.csv.gz"]
        raw += [f"{_folder(name)}/{file}" for name in _MAG for file in (_EDGES, _NUM_EDGES)]
        files = [f"raw/{name}" for name in raw]
        files += [f"{split}/{name}" for name in _SPLIT_FILES.values()]
        return replace(super().layout(), files=tuple(files))

    def read(self, folder: Path) -> HeteroGraphData:
        self._check_release(folder)
        raw = folder / "raw"
        with gzip.open(raw / _SIZES, "rt", newline="") as file:
            (row,) = csv.DictReader(file)  # the number of nodes of the type each column names
        sizes = {name: int(number) for name, number in row.items()}
        of_paper = sizes[_PAPER], np.dtype(np.float32)
        features = _read_table(raw / "node-feat" / _PAPER / "node-feat.csv.gz", *of_paper)
        labels = _read_table(raw / "node-label" / _PAPER / "node-label.csv.gz", *of_paper)
        return HeteroGraphData(
            dataset=self.dataset,
            nodes={
                name: NodeData(size, features if name == _PAPER else None)
                for name, size in sizes.items()
            },
            edges={name: EdgeData(*_read_ends(raw / _folder(name), sizes, name)) for name in _MAG},
            target=_PAPER,
            labels=_class_numbers(labels),
            num_classes=int(self._meta["num classes"]),
            task="multiclass",
            splits=self._splits(folder / "split" / self._meta["split"] / _PAPER),
            metric=_METRICS[self._meta["eval metric"]],
            ogb_name=self.dataset,
        )


_SIZES, _EDGES, _NUM_EDGES = "num-node-dict.csv.gz", "edge.csv.gz", "num-edge-list.csv.gz"
_PAPER: NodeType = "paper"
_MAG: tuple[EdgeType, ...] = (
    ("author", "affiliated_with", "institution"),
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "has_topic", "field_of_study"),
)
"""The edge types of ogbn-mag; the list in the files would come too late for `layout`."""


def _folder(edge_type: EdgeType) -> str:
    return f"relations/{'___'.join(edge_type)}"


def _read_ends(
    folder: Path, sizes: Mapping[NodeType, int], edge_type: EdgeType
) -> tuple[IntArray, IntArray]:
    num_edges = _single_number(folder / _NUM_EDGES)
    dtype = index_dtype(max(sizes[edge_type[0]], sizes[edge_type[2]]))
    edges = _read_table(folder / _EDGES, num_edges, dtype, columns_apart=True)
    return edges[:, 0], edges[:, 1]


_Parts = tuple[int, AnyArray, AnyArray, AnyArray | FeatureRows | None, AnyArray]
"""Number of nodes, source nodes, destination nodes, features, labels."""


def _class_numbers(labels: AnyArray) -> AnyArray:
    """`[num_nodes, 1]` integers, or floats with NaN for "no label" → `[num_nodes]`, −1 there."""
    column = labels[:, 0]
    if column.dtype.kind == "f":
        column = np.where(np.isnan(column), -1, column)
    return column.astype(np.int32)


def _read_tables(raw: Path, meta: Mapping[str, str]) -> _Parts:
    num_nodes = _single_number(raw / "num-node-list.csv.gz")
    num_edges = _single_number(raw / "num-edge-list.csv.gz")
    edges = _read_table(raw / "edge.csv.gz", num_edges, index_dtype(num_nodes), columns_apart=True)
    labels = _read_table(raw / "node-label.csv.gz", num_nodes, np.dtype(np.float32))
    if meta["has_node_attr"] == "True":
        features = _read_table(raw / "node-feat.csv.gz", num_nodes, np.dtype(np.float32))
    else:
        features = _mean_edge_features(raw / "edge-feat.csv.gz", edges, num_nodes)
    return num_nodes, edges[:, 0], edges[:, 1], features, labels


def _single_number(path: Path) -> int:
    return int(_read_table(path, 1, np.dtype(np.int64))[0, 0])


def _read_table(
    path: Path, num_rows: int, dtype: np.dtype[Any], *, columns_apart: bool = False
) -> AnyArray:
    """A headerless csv.gz of `num_rows` rows → `[num_rows, num_columns]`.

    `columns_apart` lays each column out contiguously.
    """
    table: AnyArray = np.empty((num_rows, 0), dtype)
    for rows, block in _table_blocks(path, dtype, num_rows):
        if rows.start == 0:
            table = np.empty((num_rows, len(block)), dtype, "F" if columns_apart else "C")
        for index, column in enumerate(block):
            table[rows, index] = column
    return table


def _table_blocks(
    path: Path, dtype: np.dtype[Any], num_rows: int | None
) -> Iterator[tuple[slice, list[AnyArray]]]:
    """Columns of a headerless csv.gz, some thousands of rows at a time, and which rows they are.

    Raises:
        ValueError: A number is missing, or there are not `num_rows` rows, where that is known.
    """
    import pyarrow as pa
    from pyarrow import csv as pa_csv

    with gzip.open(path, "rt") as file:
        num_columns = file.readline().count(",") + 1
    names = [str(index) for index in range(num_columns)]
    reader = pa_csv.open_csv(
        path,
        read_options=pa_csv.ReadOptions(column_names=names, block_size=1 << 23),
        convert_options=pa_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.from_numpy_dtype(dtype))
        ),
    )
    end = 0
    for batch in reader:
        rows = slice(end, end + batch.num_rows)
        end = rows.stop
        if num_rows is not None and end > num_rows:
            raise ValueError(f"{path.name} has more than the {num_rows} rows it should have")
        if dtype.kind == "i" and any(column.null_count for column in batch.columns):
            raise ValueError(f"{path.name} has a row with a missing number")
        yield rows, [column.to_numpy(zero_copy_only=False) for column in batch.columns]
    if num_rows is not None and end < num_rows:
        raise ValueError(f"{path.name} has {end} rows instead of {num_rows}")


def _mean_edge_features(path: Path, edges: AnyArray, num_nodes: int) -> AnyArray:
    """Mean over each node's in-edges of the edges' features: `[num_nodes, num_edge_features]`.

    Each edge is given once and holds both ways; a self loop counts twice. OGB's own examples make
    node features for ogbn-proteins in this way; it has none. One block of rows is in memory at a
    time.
    """
    sums: AnyArray = np.zeros((num_nodes, 0))
    num_in_edges = np.zeros(num_nodes)
    for rows, block in _table_blocks(path, np.dtype(np.float32), len(edges)):
        if rows.start == 0:
            sums = np.zeros((num_nodes, len(block)))
        for ends in (edges[rows, 1], edges[rows, 0]):
            num_in_edges += np.bincount(ends, minlength=num_nodes)
            for index, column in enumerate(block):
                sums[:, index] += np.bincount(ends, column, minlength=num_nodes)
    return (sums / np.maximum(num_in_edges, 1)[:, None]).astype(np.float32)


def _read_binary(raw: Path, _meta: Mapping[str, str]) -> _Parts:
    arrays = raw / "data.npz"
    with np.load(arrays, allow_pickle=False) as small:
        num_nodes = int(small["num_nodes_list"][0])
    src, dst = _edge_rows(open_member(arrays, "edge_index"), num_nodes)
    with np.load(raw / "node-label.npz", allow_pickle=False) as file:
        labels = file["node_label"]
    return num_nodes, src, dst, open_member(arrays, "node_feat"), labels


def _edge_rows(edge_index: AnyArray | StreamedRows, num_nodes: int) -> tuple[AnyArray, AnyArray]:
    """Both rows of `[2, num_edges]`: mapped as they lie, or unpacked in chunks to 32 bits."""
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
