from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.config import FilesConfig
from gnntrain.config.graph_spec import GraphSpec, read_schema, spec_of_schema
from gnntrain.config.problems import Problem
from gnntrain.errors import UserError
from tests.examples import examples

TEXT = """
nodes:
  author: {files: "author-*.parquet", id: author_id, features: [h, emb], label: area, split: split}
  2020: {files: [a.csv, b.csv], foreign_keys: {venue: venue}}
  venue: {}
edges:
  author/writes/2020: {files: writes.csv, source: author_id, target: paper_id}
  "author, knows, author": {files: knows.csv}
reverse: true
"""


def read(raw: Any) -> tuple[GraphSpec, list[Problem]]:
    return spec_of_schema(raw, FilesConfig())


def sound(text: str) -> GraphSpec:
    spec, problems = read(yaml.safe_load(text))
    assert not problems
    return spec


def problems_of(text: str) -> dict[str, Problem]:
    return {problem.key: problem for problem in read(yaml.safe_load(text))[1]}


def test_a_table_a_type() -> None:
    tables = sound(TEXT)
    assert list(tables.nodes) == ["author", "2020", "venue"]
    assert tables.nodes["author"].files == ("author-*.parquet",)
    assert tables.nodes["author"].features == ("h", "emb")
    assert tables.nodes["2020"].files == ("a.csv", "b.csv")
    assert tables.nodes["venue"].files == ()
    assert [edges.edge_type for edges in tables.edges] == [
        ("author", "writes", "2020"),
        ("author", "knows", "author"),
    ]
    assert tables.edges[0].target == "paper_id"
    assert tables.edges[0].key("target") == "edges.author/writes/2020.target"
    assert tables.reverse
    assert not tables.mixed_nodes


@pytest.mark.parametrize("as_list", [False, True])
def test_a_table_with_a_column_of_types(as_list: bool) -> None:
    nodes = "{files: n.csv, type: kind, types: {author: {label: area}}}"
    edges = "{files: e.csv, source_type: st}"
    text = f"nodes: {nodes}\nedges: {edges}"
    tables = sound(f"nodes: [{nodes}]\nedges: [{edges}]" if as_list else text)
    assert [table.type for table in tables.mixed_nodes] == ["kind"]
    assert tables.types["author"].label.columns == ("area",)
    assert [(table.edge_type, table.source_type) for table in tables.edges] == [(None, "st")]
    assert not tables.nodes


def test_plain_data_tells_all_of_it() -> None:
    plain = [dict(sound(text).plain) for text in (TEXT, TEXT.replace("area", "field"))]
    assert plain[0] == sound("# comment\n" + TEXT).plain
    assert plain[0] != plain[1]
    assert yaml.safe_load(yaml.safe_dump(plain[0])) == plain[0]


def test_files_of_labels_and_splits_are_listed() -> None:
    tables = sound(
        "nodes: {a: {label: {file: y.npy}, split: {train: t.npy, test: e.npy}}}\n"
        "edges: {a/to/a: {files: e.csv}}"
    )
    assert tables.files(labelled=True) == {
        "nodes.a": (),
        "nodes.a.label": ("y.npy",),
        "nodes.a.split.train": ("t.npy",),
        "nodes.a.split.test": ("e.npy",),
        "edges.a/to/a": ("e.csv",),
    }


def test_every_mistake_is_told_at_once_with_the_nearest_name() -> None:
    found = problems_of(
        """
        nodes:
          author: {files: a.csv, lable: x, missing: zeros}
          paper: {files: []}
          a/b: {files: c.csv}
        edges:
          autor/writes/paper: {files: w.csv}
          writes: {files: w.csv}
          paper/cites/paper:
          author/reads/paper: [w.csv]
        revers: true
        reverse: 1
        """
    )
    assert set(found) == {
        "nodes.author.lable",
        "nodes.author.missing",
        "nodes.paper.files",
        "nodes.a/b",
        "edges.autor/writes/paper",
        "edges.writes",
        "edges.paper/cites/paper.files",
        "edges.author/reads/paper",
        "edges.author/reads/paper.files",
        "revers",
        "reverse",
    }
    hints = {key: problem.hint or "" for key, problem in found.items()}
    assert "label" in hints["nodes.author.lable"]
    assert "zero" in hints["nodes.author.missing"]
    assert "author" in hints["edges.autor/writes/paper"]
    assert "reverse" in hints["revers"]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("", "nodes"),
        ("nodes: {a: {files: a.csv}}", "edges"),
        ("nodes: {a: {}, b: {files: b.csv}}\nedges: {b/to/b: {files: e.csv}}", "nodes.a"),
        ("nodes: {a: {files: a.csv, foreign_keys: {x: b}}}", "nodes.a.foreign_keys.x"),
        ("nodes: [{type: kind}]\nedges: {files: e.csv}", "nodes[0].files"),
        ("nodes: 3\nedges: {files: e.csv}", "nodes"),
    ],
)
def test_what_is_lacking_or_leads_nowhere_is_told(text: str, key: str) -> None:
    assert key in problems_of(text)


def test_foreign_keys_are_edges_enough() -> None:
    sound("nodes: {a: {files: a.csv, foreign_keys: {x: b}}, b: {}}")


@pytest.mark.parametrize("content", ["a: [", "a: *b", "\0", "!!python/object:os.system {}"])
def test_what_is_no_yaml_is_an_error_of_the_user(tmp_path: Path, content: str) -> None:
    path = tmp_path / "graph.yaml"
    path.write_text(content)
    with pytest.raises(UserError, match=r"graph\.yaml"):
        read_schema(path, FilesConfig())
    with pytest.raises(UserError, match="none"):
        read_schema(tmp_path / "none.yaml", FilesConfig())


_PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.sampled_from(["files", "a"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["nodes", "edges", "files", "label", "split", "a", "a/b/a", "types"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(_PLAIN)
@examples(200)
def test_any_plain_data_gives_tables_or_mistakes(raw: Any) -> None:
    spec, problems = read(raw)
    assert problems or spec.nodes or spec.mixed_nodes
