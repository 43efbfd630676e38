"""Small graphs in a store, for the tests of every room above `data`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gnntrain.data.build import write_store
from gnntrain.data.graph import GraphData, PrepareOptions
from gnntrain.data.store import StoredGraph
from gnntrain.metrics import DEFAULT_METRICS

_METRICS = {str(kind): name for kind, name in DEFAULT_METRICS.items()}


def random_graph(
    num_nodes: int = 60,
    num_edges: int = 240,
    *,
    num_features: int = 5,
    num_classes: int = 3,
    task: str = "multiclass",
    seed: int = 0,
    **changes: Any,
) -> GraphData:
    """A random directed graph with self loops, duplicate edges, a hub and isolated nodes."""
    rng = np.random.default_rng(seed)
    src = rng.integers(0, num_nodes - 3, num_edges)
    dst = rng.integers(0, num_nodes - 3, num_edges)
    dst[: num_edges // 5] = 0  # a hub
    shape = (num_nodes, num_classes) if task in ("multilabel", "continuous") else (num_nodes,)
    labels = rng.integers(0, 2 if task == "multilabel" else num_classes, shape)
    if task == "continuous":
        labels = rng.normal(50, 20, shape).astype(np.float32)
    train, val, test = np.split(rng.permutation(num_nodes), [num_nodes // 2, 3 * num_nodes // 4])
    values: dict[str, Any] = {
        "dataset": "random",
        "num_nodes": num_nodes,
        "src": src,
        "dst": dst,
        "features": rng.normal(size=(num_nodes, num_features)).astype(np.float32),
        "labels": labels,
        "num_classes": num_classes,
        "task": task,
        "splits": {"train": train, "val": val, "test": test},
        "metric": _METRICS[task],
    }
    return GraphData.of_arrays(**(values | changes))


def stored(path: Path, data: GraphData | None = None, **options: Any) -> StoredGraph:
    """The graph in a store at `path`."""
    return write_store(path, data or random_graph(), PrepareOptions(**options), {"name": "random"})
