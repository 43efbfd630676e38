"""Typed graphs from tables: one small graph, written in many ways, against what was written."""

from __future__ import annotations

import csv
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import feather, parquet
from scipy import sparse

from gnntrain.config import FilesConfig
from gnntrain.data.build import write_store
from gnntrain.data.datasets import builder_for
from gnntrain.data.graph import SPLITS, EdgeType, HeteroGraphData, NodeData, PrepareOptions
from gnntrain.data.store import StoredGraph
from gnntrain.errors import UserError
from tests.examples import examples

AUTHORS = "author_id,h,area,split\na1,1,ml,train\na2,2,db,val\na3,3,ml,test\n007,4,db,train\n"
PAPERS = "id,year\n10,2001\n20,2002\n30,2003\n"
WRITES = "author_id,id\na1,10\na2,10\na3,30\n007,20\n"
SCHEMA: dict[str, Any] = {
    "nodes": {
        "author": {"files": "authors.csv", "id": "author_id", "label": "area", "split": "split"},
        "paper": {"files": "papers.csv"},
    },
    "edges": {"author/writes/paper": {"files": "writes.csv"}},
}


def build(folder: Path, schema: object, target: str | None = None, **keys: Any) -> HeteroGraphData:
    path = folder / "graph.yaml"
    path.write_text(yaml.safe_dump(schema), encoding="utf-8")
    config = FilesConfig.model_validate({"schema": str(path), **keys}).for_target(target)
    data = builder_for(config).build()
    assert isinstance(data, HeteroGraphData)
    return data


def write(folder: Path, **texts: str) -> Path:
    """Write the usual tables; a text replaces one of them, or is one more."""
    usual = {"authors": AUTHORS, "papers": PAPERS, "writes": WRITES}
    for name, text in {**usual, **texts}.items():
        (folder / f"{name}.csv").write_text(text, encoding="utf-8")
    return folder


def mistake(folder: Path, schema: object, **keys: Any) -> str:
    with pytest.raises(UserError) as caught:
        build(folder, schema, **keys)
    return f"{caught.value.message}\n{caught.value.hint}"


def changed(*path: str, to: Any) -> dict[str, Any]:
    """The usual schema with another value somewhere."""
    schema: dict[str, Any] = yaml.safe_load(yaml.safe_dump(SCHEMA))
    place = schema
    for key in path[:-1]:
        place = place.setdefault(key, {})
    place[path[-1]] = to
    return schema


def ids_of(nodes: NodeData) -> list[Any]:
    if nodes.ids is None:
        return list(range(nodes.num_nodes))
    return [i.decode() if isinstance(i, bytes) else i for i in nodes.ids.tolist()]


def features_of(nodes: NodeData) -> list[list[float]]:
    if nodes.features is None:
        return []
    if isinstance(nodes.features, np.ndarray):
        return nodes.features.tolist()  # type: ignore[no-any-return]
    return nodes.features.rows(0, nodes.num_nodes).tolist()  # type: ignore[no-any-return]


def edges_of(data: HeteroGraphData) -> dict[EdgeType, list[tuple[Any, Any]]]:
    """The edges by the ids of their ends, in their order."""
    ids = {name: ids_of(nodes) for name, nodes in data.nodes.items()}
    return {
        name: [
            (ids[name[0]][u], ids[name[2]][v])
            for u, v in zip(src.tolist(), dst.tolist(), strict=True)
        ]
        for name, (src, dst) in data.edges.items()
    }


def test_a_table_a_type(tmp_path: Path) -> None:
    data = build(write(tmp_path), SCHEMA)
    assert list(data.nodes) == ["author", "paper"]
    assert ids_of(data.nodes["author"]) == ["a1", "a2", "a3", "007"]
    assert features_of(data.nodes["author"]) == [[1], [2], [3], [4]]
    assert ids_of(data.nodes["paper"]) == [10, 20, 30]
    assert data.nodes["paper"].feature_names == ("year",)
    assert edges_of(data) == {
        ("author", "writes", "paper"): [("a1", 10), ("a2", 10), ("a3", 30), ("007", 20)]
    }
    assert (data.target, data.task, data.num_classes) == ("author", "binary", 2)
    assert data.labels.tolist() == [1, 0, 1, 0]
    assert data.class_names is not None
    assert data.class_names.tolist() == [b"db", b"ml"]
    assert [data.splits[name].tolist() for name in SPLITS] == [[0, 3], [1], [2]]
    assert not data.reverse


