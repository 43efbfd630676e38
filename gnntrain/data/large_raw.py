"""The raw files of PyG's larger data sets, read without the copies that PyG makes of them.

PyG's classes name, fetch and place these files, but their `process` holds every edge several
times as 64-bit numbers: ten times the size of the store for Reddit. Reading the same arrays here
gives the same graph (a test compares them) and lets features be mapped or streamed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gnntrain.data.graph import SPLITS, AnyArray, GraphData, index_dtype
from gnntrain.data.npz_members import open_member
from gnntrain.data.targets import labelled_graph, smallest_int


def read_reddit(raw_dir: Path, dataset: str) -> GraphData:
    """Reddit (Hamilton et al., 2017): one archive of nodes, one SciPy matrix of edges."""
    with np.load(raw_dir / "reddit_data.npz", allow_pickle=False) as nodes:
        labels, node_types = nodes["label"].astype(np.int64), nodes["node_types"]
    with np.load(raw_dir / "reddit_graph.npz", allow_pickle=False) as edges:
        src = smallest_int(edges["row"], len(labels))
        dst = smallest_int(edges["col"], len(labels))
    splits = {name: np.flatnonzero(node_types == code) for code, name in enumerate(SPLITS, start=1)}
    features = open_member(raw_dir / "reddit_data.npz", "feature")
    return labelled_graph(dataset, src, dst, labels, splits, features)


def read_graph_saint(raw_dir: Path, dataset: str) -> GraphData:
    """Flickr, Yelp, AmazonProducts and Reddit2 in the form of Zeng et al. (2020)."""
    features = np.load(raw_dir / "feats.npy", mmap_mode="r", allow_pickle=False)
    num_nodes = len(features)
    with np.load(raw_dir / "adj_full.npz", allow_pickle=False) as adjacency:
        dst = smallest_int(adjacency["indices"], num_nodes)
        degree = np.diff(adjacency["indptr"])
    src = np.repeat(np.arange(num_nodes, dtype=index_dtype(num_nodes)), degree)
    labels = _labels(json.loads((raw_dir / "class_map.json").read_bytes()), num_nodes)
    role = json.loads((raw_dir / "role.json").read_bytes())
    splits = {name: np.sort(np.array(role[name[:2]], np.int64)) for name in SPLITS}
    return labelled_graph(dataset, src, dst, labels, splits, features)


def _labels(class_map: Mapping[str, Any], num_nodes: int) -> AnyArray:
    """A class a node, or a list of 0 and 1."""
    first = next(iter(class_map.values()))
    if isinstance(first, list):
        labels: AnyArray = np.zeros((num_nodes, len(first)), np.uint8)
    else:
        labels = np.full(num_nodes, -1, np.int64)
    for node, label in class_map.items():
        labels[int(node)] = label
    return labels


LARGE_READERS: Mapping[str, Callable[[Path, str], GraphData]] = {
    "Reddit": read_reddit,
    "Reddit2": read_graph_saint,
    "Flickr": read_graph_saint,
    "Yelp": read_graph_saint,
    "AmazonProducts": read_graph_saint,
}
"""Readers by the name of PyG's class."""
