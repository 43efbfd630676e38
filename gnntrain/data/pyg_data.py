"""Data sets of PyTorch Geometric.

PyG's own classes read the small ones, each in a temporary folder that holds links to the raw files:
PyG writes its processed copy there, and nothing beside the raw files. For the larger ones, whose
classes need more memory than the graph, see `gnntrain.data.large_raw`.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from gnntrain.config.published import PUBLISHED, Published
from gnntrain.data.graph import AnyGraphData
from gnntrain.data.large_raw import LARGE_READERS
from gnntrain.data.plain_pickles import refuse_code
from gnntrain.data.raw_files import PublishedBuilder, RawLayout, quiet
from gnntrain.data.summary import DataSummary

_GRAPH_SAINT = frozenset({"Reddit2", "Flickr", "Yelp", "AmazonProducts"})
"""These four give their files the same names (Zeng et al., 2020)."""

_PICKLED = frozenset({"Planetoid"})
"""Classes whose raw files are pickles, but for those that end with `_TEXT`."""

_TEXT = ".test.index"


class PyGBuilder(PublishedBuilder):
    """Builds a data set of `PUBLISHED` that has a class in PyG."""

    def layout(self) -> RawLayout:
        return layout_of(self.dataset)

    def download(self, scratch: Path) -> Path:
        return _RawFiles.of(self.published, scratch, download=True).folder

    def read(self, raw_dir: Path) -> AnyGraphData:
        read_large = LARGE_READERS.get(str(self.published.class_name))
        if read_large is not None:
            return read_large(raw_dir, self.dataset)
        from torch_geometric.data import HeteroData

        from gnntrain.data.read.objects import from_pyg, from_pyg_hetero

        made = _processed(self.published, raw_dir)
        convert = from_pyg_hetero if isinstance(made, HeteroData) else from_pyg
        graph: AnyGraphData = convert(made, self.dataset, split=self.split)
        read = graph.summary or DataSummary()
        return replace(graph, summary=DataSummary(split=read.split))


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
                target.write_bytes(content)  # a copy: PyG reads the checked bytes
            else:
                target.symlink_to(source)
        return _class_of(published)(root, **published.arguments)[0]