def test_its_store_has_types_features_ids_and_reverse_edges(tmp_path: Path) -> None:
    data = build(write(tmp_path), {**SCHEMA, "reverse": True}, standardize=True)
    graph = write_store(tmp_path / "store", data, PrepareOptions(), {})
    assert set(graph.edges) == {("author", "writes", "paper"), ("paper", "rev_writes", "author")}
    assert graph.target == "author"
    years = graph.nodes["paper"].features.ravel()
    np.testing.assert_allclose(years, np.array([-1, 0, 1]) * 1.5**0.5, rtol=1e-6)
    made_by = StoredGraph.open(graph.path).meta.preprocessing
    assert made_by == {name: nodes.preprocessing for name, nodes in data.nodes.items()}


def test_ids_of_a_type_without_a_table_are_those_of_its_edges(tmp_path: Path) -> None:
    data = build(write(tmp_path), changed("nodes", "paper", to={}))
    assert ids_of(data.nodes["paper"]) == [10, 20, 30]
    assert data.nodes["paper"].features is None
    assert edges_of(data)[("author", "writes", "paper")][2] == ("a3", 30)
    text = WRITES.replace("20", "x")
    data = build(write(tmp_path, writes=text), changed("nodes", "paper", to=None))
    assert ids_of(data.nodes["paper"]) == ["10", "30", "x"]


def test_a_type_without_a_table_takes_ids_of_all_its_edges(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"from": [20, 40], "to": ["é", "b"]}), tmp_path / "in.parquet")
    schema = changed("nodes", "paper", to={})
    schema["nodes"]["venue"] = {}
    schema["edges"]["paper/in/venue"] = {"files": "in.parquet"}
    data = build(write(tmp_path), schema)
    assert ids_of(data.nodes["paper"]) == [10, 20, 30, 40]
    assert ids_of(data.nodes["venue"]) == ["b", "é"]
    assert edges_of(data)[("paper", "in", "venue")] == [(20, "é"), (40, "b")]


def test_several_files_are_one_table_in_natural_order(tmp_path: Path) -> None:
    header, *lines = AUTHORS.splitlines()
    for number, line in zip((1, 2, 10, 11), lines, strict=True):
        (tmp_path / f"authors-{number}.csv").write_text(f"{header}\n{line}\n")
    data = build(write(tmp_path), changed("nodes", "author", "files", to="authors-*.csv"))
    assert ids_of(data.nodes["author"]) == ["a1", "a2", "a3", "007"]
    assert data.labels.tolist() == [1, 0, 1, 0]
    (tmp_path / "authors-2.csv").write_text("author_id,g\na2,1\n")
    told = mistake(tmp_path, changed("nodes", "author", "files", to="authors-*.csv"))
    assert "authors-2.csv" in told


def test_bad_rows_of_several_files_are_told_with_their_file_and_line(tmp_path: Path) -> None:
    write(tmp_path, more="author_id,id\na1,10\nzz,20\n")
    schema = changed("edges", "author/writes/paper", "files", to=["writes.csv", "more.csv"])
    told = mistake(tmp_path, schema)
    assert "more.csv line 3" in told
    assert "'zz'" in told
    data = build(tmp_path, schema, bad_rows="skip")
    assert len(edges_of(data)[("author", "writes", "paper")]) == 5


def test_arrays_and_sparse_matrices(tmp_path: Path) -> None:
    sparse.save_npz(tmp_path / "x.npz", sparse.csr_matrix(np.diag([1.0, 2, 3])))
    np.save(tmp_path / "p0.npy", np.arange(4.0).reshape(2, 2))
    np.save(tmp_path / "p1.npy", np.arange(4.0, 6).reshape(1, 2))
    sparse.save_npz(tmp_path / "e.npz", sparse.coo_matrix(([1, 1], ([0, 2], [1, 2])), (3, 3)))
    sparse.save_npz(tmp_path / "w.npz", sparse.csr_matrix(np.array([[0, 1, 0]]).repeat(2, axis=0)))
    np.save(tmp_path / "y.npy", np.array([0, 1, 0]))
    for name, ids in (("train", [0, 1]), ("val", [2])):
        np.save(tmp_path / f"{name}.npy", ids)
    np.save(tmp_path / "test.npy", np.zeros(3, bool))
    schema = {
        "nodes": {
            "a": {
                "files": "x.npz",
                "label": {"file": "y.npy"},
                "split": {"train": "train.npy", "val": "val.npy", "test": "test.npy"},
            },
            "b": {"files": ["p0.npy", "p1.npy"]},
            "c": {"files": "p0.npy", "features": []},
        },
        "edges": {"a/to/b": {"files": "e.npz"}, "c/in/a": {"files": "w.npz"}},
    }
    data = build(tmp_path, schema)
    assert features_of(data.nodes["a"]) == [[1, 0, 0], [0, 2, 0], [0, 0, 3]]
    assert features_of(data.nodes["b"]) == [[0, 1], [2, 3], [4, 5]]
    assert data.nodes["c"].num_features == 0
    assert data.nodes["c"].num_nodes == 2
    assert edges_of(data) == {
        ("a", "to", "b"): [(0, 1), (2, 2)],
        ("c", "in", "a"): [(0, 1), (1, 1)],
    }
    assert data.labels.tolist() == [0, 1, 0]
    assert {k: v.tolist() for k, v in data.splits.items()} == {
        "train": [0, 1],
        "val": [2],
        "test": [],
    }


