"""Graphs given as objects: what is read, what is told, and the mistakes that are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData

from gnntrain.config import FilesConfig
from gnntrain.data.checks import check_graph
from gnntrain.data.datasets import builder_for
from gnntrain.data.graph import GraphData
from gnntrain.data.preprocessing import Preprocessing
from gnntrain.data.read.objects import content_digest, from_pyg, graph_of_object
from gnntrain.errors import UserError
from tests.data.files import check, features_of, told
from tests.graphs import random_graph
from tests.hetero_graphs import random_hetero_data

EDGES = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])


def small(**changes: Any) -> Data:
    given = {"x": torch.arange(8.0).reshape(4, 2), "y": torch.tensor([0, 1, 0, 1])}
    return Data(**{**given, "edge_index": EDGES, **changes})


def read(
    data: object, *, labelled: bool = True, target: str | None = None, **keys: Any
) -> GraphData:
    graph = graph_of_object(data, FilesConfig(**keys).for_target(target), labelled=labelled)
    check_graph(graph)
    return graph


MASK = torch.tensor([True, True, False, False])
EYE = torch.eye(4, dtype=torch.bool)
WEIGHT = torch.tensor([0.5, 1.0, 2.0, 0.25])
ARRAYS = small().to_dict()
COLUMNS = {"x": pd.DataFrame(np.ones((4, 2))), "y": pd.Series([0, 1, 0, 1]), "edge_index": EDGES}
MIXED = pd.DataFrame({"age": [1, 2, 3, 4], "debt": [0.5, 1, 2, 3], "is_new": [True] * 4})
OGB = {"edge_index": EDGES.numpy(), "edge_feat": None, "node_feat": np.ones((4, 2)), "num_nodes": 4}
OGB_LABELS = np.array([[0], [1], [0], [1]])
OGB_SPLIT = {"train": np.array([0, 1]), "valid": np.array([2]), "test": np.array([3])}
OF_OGB = {"labels": [0, 1, 0, 1], "splits": [[0, 1], [2], [3]]}
NAN = float("nan")


@pytest.mark.parametrize("dtype", ["bool", "i1", "u1", "i2", "i4", "i8", "u8", "f2", "f4", "f8"])
@pytest.mark.parametrize("missing", ["refuse", "mean"])
def test_features_may_be_of_any_type_of_numbers(dtype: str, missing: Any, tmp_path: Path) -> None:
    x = np.array([[0, 1], [1, 0], [1, 1], [0, 0]], dtype)
    arrays = {"x": x, "y": np.array([0, 1, 0, 1]), "edge_index": EDGES.numpy()}
    np.savez(tmp_path / "graph.npz", allow_pickle=False, **arrays)
    config = FilesConfig(data=str(tmp_path / "graph.npz"), missing=missing)
    for graph in (read(arrays, missing=missing), builder_for(config).build()):
        np.testing.assert_array_equal(features_of(graph.target_nodes), x.astype(np.float32))


class OGBDataset:
    """As `NodePropPredDataset` gives a graph, its labels and its split."""

    def __init__(self, graph: dict[str, Any], labels: Any, split: dict[str, Any]) -> None:
        self.pair, self.split = (graph, labels), split

    def __getitem__(self, _: int) -> Any:
        return self.pair

    def get_idx_split(self) -> dict[str, Any]:
        return self.split


WRITES = ("author", "writes", "paper")
NAMED = {"writes": WRITES, "cites": ("paper", "cites", "paper"), "in": ("paper", "in", "venue")}


def typed(**changes: dict[str, Any]) -> HeteroData:
    """Four papers, two authors with features, venues that only edges know."""
    mask = torch.tensor([True, True, False, False])
    types: dict[str, dict[str, Any]] = {
        "paper": {"x": torch.arange(8.0).reshape(4, 2), "y": torch.tensor([0, 1, 2, -1]),
                  "train_mask": mask, "val_mask": torch.tensor([False, False, True, False])},
        "author": {"x": torch.tensor([[1.0, 2, 3], [3, 4, 5]]), "ids": ["ada", "bob"]},
        "venue": {"note": "no x and no num_nodes"},
        "writes": {"edge_index": torch.tensor([[0, 1, 1], [0, 0, 3]]), "edge_attr": torch.ones(3)},
        "cites": {"edge_index": torch.tensor([[3, 2], [0, 1]])},
        "in": {"edge_index": torch.tensor([[0, 1], [4, 2]])},
    }  # fmt: skip
    data = HeteroData()
    for name in {**types, **changes}:
        for key, value in {**types.get(name, {}), **changes.get(name, {})}.items():
            if value is not None:
                data[NAMED.get(name, name)][key] = value
    return data


def labelled(y: Any, task: str, num_classes: int, **expected: Any) -> tuple[Any, Any, Any]:
    """Labels whose kind is seen."""
    metric = {"multiclass": "accuracy", "binary": "roc_auc", "multilabel": "f1_micro"}[task]
    return small(y=torch.tensor(y)), {}, {"task": (task, metric, num_classes), **expected}


READ: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "masks, and attributes without use": (
        small(pos=torch.rand(4, 3), edge_attr=torch.rand(4), train_mask=MASK, val_mask=~MASK), {},
        {"splits": [[0, 1], [2, 3], []], "weights": None, "left_out": ["edge_attr", "pos"],
         "summary": "train_mask"},
    ),
    "a split of several": (
        small(train_mask=EYE[:, :3], test_mask=EYE[3]), {"split": 1},
        {"splits": [[1], [], [3]], "summary": "number 1 of 3"},
    ),
    "weights": (
        small(edge_weight=WEIGHT.unsqueeze(1)), {},
        {"weights": WEIGHT.tolist(), "summary": "weight column edge_weight"},
    ),
    "weights by a key": (
        small(edge_attr=WEIGHT), {"weight_column": "edge_attr"},
        {"weights": WEIGHT.tolist(), "summary": "weight column edge_attr"},
    ),
    "ids that count the rows": ({**ARRAYS, "ids": [0, 1, 2, 3]}, {}, {"ids": [0, 1, 2, 3]}),
    "ids of texts": ({**ARRAYS, "ids": list("abcé")}, {}, {"ids": list("abcé")}),
    "edges are rows in a Data": (
        small(ids=torch.tensor([1, 0, 3, 2])), {},
        {"ids": [1, 0, 3, 2], "edges": EDGES.t().tolist()},
    ),
    "a column of classes": labelled([[0], [1], [1], [0]], "binary", 2, labels=[0, 1, 1, 0]),
    "truth values": labelled([True, False, True, False], "binary", 2, labels=[1, 0, 1, 0]),
    "classes with gaps": labelled(
        [10, 30, 20, 10], "multiclass", 3, labels=[0, 2, 1, 0], classes=[10, 20, 30],
    ),
    "several labels": labelled([[0, 1], [1, 1], [0, 0], [1, 0]], "multilabel", 2),
    "whole numbers as floats, said to be classes": (
        small(y=torch.tensor([0.0, 1.0, 2.0, NAN])), {"task": "multiclass"},
        {"labels": [0, 1, 2, -1]},
    ),
    "quantities": (
        small(y=torch.tensor([[0.5, 1.0], [2.0, NAN], [3.5, 4.0], [NAN, NAN]])),
        {"task": "regression"},
        {"labels": [[0.5, 1], [2, NAN], [3.5, 4], [NAN, NAN]], "task": ("continuous", "r2", 2)},
    ),
    "lists of nodes as columns of pandas": (
        {**COLUMNS, "train_idx": pd.Series([2, 0], index=[1, 0]),
         "val_idx": pd.Series([1], index=[7]), "test_idx": pd.Series([3])},
        {}, {"splits": [[0, 2], [1], [3]]},
    ),
    "columns of several types of numbers, and of texts": (
        {**COLUMNS, "x": MIXED.astype({"age": "Int64"}),
         "y": pd.Series(list("abab"), dtype=object)},
        {}, {"features": MIXED.to_numpy(float), "labels": [0, 1, 0, 1], "classes": ["a", "b"]},
    ),
    **{
        f"labels with gaps, {name}": ({**COLUMNS, "y": y}, {}, {"labels": [1, -1, 0, 1]})
        for name, y in {
            "texts": ["b", None, "a", "b"],
            "objects": pd.Series(["b", NAN, "a", "b"], dtype=object),
            "categories": pd.Series(["b", None, "a", "b"], dtype="category"),
            "integers": pd.Series([7, None, 5, 7], dtype="Int64"),
            "flags": pd.Series([True, None, False, True], dtype="boolean"),
        }.items()
    },
    "flags with gaps": (
        {**COLUMNS, "y": [[0, 1], [None, None], [1, 1], [1, 0]]}, {},
        {"labels": [[0, 1], [0, 0], [1, 1], [1, 0]], "summary": "1 of 4 nodes have none"},
    ),
    "integers with gaps as a quantity": (
        {**COLUMNS, "y": pd.Series([7, None, 5, 7], dtype="Int64")}, {"task": "regression"},
        {"labels": [[7], [NAN], [5], [7]]},
    ),
    "a data set of OGB": (OGBDataset(OGB, OGB_LABELS, OGB_SPLIT), {}, OF_OGB),
    "OGB's graph with labels and split": ({**OGB, "y": OGB_LABELS, **OGB_SPLIT}, {}, OF_OGB),
    "OGB's graph and labels": ((OGB, OGB_LABELS), {}, {"labels": [0, 1, 0, 1]}),
    **{
        f"{kind} with the mark {mark!r}": (
            {**COLUMNS, "y": np.array(["b", mark, " a", "b"]).astype(kind)}, {},
            {"labels": [1, -1, 0, 1], "classes": ["a", "b"]},
        )
        for kind in "US" for mark in ("", "-1")
    },
    # Typed graphs.
    "a HeteroData": (
        typed(), {},
        {"target": "paper", "labels": [0, 1, 2, -1], "splits": [[0, 1], [2], []],
         "ids": {"paper": [0, 1, 2, 3], "author": ["ada", "bob"], "venue": [0, 1, 2, 3, 4]},
         "features": {"author": [[1, 2, 3], [3, 4, 5]], "venue": [[]] * 5},
         "edges": {"author/writes/paper": [("ada", 0), ("bob", 0), ("bob", 3)],
                   "paper/cites/paper": [(3, 0), (2, 1)], "paper/in/venue": [(0, 4), (1, 2)]},
         "left_out": ["venue.note", "author/writes/paper.edge_attr"]},
    ),
    "a sparse adjacency between types": (
        typed(venue={"num_nodes": 5},
              **{"in": {"edge_index": None, "adj_t": torch.sparse_coo_tensor(
                  torch.tensor([[4, 2], [0, 1]]), torch.ones(2), (5, 4))}}),
        {}, {"edges": {"paper/in/venue": [(1, 2), (0, 4)]}},
    ),
    "the target of several with labels": (
        typed(author={"y": torch.tensor([1, 0])}), {"target": "author"}, {"labels": [1, 0]},
    ),
    "to predict on, without labels": (
        typed(paper={"y": None}), {"labelled": False, "target": "paper"}, {"target": "paper"},
    ),
    "OGB's typed data set": (
        OGBDataset(
            {"edge_index_dict": {WRITES: EDGES.numpy()},
             "node_feat_dict": {"paper": OGB["node_feat"]},
             "num_nodes_dict": {"paper": 4, "author": 5}},
            {"paper": OGB_LABELS}, {name: {"paper": ids} for name, ids in OGB_SPLIT.items()}),
        {}, {**OF_OGB, "target": "paper", "ids": {"author": [0, 1, 2, 3, 4]}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_an_object_is_read(name: str) -> None:
    data, keys, expected = READ[name]
    check(read(data, **keys), expected)


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc])
def test_the_rows_of_adj_t_are_targets(layout: torch.layout) -> None:
    dense = torch.zeros(4, 4)
    dense[EDGES[1], EDGES[0]] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    read_of = told(read(small(edge_index=None, adj_t=dense.to_sparse(layout=layout))))
    edges = dict(zip(read_of["edges"], read_of["weights"], strict=True))
    assert edges == {(0, 1): 1.0, (1, 2): 2.0, (2, 3): 3.0, (3, 0): 4.0}


def test_very_many_numbers_are_asked_about_unless_published() -> None:
    data = small(x=torch.ones(200, 2), y=37 * torch.arange(200))
    with pytest.raises(UserError, match="classes or a quantity"):
        read(data)
    assert read(data, task="regression").task == "continuous"
    assert from_pyg(data, "theirs").num_classes == 200


MISTAKES: dict[str, tuple[Any, str]] = {
    "quantities, or classes as floats": (small(y=WEIGHT), r"y holds floats"),
    "labels of several types": ({**COLUMNS, "y": [1, "a", None, 2]}, "y is object"),
    "a split of another number": (
        (small(train_mask=EYE[:, :3], test_mask=EYE[3]), {"split": 3}),
        r"dataset\.split=3",
    ),
    "weights that are not there": ((small(), {"weight_column": "nope"}), "weight_column"),
    "a key about tables": ((small(), {"header": True}), r"dataset\.header"),
    "edges that may be ids or rows": ({**ARRAYS, "ids": np.array([1, 0, 3, 2])}, "rows of x"),
    "two graphs": ([small(), small()], "2 graphs"),
    "a batch of two": (Batch.from_data_list([small(), small()]), "2 graphs"),
    "a number": (7, "int"),
    "no x": (small(x=None), "x"),
    "no y": (small(y=None), "no y"),
    "x of one dimension": (small(x=torch.ones(4)), r"x\.reshape"),
    "x longer than y": (small(x=torch.ones(5, 2)), "y is"),
    "num_nodes beside another x": (small(num_nodes=6), "x has 4 rows"),
    "no edges": (small(edge_index=None), "edge_index"),
    "edges of fractions": (small(edge_index=EDGES.float()), r"edge_index\.long\(\)"),
    "weights of another length": (small(edge_weight=torch.ones(3)), "edge_weight"),
    "mask of numbers": (small(train_mask=torch.tensor([0, 1, 2, 3])), "train_mask"),
    "an id twice": (small(ids=torch.tensor([1, 1, 2, 3])), "ids"),
    "ids of another length": (small(ids=torch.tensor([1, 2])), "ids"),
    "ids with gaps": ({**COLUMNS, "ids": ["a", None, "b", "c"]}, "ids is object"),
    "weights with gaps": (
        {**COLUMNS, "edge_weight": pd.Series([1, None, 2, 3], dtype="Int64")}, "edge_weight object",
    ),
    "adjacency that is not square": (
        small(edge_index=None, adj_t=torch.ones(4, 3).to_sparse()), "square",
    ),
    "a typed edge beyond": (
        typed(writes={"edge_index": torch.tensor([[2], [0]])}),
        r"'writes', 'paper'\)\]: edge_index row 0: author '2' is not in",
    ),
    "no edge index of a type": (typed(cites={"edge_index": None, "time": 0}), "no edge_index"),
    "a node type that nothing tells the size of": (
        typed(empty={"note": "nothing"}), r"data\['empty'\] has no rows",
    ),
    "a key about weights of a typed graph": (
        (typed(), {"weight_column": "edge_attr"}), r"dataset\.weight_column",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_a_users_error(mistake: str) -> None:
    data, words = MISTAKES[mistake]
    data, keys = data if isinstance(data, tuple) else (data, {})
    with pytest.raises(UserError, match=words) as caught:
        read(data, **keys)
    assert caught.value.hint


@pytest.mark.parametrize("standardize", [False, True])
def test_columns_of_a_data_frame_are_matched_by_name(standardize: bool) -> None:
    table = pd.DataFrame({"age": [1.0, 2.0, 3.0, 4.0], "height": [9.0, 7.0, 8.0, 6.0]})
    trained = read({**small().to_dict(), "x": table}, standardize=standardize)
    assert trained.target_nodes.feature_names == ("age", "height")
    given = {"x": table[["height", "age"]].assign(more=0), "edge_index": EDGES}
    found = predicted(given, trained)
    assert found.target_nodes.feature_names == ("age", "height")
    # Without names, columns are those of their places.
    by_place = predicted({**given, "x": table.to_numpy()}, trained)
    for graph in (found, by_place):
        np.testing.assert_equal(features_of(graph.target_nodes), features_of(trained.target_nodes))
    with pytest.raises(UserError, match="lacks columns that the model was trained on: height"):
        predicted({**given, "x": table[["age"]]}, trained)
    with pytest.raises(UserError, match="takes 2 numbers"):
        predicted({**given, "x": table[["age"]].to_numpy()}, trained)


def predicted(given: object, trained: GraphData) -> GraphData:
    made_by = trained.target_nodes.preprocessing
    return graph_of_object(given, FilesConfig(), labelled=False, preprocessing=made_by)


def test_a_file_gives_the_graph_of_the_object(tmp_path: Path) -> None:
    torch.save(typed(), tmp_path / "graph.pt")
    found = builder_for(FilesConfig(data=str(tmp_path / "graph.pt"))).build()
    expected = read(typed())
    found.summary = expected.summary = None  # which names the file
    assert content_digest(found) == content_digest(expected)


FINISHED = [random_graph(), random_hetero_data()]


@pytest.mark.parametrize("given", FINISHED, ids=["one type", "typed"])
def test_a_finished_graph_is_taken_as_it_is(given: GraphData) -> None:
    graph = graph_of_object(given, FilesConfig(name="mine"))
    assert graph.dataset == "mine"
    assert graph.nodes is given.nodes
    with pytest.raises(UserError, match=r"dataset\.standardize"):
        graph_of_object(given, FilesConfig(standardize=True))
    of_model = Preprocessing(columns=(), means=(0.0,), stds=(2.0,))
    by_type: Any = {"paper": of_model} if "paper" in given.nodes else of_model
    with pytest.raises(UserError, match="GraphData"):
        graph_of_object(given, FilesConfig(), labelled=False, preprocessing=by_type)


CHANGES: list[tuple[Any, Any, str]] = [
    *((small(train_mask=EDGES[0] < 2), None, key) for key in ("x", "y", "edge_index")),
    *((typed(), kind, key) for kind, key in (("author", "x"), (WRITES, "edge_index"))),
]


@pytest.mark.parametrize(("data", "kind", "key"), CHANGES)
def test_the_digest_is_that_of_the_content(data: Any, kind: Any, key: str) -> None:
    digest = content_digest(graph_of_object(data, FilesConfig()))
    assert content_digest(graph_of_object(data.clone(), FilesConfig())) == digest
    other = data.clone()
    part = other if kind is None else other[kind]
    part[key] = part[key].flip(-1)
    assert content_digest(graph_of_object(other, FilesConfig())) != digest
    other = data.clone()
    (other if kind is None else other["paper"]).note = "the summary tells that it is left out"
    assert content_digest(graph_of_object(other, FilesConfig())) != digest
    graph = graph_of_object(data, FilesConfig())
    nodes = graph.nodes[graph.target]
    named = replace(nodes, ids=np.arange(nodes.num_nodes)[::-1])
    assert content_digest(replace(graph, nodes={**graph.nodes, graph.target: named})) != digest
