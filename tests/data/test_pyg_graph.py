"""PyG's interfaces over our graphs, and a made-up graph of another kind behind the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data, EdgeAttr, FeatureStore, GraphStore, HeteroData, TensorAttr
from torch_geometric.loader import NodeLoader

from gnntrain.config import BuiltinConfig
from gnntrain.data.build import write_store
from gnntrain.data.graph import EDGE, NODE, Graph, PrepareOptions
from gnntrain.data.pyg_graph import PyGGraph, graph_of
from gnntrain.loading.batch import MiniBatch
from gnntrain.loading.features import as_tensor
from gnntrain.loading.loader import SeedPlan
from gnntrain.run_store import prepare_store
from gnntrain.sampling.block import BlockNeeds
from gnntrain.sampling.node_loader import NodeLoaderSampler
from tests.data.test_graph import WRITES, typed_graph
from tests.graphs import random_graph, stored
from tests.hetero_graphs import random_hetero_data
from tests.loading.graphs import cpu_loader

PLANETOID = Path(__file__).parents[3] / "shared" / "data" / "planetoid"
needs_cora = pytest.mark.skipif(not PLANETOID.is_dir(), reason="Cora's raw files are not here")


class DictionaryGraph(FeatureStore, GraphStore):  # type: ignore[misc]  # PyG is not typed
    """A graph that knows nothing of ours: rows and edges in Python's dictionaries and lists."""

    def __init__(self, rows: dict[str, list[Any]], edges: list[tuple[int, int]]) -> None:
        super().__init__()
        GraphStore.__init__(self)
        self.rows, self.edges = rows, edges

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        return [TensorAttr(NODE, name) for name in self.rows]

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        size = len(self.rows["x"])
        return [EdgeAttr(EDGE, "coo", size=(size, size))]

    def _get_tensor(self, attr: TensorAttr) -> Tensor:
        return torch.tensor(self.rows[attr.attr_name])

    def _get_edge_index(self, _attr: EdgeAttr) -> tuple[Tensor, Tensor]:
        src, dst = zip(*self.edges, strict=True)
        return torch.tensor(src), torch.tensor(dst)

    def _get_tensor_size(self, attr: TensorAttr) -> Sequence[int]:
        return tuple(self._get_tensor(attr).shape)

    def _refuse(self, *_: Any) -> bool:
        return False

    _put_tensor = _remove_tensor = _put_edge_index = _remove_edge_index = _refuse


def batches_of(graph: Graph) -> list[MiniBatch]:
    plan = SeedPlan(graph.split("train"), 8, seed=4)
    needs = BlockNeeds(norm=True, degree=True, weight=True)
    return list(cpu_loader(graph, plan, (3, 2), needs=needs, threads=0))


def test_a_graph_of_another_kind_gives_the_batches_of_the_store(tmp_path: Path) -> None:
    data = random_graph()
    assert isinstance(data.features, np.ndarray)
    store = stored(tmp_path / "store", data)
    masks = {f"{name}_mask": np.isin(np.arange(60), ids) for name, ids in data.splits.items()}
    tables = {"x": data.features, "y": data.labels, **masks}
    other = DictionaryGraph(
        {name: table.tolist() for name, table in tables.items()},
        list(zip(data.src.tolist(), data.dst.tolist(), strict=True)),
    )
    graph = graph_of(other, other)
    assert (graph.task, graph.metric, graph.num_classes) == ("multiclass", "accuracy", 3)
    for ours, theirs in zip(batches_of(store), batches_of(graph), strict=True):
        assert torch.equal(ours.n_id, theirs.n_id)
        assert torch.equal(ours.edge_index, theirs.edge_index)
        assert torch.equal(ours.x, theirs.x)
        assert torch.equal(ours.y, theirs.y)
        for block, same in zip(ours.blocks, theirs.blocks, strict=True):
            assert block.norm is not None
            assert same.norm is not None
            assert torch.equal(block.norm, same.norm)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
