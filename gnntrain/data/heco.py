"""DBLP with the features and the fixed splits of HeCo (Wang et al., KDD 2021)."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import numpy as np

from gnntrain.data.graph import SPLITS, EdgeData, EdgeType, GraphData, NodeData
from gnntrain.data.raw_files import PublishedBuilder, RawLayout

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


class HeCoBuilder(PublishedBuilder):
    """Builds HeCo's DBLP: authors to classify by their papers' terms and conferences."""

    def layout(self) -> RawLayout:
        splits = [f"{name}_{self.split}.npy" for name in SPLITS]
        files = (*_FEATURES.values(), *_EDGES.values(), "labels.npy", *splits)
        return RawLayout(("heco/dblp", "heco_dblp", "dblp", ""), files)

    def download(self, scratch: Path) -> Path:
        for name in self.layout().files:
            with urllib.request.urlopen(_URL + name) as reply:
                (scratch / name).write_bytes(reply.read())
        return scratch

    def read(self, raw_dir: Path) -> GraphData:
        import scipy.sparse

        nodes = {}
        for name, file in _FEATURES.items():
            features = np.load(raw_dir / file, allow_pickle=False)
            if not isinstance(features, np.ndarray):  # the terms' npz file is an npy file
                matrix = scipy.sparse.load_npz(raw_dir / file).tocsr().astype(np.float32)
                matrix.check_format(full_check=True)
                features = matrix.toarray()
            nodes[name] = NodeData(len(features), features)
        edges = {}
        for edge_type, file in _EDGES.items():
            papers, others = np.loadtxt(raw_dir / file, np.int32, ndmin=2, unpack=True)
            is_of_paper = edge_type[0] == "paper"
            edges[edge_type] = EdgeData(papers, others) if is_of_paper else EdgeData(others, papers)
        conferences = edges["paper", "published_in", "conference"].dst
        nodes["conference"] = NodeData(int(conferences.max()) + 1)
        labels = np.load(raw_dir / "labels.npy", allow_pickle=False)
        return GraphData(
            dataset=self.dataset,
            nodes=nodes,
            edges=edges,
            target="author",
            labels=labels,
            num_classes=int(labels.max()) + 1,
            task="multiclass",
            splits={
                name: np.load(raw_dir / f"{name}_{self.split}.npy", allow_pickle=False)
                for name in SPLITS
            },
            reverse=True,
        )
