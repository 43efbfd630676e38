"""Writes small raw files in the exact on-disk layout of published data sets."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
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


def write_reddit(raw: Path) -> None:
    """`reddit_data.npz` and `reddit_graph.npz`, as unpacked from DGL's reddit.zip."""
    graph = small_graph()
    raw.mkdir(parents=True, exist_ok=True)
    node_types = np.zeros(graph.num_nodes, np.int32)
    for code, nodes in enumerate(graph.splits.values(), start=1):
        node_types[nodes] = code
    features, labels = graph.features.astype(np.float64), graph.labels.astype(np.int32)
    np.savez(raw / "reddit_data.npz", feature=features, node_types=node_types, label=labels)
    sp.save_npz(raw / "reddit_graph.npz", _adjacency(graph).tocoo())


def write_graph_saint(raw: Path, *, multilabel: bool) -> None:
    """The four files of Flickr, Yelp, AmazonProducts and Reddit2 (Zeng et al., 2020)."""
    graph = small_graph()
    raw.mkdir(parents=True)
    np.savez(raw / "adj_full.npz", **_parts("", _adjacency(graph)))
    np.save(raw / "feats.npy", graph.features.astype(np.float64))
    classes: dict[str, Any] = {
        str(node): [label % 2, label // 2, 1] if multilabel else label
        for node, label in enumerate(graph.labels.tolist())
    }
    (raw / "class_map.json").write_text(json.dumps(classes))
    role = {name[:2]: nodes.tolist() for name, nodes in graph.splits.items()}
    (raw / "role.json").write_text(json.dumps(role))


def write_gnn_benchmark(raw: Path, name: str) -> None:
    """One npz of Shchur et al. (2018): Amazon Computers and Photo, Coauthor CS and Physics."""
    graph = small_graph()
    raw.mkdir(parents=True)
    features = sp.csr_matrix((graph.features > 0).astype(np.float32))
    matrices = _parts("adj_", _adjacency(graph)) | _parts("attr_", features)
    np.savez(raw / name, labels=graph.labels, **matrices)


def _adjacency(graph: SmallGraph) -> Any:
    ones = np.ones(len(graph.edges), np.float32)
    shape = (graph.num_nodes, graph.num_nodes)
    return sp.csr_matrix((ones, (graph.edges[:, 0], graph.edges[:, 1])), shape)


def _parts(prefix: str, matrix: Any) -> dict[str, Any]:
    return {f"{prefix}{p}": getattr(matrix, p) for p in ("data", "indices", "indptr", "shape")}


def write_ogb_tables(folder: Path, split: str) -> None:
    """ogbn-arxiv and ogbn-products: gzipped tables without headers, as unpacked from OGB's zip.

    The edges hold self loops, one of them twice.
    """
    graph = small_graph()
    edges = np.concatenate((graph.edges, [[3, 3], [7, 7], [3, 3]]))
    _write_ogb_frame(folder, graph.splits, split)
    _write_table(folder / "raw/node-feat.csv.gz", graph.features)
    _write_table(folder / "raw/node-label.csv.gz", graph.labels)
    _write_table(folder / "raw/node_year.csv.gz", 2000 + graph.labels)
    _write_edges(folder / "raw", edges, graph.num_nodes)


def write_ogb_proteins(folder: Path, num_tasks: int = 112) -> tuple[SmallGraph, AnyArray]:
    """ogbn-proteins: undirected edges given once with 8 features, no node features."""
    graph = small_graph()
    pairs = np.unique(np.sort([*graph.edges.tolist(), [3, 3]], axis=1), axis=0)
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, (graph.num_nodes, num_tasks))
    graph = SmallGraph(pairs, np.empty((graph.num_nodes, 0)), labels, graph.splits)
    edge_features = rng.random((len(pairs), 8)).astype(np.float32)
    _write_ogb_frame(folder, graph.splits, "species")
    _write_table(folder / "raw/edge-feat.csv.gz", edge_features)
    _write_table(folder / "raw/node-label.csv.gz", labels)
    _write_table(folder / "raw/species.csv.gz", np.full(graph.num_nodes, 9606))
    _write_edges(folder / "raw", pairs, graph.num_nodes)
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
    _write_ogb_frame(folder, splits, "time")
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


def _write_ogb_frame(folder: Path, splits: Mapping[str, AnyArray], split: str) -> None:
    for part in ("raw", "processed", "mapping"):
        (folder / part).mkdir(parents=True)
    (folder / "RELEASE_v1.txt").touch()
    for name, nodes in splits.items():
        file = "valid" if name == "val" else name
        _write_table(folder / "split" / split / f"{file}.csv.gz", nodes)


def _write_edges(raw: Path, edges: AnyArray, num_nodes: int | None = None) -> None:
    _write_table(raw / "edge.csv.gz", edges)
    _write_table(raw / "num-edge-list.csv.gz", np.array([len(edges)]))
    if num_nodes is not None:
        _write_table(raw / "num-node-list.csv.gz", np.array([num_nodes]))


