from __future__ import annotations

from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.config import FilesConfig
from gnntrain.config.graph_spec import GraphSpec, spec_of_schema
from gnntrain.config.problems import Problem
from tests.examples import examples


def read(raw: Any) -> tuple[GraphSpec, list[Problem]]:
    return spec_of_schema(raw, FilesConfig())


def problems_of(text: str) -> dict[str, Problem]:
    problems = read(yaml.safe_load(text))[1]
    found = {problem.key: problem for problem in problems}
    assert len(found) == len(problems)  # each is told once
    return found


def test_every_mistake_is_told_at_once_with_the_nearest_name() -> None:
    found = problems_of(
        """
        nodes:
          author: {files: a.csv, lable: x, missing: zeros, split: {fiel: s.csv}}
          venue: {files: v.csv, split: {trian: t.npy, test: u.npy}}
          paper: {files: []}
          a/b: {files: c.csv}
        edges:
          autor/writes/paper: {files: w.csv}
          writes: {files: w.csv}
          paper/cites/paper:
          paper/lists/paper: {files: []}
          author/reads/paper: [w.csv]
        revers: true
        reverse: 1
        """
    )
    assert set(found) == {
        "nodes.author.lable",
        "nodes.author.missing",
        "nodes.author.split.fiel",
        "nodes.venue.split.trian",
        "nodes.paper.files",
        "nodes.a/b",
        "edges.autor/writes/paper",
        "edges.writes",
        "edges.paper/cites/paper.files",
        "edges.paper/lists/paper.files",
        "edges.author/reads/paper",
        "edges.author/reads/paper.files",
        "revers",
        "reverse",
    }
    hints = {key: problem.hint or "" for key, problem in found.items()}
    assert "label" in hints["nodes.author.lable"]
    assert "zero" in hints["nodes.author.missing"]
    assert "file" in hints["nodes.author.split.fiel"]
    assert "train" in hints["nodes.venue.split.trian"]
    assert "author" in hints["edges.autor/writes/paper"]
    assert "reverse" in hints["revers"]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("", "nodes"),
        ("nodes: {a: {files: a.csv}}", "edges"),
        ("nodes: {a: {}, b: {files: b.csv}}\nedges: {b/to/b: {files: e.csv}}", "nodes.a"),
        ("nodes: {a: {files: a.csv, foreign_keys: {x: b}}}", "nodes.a.foreign_keys.x"),
        ("nodes: [{files: a.csv}]\nedges: {files: e.csv}", "nodes"),
        ("nodes: 3\nedges: {files: e.csv}", "nodes"),
    ],
)
def test_what_is_lacking_or_leads_nowhere_is_told(text: str, key: str) -> None:
    assert key in problems_of(text)


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
    assert problems or spec.nodes or spec.mixed
