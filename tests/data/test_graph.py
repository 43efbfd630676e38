from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest

from gnntrain.data.graph import Graph, Nodes
from tests.hetero_graphs import in_edges

WRITES = ("author", "writes", "paper")


def test_of_several_types_one_must_be_named_also_in_another_process() -> None:
    nodes = {"author": Nodes(np.empty((5, 2))), "paper": Nodes(np.empty((3, 2)))}
    edges = in_edges(np.array([4, 0, 1, 0]), np.array([1, 2, 1, 0]), 5, 3)
    graph = pickle.loads(pickle.dumps(Graph(nodes, {WRITES: edges}, dataset="library")))
    assert (graph.num_nodes, graph.num_edges) == (8, 4)
    with pytest.raises(ValueError, match="2 node types"):
        _ = graph.features
    assert graph.edges[WRITES].indices.tolist() == [0, 1, 4, 0]


def test_opening_a_store_imports_neither_torch_nor_pyg() -> None:
    code = (
        "import sys, gnntrain.data.store, gnntrain.data.graph;"
        "print([m for m in ('torch', 'torch_geometric', 'numba') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
