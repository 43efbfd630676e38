"""Data sets of PyTorch Geometric.

PyG's own classes read the small ones, each in a temporary folder that holds links to the raw files:
PyG writes its processed copy there, and nothing beside the raw files. For the larger ones, whose
classes need more memory than the graph, see `gnntrain.data.large_raw`.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gnntrain.config.published import PUBLISHED, Published
from gnntrain.data.graph import JSON, SPLITS, AnyArray, GraphData, Int64Array
from gnntrain.data.large_raw import LARGE_READERS, RawGraph
from gnntrain.data.plain_pickles import refuse_code
from gnntrain.data.raw_files import RawLayout, default_root, find_or_download, quiet
from gnntrain.data.targets import (
    check_split_number,
    infer_label_kind,
    random_split,
    smallest_int,
)
from gnntrain.errors import UserError
from gnntrain.metrics import DEFAULT_METRICS, LabelKind

if TYPE_CHECKING:
    from gnntrain.config import BuiltinConfig

_GRAPH_SAINT = frozenset({"Reddit2", "Flickr", "Yelp", "AmazonProducts"})
"""These four give their files the same names (Zeng et al., 2020)."""

_PICKLED = frozenset({"Planetoid"})
"""Classes whose raw files are pickles, but for those that end with `_TEXT`."""

_TEXT = ".test.index"


class PyGBuilder:
    """Builds a data set of `PUBLISHED` that has a class in PyG."""

    def __init__(self, config: BuiltinConfig) -> None:
        self.dataset = config.name
        self.published = PUBLISHED[config.name]
        self.split = config.split
        self.given_root = config.root
        if self.published.num_splits:
            check_split_number(self.dataset, self.split, self.published.num_splits)

    def identity(self) -> dict[str, JSON]:
        """What makes the graph; the folder counts only as named, so that raw files may go."""
        return {"dataset": self.dataset, "split": self.split, "root": self.given_root}

    def build(self) -> GraphData:
        """Read the raw files, downloaded if need be.

        Raises:
            UserError: The raw files are neither there nor to be had, or cannot be read.
        """
        root = Path(self.given_root) if self.given_root is not None else default_root()
        layout = layout_of(self.dataset)
        raw_dir = find_or_download(root, layout, self._download)
        try:
            return self._read(raw_dir)
        except Exception as error:  # PyG raises whatever its parsers do
            raise UserError(
                f"dataset={self.dataset}: PyG cannot read the raw files in {raw_dir} "
                f"({type(error).__name__}: {error}).",
                "They may be incomplete or not the original: remove them to have them downloaded "
                "again.",
            ) from error

    def _download(self, scratch: Path) -> Path:
        return _RawFiles.of(self.published, scratch, download=True).folder

    def _read(self, raw_dir: Path) -> GraphData:
        large = LARGE_READERS.get(str(self.published.class_name))
        if large is not None:
            return _from_raw(large(raw_dir), self.dataset)
        return from_pyg(_processed(self.published, raw_dir), self.dataset, split=self.split)


def layout_of(dataset: str) -> RawLayout:
    """How the raw files of a data set of PyG may lie."""
    published = PUBLISHED[dataset]
    family, _, own = folder_of(published).rpartition("/")
    inner = f"{family}/{own}" if family else own
    places = dict.fromkeys((f"{inner}/raw", f"{own}/raw", f"{dataset}/raw", "raw", inner, own, ""))
    strangers = _GRAPH_SAINT - {own} if own in _GRAPH_SAINT else frozenset()
    with tempfile.TemporaryDirectory() as empty:
        names = _RawFiles.of(published, Path(empty), download=False).names
    return RawLayout(dataset, tuple(places), names, strangers)


def folder_of(published: Published) -> str:
    """Folder of the raw files: called as PyG's class, or by its name among those of the class."""
    class_name = str(published.class_name)
    if "name" not in published.arguments:
        return class_name
    family = class_name.removesuffix("GraphDataset").lower()
    return f"{family}/{published.arguments['name']}"


class _RawFiles(Exception):
    """Raised where a class of PyG would go on to process: its raw files, and where it puts them."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        super().__init__()
        self.folder = folder
        self.names = names

    @classmethod
    def of(cls, published: Published, root: Path, *, download: bool) -> _RawFiles:
        """Of a class of PyG, over the empty folder `root`; downloaded into it or not."""
        base = _class_of(published)

        def stop(dataset: Any) -> None:
            if download:
                base.download(dataset)
            names = dataset.raw_file_names
            all_names = (names,) if isinstance(names, str) else tuple(names)
            raise cls(Path(dataset.raw_dir), all_names)

        try:
            type(base.__name__, (base,), {"download": stop})(str(root), **published.arguments)
        except cls as found:
            return found
        raise TypeError(f"{base.__name__} does not download its raw files")


def _class_of(published: Published) -> Any:
    import torch_geometric.datasets

    return getattr(torch_geometric.datasets, str(published.class_name))


def _processed(published: Published, raw_dir: Path) -> Any:
    """The graph that PyG's class makes of the raw files."""
    with (
        tempfile.TemporaryDirectory(prefix="gnntrain-") as root,
        quiet(),
        contextlib.redirect_stderr(io.StringIO()),  # PyG says that it processes
    ):
        wanted = _RawFiles.of(published, Path(root), download=False)
        for name in wanted.names:
            source, target = (raw_dir / name).resolve(), wanted.folder / name
            if published.class_name in _PICKLED and not name.endswith(_TEXT):
                content = source.read_bytes()
                refuse_code(content)
                target.write_bytes(content)  # a copy: what was checked is what PyG reads
            else:
                target.symlink_to(source)
        return _class_of(published)(root, **published.arguments)[0]


def _from_raw(raw: RawGraph, dataset: str) -> GraphData:
    num_classes = _num_classes(raw.labels)
    task = infer_label_kind(raw.labels, num_classes)
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
    task: LabelKind = infer_label_kind(labels, num_classes)
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