def test_labels_and_splits_in_files_of_their_own(tmp_path: Path) -> None:
    write(tmp_path, l="who,kind,area\na3,x,ml\na1,y,db\na2,y,db\n", s="id,fold\na1,train\na3,val\n")
    label = {"file": "l.csv", "id": "who", "column": "kind"}
    author = {
        "files": "authors.csv",
        "id": "author_id",
        "features": ["h"],
        "label": label,
        "split": {"file": "s.csv"},
    }
    data = build(tmp_path, changed("nodes", "author", to=author))
    assert data.labels.tolist() == [1, 1, 0, -1]
    assert [data.splits[name].tolist() for name in SPLITS] == [[0], [2], []]


def test_labels_and_splits_may_be_in_several_files(tmp_path: Path) -> None:
    write(tmp_path, l1="id,area\na1,ml\na2,db\n", l2="id,area\na3,ml\n007,db\n")
    write(tmp_path, t1="id\na1\n", t2="id\n007\n", t3="id\na1\n")
    np.save(tmp_path / "val-1.npy", np.array([False, True]))
    np.save(tmp_path / "val-2.npy", np.array([False, False]))
    author = {
        **{"files": "authors.csv", "id": "author_id", "features": ["h"]},
        "label": {"file": "l*.csv"},
        "split": {"train": "t[12].csv", "val": "val-*.npy"},
    }
    data = build(tmp_path, changed("nodes", "author", to=author))
    assert data.labels.tolist() == [1, 0, 1, 0]
    assert [data.splits[name].tolist() for name in SPLITS] == [[0, 3], [1], []]
    author["split"] = {"train": "t*.csv"}
    told = mistake(tmp_path, changed("nodes", "author", to=author))
    assert "t3.csv line 2: node 'a1' is there already" in told
    write(tmp_path, s1="id,fold\na1,train\na3,val\n", s2="id,fold\n007,test\n")
    author["split"] = {"file": "s[12].csv", "column": "fold"}
    data = build(tmp_path, changed("nodes", "author", to=author))
    assert [data.splits[name].tolist() for name in SPLITS] == [[0], [2], [3]]
    for part, labels in enumerate(([3, 0], [3, 0])):
        np.save(tmp_path / f"y{part}.npy", labels)
    author["label"] = {"file": "y*.npy"}
    data = build(tmp_path, changed("nodes", "author", to=author))
    assert data.labels.tolist() == [1, 0, 1, 0]


def test_a_type_without_a_table_may_have_labels(tmp_path: Path) -> None:
    write(tmp_path, l="id,kind\n30,x\n10,y\n")
    schema = changed("nodes", "paper", to={"label": {"file": "l.csv"}})
    del schema["nodes"]["author"]["label"]
    schema["nodes"]["author"]["ignore"] = "area"
    data = build(tmp_path, schema)
    assert data.target == "paper"
    assert data.labels.tolist() == [1, -1, 0]


def test_foreign_keys_are_edges_and_an_empty_one_is_none(tmp_path: Path) -> None:
    papers = "id,year,venue,editor\n10,2001,v1,a1\n20,2002,,a2\n30,2003,v2,NA\n"
    schema = changed("nodes", "paper", "foreign_keys", to={"venue": "venue", "editor": "author"})
    schema["nodes"]["venue"] = {}
    data = build(write(tmp_path, papers=papers), schema)
    assert data.nodes["paper"].feature_names == ("year",)
    found = edges_of(data)
    assert found[("paper", "venue", "venue")] == [(10, "v1"), (30, "v2")]
    assert found[("paper", "editor", "author")] == [(10, "a1"), (20, "a2")]
    told = mistake(write(tmp_path, papers=papers.replace("a2", "a9")), schema)
    assert "papers.csv line 3" in told
    assert "author 'a9'" in told


