"""Data sets that PyTorch Geometric knows, through its own classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gnntrain.data.graph import JSON, SPLITS, AnyArray, GraphData, Int64Array, Task
from gnntrain.data.large_raw import LARGE_READERS, RawGraph
from gnntrain.data.plain_pickles import only_plain_pickles
from gnntrain.data.raw_files import RawLayout, default_root, find_or_download, quiet
from gnntrain.data.targets import (
    check_split_number,
    infer_task,
    random_split,
    smallest_int,
)
from gnntrain.errors import UserError
from gnntrain.metrics import DEFAULT_METRICS

if TYPE_CHECKING:
    from gnntrain.config import BuiltinConfig


@dataclass(frozen=True)
class PyGSpec:
    """How PyG makes a data set, and what its files are called.

    Attributes:
        class_name: Class in `torch_geometric.datasets`.
        folder: Folder of the data set, below that of its family.
        family: Folder shared by the data sets of one class; "" if there is one only.
        options: Further arguments of the class.
        num_splits: Splits that come with the data; 0: none, they are drawn at random.
    """

    class_name: str
    folder: str
    family: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    num_splits: int = 1


def _heterophilous(name: str) -> PyGSpec:
    return PyGSpec("HeterophilousGraphDataset", name, "heterophilous", {"name": name}, 10)


PYG_SPECS: Mapping[str, PyGSpec] = {
    "cora": PyGSpec("Planetoid", "Cora", "planetoid", {"name": "Cora"}),
    "citeseer": PyGSpec("Planetoid", "CiteSeer", "planetoid", {"name": "CiteSeer"}),
    "pubmed": PyGSpec("Planetoid", "PubMed", "planetoid", {"name": "PubMed"}),
    "reddit": PyGSpec("Reddit", "Reddit"),
    "reddit2": PyGSpec("Reddit2", "Reddit2"),
    "flickr": PyGSpec("Flickr", "Flickr"),
    "yelp": PyGSpec("Yelp", "Yelp"),
    "amazon_products": PyGSpec("AmazonProducts", "AmazonProducts"),
    "tolokers": _heterophilous("tolokers"),
    "roman_empire": _heterophilous("roman_empire"),
    "amazon_ratings": _heterophilous("amazon_ratings"),
    "minesweeper": _heterophilous("minesweeper"),
    "questions": _heterophilous("questions"),
    "amazon_computers": PyGSpec("Amazon", "Computers", "amazon", {"name": "Computers"}, 0),
    "amazon_photo": PyGSpec("Amazon", "Photo", "amazon", {"name": "Photo"}, 0),
    "coauthor_cs": PyGSpec("Coauthor", "CS", "coauthor", {"name": "CS"}, 0),
    "coauthor_physics": PyGSpec("Coauthor", "Physics", "coauthor", {"name": "Physics"}, 0),
}

_GRAPH_SAINT = frozenset({"Reddit2", "Flickr", "Yelp", "AmazonProducts"})
"""These four give their files the same names (Zeng et al., 2020)."""


class PyGBuilder:
    """Builds one of `PYG_SPECS`."""

    def __init__(self, config: BuiltinConfig) -> None:
        self.dataset = config.name
        self.spec = PYG_SPECS[config.name]
        self.split = config.split
        self.given_root = config.root
        if self.spec.num_splits:
            check_split_number(self.dataset, self.split, self.spec.num_splits)

    def identity(self) -> dict[str, JSON]:
        """What makes the graph; the folder counts only as named, so that raw files may go."""
        return {"dataset": self.dataset, "split": self.split, "root": self.given_root}

    def build(self) -> GraphData:
        """Read the raw files, downloaded if need be.

        Raises:
            UserError: The raw files are neither there nor to be had, or cannot be read.
        """
        root = Path(self.given_root) if self.given_root is not None else default_root()
        layout = _layout(self.dataset, self.spec)
        raw_dir = find_or_download(root, layout, lambda scratch: _download(self.spec, scratch))
        try:
            return self._read(raw_dir)
        except Exception as error:  # PyG raises whatever its parsers do
            raise UserError(
                f"dataset={self.dataset}: PyG cannot read the raw files in {raw_dir} "
                f"({type(error).__name__}: {error}).",
                "They may be incomplete or not the original: remove them to have them downloaded "
                "again.",
            ) from error

    def _read(self, raw_dir: Path) -> GraphData:
        large = LARGE_READERS.get(self.spec.class_name)
        if large is None:
            return from_pyg(_processed(self.spec, raw_dir), self.dataset, split=self.split)
        return _from_raw(large(raw_dir), self.dataset)


def _layout(dataset: str, spec: PyGSpec) -> RawLayout:
    own = spec.folder
    inner = f"{spec.family}/{own}" if spec.family else own
    places = dict.fromkeys((f"{inner}/raw", f"{own}/raw", f"{dataset}/raw", "raw", inner, own, ""))
    strangers = _GRAPH_SAINT - {own} if own in _GRAPH_SAINT else frozenset()
    return RawLayout(dataset, tuple(places), _raw_file_names(spec), strangers)


def _raw_file_names(spec: PyGSpec) -> tuple[str, ...]:
    names = _bare(spec, "").raw_file_names
    return (names,) if isinstance(names, str) else tuple(names)


def _download(spec: PyGSpec, scratch: Path) -> Path:
    folder = scratch / "raw"
    folder.mkdir()
    _bare(spec, str(folder)).download()
    return folder


def _processed(spec: PyGSpec, raw_dir: Path) -> Any:
    dataset = _bare(spec, str(raw_dir))
    with quiet(), only_plain_pickles():
        dataset.process()
    return dataset.made


def _bare(spec: PyGSpec, raw_dir: str) -> Any:
    """PyG's data set, told where its raw files lie, that has done nothing yet.

    `process()` then leaves the graph in the attribute `made`: nothing is written anywhere, and
    no pickled file of an earlier run is read.
    """
    import torch_geometric.datasets

    base = getattr(torch_geometric.datasets, spec.class_name)

    def keep(cls: Any, data_list: list[Any], _path: str) -> None:
        cls.made = data_list[0]

    def do_not_load(_self: Any, _path: str, **_options: Any) -> None:
        return None

    members = {
        "raw_dir": property(lambda _self: raw_dir),
        "processed_dir": property(lambda _self: raw_dir),
        "has_download": property(lambda _self: False),
        "has_process": property(lambda _self: False),
        "save": classmethod(keep),
        "load": do_not_load,
        "made": None,
    }
    return type(base.__name__, (base,), members)("", **spec.options)


def _from_raw(raw: RawGraph, dataset: str) -> GraphData:
    num_classes = _num_classes(raw.labels)
    task = infer_task(raw.labels, num_classes)
    return GraphData(
        dataset=dataset,
        num_nodes=len(raw.labels),
        src=raw.src,
        dst=raw.dst,
        labels=raw.labels,
        num_classes=num_classes,
        task=task,
        splits=raw.splits,
        features=raw.features,
        metric=DEFAULT_METRICS[task],
    )


def _num_classes(labels: AnyArray) -> int:
    return labels.shape[1] if labels.ndim == 2 else int(labels.max(initial=-1)) + 1


def from_pyg(data: Any, dataset: str, *, split: int = 0, metric: str | None = None) -> GraphData:
    """A PyG `Data` object as `GraphData`.

    Labels are taken from `y`: one column of integers (−1: unlabelled) is a binary task for two
    classes and multi-class for more; several columns of 0 and 1 are multi-label. Splits come
    from `train_mask`, `val_mask`, `test_mask`: boolean `[num_nodes]`, or `[num_nodes,
    num_splits]` of which `split` picks one. A graph without any mask is split at random, 60 %
    train, 20 % val, 20 % test over its labelled nodes, in the way numbered by `split`.

    Args:
        data: A homogeneous `torch_geometric.data.Data` with `edge_index` and `y`; `x` and a
            one-dimensional `edge_weight` are optional.
        dataset: Name of the data set.
        split: Which split.
        metric: Metric of the data set; None: the usual one of its task.

    Raises:
        UserError: There is no split of this number.
    """
    num_nodes = int(data.num_nodes)
    labels = _labels(data.y)
    num_classes = _num_classes(labels)
    task: Task = infer_task(labels, num_classes)
    weight = data.edge_weight if "edge_weight" in data else None
    return GraphData(
        dataset=dataset,
        num_nodes=num_nodes,
        src=smallest_int(_array(data.edge_index[0]), num_nodes),
        dst=smallest_int(_array(data.edge_index[1]), num_nodes),
        labels=labels,
        num_classes=num_classes,
        task=task,
        splits=_splits(data, labels, dataset, split),
        features=None if data.x is None else _array(data.x.to_dense()),
        edge_weight=None if weight is None or weight.dim() != 1 else _array(weight.float()),
        metric=metric or DEFAULT_METRICS[task],
    )


def _array(tensor: Any) -> AnyArray:
    array: AnyArray = tensor.detach().cpu().numpy()
    return array


def _labels(y: Any) -> AnyArray:
    labels = _array(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    return labels.astype(np.int64 if labels.ndim == 1 else np.uint8)


def _splits(data: Any, labels: AnyArray, dataset: str, split: int) -> dict[str, Int64Array]:
    masks = {name: data[f"{name}_mask"] for name in SPLITS if f"{name}_mask" in data}
    if not masks:
        labelled = np.ones(len(labels), bool) if labels.ndim == 2 else labels >= 0
        return random_split(np.flatnonzero(labelled), split)
    columns = {name: _array(mask).reshape(len(labels), -1) for name, mask in masks.items()}
    check_split_number(dataset, split, min(mask.shape[1] for mask in columns.values()))
    empty = np.empty(0, np.int64)
    return {
        name: np.flatnonzero(columns[name][:, split]) if name in columns else empty
        for name in SPLITS
    }
