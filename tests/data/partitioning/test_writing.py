"""The parts of a graph are the graph, with its nodes renamed; nothing half-written is left."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.data.graph import SPLITS, GraphData
from gnntrain.data.partitioning import writing
from gnntrain.data.partitioning.writing import write_parts
from gnntrain.data.parts import Parts
from gnntrain.data.target_scale import TargetScale
from tests.data.oracles import graphs, small_graph
from tests.data.partitioning.oracles import assert_same_graph, cut_edges, stored
from tests.examples import examples


@st.composite
def partitions(draw: st.DrawFn) -> tuple[GraphData, list[int]]:
    """A graph, and a part for each of its nodes; no part is empty."""
    data = draw(graphs())
    num_parts = draw(st.integers(1, data.num_nodes))
    others = [draw(st.integers(0, num_parts - 1)) for _ in range(data.num_nodes - num_parts)]
    return data, draw(st.permutations([*range(num_parts), *others]))


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few nodes or edges at a time, so that tiny graphs take several chunks."""
    monkeypatch.setattr(writing, "_CHUNK_BYTES", 48)
    monkeypatch.setattr(writing, "_CHUNK_EDGES", 3)


@pytest.mark.usefixtures("small_chunks")
@examples(100)
@given(partitions())
def test_the_parts_are_the_graph_with_its_nodes_renamed(drawn: tuple[GraphData, list[int]]) -> None:
    data, parts_of_nodes = drawn
    part_of = np.array(parts_of_nodes, np.uint8)
    num_parts = int(part_of.max()) + 1
    with tempfile.TemporaryDirectory() as folder:
        store = stored(Path(folder) / "store", data)
        write_parts(Path(folder) / "parts", store, part_of, num_parts, "random")
        parts = Parts.open(Path(folder) / "parts")
        assert_same_graph(parts, store, part_of)
        assert parts.meta.cut_edges == cut_edges(store, part_of)


@pytest.mark.parametrize(
    "other",
    [
        {"node_ids": np.arange(12) + 100, "class_names": np.array([b"a", b"b", b"c"])},
        {"node_ids": np.array([f"n{i}".encode() for i in range(12)])},
        {"edge_weight": np.arange(40, dtype=np.float32)},
        {"labels": np.eye(12, 3), "task": "multilabel"},
        {"labels": np.eye(12, 3), "task": "continuous", "metric": "r2"},
        {"features": None},
    ],
    ids=["numbers", "texts", "weights", "multilabel", "continuous", "no features"],
)
def test_every_kind_of_graph(tmp_path: Path, other: dict[str, Any]) -> None:
    store = stored(tmp_path / "store", small_graph(**other), feature_dtype="bfloat16")
    part_of = (np.arange(12) % 3).astype(np.uint8)
    parts = write_parts(tmp_path / "parts", store, part_of, 3, "random")
    assert_same_graph(parts, store, part_of)
    meta = parts.meta
    assert (meta.num_nodes, meta.num_edges) == (store.num_nodes, store.num_edges)
    assert (meta.dataset, meta.task, meta.metric) == (store.dataset, store.task, store.metric)
    assert (meta.num_classes, meta.graph_schema) == (store.num_classes, store.schema)
    assert (parts.class_names, meta.summary) == (store.class_names, store.summary)
    assert (meta.feature_dtype, meta.source) == ("bfloat16", store.meta.content_digest)
    assert [part.num_train for part in meta.parts] == np.bincount(
        part_of[store.split("train")], minlength=3
    ).tolist()
    if store.task == "continuous":
        assert (meta.target_scale, meta.class_counts) == (TargetScale.of(store), None)
    else:
        assert meta.class_counts == {name: store.class_counts(name).tolist() for name in SPLITS}


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_nothing_is_left_where_writing_ends_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    store = stored(tmp_path / "store", small_graph())

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(writing, "_write_node_arrays", fail)
    with pytest.raises(type(error)):
        write_parts(tmp_path / "out" / "parts", store, np.zeros(12, np.uint8), 1, "random")
    assert not any((tmp_path / "out").iterdir())
