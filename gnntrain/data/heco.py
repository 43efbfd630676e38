"""DBLP with the features and the fixed splits of HeCo (Wang et al., KDD 2021)."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import numpy as np
from numpy.lib import format as npy_format

from gnntrain.data.graph import (
    SPLITS,
    AnyArray,
    EdgeData,
    EdgeType,
    HeteroGraphData,
    IntArray,
    NodeData,
)
from gnntrain.data.raw_files import PublishedBuilder, RawLayout
from gnntrain.data.sparse import SparseRows, load_sparse

# The commit that added the files.
_URL = (
    "https://raw.githubusercontent.com/liun-online/HeCo/"
    "b90100c4ef66370a1b67efdb59ec321a70edd436/data/dblp/"
)
_FEATURES = {"author": "a_feat.npz", "paper": "p_feat.npz", "term": "t_feat.npz"}
# The file of each edge type: two columns, of which the first is the paper.
_EDGES: dict[EdgeType, str] = {
    ("author", "writes", "paper"): "pa.txt",
    ("paper", "has_term", "term"): "pt.txt",
    ("paper", "published_in", "conference"): "pc.txt",
}
_LABELS = "labels.npy"


class HeCoBuilder(PublishedBuilder):
    """Builds HeCo's DBLP: authors to classify by their papers' terms and conferences."""

    def layout(self) -> RawLayout:
        splits = [self._split_file(name) for name in SPLITS]
        files = (*_FEATURES.values(), *_EDGES.values(), _LABELS, *splits)
        return RawLayout(self.dataset, ("heco/dblp", "heco_dblp", "dblp", ""), files)

    def _split_file(self, split: str) -> str:
        return f"{split}_{self.split}.npy"

    def download(self, scratch: Path) -> Path:
        for name in self.layout().files:
            with urllib.request.urlopen(_URL + name) as reply:
                (scratch / name).write_bytes(reply.read())
        return scratch

    def read(self, raw_dir: Path) -> HeteroGraphData:
        features = {name: _features(raw_dir / file) for name, file in _FEATURES.items()}
        edges = {name: EdgeData(*_ends(raw_dir / file, name)) for name, file in _EDGES.items()}
        _, conferences = edges["paper", "published_in", "conference"]
        labels = np.load(raw_dir / _LABELS, allow_pickle=False)
        return HeteroGraphData(
            dataset=self.dataset,
            nodes={
                **{name: NodeData(len(rows), rows) for name, rows in features.items()},
                "conference": NodeData(int(conferences.max()) + 1),
            },
            edges=edges,
            target="author",
            labels=labels,
            num_classes=int(labels.max()) + 1,
            task="multiclass",
            splits={
                name: np.load(raw_dir / self._split_file(name), allow_pickle=False)
                for name in SPLITS
            },
            reverse=True,
        )


def _features(path: Path) -> AnyArray | SparseRows:
    """A sparse matrix as SciPy saves it, or an array, whatever the file is called."""
    with path.open("rb") as file:
        is_array = file.read(6) == npy_format.MAGIC_PREFIX
    return np.load(path, allow_pickle=False) if is_array else SparseRows(load_sparse(path))


def _ends(path: Path, edge_type: EdgeType) -> tuple[IntArray, IntArray]:
    papers, others = np.loadtxt(path, np.int32, ndmin=2, unpack=True)
    return (papers, others) if edge_type[0] == "paper" else (others, papers)
