from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnntrain.data.graph import GraphData
from gnntrain.data.read.edges import PAIRS_OF_ENDS
from tests.data.test_files import build, edges_of, message_of, write


def phrase_of(data: GraphData) -> str:
    assert data.summary is not None
    return data.summary.edges


def test_ends_that_are_not_plain_are_asked_about(tmp_path: Path) -> None:
    paths = write(tmp_path, edges="edge_id,user_a,user_b\n10,20,30\n20,30,40\n")
    message = message_of(**paths)
    assert "edge_id, user_a, user_b" in message
    assert "dataset.source_column and dataset.target_column" in message
    data = build(**paths, source_column="user_a", target_column="user_b")
    assert edges_of(data) == [(1, 2), (2, 3)]
    assert "from column user_a to column user_b" in phrase_of(data)
    assert data.summary is not None
    assert "edge_id of edges.csv" in data.summary.left_out


@pytest.mark.parametrize("pair", PAIRS_OF_ENDS)
@pytest.mark.parametrize("spelling", [str, str.upper])
def test_pairs_of_usual_names_are_the_ends_wherever_they_stand(
    tmp_path: Path, pair: tuple[str, str], spelling: type
) -> None:
    source, target = map(spelling, pair)
    edges = f"edge_no,{target},time,{source}\n10,20,30,10\n20,30,40,20\n"
    assert edges_of(build(**write(tmp_path, edges=edges))) == [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    ("edges", "options"),
    [
        ("10,20\n20,30\n", {}),
        ("citing,cited\n10,20\n20,30\n", {}),
        ("citing,cited,weight\n10,20,10\n20,30,10\n", {}),
        ("w,citing,cited\n10,10,20\n10,20,30\n", {"weight_column": "w"}),
        (",citing,cited\n0,10,20\n1,20,30\n", {}),
        ("Unnamed: 0,citing,cited\n0,10,20\n1,20,30\n", {}),
        ("10,20,0.5\n20,30,10\n", {}),
        ("10 20 0.5\n20 30 0.5\n", {"suffix": "edges"}),
        ("7,10,20\n8,20,30\n", {"source_column": 1, "target_column": 2}),
    ],
)
def test_ends_that_are_plain(tmp_path: Path, edges: str, options: dict[str, Any]) -> None:
    paths = write(tmp_path, edges=edges)
    if suffix := options.pop("suffix", None):
        paths["edges"] = str(Path(paths["edges"]).rename(tmp_path / f"e.{suffix}"))
    assert edges_of(build(**paths, **options)) == [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    "edges",
    [
        "10,20,30\n20,30,40\n",  # all are node ids
        "0.5,10,20\n0.5,20,30\n",
        "10,20,0.5,1\n20,30,0.5,1\n",
        "a,b,c\n10,20,0.5\n20,30,0.5\n",
        "source,target,src,dst\n10,20,30,40\n",
        "target,count\n10,20\n",
        "weight,user\n10,20\n",
        "user,source\n10,20\n",
    ],
)
def test_ends_that_may_be_others_are_not_guessed(tmp_path: Path, edges: str) -> None:
    assert "dataset.source_column" in message_of(**write(tmp_path, edges=edges))


def test_direction_weight_and_what_is_left_out_are_told(tmp_path: Path) -> None:
    paths = write(tmp_path, edges="source,target,weight,time\n10,20,2,7\n20,30,3,8\n")
    data = build(**paths)
    assert data.edge_weight is None
    assert data.summary is not None
    assert phrase_of(data) == "2 of edges.csv, from column source to column target; no weight"
    assert "dataset.weight_column=weight" in data.summary.left_out["weight of edges.csv"]
    assert "time of edges.csv" in data.summary.left_out
    data = build(**paths, weight_column="weight")
    assert data.edge_weight is not None
    assert data.edge_weight.tolist() == [2, 3]
    assert phrase_of(data).endswith("; weight column weight")


def test_weights_may_have_a_decimal_comma(tmp_path: Path) -> None:
    texts = {"features": "id;f\n10;0,5\n20;1,5\n", "labels": "id;label\n10;a\n20;b\n"}
    paths = write(tmp_path, edges="source;target;w\n10;20;2,5\n20;10;1.5\n", **texts)
    paths["split"] = None
    options = {**paths, "weight_column": "w", "decimal": ","}
    assert "line 3: weight '1.5'" in message_of(**options)
    data = build(**options, bad_rows="skip")
    assert data.edge_weight is not None
    assert data.edge_weight.tolist() == [2.5]


def test_the_edges_of_a_file_of_a_whole_graph(tmp_path: Path) -> None:
    path = tmp_path / "graph.npz"
    pairs = np.array([[0, 1, 2], [1, 2, 3]])
    labels = np.array([0, 1, 0, 1])
    np.savez(path, x=np.eye(4), y=labels, edge_index=pairs, edge_weight=np.ones((3, 1)))
    data = build(features=str(path), edges=str(path))
    assert edges_of(data) == [(0, 1), (1, 2), (2, 3)]
    assert data.edge_weight is not None
    np.savez(path, x=np.eye(4), y=labels, start=pairs[0], end=pairs[1])
    options = {"features": str(path), "edges": str(path)}
    assert "not one value an edge" in message_of(**options)
    options |= {"source_column": "start", "target_column": "end"}
    assert edges_of(build(**options)) == [(0, 1), (1, 2), (2, 3)]


@pytest.mark.parametrize("suffix", ["npz", "pt"])
def test_arrays_of_edges_that_are_not_read_are_told(tmp_path: Path, suffix: str) -> None:
    edges = tmp_path / f"edges.{suffix}"
    pairs = np.array([[0, 1], [1, 2]])
    arrays: dict[str, Any] = {"edge_index": pairs, "edge_attr": np.ones((2, 3))}
    if suffix == "npz":
        np.savez(edges, **arrays)
    else:
        torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, edges)
    nodes = tmp_path / "nodes.npz"
    np.savez(nodes, x=np.eye(4), y=np.array([0, 1, 0, 1]))
    data = build(features=str(nodes), edges=str(edges))
    assert data.summary is not None
    assert list(data.summary.left_out) == [f"edge_attr of {edges.name}"]


def test_letters_at_the_top_of_a_list_are_nodes(tmp_path: Path) -> None:
    texts = {"features": "id,f\nu,1\nv,2\ny,3\n", "labels": "id,label\nu,a\nv,b\ny,a\n"}
    paths = {**write(tmp_path, edges="u,v\nv,y\n", **texts), "split": None}
    assert edges_of(build(**paths)) == [(0, 1), (1, 2)]
    paths = {**write(tmp_path, edges="y,v\nv,u\n", **texts), "split": None}
    assert edges_of(build(**paths)) == [(2, 1), (1, 0)]
