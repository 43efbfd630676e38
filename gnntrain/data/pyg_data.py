"""Data sets of PyTorch Geometric.

PyG's own classes read the small ones, each in a temporary folder that holds links to the raw files:
PyG writes its processed copy there, and nothing beside the raw files. PyG's classes also name and
fetch the files of the larger ones, but their `process` holds every edge several times as 64-bit
numbers: ten times the size of the store for Reddit. Reading the same arrays here gives the same
graph (a test compares them) and lets features be mapped or streamed.
"""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gnntrain.config.published import Published
from gnntrain.data.graph import (
    SPLITS,
    AnyArray,
    FeatureRows,
    GraphData,
    Int64Array,
    IntArray,
    index_dtype,
)
from gnntrain.data.npz_members import open_member
from gnntrain.data.raw_files import PublishedBuilder, RawLayout, quiet
from gnntrain.data.summary import DataSummary
from gnntrain.metrics import DEFAULT_METRICS, LabelKind

_GRAPH_SAINT = frozenset({"Reddit2", "Flickr", "Yelp", "AmazonProducts"})
"""These four give their files the same names (Zeng et al., 2020)."""


class PyGBuilder(PublishedBuilder):
    """Builds a data set of `PUBLISHED` that has a class in PyG."""

    def layout(self) -> RawLayout:
        # The files of a class of several graphs lie in a folder for each, called by its name.
        own = class_name = str(self.published.class_name)
        places = [f"{own}/raw", f"{self.dataset}/raw", "raw", own, ""]
        if self.published.name is not None:
            own = self.published.name
            inner = f"{class_name.removesuffix('GraphDataset').lower()}/{own}"
            places = [f"{inner}/raw", f"{own}/raw", f"{self.dataset}/raw", "raw", inner, own, ""]
        strangers = _GRAPH_SAINT - {own} if own in _GRAPH_SAINT else frozenset()
        with tempfile.TemporaryDirectory() as empty:
            _, names = _raw_files(self.published, Path(empty))
        return RawLayout(tuple(places), names, strangers)

    def download(self, scratch: Path) -> Path:
        folder, _ = _raw_files(self.published, scratch, download=True)
        return folder

    def read(self, raw_dir: Path) -> GraphData:
        if self.published.class_name == "Reddit":
            return _read_reddit(raw_dir, self.dataset)
        if self.published.class_name in _GRAPH_SAINT:
            return _read_graph_saint(raw_dir, self.dataset)
        import torch_geometric.datasets

        from gnntrain.data.read.objects import from_pyg

        made_by = getattr(torch_geometric.datasets, str(self.published.class_name))
        with (
            tempfile.TemporaryDirectory(prefix="gnntrain-") as root,
            quiet(),
            contextlib.redirect_stderr(io.StringIO()),  # PyG says that it processes
        ):
            folder, names = _raw_files(self.published, Path(root))
            for name in names:
                source, target = (raw_dir / name).resolve(), folder / name
                is_pickle = not name.endswith(".test.index")
                if self.published.class_name == "Planetoid" and is_pickle:
                    content = source.read_bytes()
                    _PlainUnpickler(io.BytesIO(content), encoding="latin1").load()
                    target.write_bytes(content)  # a copy: PyG reads the checked bytes
                else:
                    target.symlink_to(source)
            data = made_by(root, *filter(None, [self.published.name]))[0]
        graph = from_pyg(data, self.dataset, split=self.split)
        # Of what was read, the split alone is news to the user of a published data set.
        graph.summary = DataSummary(split=(graph.summary or DataSummary()).split)
        return graph


class _Known(Exception):
    """Raised where a class of PyG would go on to process its raw files."""


def _raw_files(
    published: Published, root: Path, *, download: bool = False
) -> tuple[Path, tuple[str, ...]]:
    """Where a class of PyG puts its raw files below the empty folder `root`, and their names."""
    import torch_geometric.datasets

    base = getattr(torch_geometric.datasets, str(published.class_name))
    answers = []

    def stop(dataset: Any) -> None:
        if download:
            base.download(dataset)
        names = dataset.raw_file_names
        names = (names,) if isinstance(names, str) else tuple(names)
        answers.append((Path(dataset.raw_dir), names))
        raise _Known

    with contextlib.suppress(_Known):
        type(base.__name__, (base,), {"download": stop})(str(root), *filter(None, [published.name]))
    return answers[0]


