"""PyG's interfaces over our graphs, and a made-up graph of another kind behind the same ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gnntrain.data.graph import EDGE, NODE
from gnntrain.data.pyg_graph import PyGGraph
from tests.data.test_graph import WRITES, typed_graph
from tests.graphs import random_graph, stored


@pytest.mark.parametrize("name", [None, NODE])
def test_tensors_are_given_whole_or_by_index(tmp_path: Path, name: str | None) -> None:
    weight = np.linspace(0, 1, 240).astype(np.float32)
    store = stored(tmp_path / "store", random_graph(edge_weight=weight), feature_dtype="bfloat16")
    view = PyGGraph(store)
    whole = view.get_tensor(name, "x", None)
    assert whole.dtype == torch.bfloat16
    assert np.shares_memory(whole.view(torch.uint16).numpy(), store.features)
    index = torch.tensor([5, 0, 5])
    assert torch.equal(view.get_tensor(name, "x", index), whole[index])
    assert torch.equal(view.get_tensor(name, "x", slice(2, 4)), whole[2:4])
    labels = view.get_tensor(name, "y", index)
    assert labels.dtype == torch.int64
    assert labels.tolist() == store.labels[index].tolist()
    mask = view.get_tensor(name, "val_mask", None)
    assert mask.nonzero().flatten().tolist() == store.split("val").tolist()
    assert view.get_tensor_size(name, "x") == (60, 5)
    assert view.get_tensor(name, "z", None) is None
    weights = view.get_tensor(EDGE, "edge_weight", None)
    np.testing.assert_array_equal(weights, store.only_edges.weight)


def test_edges_are_given_in_csc_layout_under_either_name(tmp_path: Path) -> None:
    store = stored(tmp_path / "store")
    view = PyGGraph(store)
    for name in (None, EDGE):
        row, colptr = view.get_edge_index(name, "csc")
        np.testing.assert_array_equal(row, store.indices)
        np.testing.assert_array_equal(colptr, store.indptr)
    with pytest.raises(KeyError):
        view.get_edge_index(EDGE, "coo")
    with pytest.raises(KeyError):
        view.get_edge_index(("node", "cites", "node"), "csc")


def test_a_graph_cannot_be_written_through_the_interfaces(tmp_path: Path) -> None:
    view = PyGGraph(stored(tmp_path / "store"))
    assert view.put_tensor(torch.ones(60), NODE, "x", None) is False
    assert view.remove_tensor(NODE, "x", None) is False
    assert view.put_edge_index((torch.ones(1), torch.ones(2)), EDGE, "csc") is False
    assert view.remove_edge_index(EDGE, "csc") is False


def test_a_typed_graph_has_its_types_names() -> None:
    graph = typed_graph()
    view = PyGGraph(graph)
    attrs = {(attr.group_name, attr.attr_name) for attr in view.get_all_tensor_attrs()}
    masks = {("author", "train_mask"), ("paper", "train_mask")}
    assert attrs == {("author", "x"), ("paper", "x"), ("paper", "y"), *masks}
    (attr,) = view.get_all_edge_attrs()
    assert (attr.edge_type, attr.size) == (WRITES, (5, 3))
    assert view.get_tensor(None, "x", None) is None
    assert view.get_tensor("paper", "y", None).tolist() == [0, 1, 2]
    row, colptr = view.get_edge_index(WRITES, "csc")
    np.testing.assert_array_equal(row, graph.edges[WRITES].indices)
    np.testing.assert_array_equal(colptr, graph.edges[WRITES].indptr)
