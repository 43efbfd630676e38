"""Small typed graphs, for the tests of every room above `data`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gnntrain.data.csc import column_blocks
from gnntrain.data.graph import (
    EdgeData,
    Edges,
    EdgeType,
    Graph,
    GraphData,
    IntArray,
    NodeData,
    Nodes,
    NodeType,
    reverse_type,
)

SIZES: dict[NodeType, int] = {"paper": 40, "author": 60, "venue": 7}
FEATURES: dict[NodeType, int] = {"paper": 5, "author": 3, "venue": 0}
EDGES: dict[EdgeType, int] = {
    ("author", "writes", "paper"): 160,
    ("paper", "cites", "paper"): 120,
    ("paper", "appears_in", "venue"): 40,
}


def in_edges(src: IntArray, dst: IntArray, num_src: int, num_dst: int) -> Edges:
    """The edges of one type in memory, from an edge list."""
    (block,) = column_blocks(EdgeData(src, dst), num_dst, num_src)
    return Edges(np.concatenate(([0], np.cumsum(block.counts, dtype=np.int64))), block.indices)


def random_hetero_data(seed: int = 0, *, num_classes: int = 3, **changes: Any) -> GraphData:
    """Papers to classify, their authors, and venues without features; with reverse edges.

    Some nodes are isolated, one paper is a hub, edges are repeated, a paper cites itself.
    """
    rng = np.random.default_rng(seed)
    edges = {}
    for edge_type, count in EDGES.items():
        src = rng.integers(0, max(1, SIZES[edge_type[0]] - 3), count)
        dst = rng.integers(0, max(1, SIZES[edge_type[2]] - 2), count)
        dst[: count // 5] = 0
        edges[edge_type] = EdgeData(src, dst)
    nodes = {
        name: NodeData(
            size,
            rng.normal(size=(size, FEATURES[name])).astype(np.float32) if FEATURES[name] else None,
        )
        for name, size in SIZES.items()
    }
    train, val, test = np.split(rng.permutation(SIZES["paper"]), [20, 30])
    values: dict[str, Any] = {
        "dataset": "random",
        "nodes": nodes,
        "edges": edges,
        "target": "paper",
        "labels": rng.integers(0, num_classes, SIZES["paper"]),
        "num_classes": num_classes,
        "task": "multiclass",
        "splits": {"train": train, "val": val, "test": test},
        "reverse": True,
    }
    return GraphData(**(values | changes))


def hetero_graph(data: GraphData | None = None) -> Graph:
    """The graph in memory, without a store."""
    data = data or random_hetero_data()
    lists = dict(data.edges)
    if data.reverse:
        lists |= {reverse_type(name): EdgeData(dst, src) for name, (src, dst) in data.edges.items()}
    nodes = {}
    for name, given in data.nodes.items():
        features = given.features
        assert features is None or isinstance(features, np.ndarray)
        is_target = name == data.target
        nodes[name] = Nodes(
            np.empty((given.num_nodes, 0), np.float32) if features is None else features,
            labels=data.labels.astype(np.int32) if is_target else None,
            splits={key: np.sort(ids) for key, ids in data.splits.items()} if is_target else {},
            ids=given.ids,
        )
    edges = {
        name: in_edges(src, dst, len(nodes[name[0]]), len(nodes[name[2]]))
        for name, (src, dst) in lists.items()
    }
    return Graph(
        nodes,
        edges,
        dataset=data.dataset,
        task=data.task,
        num_classes=data.num_classes,
        target=data.target,
    )