class _PlainUnpickler(pickle.Unpickler):
    """Reads pickles of NumPy arrays, CSR matrices, lists and dictionaries, and refuses others.

    Planetoid's files (Cora, CiteSeer, PubMed; Yang et al., 2016) are pickles of Python 2, and PyG
    reads them with `pickle.load`, which runs whatever code a file names. They need no more than
    these; `pickle.load` then looks up the same names.
    """

    def find_class(self, module: str, name: str) -> Any:
        from scipy.sparse import csr_matrix

        reconstruct = np.empty(0).__reduce__()[0]
        plain = {
            ("collections", "defaultdict"): defaultdict,
            ("__builtin__", "list"): list,
            ("builtins", "list"): list,
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("numpy.core.multiarray", "_reconstruct"): reconstruct,
            ("numpy._core.multiarray", "_reconstruct"): reconstruct,
            ("scipy.sparse.csr", "csr_matrix"): csr_matrix,
            ("scipy.sparse._csr", "csr_matrix"): csr_matrix,
        }
        if (module, name) not in plain:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which could run code")
        return plain[module, name]


def _read_reddit(raw_dir: Path, dataset: str) -> GraphData:
    """Reddit (Hamilton et al., 2017): one archive of nodes, one SciPy matrix of edges."""
    with np.load(raw_dir / "reddit_data.npz", allow_pickle=False) as nodes:
        labels, node_types = nodes["label"].astype(np.int64), nodes["node_types"]
    with np.load(raw_dir / "reddit_graph.npz", allow_pickle=False) as edges:
        src = _smallest_int(edges["row"], len(labels))
        dst = _smallest_int(edges["col"], len(labels))
    splits = {name: np.flatnonzero(node_types == code) for code, name in enumerate(SPLITS, start=1)}
    features = open_member(raw_dir / "reddit_data.npz", "feature")
    return _labelled_graph(dataset, src, dst, labels, splits, features)


def _read_graph_saint(raw_dir: Path, dataset: str) -> GraphData:
    """Flickr, Yelp, AmazonProducts and Reddit2 in the form of Zeng et al. (2020)."""
    features = np.load(raw_dir / "feats.npy", mmap_mode="r", allow_pickle=False)
    num_nodes = len(features)
    with np.load(raw_dir / "adj_full.npz", allow_pickle=False) as adjacency:
        dst = _smallest_int(adjacency["indices"], num_nodes)
        degree = np.diff(adjacency["indptr"])
    src = np.repeat(np.arange(num_nodes, dtype=index_dtype(num_nodes)), degree)
    class_map = json.loads((raw_dir / "class_map.json").read_bytes())
    first = next(iter(class_map.values()))  # a class a node, or a list of 0 and 1
    labels: AnyArray = np.full(num_nodes, -1, np.int64)
    if isinstance(first, list):
        labels = np.zeros((num_nodes, len(first)), np.uint8)
    for node, label in class_map.items():
        labels[int(node)] = label
    role = json.loads((raw_dir / "role.json").read_bytes())
    splits = {name: np.sort(np.array(role[name[:2]], np.int64)) for name in SPLITS}
    return _labelled_graph(dataset, src, dst, labels, splits, features)


def _labelled_graph(
    dataset: str,
    src: IntArray,
    dst: IntArray,
    labels: AnyArray,
    splits: Mapping[str, Int64Array],
    features: AnyArray | FeatureRows,
) -> GraphData:
    """A graph whose task follows from its labels: a 0/1 matrix is multi-label; two classes are
    binary, more are multi-class."""
    task: LabelKind = "multilabel"
    if labels.ndim == 2:
        num_classes = labels.shape[1]
    else:
        num_classes = int(labels.max(initial=-1)) + 1
        task = "binary" if num_classes == 2 else "multiclass"
    return GraphData.of_arrays(
        dataset=dataset,
        num_nodes=len(labels),
        src=src,
        dst=dst,
        features=features,
        labels=labels,
        num_classes=num_classes,
        task=task,
        splits=splits,
        metric=DEFAULT_METRICS[task],
    )


def _smallest_int(ids: AnyArray, num_nodes: int) -> IntArray:
    """Node ids in `index_dtype`, but for ids out of range: cut to 32 bits they could look right."""
    in_range = ids.size == 0 or (ids.min() >= 0 and ids.max() < num_nodes)
    return ids.astype(index_dtype(num_nodes) if in_range else np.int64, copy=False)
