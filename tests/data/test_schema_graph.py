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
from gnntrain.data.preprocessing import Preprocessing
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
    made_by = StoredGraph.open(graph.path).meta.preprocessing_by_type
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
    nodes = "id,type,h,area,year\na1,author,1,ml,\na2,author,2,db,\n1,paper,,,2001\n007,paper,,,2\n"
    edges = "source,relation,target,st,tt\na1,writes,1,author,paper\n"
    edges += "a2,writes,7,author,paper\n1,cites,007,paper,paper\na1,likes,a2,author,author\n"
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


def test_neo4j_headers(tmp_path: Path) -> None:
    texts = {
        "movies-header": "movieId:ID(Movie-ID),title:string,year:int,emb:float[],"
        "seen:boolean,:LABEL",
        "movies-1": 'm1,"The, one",1999,0.5;1.5,true,Movie\n1,Two,2003,1;2,false,Movie;Sequel',
        "movies-2": "m3,Three,2004,3;4,true,Sequel;Movie",
        "actors": "id:ID(Actor-ID),name,rank:int,:LABEL\n1,Keanu,1,Actor\n2,Carrie,2,Actor",
        "roles": ":START_ID(Actor-ID),role,:END_ID(Movie-ID),:TYPE\n"
        "1,Neo,1,ACTED_IN\n2,Tri,m3,ACTED_IN\n1,,m1,DIRECTED",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.csv").write_text(f"{text}\n")
    schema = {
        "nodes": [
            {"files": ["movies-header.csv", "movies-[12].csv"], "types": {"Movie": {}}},
            {"files": "actors.csv", "types": {"Actor": {"label": "rank"}}},
        ],
        "edges": {"files": "roles.csv"},
    }
    data = build(tmp_path, schema)
    assert list(data.nodes) == ["Movie", "Actor"]
    assert ids_of(data.nodes["Movie"]) == ["m1", "1", "m3"]
    assert data.nodes["Movie"].feature_names == ("year", "emb_0", "emb_1", "seen")
    assert features_of(data.nodes["Movie"])[1] == [2003, 1, 2, 0]
    assert data.nodes["Actor"].num_features == 0
    assert edges_of(data) == {
        ("Actor", "ACTED_IN", "Movie"): [(1, "1"), (2, "m3")],
        ("Actor", "DIRECTED", "Movie"): [(1, "m1")],
    }
    own = {
        "nodes": {
            "film": {"files": ["movies-header.csv", "movies-1.csv", "movies-2.csv"]},
            "actor": {"files": "actors.csv", "label": "rank", "categorical": "name"},
        },
        "edges": {"actor/acts/film": {"files": "roles.csv"}},
    }
    data = build(tmp_path, own)
    assert len(edges_of(data)[("actor", "acts", "film")]) == 3
    assert data.nodes["actor"].feature_names == ("name=Carrie", "name=Keanu")


def left_out(data: HeteroGraphData) -> set[str]:
    assert data.summary is not None
    return set(data.summary.left_out)


def test_edge_features_and_times_must_be_there_and_are_told(tmp_path: Path) -> None:
    writes = "author_id,id,pos,date\na1,10,1,2001\n"
    table = {"files": "writes.csv", "features": ["pos"], "time": "date"}
    schema = changed("edges", "author/writes/paper", to=table)
    data = build(write(tmp_path, writes=writes), schema)
    assert {f"author/writes/paper.{name}" for name in ("pos", "date")} <= left_out(data)
    told = mistake(tmp_path, changed("edges", "author/writes/paper", to={**table, "time": "dat"}))
    assert "edges.author/writes/paper.time" in told
    assert "date" in told


def test_weights_of_edges_are_told_as_not_read(tmp_path: Path) -> None:
    weighted = WRITES.replace("\n", ",0.5\n").replace(",0.5", ",weight", 1)
    data = build(write(tmp_path, writes=weighted), SCHEMA)
    assert "author/writes/paper.weight" in left_out(data)


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


def test_words_of_graphstorm_are_understood_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    schema = {
        "nodes": {
            "author": {
                "files": ["authors.csv"],
                "node_id_col": "author_id",
                "label_col": "area",
                "feature_col": "h",
            },
            "paper": {"files": "papers.csv", "node_id_col": "id"},
        },
        "edges": {
            "author,writes,paper": {
                "files": "writes.csv",
                "source_id_col": "author_id",
                "dest_id_col": "id",
            }
        },
    }
    data = build(write(tmp_path), schema)
    assert edges_of(data)[("author", "writes", "paper")][0] == ("a1", 10)
    for word, ours in (("node_id_col", "id"), ("dest_id_col", "target"), ("label_col", "label")):
        assert f"{word} is read as {ours}" in caplog.text
    assert isinstance(data.nodes["paper"].preprocessing, Preprocessing)


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


def neo4j(graph: Drawn, folder: Path, suffix: str, cut: int) -> dict[str, Any]:
    """Neo4j's tables with a space of ids a type; headers in files of their own."""
    del suffix
    nodes = []
    for name, of_type in graph.nodes.items():
        labels = graph.labels if name == "a" else [""] * len(of_type)
        header = [f"key:ID({name}-space)", "f:double", "y:string", ":LABEL"]
        rows = [[key, f, y, name] for (key, f), y in zip(of_type, labels, strict=True)]
        save(folder / f"{name}-header.csv", header, [])
        for at, part in enumerate([rows[:cut], rows[cut:]]):
            with (folder / f"{name}-{at}.csv").open("w", newline="") as file:
                csv.writer(file).writerows(part)
        files = [f"{name}-{at}.csv" for at, part in enumerate([rows[:cut], rows[cut:]]) if part]
        types = {"a": {"label": "y"}} if name == "a" else {}
        nodes.append({"files": [f"{name}-header.csv", *files], "types": types})
    edges = []
    ends = sorted({(s, t) for s, _, t, _, _ in graph.edges})
    for number, (source, target) in enumerate(ends):
        header = [f":START_ID({source}-space)", ":TYPE", f":END_ID({target}-space)"]
        rows = [[u, r, v] for s, r, t, u, v in graph.edges if (s, t) == (source, target)]
        save(folder / f"rels{number}.csv", header, rows)
        edges.append({"files": f"rels{number}.csv"})
    return {"nodes": nodes, "edges": edges}


@given(
    drawn_graphs(),
    st.sampled_from([table_a_type, one_table, neo4j]),
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
