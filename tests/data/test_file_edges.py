"""The ends of edges, their weights, and what else stands in a file of edges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.files import Files, Keys, build, check, refusal, write

PAIRS = np.array([[0, 1, 2], [1, 2, 3]])
NODES = {
    "features.npz": {"x": np.eye(4), "y": np.array([0, 1, 0, 1])},
    "labels": None,
    "split": None,
}
LETTERS = {
    "features": "id,f\nu,1\nv,2\ny,3\n",
    "labels": "id,label\nu,a\nv,b\ny,a\n",
    "split": None,
}
PATH = {"edges": [(0, 1), (1, 2)]}
WEIGHTED = "source,target,weight,time\n10,20,2,7\n20,30,3,8\n"
SEMICOLONS = {
    "features": "id;f\n10;0,5\n20;1,5\n",
    "labels": "id;label\n10;a\n20;b\n",
    "edges": "source;target;w\n10;20;2,5\n20;10;1.5\n",
    "split": None,
}
USUAL_ENDS = ("source target", "SRC DST", "From To", "head tail", "id1 id2")

READ: dict[str, tuple[Files, Keys, dict[str, Any]]] = {
    **{
        pair: (
            {"edges": "edge_no,{1},time,{0}\n10,20,30,10\n20,30,40,20\n".format(*pair.split())},
            {},
            {**PATH, "left_out": ["edge_no", "time"]},
        )
        for pair in USUAL_ENDS
    },
    **{
        text.partition("\n")[0]: ({"edges": text}, {}, PATH)
        for text in (
            "10,20\n20,30\n",
            "citing,cited\n10,20\n20,30\n",
            "citing,cited,weight\n10,20,10\n20,30,10\n",
            ",citing,cited\n0,10,20\n1,20,30\n",
            "Unnamed: 0,citing,cited\n0,10,20\n1,20,30\n",
            "10,20,0.5\n20,30,10\n",
        )
    },
    "an edge list": ({"edges": None, "edges.edges": "10 20 0.5\n20 30 0.5\n"}, {}, PATH),
    "letters that are usual names": ({**LETTERS, "edges": "u,v\nv,y\n"}, {}, PATH),
    "one letter that is a usual name": (
        {**LETTERS, "edges": "y,v\nv,u\n"}, {}, {"edges": [(2, 1), (1, 0)]},
    ),
    "a weight that is not read": (
        {"edges": WEIGHTED}, {}, {**PATH, "weights": None, "left_out": ["weight", "time"]},
    ),
    "weights with a decimal comma": (
        SEMICOLONS, {"weight_column": "w", "decimal": ",", "bad_rows": "skip"},
        {"edges": [(0, 1)], "weights": [2.5]},
    ),
    **{
        f"an array that is not read, {suffix}": (
            {**NODES, f"edges.{suffix}": {"edge_index": PAIRS, "edge_attr": np.ones((3, 3))}},
            {},
            {"left_out": ["edge_attr"]},
        )
        for suffix in ("npz", "pt")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_edges_are_read(tmp_path: Path, name: str) -> None:
    files, keys, expected = READ[name]
    keys = write(tmp_path, files) | keys
    data = build(keys)
    check(data, expected)
    assert data.summary is not None
    if "weights" in expected and expected["weights"] is None:
        told = data.summary.left_out["weight of edges.csv"]
        assert "dataset.weight_column=weight" in told


@pytest.mark.parametrize(
    "edges",
    [
        "edge_id,user_a,user_b\n10,20,30\n20,30,40\n",
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
    message = refusal(write(tmp_path, {"edges": edges}))
    assert "dataset.source_column" in message
    assert "dataset.target_column" in message


def test_weights_with_another_decimal_mark_are_bad_rows(tmp_path: Path) -> None:
    keys = {**write(tmp_path, SEMICOLONS), "weight_column": "w", "decimal": ","}
    assert "line 3: weight '1.5'" in refusal(keys)


def test_the_edges_of_a_file_of_a_whole_graph(tmp_path: Path) -> None:
    arrays: dict[str, Any] = NODES["features.npz"]  # type: ignore[assignment]
    chain = {"edges": [(0, 1), (1, 2), (2, 3)]}
    for ends, more, keys in (
        ({"edge_index": PAIRS}, {"edge_weight": np.ones((3, 1))}, {}),
        (
            {"start": PAIRS[0], "end": PAIRS[1]},
            {},
            {"source_column": "start", "target_column": "end"},
        ),
    ):
        paths = write(tmp_path, {**NODES, "features.npz": {**arrays, **ends, **more}})
        paths["edges"] = paths["features"]
        check(build(paths | keys), chain | {"weights": [1, 1, 1] if more else None})
        if keys:
            assert "not one value an edge" in refusal(paths)