def test_a_foreign_key_may_be_missing_in_a_column_of_floats(tmp_path: Path) -> None:
    papers = pa.table({"id": [10, 20, 30], "venue": np.array([1.0, np.nan, 2.0])})
    parquet.write_table(papers, write(tmp_path) / "papers.parquet")
    paper = {"files": "papers.parquet", "foreign_keys": {"venue": "venue"}}
    schema = changed("nodes", "paper", to=paper)
    schema["nodes"]["venue"] = {}
    found = edges_of(build(tmp_path, schema))
    assert found[("paper", "venue", "venue")] == [(10, 1), (30, 2)]


def test_features_of_each_type_are_prepared_by_its_own_keys(tmp_path: Path) -> None:
    papers = "id,kind,pages,title\n10,long,8,A\n20,short,,B\n30,long,12,C\n"
    paper = {
        "files": "papers.csv",
        "categorical": ["kind"],
        "ignore": ["title"],
        "missing": "indicator",
        "standardize": True,
    }
    data = build(write(tmp_path, papers=papers), changed("nodes", "paper", to=paper))
    nodes = data.nodes["paper"]
    assert nodes.feature_names == ("kind=long", "kind=short", "pages", "pages_missing")
    # A type without a split has the statistics of all its rows.
    np.testing.assert_allclose(
        features_of(nodes), [[1, 0, -(1.5**0.5), 0], [0, 1, 0, 1], [1, 0, 1.5**0.5, 0]], rtol=1e-6
    )
    assert features_of(data.nodes["author"]) == [[1], [2], [3], [4]]


def test_task_target_chooses_among_several_labelled_types(tmp_path: Path) -> None:
    schema = changed("nodes", "paper", "label", to="year")
    told = mistake(write(tmp_path), schema)
    assert "author, paper" in told
    assert "task.target" in told
    data = build(tmp_path, schema, "paper", task="multiclass")
    assert data.target == "paper"
    assert data.num_classes == 3
    assert data.nodes["paper"].num_features == 0
    assert "area" not in (data.nodes["author"].feature_names or ())
    with pytest.raises(UserError, match="author"):
        build(tmp_path, schema, "autor")


def test_a_label_is_found_by_its_usual_name(tmp_path: Path) -> None:
    schema = changed("nodes", "author", to={"files": "authors.csv", "id": "author_id"})
    assert "no node type has a label" in mistake(write(tmp_path), schema)
    data = build(write(tmp_path, authors=AUTHORS.replace("area", "label")), schema)
    assert data.target == "author"
    assert data.splits["val"].tolist() == [1]


@pytest.mark.parametrize("has_types", [False, True])
def test_one_table_of_nodes_and_one_of_edges(tmp_path: Path, has_types: bool) -> None:
    nodes = "id,type,h,area,year\na1,author,1,ml,\na2,author,2,db,\n1,paper,,,2001\n7,paper,,,2\n"
    edges = "source,relation,target,st,tt\na1,writes,1,author,paper\n"
    edges += "a2,writes,7,author,paper\n1,cites,7,paper,paper\na1,likes,a2,author,author\n"
    (tmp_path / "n.csv").write_text(nodes)
    (tmp_path / "e.csv").write_text(edges)
    of_types = {"source_type": "st", "target_type": "tt"} if has_types else {}
    schema = {
        "nodes": {"files": "n.csv", "types": {"author": {"label": "area"}}},
        "edges": {"files": "e.csv", "source": "source", "target": "target", **of_types},
    }
    data = build(tmp_path, schema)
    assert ids_of(data.nodes["author"]) == ["a1", "a2"]
    assert ids_of(data.nodes["paper"]) == [1, 7]
    assert data.nodes["author"].feature_names == ("h",)
    assert data.nodes["paper"].feature_names == ("year",)
    assert edges_of(data) == {
        ("author", "writes", "paper"): [("a1", 1), ("a2", 7)],
        ("paper", "cites", "paper"): [(1, 7)],
        ("author", "likes", "author"): [("a1", "a2")],
    }


