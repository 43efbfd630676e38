"""Typed graphs of a schema's tables; what they share with `dataset=files` is in its tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own
from scipy import sparse

from gnntrain.config import Config, FilesConfig, SyntheticConfig, from_dict
from gnntrain.data.build import write_store
from gnntrain.data.datasets import builder_for
from gnntrain.data.graph import GraphData, PrepareOptions
from gnntrain.data.store import StoredGraph
from gnntrain.planning.plan import expected_bytes
from tests.data import files
from tests.data.files import check, save

AUTHORS = "author_id,h,area,split\na1,1,ml,train\na2,2,db,val\na3,3,ml,test\n007,4,db,train\n"
PAPERS = "id,year\n10,2001\n20,2002\n30,2003\n"
WRITES = "author_id,id\na1,10\na2,10\na3,30\n007,20\n"
USUAL = {"authors": AUTHORS, "papers": PAPERS, "writes": WRITES}
SCHEMA: dict[str, Any] = {
    "nodes": {
        "author": {"files": "authors.csv", "id": "author_id", "label": "area", "split": "split"},
        "paper": {"files": "papers.csv"},
    },
    "edges": {"author/writes/paper": {"files": "writes.csv"}},
}
EVERY_PAPER = [("a1", 10), ("a2", 10), ("a3", 30), ("007", 20)]


def changed(**values: Any) -> dict[str, Any]:
    """The usual schema with other values: `author` and `paper` gain keys, others are new types or,
    with a slash, edge types."""
    schema: dict[str, Any] = yaml.safe_load(yaml.safe_dump(SCHEMA))
    for name, value in values.items():
        if name in schema["nodes"] and value:
            schema["nodes"][name] |= value
        else:
            schema["edges" if "/" in name else "nodes"][name] = value
    return schema


def write(folder: Path, contents: dict[str, Any] | None = None, schema: object = SCHEMA) -> str:
    """Write the usual tables and others, and the schema; its path."""
    for name, content in (USUAL | (contents or {})).items():
        save(folder / (name if "." in name else f"{name}.csv"), content)
    return save(folder / "graph.yaml", yaml.safe_dump(schema))


def build(
    folder: Path, contents: dict[str, Any], schema: object, target: str | None = None, **keys: Any
) -> GraphData:
    return files.build({"schema": write(folder, contents, schema), **keys}, target)


def refusal(folder: Path, contents: dict[str, Any], schema: object, **keys: Any) -> str:
    return files.refusal({"schema": write(folder, contents, schema), **keys})


ONE_TABLE = {
    "n": "id,type,h,area,year\na1,author,1,ml,\na2,author,2,db,\n1,paper,,,2001\n7,paper,,,2\n",
    "e": "source,relation,target,st,tt\na1,writes,1,author,paper\na2,writes,7,author,paper\n"
    "1,cites,7,paper,paper\na1,likes,a2,author,author\n",
}
LABELLED = {"files": "authors.csv", "id": "author_id", "features": ["h"]}
KEYED = {
    "authors": "author_id,h,area,zip\n1E1,1,01,00501\n1E2,2,1,\n+3,3,01,02134\n",
    "zips": "id,size\n00501,1\n02134,2\n501,3\n",
    "writes": "author_id,id\n1E1,10\n1E2,10\n+3,30\n",
}
OF_KEYS = {
    "author": {
        "files": "authors.csv",
        "id": "author_id",
        "label": "area",
        "foreign_keys": {"zip": "zip"},
    },
    "paper": {"files": "papers.csv"},
}
EDGES = SCHEMA["edges"]

READ: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "a table a type": (
        {}, SCHEMA,
        {"ids": {"author": ["a1", "a2", "a3", "007"], "paper": [10, 20, 30]},
         "features": {"author": [[1], [2], [3], [4]]}, "names": {"paper": ["year"]},
         "edges": {"author/writes/paper": EVERY_PAPER}, "labels": [1, 0, 1, 0],
         "classes": ["db", "ml"], "splits": [[0, 3], [1], [2]], "target": "author"},
    ),
    "ids of several tables of edges": (
        {"in.parquet": pd.DataFrame({"from": [20, 40], "to": ["é", "b"]})},
        {"nodes": {**SCHEMA["nodes"], "paper": None, "venue": {}},
         "edges": {**EDGES, "paper/in/venue": {"files": "in.parquet"}}},
        {"ids": {"paper": [10, 20, 30, 40], "venue": ["b", "é"]},
         "edges": {"paper/in/venue": [(20, "é"), (40, "b")]}},
    ),
    "labels and ids of splits in several files": (
        {"l1": "id,area\na1,ml\na2,db\n", "l2": "id,area\na3,ml\n007,db\n", "t1": "id\na1\n",
         "t2": "id\n007\n", "val-1.npy": np.array([False, True]),
         "val-2.npy": np.array([False, False])},
        changed(author={**LABELLED, "label": {"file": "l*.csv"},
                        "split": {"train": "t*.csv", "val": "val-*.npy"}}),
        {"labels": [1, 0, 1, 0], "splits": [[0, 3], [1], []]},
    ),
    "arrays of labels and a split in several files": (
        {"y0.npy": np.array([3, 0]), "y1.npy": np.array([3, 0]),
         "s1": "id,fold\na1,train\na3,val\n", "s2": "id,fold\n007,test\n"},
        changed(author={**LABELLED, "label": {"file": "y*.npy"},
                        "split": {"file": "s*.csv", "column": "fold"}}),
        {"labels": [1, 0, 1, 0], "splits": [[0], [2], [3]]},
    ),
    "labels of a type without a table": (
        {"l": "id,kind\n30,x\n10,y\n"},
        {"nodes": {"author": {"files": "authors.csv", "ignore": "area"},
                   "paper": {"label": {"file": "l.csv"}}}, "edges": EDGES},
        {"target": "paper", "labels": [1, -1, 0]},
    ),
    "a label by its usual name": (
        {"authors": AUTHORS.replace("area", "label")},
        {**SCHEMA, "nodes": {"author": {"files": "authors.csv"}, "paper": {"files": "papers.csv"}}},
        {"target": "author", "splits": [[0, 3], [1], [2]]},
    ),
    "foreign keys": (
        {"papers": "id,year,venue,editor\n10,2001,v1,a1\n20,2002,,a2\n30,2003,v2,NA\n"},
        changed(paper={"foreign_keys": {"venue": "venue", "editor": "author"}}, venue={}),
        {"names": {"paper": ["year"]},
         "edges": {"paper/venue/venue": [(10, "v1"), (30, "v2")],
                   "paper/editor/author": [(10, "a1"), (20, "a2")]}},
    ),
    "foreign keys of floats": (
        {"p.parquet": pd.DataFrame({"id": [10, 20, 30], "venue": [1.0, np.nan, 2.0]})},
        changed(paper={"files": "p.parquet", "foreign_keys": {"venue": "venue"}}, venue={}),
        {"edges": {"paper/venue/venue": [(10, 1), (30, 2)]}},
    ),
    "ids, keys and classes are texts": (
        KEYED, {"nodes": {**OF_KEYS, "zip": {"files": "zips.csv"}}, "edges": EDGES},
        {"edges": {"author/zip/zip": [("1E1", "00501"), ("+3", "02134")],
                   "author/writes/paper": [("1E1", 10), ("1E2", 10), ("+3", 30)]},
         "classes": ["01", "1"]},
    ),
    "keys of a type without a table": (
        KEYED, {"nodes": {**OF_KEYS, "zip": {}}, "edges": EDGES},
        {"ids": {"zip": ["00501", "02134"]}},
    ),
    "types at the ends told by the ids": (
        ONE_TABLE,
        {"nodes": {"files": "n.csv", "types": {"author": {"label": "area"}}},
         "edges": {"files": "e.csv", "source": "source", "target": "target"}},
        {"ids": {"author": ["a1", "a2"], "paper": [1, 7]},
         "names": {"author": ["h"], "paper": ["year"]},
         "edges": {"author/writes/paper": [("a1", 1), ("a2", 7)], "paper/cites/paper": [(1, 7)],
                   "author/likes/author": [("a1", "a2")]}},
    ),
    "types at the ends in columns, of ids that types share": (
        {"n.parquet": pd.DataFrame({"id": [1, 1, 2], "kind": ["author", "paper", "author"],
                                    "h": [1.0, 3, 2], "area": ["ml", None, "db"]}),
         "e": "st,a,rel,b,tt\nauthor,1,writes,1,paper\npaper,1,cites,1,paper\n"
              "author,2,writes,1,paper\nauthor,2,cites,1,author\n"},
        {"nodes": {"files": "n.parquet", "type": "kind", "types": {"author": {"label": "area"}}},
         "edges": {"files": "e.csv", "type": "rel", "source": "a", "target": "b",
                   "source_type": "st", "target_type": "tt"}},
        {"ids": {"author": [1, 2], "paper": [1]},
         "features": {"author": [[1], [2]], "paper": [[3]]}, "labels": [1, 0],
         "edges": {"author/writes/paper": [(1, 1), (2, 1)], "paper/cites/paper": [(1, 1)],
                   "author/cites/author": [(2, 1)]}},
    ),
    "foreign keys are edges enough": (
        {}, {"nodes": {"author": {"files": "authors.csv", "foreign_keys": {"h": "h"},
                                  "label": "area"}, "h": {}}},
        {"ids": {"h": [1, 2, 3, 4]}},
    ),
    "triples": (
        {"triples.tsv": "head\trelation\ttail\nx\tknows\ty\ny\t/is/a\tz\n",
         "y": "id,label\nx,0\nz,1\n"},
        {"nodes": {"entity": {"label": {"file": "y.csv"}}}, "edges": {"files": "triples.tsv"},
         "reverse": True},
        {"ids": {"entity": ["x", "y", "z"]},
         "edges": {"entity/knows/entity": [("x", "y")], "entity//is/a/entity": [("y", "z")]},
         "labels": [0, -1, 1]},
    ),
    "arrays and sparse matrices": (
        {"x.npz": sparse.csr_matrix(np.diag([1.0, 2, 3])), "p0.npy": np.arange(4.0).reshape(2, 2),
         "p1.npy": np.arange(4.0, 6).reshape(1, 2),
         "e.npz": sparse.coo_matrix(([1, 1], ([0, 2], [1, 2])), (3, 3)),
         "w.npz": sparse.csr_matrix(np.array([[0, 1, 0]]).repeat(2, axis=0)),
         "y.npy": np.array([0, 1, 0]), "train.npy": np.array([0, 1]), "val.npy": np.array([2]),
         "test.npy": np.zeros(3, bool)},
        {"nodes": {"a": {"files": "x.npz", "label": {"file": "y.npy"},
                         "split": {"train": "train.npy", "val": "val.npy", "test": "test.npy"}},
                   "b": {"files": ["p0.npy", "p1.npy"]}, "c": {"files": "p0.npy", "features": []}},
         "edges": {"a/to/b": {"files": "e.npz"}, "c/in/a": {"files": "w.npz"}}},
        {"features": {"a": [[1, 0, 0], [0, 2, 0], [0, 0, 3]], "b": [[0, 1], [2, 3], [4, 5]],
                      "c": [[], []]},
         "edges": {"a/to/b": [(0, 1), (2, 2)], "c/in/a": [(0, 1), (1, 1)]}, "labels": [0, 1, 0],
         "splits": [[0, 1], [2], []]},
    ),
    "two ends and a number, without names": (
        {"writes": "a1,10,0.5\na2,10,2\na3,30,1\n007,20,1\n"}, SCHEMA,
        {"edges": {"author/writes/paper": EVERY_PAPER}, "left_out": ["author/writes/paper.2"]},
    ),
    "ends called like their types": (
        {"writes": "Paper,year,author_id\n10,1999,a1\n30,2000,a3\n"}, SCHEMA,
        {"edges": {"author/writes/paper": [("a1", 10), ("a3", 30)]},
         "left_out": ["author/writes/paper.year"]},
    ),
    "columns, weights and arrays of edges": (
        {"writes": "author_id,row,weight\na1,0,1\n",
         "cites.npz": {"edge_index": np.array([[0, 1], [1, 2]]), "edge_attr": np.ones((2, 3))}},
        {"nodes": {**SCHEMA["nodes"], "paper": {"files": "papers.csv", "id": "none"}},
         "edges": {"author/writes/paper": {"files": "writes.csv", "source": "author_id",
                        "target": "row"}, "paper/cites/paper": {"files": "cites.npz"}}},
        {"left_out": ["paper.id", "author/writes/paper.weight", "paper/cites/paper.edge_attr"]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_a_schema_is_read(tmp_path: Path, name: str) -> None:
    contents, schema, expected = READ[name]
    check(build(tmp_path, contents, schema), expected)


NODES_OF_TYPES = {"a": {"files": "a.csv", "label": "y"}, "b": {"files": "b.csv"}}
TYPES = {"n": "id,type,h,y\n1,author,1,a\n2,author,2,b\n3,paper,,\n", "e": "source,target\n1,3\n"}
OF_TYPES = {"files": "n.csv", "types": {"author": {"label": "y"}}}
NOT_THERE = {"nodes": {"a": {"files": "a.csv"}, "b": {"files": "folder"}},
             "edges": {"a/to/b": {"files": "no/e.csv"}}}  # fmt: skip

REFUSED: dict[str, tuple[dict[str, Any], Any, list[str]]] = {
    "a file": ({}, changed(author={"files": "autors.csv"}), ["nodes.author", "authors.csv?"]),
    "files, a folder": ({}, NOT_THERE, ["a.csv", "nodes.b.files=folder", "e.csv"]),
    "columns of one table": (
        {"p-1": AUTHORS, "p-2": "author_id,g\na2,1\n"}, changed(author={"files": "p-*.csv"}),
        ["p-2.csv"],
    ),
    "rows of the second file": (
        {"more": "author_id,id\na1,10\nzz,20\n"},
        changed(**{"author/writes/paper": {"files": ["writes.csv", "more.csv"]}}),
        ["more.csv line 3", "'zz'"],
    ),
    "rows of edges": (
        {"writes": WRITES + "a1,99\nb,10\n"}, SCHEMA,
        ["writes.csv line 6", "paper '99' is not in papers.csv", "author 'b'"],
    ),
    "a row of a table of several types": (
        {"n": "id,type,h,y\n1,author,1,a\n3,paper,,\n2,author,x,b\n"},
        {"nodes": OF_TYPES, "edges": {"author/writes/paper": {"files": "writes.csv"}}},
        ["n.csv line 4: column h is 'x'"],
    ),
    "a node of a split twice": (
        {"t1": "id\na1\n", "t2": "id\na1\n"},
        changed(author={**LABELLED, "split": {"train": "t*.csv"}}), ["t2.csv line 2: node 'a1'"],
    ),
    "a foreign key": (
        {"papers": "id,editor\n10,a1\n20,a9\n30,\n"},
        changed(paper={"foreign_keys": {"editor": "author"}}), ["papers.csv line 3", "author 'a9'"],
    ),
    "a key that is written otherwise": (
        KEYED | {"authors": KEYED["authors"].replace("02134", "2134")},
        {"nodes": {**OF_KEYS, "zip": {"files": "zips.csv"}}, "edges": EDGES},
        ["zip '2134' is not in zips.csv, which has '02134'"],
    ),
    "an id of several types that is written otherwise": (
        {"a": "id,f,y\n01,1,0\n02,2,1\n", "b": "id,f\nx,1\n",
         "e": "source,relation,target\n1,r,02\n01,r,x\n"},
        {"nodes": NODES_OF_TYPES, "edges": {"files": "e.csv"}},
        ["node '1' is in none of a, b; a has '01'"],
    ),
    "an id that two types share": (
        {"a": "id,f,y\n1,1,0\n2,2,1\n", "b": "id,f\n2,1\n3,2\n",
         "e": "source,relation,target\n1,r,2\n"},
        {"nodes": NODES_OF_TYPES, "edges": {"files": "e.csv"}},
        ["in a and in b", "edges.target_type"],
    ),
    "an end of an edge type": (
        TYPES, {"nodes": OF_TYPES, "edges": {"author/writes/papr": {"files": "e.csv"}}},
        ["edges.author/writes/papr=papr", "Did you mean"],
    ),
    "several labels": ({}, changed(paper={"label": "year"}), ["author, paper", "task.target"]),
    "no label": (
        {},
        {**SCHEMA, "nodes": {"author": {"files": "authors.csv"}, "paper": {"files": "papers.csv"}}},
        ["no node type has a label"],
    ),
    "a column of text": (
        {"papers": "id,title\n10,A\n20,B\n30,C\n"}, SCHEMA,
        ["Column title of", "nodes.paper.ignore=[title]"],
    ),
    "all names of columns at once": (
        {"writes": "author_id,id\nnobody,1\n", "l": "id,kind\n10,x\n20,y\n"},
        changed(author={"label": "aera", "ignore": ["spl", "h*"]},
                paper={"label": {"file": "l.csv", "column": "knid"},
                       "foreign_keys": {"yaer": "author"}},
                **{"author/writes/paper": {"files": "writes.csv", "target": "idd"}}),
        [*("5 mistakes", "author.label=aera", "mean area?", "author.ignore=spl", "mean split?"),
         *("paper.label.column=knid", "mean kind?", "paper.foreign_keys=yaer", "mean year?"),
         *("author/writes/paper.target=idd", "mean id?")],
    ),
    "names of columns of tables of several types": (
        {"n": "id,kind,h,y\n1,a,1,x\n2,a,2,\n", "e": "source,relation,target\n1,r,7\n"},
        {"nodes": {"files": "n.csv", "type": "kinds",
                   "types": {"a": {"label": "yy", "features": ["hh"]}}},
         "edges": {"files": "e.csv", "type": "relaton"}},
        [*("4 mistakes", "nodes.type=kinds", "nodes.types.a.label=yy", "a.features=hh"),
         "edges.type=relaton"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_schema_is_refused_with_its_key_and_the_nearest_name(tmp_path: Path, name: str) -> None:
    contents, schema, words = REFUSED[name]
    (tmp_path / "folder").mkdir()
    message = refusal(tmp_path, contents, schema)
    assert not [word for word in words if word not in message], message


def test_features_of_each_type_are_prepared_by_its_own_keys_and_stored(tmp_path: Path) -> None:
    papers = "id,kind,pages,title\n10,long,8,A\n20,short,,B\n30,long,12,C\n"
    paper = {
        "categorical": ["kind"],
        "ignore": ["title"],
        "missing": "indicator",
        "standardize": True,
    }
    schema = {**changed(paper=paper), "reverse": True}
    data = build(tmp_path, {"papers": papers}, schema)
    check(data, {"names": {"paper": ["kind=long", "kind=short", "pages", "pages_missing"]}})
    graph = write_store(tmp_path / "store", data, PrepareOptions(), {})
    # A type without a split has the statistics of all its rows.
    pages = 1.5**0.5
    expected = [[1, 0, -pages, 0], [0, 1, 0, 1], [1, 0, pages, 0]]
    np.testing.assert_allclose(graph.nodes["paper"].features, expected, rtol=1e-6)
    assert graph.nodes["author"].features.tolist() == [[1], [2], [3], [4]]
    assert set(graph.edges) == {("author", "writes", "paper"), ("paper", "rev_writes", "author")}
    made_by = StoredGraph.open(graph.path).meta.preprocessing
    assert made_by == {name: nodes.preprocessing for name, nodes in data.nodes.items()}


def test_task_target_chooses_among_several_labelled_types(tmp_path: Path) -> None:
    schema = changed(paper={"label": "year"})
    data = build(tmp_path, {}, schema, "paper", task="multiclass")
    check(data, {"target": "paper", "names": {"paper": []}, "classes": [2001, 2002, 2003]})
    assert "area" not in (data.nodes["author"].feature_names or ())
    assert "author" in files.refusal({"schema": write(tmp_path, {}, schema)}, target="autor")
    dataset = {"name": "files", "schema": "g.yaml"}
    config = from_dict({"dataset": dataset, "task": {"target": "author"}}, saved=True)
    assert config.dataset.target == "author"
    assert config.changed(task={"target": None}).dataset.target is None
    assert Config().dataset == SyntheticConfig() != SyntheticConfig().for_target("author")


def test_tables_of_one_type_are_refused_where_a_model_has_learnt_of_several(tmp_path: Path) -> None:
    data = build(tmp_path, {}, SCHEMA)
    made_by = {name: nodes.preprocessing for name, nodes in data.nodes.items()}
    plain = {"features": str(tmp_path / "papers.csv"), "edges": str(tmp_path / "writes.csv")}
    assert "typed graph" in files.refusal(plain, labelled=False, preprocessing=made_by)


# The files of a schema.

FILES = ("a10.csv", "a2.csv", "a.csv", "sub/b.csv", "y.npy", "e.csv", "more/x/e1.csv", "[1].csv")
PATTERNS = """
nodes: {a: {files: "a*.csv", label: y}, b: {files: [sub/b.csv, "[1].csv"], label: {file: y.npy}}}
edges: {a/to/b: {files: [e.csv, "more/*/e?.csv"]}}
"""


def test_patterns_stand_for_files_in_natural_order(tmp_path: Path) -> None:
    folder = tmp_path / "g[1]*"  # signs of patterns may be part of a name
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    config = FilesConfig(schema=save(folder / "graph.yaml", PATTERNS))
    used = ["a2.csv", "a10.csv", "a.csv", "sub/b.csv", "[1].csv", "y.npy", "e.csv", "more/x/e1.csv"]

    def paths(*, labelled: bool = True) -> list[str]:
        found = builder_for(config, labelled=labelled).paths  # type: ignore[union-attr]
        return [str(path.relative_to(folder)) for path in found]

    assert paths() == used
    assert expected_bytes(config) == sum(map(len, used)), "what a plan counts"
    (folder / "y.npy").unlink()
    assert "y.npy" not in paths(labelled=False)
    assert "nodes.b.label" in files.refusal({"schema": config.schema})