def _write_table(path: Path, rows: AnyArray, header: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savetxt(path, rows, "%s", ",", header=header, comments="")


AIFB_TRIPLES = r"""# a comment
<http://x/p1> <http://o#worksAt> <http://x/g1> .
<http://x/p2> <http://o#worksAt> <http://x/g1> .
<http://x/p1> <http://o#name> "Ada \"the\" First"@en .

<http://x/p2> <http://o#name> "http://x/p1"^^<http://t#string> .
<http://x/p3> <http://other/name> _:b0 . # a second relation called name
<http://x/p1> <http://o#worksAt> <http://x/g1> .
"""
"""Seven entities and, one of them given twice, five triples of three relations."""


def write_entities(raw: Path, name: str, columns: tuple[str, str], triples: str) -> None:
    """The files of PyG's `Entities`: people 1 and 2 to train on, 3 to test."""
    raw.mkdir(parents=True)
    with gzip.open(raw / f"{name}_stripped.nt.gz", "wt", encoding="utf-8") as file:
        file.write(triples)
    node, label = columns
    (raw / "trainingSet.tsv").write_text(
        f"{node}\tid\t{label}\nhttp://x/p2\t2\tb\nhttp://x/p1\t1\ta\n"
    )
    (raw / "testSet.tsv").write_text(f"{node}\tid\t{label}\nhttp://x/p3\t3\ta\n")
    (raw / "completeDataset.tsv").write_text(f"id\t{node}\t{label}\n")


MAG_SIZES = {"author": 9, "field_of_study": 4, "institution": 3, "paper": 12}


def write_ogb_mag(folder: Path) -> None:
    """ogbn-mag as unpacked from OGB's zip."""
    rng = np.random.default_rng(5)
    raw, split = folder / "raw", folder / "split" / "time"
    (folder / "processed").mkdir(parents=True)
    (folder / "RELEASE_v2.txt").touch()
    types = ["author,affiliated_with,institution", "author,writes,paper", "paper,cites,paper"]
    types += ["paper,has_topic,field_of_study"]
    for triplet in types:
        source, _, target = triplet.split(",")
        ends = [rng.integers(0, MAG_SIZES[name], 20) for name in (source, target)]
        part = raw / "relations" / triplet.replace(",", "___")
        _write_edges(part, np.stack(ends, axis=1))
        _write_table(part / "edge_reltype.csv.gz", np.zeros(20, int))
    _write_table(raw / "triplet-type-list.csv.gz", np.array(types))
    # Tables of one row, with a column a type.
    names, flags = ",".join(MAG_SIZES), np.array([[name == "paper" for name in MAG_SIZES]])
    _write_table(raw / "num-node-dict.csv.gz", np.array([[*MAG_SIZES.values()]]), names)
    for file in (
        raw / "nodetype-has-feat",
        raw / "nodetype-has-label",
        split / "nodetype-has-split",
    ):
        _write_table(file.with_suffix(".csv.gz"), flags, names)
    features = rng.normal(size=(12, 5)).astype(np.float32)
    _write_table(raw / "node-feat/paper/node-feat.csv.gz", features)
    _write_table(raw / "node-feat/paper/node_year.csv.gz", np.full(12, 2018))
    _write_table(raw / "node-label/paper/node-label.csv.gz", np.arange(12))
    for name, ids in zip(("train", "valid", "test"), np.split(np.arange(12), [6, 9]), strict=True):
        _write_table(split / "paper" / f"{name}.csv.gz", ids)


def write_heco_dblp(raw: Path) -> dict[str, AnyArray]:
    """HeCo's DBLP: 6 authors, 5 papers, 4 terms, 3 conferences; returns what was written."""
    rng = np.random.default_rng(2)
    raw.mkdir(parents=True)
    written: dict[str, AnyArray] = {
        "a_feat": rng.integers(0, 2, (6, 3)),
        "p_feat": rng.integers(0, 3, (5, 7)),
        "t_feat": rng.normal(size=(4, 2)),
        "labels": np.arange(6) % 4,
        "pa": np.array([[0, 5], [1, 0], [4, 2]]),
        "pt": np.array([[0, 3], [3, 1]]),
        "pc": np.array([[0, 2], [1, 0], [2, 1], [3, 0], [4, 1]]),
    }
    for name in ("a_feat", "p_feat"):
        sp.save_npz(raw / f"{name}.npz", sp.csr_matrix(written[name]))
    with (raw / "t_feat.npz").open("wb") as file:
        np.save(file, written["t_feat"])  # as HeCo has it: an npy file by its content
    np.save(raw / "labels.npy", written["labels"])
    for name in ("pa", "pt", "pc"):
        np.savetxt(raw / f"{name}.txt", written[name], "%d", "\t")
    for number in (20, 40, 60):
        for split, ids in (("train", [0, 1, 2, 3]), ("val", [4]), ("test", [5])):
            np.save(raw / f"{split}_{number}.npy", np.array(ids, np.int32))
    return written
