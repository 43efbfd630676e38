"""Typed graphs given as objects and files: what is read, and the mistakes that are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData, InMemoryDataset
from torch_geometric.transforms import ToUndirected

from gnntrain.config import FilesConfig
from gnntrain.data.checks import check_graph
from gnntrain.data.datasets import builder_for
from gnntrain.data.graph import HeteroGraphData
from gnntrain.data.preprocessing import Preprocessing
from gnntrain.data.read.objects import content_digest, from_pyg, graph_of_object
from gnntrain.errors import UserError
from tests.hetero_graphs import random_hetero_data

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


def small() -> HeteroData:
    """Four papers, two authors with features, venues that only edges know."""
    data = HeteroData()
    data["paper"].x = torch.arange(8.0).reshape(4, 2)
    data["paper"].y = torch.tensor([0, 1, 2, -1])
    data["paper"].train_mask = torch.tensor([True, True, False, False])
    data["paper"].val_mask = torch.tensor([False, False, True, False])
    data["author"].x = torch.tensor([[1.0, 2.0, 3.0], [3.0, 4.0, 5.0]])
    data["author"].ids = ["ada", "bob"]
    data["venue"].note = "no x and no num_nodes"
    data[WRITES].edge_index = torch.tensor([[0, 1, 1], [0, 0, 3]])
    data[WRITES].edge_attr = torch.ones(3, 1)
    data[CITES].edge_index = torch.tensor([[3, 2], [0, 1]])
    data["paper", "in", "venue"].edge_index = torch.tensor([[0, 1], [4, 2]])
    return data


def read(data: object, *, labelled: bool = True, target: Any = None, **keys: Any) -> Any:
    config = FilesConfig(**keys).for_target(target)
    graph = graph_of_object(data, config, labelled=labelled)
    assert isinstance(graph, HeteroGraphData)
    check_graph(graph)
    return graph


def test_a_hetero_data_is_read_by_type() -> None:
    graph = read(small())
    assert graph.target == "paper"
    assert {name: nodes.num_nodes for name, nodes in graph.nodes.items()} == {
        "paper": 4,
        "author": 2,
        "venue": 5,
    }
    assert graph.nodes["author"].features.tolist() == [[1, 2, 3], [3, 4, 5]]
    assert graph.nodes["author"].ids.tolist() == [b"ada", b"bob"]
    assert graph.nodes["venue"].features is None
    assert [ends.tolist() for ends in graph.edges[WRITES]] == [[0, 1, 1], [0, 0, 3]]
    assert set(graph.edges) == {WRITES, CITES, ("paper", "in", "venue")}
    assert graph.labels.tolist() == [0, 1, 2, -1]
    assert graph.splits["val"].tolist() == [2]
    assert set(graph.summary.left_out) == {"author/writes/paper.edge_attr", "venue.note"}


def as_dict(data: HeteroData, _: Path) -> object:
    return data.to_dict()


def as_file(data: HeteroData, folder: Path) -> object:
    torch.save(data, folder / "graph.pt")
    return folder / "graph.pt"


def as_dict_file(data: HeteroData, folder: Path) -> object:
    torch.save(data.to_dict(), folder / "graph.pt")
    return folder / "graph.pt"


def as_processed(data: HeteroData, folder: Path) -> object:
    InMemoryDataset.save([data], str(folder / "graph.pt"))
    return folder / "graph.pt"


@pytest.mark.parametrize("form", [as_dict, as_file, as_dict_file, as_processed])
def test_every_form_gives_the_same_graph(
    tmp_path: Path, form: Callable[[HeteroData, Path], object]
) -> None:
    given = form(small(), tmp_path)
    if isinstance(given, Path):
        found = builder_for(FilesConfig(data=str(given))).build()
        assert isinstance(found, HeteroGraphData)
    else:
        found = read(given)
    found.summary = (same := read(small())).summary = None  # which names the file
    assert content_digest(found) == content_digest(same)


def test_sparse_adjacencies_between_types_are_edges() -> None:
    data = small()
    data["paper", "in", "venue"].edge_index = None
    data["paper", "in", "venue"].adj_t = torch.sparse_coo_tensor(
        torch.tensor([[4, 2], [0, 1]]), torch.ones(2), (5, 4)
    )
    data["venue"].num_nodes = 5
    src, dst = read(data).edges["paper", "in", "venue"]
    assert sorted(zip(src.tolist(), dst.tolist(), strict=True)) == [(0, 4), (1, 2)]


def test_the_target_is_chosen_among_types_with_labels() -> None:
    data = small()
    data["author"].y = torch.tensor([1, 0])
    with pytest.raises(UserError, match="have labels: paper, author"):
        read(data)
    assert read(data, target="author").labels.tolist() == [1, 0]
    assert content_digest(read(data, target="author")) != content_digest(read(data, target="paper"))
    with pytest.raises(UserError, match="no such node type") as caught:
        read(data, target="papers")
    assert caught.value.hint is not None
    assert "paper" in caught.value.hint


def test_a_graph_to_predict_on_needs_no_labels() -> None:
    data = small()
    del data["paper"].y
    graph = read(data, labelled=False, target="paper")
    assert (graph.target, graph.nodes["paper"].num_nodes) == ("paper", 4)
    with pytest.raises(UserError, match=r"task\.target"):
        read(data, labelled=False)


def test_features_are_standardized_by_type_and_another_graph_alike() -> None:
    graph = read(small(), standardize=True)
    made_by = {
        name: nodes.preprocessing
        for name, nodes in graph.nodes.items()
        if nodes.preprocessing is not None
    }
    assert set(made_by) == {"paper", "author"}
    authors = graph.nodes["author"].features.rows(0, 2)
    np.testing.assert_allclose(authors, [[-1, -1, -1], [1, 1, 1]])
    papers = graph.nodes["paper"].features.rows(0, 2)  # the training nodes
    np.testing.assert_allclose(papers, [[-1, -1], [1, 1]])
    other = small()
    other["author"].x = other["author"].x + 2
    again = graph_of_object(
        other, FilesConfig().for_target("paper"), labelled=False, preprocessing=made_by
    )
    assert isinstance(again, HeteroGraphData)
    features: Any = again.nodes["author"].features
    np.testing.assert_allclose(features.rows(0, 2), [[1, 1, 1], [3, 3, 3]])


def test_a_published_data_set_draws_its_split() -> None:
    data = small()
    for name in ("train_mask", "val_mask"):
        del data["paper"][name]
    one, other = (from_pyg(data, "theirs", split=split) for split in (0, 1))
    assert one.dataset == "theirs"
    assert sum(map(len, one.splits.values())) == 3
    assert {k: v.tolist() for k, v in one.splits.items()} != {
        k: v.tolist() for k, v in other.splits.items()
    }


def test_a_finished_typed_graph_is_taken_as_it_is() -> None:
    given = random_hetero_data()
    graph = read(given, name="mine")
    assert graph.dataset == "mine"
    assert graph.nodes is given.nodes
    made_by = {"paper": Preprocessing(columns=(), means=(0.0,), stds=(2.0,))}
    with pytest.raises(UserError, match="HeteroGraphData"):
        graph_of_object(given, FilesConfig(), labelled=False, preprocessing=made_by)


def test_a_model_of_a_typed_graph_takes_no_graph_of_one_type() -> None:
    plain = {"x": np.ones((4, 1)), "edge_index": np.zeros((2, 1), int), "y": np.arange(4) % 2}
    with pytest.raises(UserError, match="typed graph"):
        graph_of_object(plain, FilesConfig(), labelled=False, preprocessing={})


def test_the_digest_is_that_of_the_content() -> None:
    digest = content_digest(read(small()))
    assert content_digest(read(small())) == digest
    for kind, key in (("author", "x"), (WRITES, "edge_index"), ("paper", "y")):
        other = small()
        changed = other[kind][key].clone()
        changed[..., :2] = changed[..., :2].flip(-1)
        other[kind][key] = changed
        assert content_digest(read(other)) != digest
    graph = read(small())
    assert content_digest(replace(graph, reverse=True)) != digest


def test_a_type_that_only_edges_name_has_as_many_nodes_as_they_count() -> None:
    data = small()
    del data["venue"]
    graph = read(data)
    assert {name: nodes.num_nodes for name, nodes in graph.nodes.items()}["venue"] == 5
    assert graph.nodes["venue"].features is None


def with_mistake(change: Callable[[HeteroData], Any]) -> HeteroData:
    data = small()
    change(data)
    return data


MISTAKES: dict[str, tuple[Callable[[HeteroData], Any], str]] = {
    "no labels": (lambda data: delattr(data["paper"], "y"), "no node type has a label"),
    "an edge beyond": (
        lambda data: data[WRITES].update({"edge_index": torch.tensor([[2], [0]])}),
        r"'writes', 'paper'\)\]: edge_index row 0: author '2' is not in",
    ),
    "edges of a type that is not there": (
        lambda data: data["autor", "knows", "paper"].update({"edge_index": torch.zeros(2, 1)}),
        "'autor' is no node type",
    ),
    "no edge index": (lambda data: delattr(data[CITES], "edge_index"), "no edge_index"),
    "x of one dimension": (
        lambda data: data["author"].update({"x": torch.ones(2)}),
        r"\['author'\]: x is",
    ),
    "a node type that nothing tells the size of": (
        lambda data: data["empty"].update({"note": "nothing"}),
        r"data\['empty'\] has no rows",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_with_its_type(name: str) -> None:
    change, words = MISTAKES[name]
    with pytest.raises(UserError, match=words) as caught:
        read(with_mistake(change))
    assert caught.value.hint


def test_keys_without_use_are_refused() -> None:
    with pytest.raises(UserError, match=r"dataset\.weight_column"):
        read(small(), weight_column="edge_attr")
    with pytest.raises(UserError, match=r"dataset\.header"):
        read(small(), header=True)


def test_reverse_edge_types_of_pyg_are_edge_types_like_others() -> None:
    graph = read(ToUndirected()(small()))
    assert ("paper", "rev_writes", "author") in graph.edges
