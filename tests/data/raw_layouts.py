"""Writes small raw files in the exact on-disk layout of published data sets."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

AnyArray = npt.NDArray[Any]


@dataclass(frozen=True)
class SmallGraph:
    """What was written: `edges` `[num_edges, 2]` as in the file, features, labels, splits."""

    edges: AnyArray
    features: AnyArray
    labels: AnyArray
    splits: dict[str, AnyArray]

    @property
    def num_nodes(self) -> int:
        return len(self.labels)


def small_graph(num_nodes: int = 30, num_features: int = 5, num_classes: int = 4) -> SmallGraph:
    rng = np.random.default_rng(num_nodes)
    adjacency = rng.random((num_nodes, num_nodes)) < 0.15
    np.fill_diagonal(adjacency, False)
    order = rng.permutation(num_nodes)
    train, val, test = np.split(order, [num_nodes // 2, num_nodes * 3 // 4])
    return SmallGraph(
        edges=np.argwhere(adjacency),
        features=rng.normal(size=(num_nodes, num_features)).astype(np.float32),
        labels=np.arange(num_nodes) % num_classes,
        splits={"train": np.sort(train), "val": np.sort(val), "test": np.sort(test)},
    )


def write_reddit(raw: Path) -> SmallGraph:
    """`reddit_data.npz` and `reddit_graph.npz`, as unpacked from DGL's reddit.zip."""
    graph = small_graph()
    raw.mkdir(parents=True)
    node_types = np.zeros(graph.num_nodes, np.int32)
    for code, name in enumerate(("train", "val", "test"), start=1):
        node_types[graph.splits[name]] = code
    np.savez(
        raw / "reddit_data.npz",
        feature=graph.features.astype(np.float64),
        node_types=node_types,
        node_ids=np.arange(graph.num_nodes),
        label=graph.labels.astype(np.int32),
    )
    sp.save_npz(raw / "reddit_graph.npz", _adjacency(graph).tocoo())
    return graph


def write_graph_saint(raw: Path, *, multilabel: bool) -> SmallGraph:
    """The four files of Flickr, Yelp, AmazonProducts and Reddit2 (Zeng et al., 2020)."""
    graph = small_graph()
    raw.mkdir(parents=True)
    adjacency = _adjacency(graph)
    np.savez(
        raw / "adj_full.npz",
        data=adjacency.data,
        indices=adjacency.indices,
        indptr=adjacency.indptr,
        shape=adjacency.shape,
    )
    np.save(raw / "feats.npy", graph.features.astype(np.float64))
    classes: dict[str, Any] = {
        str(node): [label % 2, label // 2, 1] if multilabel else label
        for node, label in enumerate(graph.labels.tolist())
    }
    (raw / "class_map.json").write_text(json.dumps(classes))
    role = {"tr": "train", "va": "val", "te": "test"}
    (raw / "role.json").write_text(
        json.dumps({key: graph.splits[name].tolist() for key, name in role.items()})
    )
    return graph


def write_gnn_benchmark(raw: Path, name: str) -> SmallGraph:
    """One npz of Shchur et al. (2018): Amazon Computers and Photo, Coauthor CS and Physics."""
    graph = small_graph()
    raw.mkdir(parents=True)
    features = sp.csr_matrix((graph.features > 0).astype(np.float32))
    adjacency = _adjacency(graph)
    np.savez(
        raw / name,
        adj_data=adjacency.data,
        adj_indices=adjacency.indices,
        adj_indptr=adjacency.indptr,
        adj_shape=adjacency.shape,
        attr_data=features.data,
        attr_indices=features.indices,
        attr_indptr=features.indptr,
        attr_shape=features.shape,
        labels=graph.labels,
    )
    return graph


def _adjacency(graph: SmallGraph) -> Any:
    ones = np.ones(len(graph.edges), np.float32)
    shape = (graph.num_nodes, graph.num_nodes)
    return sp.csr_matrix((ones, (graph.edges[:, 0], graph.edges[:, 1])), shape)


def write_ogb_tables(folder: Path, split: str) -> SmallGraph:
    """ogbn-arxiv and ogbn-products: gzipped tables without headers, as unpacked from OGB's zip.

    The edges hold self loops, one of them twice.
    """
    graph = small_graph()
    edges = np.concatenate((graph.edges, [[3, 3], [7, 7], [3, 3]]))
    graph = replace(graph, edges=edges)
    _write_ogb_frame(folder, graph, split)
    raw = folder / "raw"
    _write_table(raw / "edge.csv.gz", graph.edges)
    _write_table(raw / "node-feat.csv.gz", graph.features)
    _write_table(raw / "node-label.csv.gz", graph.labels[:, None])
    _write_table(raw / "node_year.csv.gz", 2000 + graph.labels[:, None])
    _write_counts(raw, graph)
    return graph


def write_ogb_proteins(folder: Path, num_tasks: int = 112) -> tuple[SmallGraph, AnyArray]:
    """ogbn-proteins: undirected edges given once with 8 features, no node features."""
    graph = small_graph()
    pairs = np.unique(np.sort([*graph.edges.tolist(), [3, 3]], axis=1), axis=0)
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, (graph.num_nodes, num_tasks))
    graph = SmallGraph(pairs, np.empty((graph.num_nodes, 0)), labels, graph.splits)
    edge_features = rng.random((len(pairs), 8)).astype(np.float32)
    _write_ogb_frame(folder, graph, "species")
    raw = folder / "raw"
    _write_table(raw / "edge.csv.gz", pairs)
    _write_table(raw / "edge-feat.csv.gz", edge_features)
    _write_table(raw / "node-label.csv.gz", labels)
    _write_table(raw / "species.csv.gz", np.full((graph.num_nodes, 1), 9606))
    _write_counts(raw, graph)
    return graph, edge_features