def test_ids_of_keys_and_ends_are_the_texts_of_their_files(tmp_path: Path) -> None:
    authors = "author_id,h,area,zip\n1E1,1,01,00501\n1E2,2,1,\n+3,3,01,02134\n"
    schema = changed("nodes", "author", to={"files": "authors.csv", "id": "author_id"})
    schema["nodes"]["author"] |= {"label": "area", "foreign_keys": {"zip": "zip"}}
    schema["nodes"]["zip"] = {"files": "zips.csv"}
    texts = {"authors": authors, "zips": "id,size\n00501,1\n02134,2\n501,3\n"}
    texts["writes"] = "author_id,id\n1E1,10\n1E2,10\n+3,30\n"
    data = build(write(tmp_path, **texts), schema)
    ends = edges_of(data)
    assert ends["author", "zip", "zip"] == [("1E1", "00501"), ("+3", "02134")]
    assert ends["author", "writes", "paper"] == [("1E1", 10), ("1E2", 10), ("+3", 30)]
    assert data.class_names is not None
    assert data.class_names.tolist() == [b"01", b"1"]
    del schema["nodes"]["zip"]["files"]
    assert ids_of(build(tmp_path, schema).nodes["zip"]) == ["00501", "02134"]
    schema["nodes"]["zip"]["files"] = "zips.csv"
    write(tmp_path, **texts | {"authors": authors.replace("02134", "2134")})
    assert "zip '2134' is not in zips.csv, which has '02134'" in mistake(tmp_path, schema)


def test_a_node_of_one_of_several_types_is_told_as_its_table_writes_it(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,f,y\n01,1,0\n02,2,1\n")
    (tmp_path / "b.csv").write_text("id,f\nx,1\n")
    (tmp_path / "e.csv").write_text("source,relation,target\n1,r,02\n01,r,x\n")
    nodes = {"a": {"files": "a.csv", "label": "y"}, "b": {"files": "b.csv"}}
    told = mistake(tmp_path, {"nodes": nodes, "edges": {"files": "e.csv"}})
    assert "node '1' is in none of a, b; a has '01'" in told


def test_types_that_a_column_of_types_does_not_hold_are_told(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("id,type,h,y\n1,author,1,a\n2,author,2,b\n3,paper,,\n")
    (tmp_path / "e.csv").write_text("source,target\n1,3\n")
    nodes = {"files": "n.csv", "types": {"author": {"label": "y"}}}
    for edge_type, wrong in (("author/writes/papr", "papr"), ("autor/writes/paper", "autor")):
        told = mistake(tmp_path, {"nodes": nodes, "edges": {edge_type: {"files": "e.csv"}}})
        assert f"edges.{edge_type}={wrong}" in told
        assert "Did you mean" in told


def test_an_id_that_two_types_have_needs_a_column_of_types(tmp_path: Path) -> None:
    schema = {
        "nodes": {"a": {"files": "a.csv", "label": "y"}, "b": {"files": "b.csv"}},
        "edges": {"files": "e.csv"},
    }
    (tmp_path / "a.csv").write_text("id,f,y\n1,1,0\n2,2,1\n")
    (tmp_path / "b.csv").write_text("id,f\n2,1\n3,2\n")
    (tmp_path / "e.csv").write_text("source,relation,target\n1,r,2\n")
    told = mistake(tmp_path, schema)
    assert "in a and in b" in told
    assert "edges.target_type" in told


def test_triples_of_one_node_type(tmp_path: Path) -> None:
    (tmp_path / "triples.tsv").write_text("head\trelation\ttail\nx\tknows\ty\ny\t/is/a\tz\n")
    (tmp_path / "y.csv").write_text("id,label\nx,0\nz,1\n")
    schema = {
        "nodes": {"entity": {"label": {"file": "y.csv"}}},
        "edges": {"files": "triples.tsv"},
        "reverse": True,
    }
    data = build(tmp_path, schema)
    assert ids_of(data.nodes["entity"]) == ["x", "y", "z"]
    assert edges_of(data) == {
        ("entity", "knows", "entity"): [("x", "y")],
        ("entity", "/is/a", "entity"): [("y", "z")],
    }
    assert data.labels.tolist() == [0, -1, 1]


def test_columns_and_arrays_of_edges_that_are_not_read_are_told(tmp_path: Path) -> None:
    pairs, attributes = np.array([[0, 1], [1, 2]]), np.ones((2, 3))
    np.savez(tmp_path / "cites.npz", edge_index=pairs, edge_attr=attributes)
    schema = changed("edges", "paper/cites/paper", to={"files": "cites.npz"})
    schema["nodes"]["paper"]["id"] = "none"
    schema["edges"]["author/writes/paper"] |= {"source": "author_id", "target": "row"}
    data = build(write(tmp_path, writes="author_id,row,place\na1,0,1\n"), schema)
    assert data.summary is not None
    names = {"author/writes/paper.place", "paper/cites/paper.edge_attr"}
    assert {name for name in data.summary.left_out if "/" in name} == names


def test_weights_of_edges_are_told_as_not_read(tmp_path: Path) -> None:
    weighted = WRITES.replace("\n", ",0.5\n").replace(",0.5", ",weight", 1)
    data = build(write(tmp_path, writes=weighted), SCHEMA)
    assert data.summary is not None
    assert "author/writes/paper.weight" in data.summary.left_out


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (changed("nodes", "author", "files", to="autors.csv"), ["nodes.author", "authors.csv?"]),
        (changed("nodes", "author", "lable", to="x"), ["nodes.author.lable", "label?"]),
        (changed("edges", "author/writes/papr", to={"files": "writes.csv"}), ["papr", "paper?"]),
        (changed("nodes", "author", "id", to="autor_id"), ["nodes.author.id", "author_id"]),
        (changed("nodes", "author", "features", to=["g"]), ["nodes.author.features", " h"]),
        (changed("nodes", "paper", "foreign_keys", to={"year": "x"}), ["year=x"]),
        (changed("edges", "author/writes/paper", "source", to="a"), ["paper.source", "author_id"]),
        (changed("nodes", "venue", to={}), ["nodes.venue"]),
        ({"nodes": SCHEMA["nodes"]}, ["edges"]),
        ({**SCHEMA, "revers": True}, ["revers", "reverse?"]),
        ([], ["the schema"]),
        (changed("edges", "writes", to={"files": "writes.csv"}), ["author/writes/paper"]),
    ],
)
def test_mistakes_name_the_key_and_the_nearest_name(
    tmp_path: Path, schema: object, words: list[str]
) -> None:
    told = mistake(write(tmp_path), schema)
    assert not [word for word in words if word not in told], told


