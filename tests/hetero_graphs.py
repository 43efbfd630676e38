"""Small typed graphs, for the tests of every room above `data`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from gnntrain.data.graph import EdgeData, EdgeType, GraphData, NodeData, NodeType
from gnntrain.data.store import StoredGraph
from tests.graphs import stored

SIZES: dict[NodeType, int] = {"paper": 40, "author": 60, "venue": 7}
FEATURES: dict[NodeType, int] = {"paper": 5, "author": 3, "venue": 0}
EDGES: dict[EdgeType, int] = {
    ("author", "writes", "paper"): 160,
    ("paper", "cites", "paper"): 120,
    ("paper", "appears_in", "venue"): 40,
}


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


def hetero_graph(data: GraphData | None = None) -> StoredGraph:
    """The graph in a store of its own, which is gone from the disk and stays mapped."""
    with TemporaryDirectory() as folder:
        return stored(Path(folder) / "store", data or random_hetero_data())