def write_ogb_binary(folder: Path, *, compressed: bool) -> SmallGraph:
    """ogbn-papers100M: `data.npz` and `node-label.npz`, most labels NaN."""
    graph = small_graph()
    labels = graph.labels.astype(np.float32)
    in_no_split = np.setdiff1d(np.arange(graph.num_nodes), graph.splits["train"])
    labels[in_no_split[::3]] = np.nan
    has_label = ~np.isnan(labels)
    splits = {name: nodes[has_label[nodes]] for name, nodes in graph.splits.items()}
    graph = SmallGraph(graph.edges, graph.features, labels, splits)
    _write_ogb_frame(folder, graph, "time")
    save = np.savez_compressed if compressed else np.savez
    save(
        folder / "raw" / "data.npz",
        num_nodes_list=np.array([graph.num_nodes]),
        num_edges_list=np.array([len(graph.edges)]),
        edge_index=np.ascontiguousarray(graph.edges.T),
        node_feat=graph.features,
        node_year=np.full((graph.num_nodes, 1), 2015),
    )
    save(folder / "raw" / "node-label.npz", node_label=labels[:, None])
    return graph


def _write_ogb_frame(folder: Path, graph: SmallGraph, split: str) -> None:
    (folder / "raw").mkdir(parents=True)
    (folder / "processed").mkdir()
    (folder / "mapping").mkdir()
    (folder / "RELEASE_v1.txt").touch()
    (folder / "mapping" / "README.md").write_text("nothing of use\n")
    for name, file in (("train", "train"), ("val", "valid"), ("test", "test")):
        path = folder / "split" / split / f"{file}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_table(path, graph.splits[name][:, None])


def _write_counts(raw: Path, graph: SmallGraph) -> None:
    _write_table(raw / "num-node-list.csv.gz", np.array([[graph.num_nodes]]))
    _write_table(raw / "num-edge-list.csv.gz", np.array([[len(graph.edges)]]))


def _write_table(path: Path, rows: AnyArray) -> None:
    with gzip.open(path, "wt") as file:
        for row in rows.tolist():
            file.write(",".join(map(str, row)) + "\n")