def test_what_pygs_interfaces_give_makes_the_graph_again(
    tmp_path: Path, dtype: str, task: str
) -> None:
    store = stored(tmp_path / "store", random_graph(task=task), feature_dtype=dtype)
    view = PyGGraph(store)
    graph = graph_of(view, view, dataset="random")
    np.testing.assert_array_equal(graph.features, store.features)
    np.testing.assert_array_equal(graph.labels, store.labels)
    np.testing.assert_array_equal(graph.indptr, store.indptr)
    np.testing.assert_array_equal(graph.indices, store.indices)
    np.testing.assert_array_equal(graph.gcn_norm, store.gcn_norm)
    for split in ("train", "val", "test"):
        np.testing.assert_array_equal(graph.split(split), store.split(split))
    assert (graph.feature_dtype, graph.task, graph.num_classes) == (dtype, task, 3)


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
    np.testing.assert_array_equal(weights, store.edge_weight)


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
    again = graph_of(view, view)
    np.testing.assert_array_equal(again.edges[WRITES].indptr, graph.edges[WRITES].indptr)
    np.testing.assert_array_equal(again.edges[WRITES].indices, graph.edges[WRITES].indices)
    np.testing.assert_array_equal(again.nodes["paper"].labels, graph.nodes["paper"].labels)


def test_pygs_own_graphs_are_taken_too() -> None:
    x, y = torch.rand(4, 3, dtype=torch.float64), torch.tensor([[0], [1], [1], [-1]])
    data = Data(x=x, y=y, edge_index=torch.tensor([[3, 0, 1], [1, 1, 0]]), train_mask=y[:, 0] >= 0)
    graph = graph_of(data, data)
    assert (graph.task, graph.num_classes, graph.indices.tolist()) == ("binary", 2, [1, 0, 3])
    assert graph.split("train").tolist() == [0, 1, 2]
    typed = HeteroData()
    typed["author"].x, typed["paper"].x = x, x[:2]
    typed["paper"].y = torch.tensor([0, 1])
    typed[WRITES].edge_index = torch.tensor([[3, 0, 1], [1, 1, 0]])
    assert graph_of(typed, typed).edges[WRITES].indptr.tolist() == [0, 1, 3]
    with pytest.raises(ValueError, match="0 node types have labels"):
        graph_of(*[Data(x=x, edge_index=data.edge_index)] * 2)


@needs_cora
def test_pygs_loader_with_our_sampler_reads_cora_through_the_interfaces(tmp_path: Path) -> None:
    config = BuiltinConfig(name="cora", root=str(PLANETOID), store_dir=str(tmp_path))
    store = prepare_store(config).store
    view = PyGGraph(store)
    loader = NodeLoader(
        (view, view),
        NodeLoaderSampler(as_tensor(store.indptr), as_tensor(store.indices), [4, 3]),
        input_nodes=torch.from_numpy(store.split("train").copy()),
        batch_size=64,
        filter_per_worker=True,
    )
    seeds = []
    for batch in loader:
        nodes = batch.n_id.numpy()
        seeds += nodes[: batch.batch_size].tolist()
        np.testing.assert_array_equal(batch.x, store.features[nodes])
        np.testing.assert_array_equal(batch.y, store.labels[nodes])
        np.testing.assert_array_equal(batch.train_mask, np.isin(nodes, store.split("train")))
        for src, dst in nodes[batch.edge_index.numpy()].T[::50]:
            assert src in store.indices[store.indptr[dst] : store.indptr[dst + 1]]
    assert sorted(seeds) == store.split("train").tolist()


def test_a_typed_store_behind_pygs_interfaces_makes_the_graph_again(tmp_path: Path) -> None:
    data = random_hetero_data()
    store = write_store(tmp_path / "store", data, PrepareOptions(), {"dataset": "random"})
    view = PyGGraph(store)
    graph = graph_of(view, view, dataset="random")
    assert (graph.target, graph.num_classes) == ("paper", 3)
    assert graph.schema.num_features == store.schema.num_features
    assert set(graph.edges) == set(store.edges)
    for kind, edges in store.edges.items():
        np.testing.assert_array_equal(graph.edges[kind].indptr, edges.indptr)
        np.testing.assert_array_equal(graph.edges[kind].indices, edges.indices)
        row, colptr = view.get_edge_index(kind, "csc")
        np.testing.assert_array_equal(row, edges.indices)
        np.testing.assert_array_equal(colptr, edges.indptr)
    assert view.get_tensor("author", "x", None).shape == (60, 3)
    listed = {attr.group_name for attr in view.get_all_tensor_attrs() if attr.attr_name == "x"}
    assert listed == {"paper", "author"}
    for name, nodes in store.nodes.items():
        np.testing.assert_array_equal(graph.nodes[name].features, nodes.features)
    np.testing.assert_array_equal(graph.split("val"), store.split("val"))
