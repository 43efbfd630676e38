from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest

from gnntrain.data.graph import EDGE, NODE, Edges, Graph, Nodes
from tests.hetero_graphs import in_edges

WRITES = ("author", "writes", "paper")


def nodes(number: int, *, labelled: bool = False) -> Nodes:
    features = np.arange(2.0 * number, dtype=np.float32).reshape(number, 2)
    labels = np.arange(number, dtype=np.int32) % 3 if labelled else None
    return Nodes(features, labels=labels, splits={"train": np.arange(0, number, 2)})


def typed_graph() -> Graph:
    """In-neighbours of paper 0: author 0; of 1: 1 and 4; of 2: 0."""
    return Graph(
        nodes={"author": nodes(5), "paper": nodes(3, labelled=True)},
        edges={WRITES: in_edges(np.array([4, 0, 1, 0]), np.array([1, 2, 1, 0]), 5, 3)},
        dataset="library",
        num_classes=3,
    )


def test_a_homogeneous_graph_is_one_entry_and_its_properties_are_the_entrys() -> None:
    papers, edges = nodes(3, labelled=True), Edges(np.array([0, 1, 1, 2]), np.array([2, 0]))
    graph = Graph({NODE: papers}, {EDGE: edges}, "tiny", "binary", "roc_auc", 2)
    assert (graph.num_nodes, graph.num_edges, graph.num_features, graph.num_outputs) == (3, 2, 2, 1)
    assert graph.features is papers.features
    assert graph.labels is papers.labels
    assert graph.indices is edges.indices
    assert graph.split("train").tolist() == [0, 2]


def test_of_several_types_one_must_be_named_also_in_another_process() -> None:
    graph = pickle.loads(pickle.dumps(typed_graph()))
    assert graph.num_edges == 4
    with pytest.raises(ValueError, match="2 node types"):
        _ = graph.features
    assert repr(graph) == (
        "Graph('library', nodes={author: 5, paper: 3}, edges={author/writes/paper: 4})"
    )
    assert graph.edges[WRITES].indptr.tolist() == [0, 1, 3, 4]
    assert graph.edges[WRITES].indices.tolist() == [0, 1, 4, 0]


def test_opening_a_store_imports_neither_torch_nor_pyg() -> None:
    code = (
        "import sys, gnntrain.data.store, gnntrain.data.graph;"
        "print([m for m in ('torch', 'torch_geometric', 'numba') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
