"""The digest of a graph's content, which `resume` compares: it stays the same between versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnntrain.data.build import write_store
from gnntrain.data.graph import EdgeData, GraphData, NodeData, PrepareOptions


def plain(**more: Any) -> GraphData:
    return GraphData.of_arrays(
        dataset="pinned",
        num_nodes=6,
        src=np.array([0, 1, 2, 3, 3, 5]),
        dst=np.array([1, 2, 0, 3, 4, 0]),
        labels=np.array([0, 1, 2, 0, 1, -1]),
        num_classes=3,
        task="multiclass",
        splits={"train": np.array([0, 1]), "val": np.array([2]), "test": np.array([3])},
        features=np.arange(12, dtype=np.float32).reshape(6, 2),
        **more,
    )


def weighted() -> GraphData:
    weight = np.arange(1, 7, dtype=np.float32)
    return plain(edge_weight=weight, symmetric=True, node_ids=np.arange(6) * 7)


def typed() -> GraphData:
    rows, ids = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([b"x", b"y", b"z"])
    return GraphData(
        dataset="pinned",
        nodes={"paper": NodeData(3, rows, ids=ids), "author": NodeData(2)},
        edges={
            ("paper", "cites", "paper"): EdgeData(np.array([0, 1, 1]), np.array([1, 2, 0])),
            ("author", "writes", "paper"): EdgeData(np.array([0, 1]), np.array([2, 1])),
        },
        target="paper",
        labels=np.array([0, 1, 0]),
        num_classes=2,
        task="binary",
        splits={"train": np.array([0]), "val": np.array([1]), "test": np.array([2])},
        reverse=True,
    )


PINNED = [
    (plain(), {}, "ba0633809ff93fa634d2e6851591266a76b2f9ca"),
    (weighted(), {}, "fda7a34f3c4aefd2285cbc0faad43fbfdeda3f62"),
    (
        plain(class_names=np.array([b"a", b"b", b"c"])),
        {"feature_dtype": "bfloat16", "to_undirected": True},
        "9e64a1d0bd0221efa4d4ae231859c25ab9be7d12",
    ),
    (typed(), {}, "a8aefc707a0d98033e386eade6607f35956968ae"),
]


@pytest.mark.parametrize(("data", "options", "digest"), PINNED)
def test_it_is_that_of_earlier_versions(
    tmp_path: Path, data: GraphData, options: dict[str, Any], digest: str
) -> None:
    store = write_store(tmp_path / "store", data, PrepareOptions(**options), {"name": "x"})
    assert store.content_digest == digest