def test_all_names_of_columns_are_checked_before_anything_is_read(tmp_path: Path) -> None:
    bad_row = "author_id,id\nnobody,1\n"
    write(tmp_path, writes=bad_row, l="id,kind\n10,x\n20,y\n")
    schema = changed("nodes", "author", "label", to="aera")
    schema["nodes"]["author"]["ignore"] = ["spl", "h*"]
    schema["nodes"]["paper"] |= {"label": {"file": "l.csv", "column": "knid"}}
    schema["nodes"]["paper"]["foreign_keys"] = {"yaer": "author"}
    schema["edges"]["author/writes/paper"]["target"] = "idd"
    told = mistake(tmp_path, schema)
    assert "5 mistakes" in told
    for key, near in (
        *(("author.label=aera", "area"), ("author.ignore=spl", "split")),
        *(("paper.label.column=knid", "kind"), ("paper.foreign_keys=yaer", "year")),
        ("author/writes/paper.target=idd", "id"),
    ):
        assert [line for line in told.splitlines() if key in line and f"mean {near}?" in line], told
    # Nobody is advised to make a feature of what may be the label.
    assert "categorical" not in told


def test_names_of_columns_of_a_table_of_several_types_are_checked(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("id,kind,h,y\n1,a,1,x\n2,a,2,\n")
    (tmp_path / "e.csv").write_text("source,relation,target\n1,r,7\n")
    types = {"a": {"label": "yy", "features": ["hh"]}}
    nodes = {"files": "n.csv", "type": "kinds", "types": types}
    told = mistake(tmp_path, {"nodes": nodes, "edges": {"files": "e.csv", "type": "relaton"}})
    assert "4 mistakes" in told
    for key in (
        "nodes.type=kinds",
        "nodes.types.a.label=yy",
        "a.features=hh",
        "edges.type=relaton",
    ):
        assert key in told


def test_the_name_of_a_folder_is_told_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "my dataset.features of dataset.ignore"
    folder.mkdir()
    told = mistake(write(folder, papers="id,title\n10,A\n20,B\n30,C\n"), SCHEMA)
    assert f"Column title of {folder / 'papers.csv'} holds text" in told
    assert "nodes.paper.ignore=[title]" in told


def test_an_edge_to_a_node_that_its_table_lacks(tmp_path: Path) -> None:
    told = mistake(write(tmp_path, writes=WRITES + "a1,99\nb,10\n"), SCHEMA)
    assert "paper '99' is not in papers.csv" in told
    assert "author 'b' is not in authors.csv" in told
    assert "writes.csv line 6" in told


def test_all_missing_files_are_told_at_once(tmp_path: Path) -> None:
    told = mistake(tmp_path, SCHEMA)
    assert all(f"{name}.csv" in told for name in ("authors", "papers", "writes"))


def test_root_is_where_the_files_lie(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path / "elsewhere")
    (tmp_path / "graph.yaml").write_text(yaml.safe_dump(SCHEMA))
    keys = {"schema": str(tmp_path / "graph.yaml"), "root": str(tmp_path / "elsewhere")}
    data = builder_for(FilesConfig.model_validate(keys)).build()
    assert isinstance(data, HeteroGraphData)
    assert data.nodes["paper"].num_nodes == 3


def test_the_identity_changes_with_the_schema_the_files_and_the_target(tmp_path: Path) -> None:
    path = write(tmp_path) / "graph.yaml"

    def identity(schema: object = SCHEMA, target: str | None = None, **keys: Any) -> object:
        path.write_text(yaml.safe_dump(schema))
        config = FilesConfig.model_validate({"schema": str(path), **keys}).for_target(target)
        return builder_for(config).identity()

    first = identity()
    path.write_text("# a comment\n" + path.read_text())
    assert identity() == first
    others = [
        identity({**SCHEMA, "reverse": True}),
        identity(target="paper"),
        identity(standardize=True),
        identity(split=1),
    ]
    (tmp_path / "writes.csv").write_text(WRITES + "a1,20\n")
    others.append(identity())
    assert all(other != first for other in others)
    assert len({repr(other) for other in others}) == len(others)


def test_another_graph_is_prepared_as_the_trained_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    papers = "id,kind,pages\n10,long,8\n20,short,9\n30,long,13\n"
    schema = changed("nodes", "paper", "categorical", to=["kind"])
    data = build(write(tmp_path, papers=papers), schema, standardize=True)
    made_by = {
        name: nodes.preprocessing
        for name, nodes in data.nodes.items()
        if nodes.preprocessing is not None
    }
    new = tmp_path / "new"
    new.mkdir()
    write(
        new,
        authors="h,author_id,area\n9,z,ml\n",
        papers="pages,id,kind\n10,5,new\n",
        writes="z,5\n",
    )
    config = FilesConfig.model_validate(
        {"schema": str(tmp_path / "graph.yaml"), "root": str(new), "standardize": True}
    )
    with caplog.at_level(logging.WARNING, "gnntrain"):
        again = builder_for(config, labelled=False, preprocessing=made_by).build()
    assert "area" not in caplog.text  # labels are expected, and not read
    assert isinstance(again, HeteroGraphData)
    assert again.target == "author"
    assert not again.labelled
    np.testing.assert_allclose(features_of(again.nodes["paper"]), [[0, 0, 0]], atol=1e-6)
    assert edges_of(again) == {("author", "writes", "paper"): [("z", 5)]}
    write(new, papers="id,kind\n5,new\n")
    with pytest.raises(UserError, match="pages"):
        builder_for(config, labelled=False, preprocessing=made_by).build()
    plain = FilesConfig(features=str(new / "papers.csv"), edges=str(new / "writes.csv"))
    with pytest.raises(UserError, match="typed graph"):
        builder_for(plain, labelled=False, preprocessing=made_by).build()


# One random graph, written in many ways.

Row = list[Any]


@dataclass(frozen=True)
class Drawn:
    """A typed graph by ids.

    Attributes:
        nodes: Of each type: ids, each with one feature.
        edges: Source type, relation, target type, and the ids of both ends.
        labels: A class for each node of type `a`.
    """

    nodes: dict[str, list[tuple[Any, float]]]
    edges: list[tuple[str, str, str, Any, Any]]
    labels: list[str]

    def expected(self) -> dict[EdgeType, list[tuple[Any, Any]]]:
        found: dict[EdgeType, list[tuple[Any, Any]]] = {}
        for source, relation, target, u, v in self.edges:
            found.setdefault((source, relation, target), []).append((u, v))
        return found


@st.composite
def drawn_graphs(draw: st.DrawFn) -> Drawn:
    sizes = {name: draw(st.integers(2 if name == "a" else 1, 6)) for name in ("a", "b", "c")}
    name_of: Callable[[str, int], Any] = draw(
        st.sampled_from([lambda t, i: f"{t}{i}", lambda t, i: 100 * "abc".index(t) + 3 * i])
    )
    nodes = {
        name: [(name_of(name, i), float(draw(st.integers(-4, 4))) / 2) for i in order]
        for name, order in (
            (name, draw(st.permutations(range(size)))) for name, size in sizes.items()
        )
    }
    types = draw(
        st.lists(
            st.sampled_from([("a", "r", "b"), ("b", "r", "c"), ("a", "s", "a"), ("b", "s", "a")]),
            min_size=1,
            max_size=30,
        )
    )
    edges = [
        (s, r, t, draw(st.sampled_from(nodes[s]))[0], draw(st.sampled_from(nodes[t]))[0])
        for s, r, t in types
    ]
    labels = ["x", "y", *draw(st.lists(st.sampled_from("xy"), min_size=10, max_size=10))]
    return Drawn(nodes, edges, labels[: len(nodes["a"])])


def save(path: Path, names: Sequence[str], rows: Iterable[Row]) -> None:
    rows = list(rows)
    if path.suffix in (".csv", ".tsv"):
        with path.open("w", newline="") as file:
            writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writerows([names, *rows])
        return
    table = pa.table({name: [row[at] for row in rows] for at, name in enumerate(names)})
    writers = {".parquet": parquet.write_table, ".feather": feather.write_feather}
    writers[path.suffix](table, path)


def table_a_type(graph: Drawn, folder: Path, suffix: str, cut: int) -> dict[str, Any]:
    """A table a type, those of `b` and of the edges in two files."""
    nodes: dict[str, Any] = {}
    for name, of_type in graph.nodes.items():
        rows: list[Row] = [[key, value] for key, value in of_type]
        parts = [rows[:cut], rows[cut:]] if name == "b" and 0 < cut < len(rows) else [rows]
        for at, part in enumerate(parts):
            save(folder / f"{name}-{at}{suffix}", ["key", "f"], part)
        nodes[name] = {"files": f"{name}-*{suffix}", "id": "key"}
    keys = [key for key, _ in graph.nodes["a"]]
    save(folder / "y.csv", ["id", "y"], [[k, y] for k, y in zip(keys, graph.labels, strict=True)])
    nodes["a"]["label"] = {"file": "y.csv", "column": "y"}
    edges = {}
    for number, (edge_type, pairs) in enumerate(graph.expected().items()):
        ends = (
            ["u", "v"]
            if number % 2 or edge_type[0] == edge_type[2]
            else [f"{edge_type[0]}_id", edge_type[2]]
        )
        save(folder / f"e{number}{suffix}", ends, [[u, v] for u, v in pairs])
        named = {"source": "u", "target": "v"} if "u" in ends else {}
        edges["/".join(edge_type)] = {"files": f"e{number}{suffix}", **named}
    return {"nodes": nodes, "edges": edges}


def one_table(graph: Drawn, folder: Path, suffix: str, cut: int) -> dict[str, Any]:
    """One table of nodes and one of edges, the rows of types between each other."""
    rows: list[Row] = []
    labels = dict(zip([key for key, _ in graph.nodes["a"]], graph.labels, strict=True))
    left = {name: list(given) for name, given in graph.nodes.items()}
    while any(left.values()):
        for name, of_type in left.items():
            if of_type:
                key, value = of_type.pop(0)
                rows.append([key, name, value, labels.get(key) if name == "a" else None])
    save(folder / f"n{suffix}", ["id", "kind", "f", "y"], rows)
    named = [[s, u, r, v, t] for s, r, t, u, v in graph.edges]
    save(folder / f"e{suffix}", ["st", "source", "rel", "target", "tt"], named)
    typed = {"source_type": "st", "target_type": "tt"} if cut % 2 else {}
    ends = {"source": "source", "target": "target"}
    return {
        "nodes": {"files": f"n{suffix}", "type": "kind", "types": {"a": {"label": "y"}}},
        "edges": {"files": f"e{suffix}", "type": "rel", **ends, **typed},
    }


@given(
    drawn_graphs(),
    st.sampled_from([table_a_type, one_table]),
    st.sampled_from([".csv", ".tsv", ".parquet", ".feather"]),
    st.integers(0, 5),
)
@examples(40)
def test_every_way_of_writing_gives_the_same_graph(
    graph: Drawn,
    way: Callable[[Drawn, Path, str, int], dict[str, Any]],
    suffix: str,
    cut: int,
) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        data = build(folder, way(graph, folder, suffix, cut))
    assert {t: ids_of(nodes) for t, nodes in data.nodes.items()} == {
        t: [key for key, _ in given] for t, given in graph.nodes.items()
    }
    for t, nodes in data.nodes.items():
        assert features_of(nodes) == [[value] for _, value in graph.nodes[t]]
    found, expected = edges_of(data), graph.expected()
    assert {t: Counter(pairs) for t, pairs in found.items()} == {
        t: Counter(pairs) for t, pairs in expected.items()
    }
    assert data.target == "a"
    assert data.class_names is not None
    names = [data.class_names[label].decode() for label in data.labels]
    assert names == graph.labels
