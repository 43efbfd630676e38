"""The parts of a typed graph are the graph, with the nodes of each type renamed."""

from __future__ import annotations

import json
import pickle
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.data.build import write_store
from gnntrain.data.graph import SPLITS, HeteroGraphData, PrepareOptions
from gnntrain.data.partitioned_graph import PartitionedGraph
from gnntrain.data.partitioning import writing
from gnntrain.data.partitioning.build import partition
from gnntrain.data.partitioning.union import by_type, first_numbers, union_of
from gnntrain.data.partitioning.writing import write_parts
from gnntrain.data.parts import METHODS, Part, PartitionError, Parts
from gnntrain.data.store import StoredGraph
from gnntrain.data.store_meta import digest_of
from tests.data.test_hetero_store import typed_graphs
from tests.examples import examples
from tests.hetero_graphs import random_hetero_data

CITES = ("paper", "cites", "paper")


def stored(path: Path, data: HeteroGraphData | None = None) -> StoredGraph:
    return write_store(path, data or random_hetero_data(), PrepareOptions(), {"dataset": "random"})


def assert_same_graph(parts: Parts, store: StoredGraph, part_of: npt.NDArray[Any]) -> None:
    """Whether the parts are the graph, with the nodes of each type renamed."""
    old_of = {
        name: np.concatenate([part.originals[name] for part in parts.opened])
        for name in store.nodes
    }
    for name, own in by_type(store, part_of).items():
        assert sorted(old_of[name].tolist()) == list(range(len(store.nodes[name])))
        for part in parts.opened:
            assert part.originals[name].tolist() == np.flatnonzero(own == part.number).tolist()
            first, stop = parts.starts[name][part.number : part.number + 2]
            assert part.ranges[name] == range(first, stop)
        if not store.nodes[name].num_features:
            assert parts.originals[name].tolist() == old_of[name].tolist()
    for part in parts.opened:
        _assert_same_nodes(part, store)
        _assert_same_edges(part, store, old_of)
    for split in SPLITS:
        assert old_of[store.target][parts.splits[split]].tolist() == store.split(split).tolist()


def _assert_same_nodes(part: Part, store: StoredGraph) -> None:
    for name, nodes in store.nodes.items():
        ours, rows = part.graph.nodes[name], part.originals[name]
        for attribute in ("features", "labels", "ids"):
            own, theirs = getattr(ours, attribute), getattr(nodes, attribute)
            assert (own is None) == (theirs is None)
            if theirs is not None:
                assert own.dtype == theirs.dtype
                np.testing.assert_array_equal(own, theirs[rows])


def _assert_same_edges(
    part: Part, store: StoredGraph, old_of: dict[str, npt.NDArray[np.int64]]
) -> None:
    assert part.graph.edges.keys() == store.edges.keys()
    for kind, edges in store.edges.items():
        own = part.graph.edges[kind]
        for i, old in enumerate(part.originals[kind[2]].tolist()):
            ours = own.indices[own.indptr[i] : own.indptr[i + 1]]
            theirs = edges.indices[edges.indptr[old] : edges.indptr[old + 1]]
            assert old_of[kind[0]][ours].tolist() == theirs.tolist()
        assert own.indptr[0] == 0
        assert own.indptr[-1] == len(own.indices)


def slow_cut_edges(store: StoredGraph, part_of: npt.NDArray[Any]) -> int:
    parts, cut = by_type(store, part_of), 0
    for kind, edges in store.edges.items():
        destinations = np.repeat(np.arange(len(edges.indptr) - 1), np.diff(edges.indptr))
        cut += (parts[kind[2]][destinations] != parts[kind[0]][edges.indices]).sum()
    return int(cut)


@st.composite
def partitions(draw: st.DrawFn) -> tuple[HeteroGraphData, list[int]]:
    """A typed graph, and a part for each of its nodes; no part is empty."""
    data = draw(typed_graphs())
    num_nodes = sum(nodes.num_nodes for nodes in data.nodes.values())
    num_parts = draw(st.integers(1, min(num_nodes, 5)))
    others = [draw(st.integers(0, num_parts - 1)) for _ in range(num_nodes - num_parts)]
    return data, draw(st.permutations([*range(num_parts), *others]))


@examples(60)
@given(partitions())
def test_the_parts_are_the_graph_with_its_nodes_renamed(
    drawn: tuple[HeteroGraphData, list[int]],
) -> None:
    data, parts_of_nodes = drawn
    part_of = np.array(parts_of_nodes, np.uint8)
    num_parts = int(part_of.max()) + 1
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "_CHUNK_BYTES", 48)
        patch.setattr(writing, "_CHUNK_EDGES", 3)
        store = stored(Path(folder) / "store", data)
        write_parts(Path(folder) / "parts", store, part_of, num_parts, "random")
        parts = Parts.open(Path(folder) / "parts")
        assert_same_graph(parts, store, part_of)
        assert parts.meta.cut_edges == slow_cut_edges(store, part_of)


@examples(40)
@given(typed_graphs())
def test_the_union_has_all_edges_of_all_types(data: HeteroGraphData) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = stored(Path(folder) / "store", data)
        firsts = first_numbers(store)
        expected = sorted(
            (firsts[kind[2]] + v, firsts[kind[0]] + source)
            for kind, edges in store.edges.items()
            for v in range(len(edges.indptr) - 1)
            for source in edges.indices[edges.indptr[v] : edges.indptr[v + 1]].tolist()
        )
        with union_of(store, Path(folder)) as union:
            found = [
                (v, source)
                for v in range(union.num_nodes)
                for source in union.indices[union.indptr[v] : union.indptr[v + 1]].tolist()
            ]
            assert sorted(found) == expected
            shift = firsts[store.target] if store.is_hetero else 0
            assert union.split("train").tolist() == (store.split("train") + shift).tolist()
        assert [
            entry.name for entry in Path(folder).iterdir() if entry.name.startswith("tmp")
        ] == []


@pytest.mark.parametrize("method", METHODS)
def test_every_method_cuts_a_typed_graph(tmp_path: Path, method: Any) -> None:
    if method == "metis":
        pytest.importorskip("pymetis", reason="pymetis is not installed")
    store = stored(tmp_path / "store")
    parts = partition(store, 3, tmp_path / "parts", method)
    assert sum(part.num_nodes for part in parts.meta.parts) == store.num_nodes
    assert sum(part.num_edges for part in parts.meta.parts) == store.num_edges
    counts = [part.num_train for part in parts.meta.parts]
    assert sum(counts) == len(store.split("train"))
    assert max(counts) <= 8  # of 20
    sizes = [part.num_nodes for part in parts.meta.parts]
    assert max(sizes) <= 1.15 * sum(sizes) / 3


def test_what_is_known_of_a_typed_graph_in_parts_is_what_is_known_of_the_whole(
    tmp_path: Path,
) -> None:
    data = random_hetero_data()
    author = replace(data.nodes["author"], ids=np.arange(60) + 5, feature_names=("a", "b", "c"))
    store = stored(tmp_path / "store", replace(data, nodes={**data.nodes, "author": author}))
    partition(store, 2, tmp_path / "parts", "streaming")
    graph = PartitionedGraph.of(Parts.open(tmp_path / "parts", range(0)))
    for name in ("schema", "num_nodes", "num_edges", "edge_counts", "target", "summary"):
        assert getattr(graph, name) == getattr(store, name), name
    assert graph.is_hetero
    assert graph.content_digest == store.content_digest
    assert graph.nodes["author"].feature_names == ("a", "b", "c")
    assert graph.nodes["author"].ids is not None
    assert graph.class_counts("train").tolist() == store.class_counts("train").tolist()
    whole = pickle.loads(pickle.dumps(Parts.open(tmp_path / "parts")))
    assert whole.ranges == {name: range(len(nodes)) for name, nodes in store.nodes.items()}


def test_a_part_of_a_graph_in_memory_is_its_slices(tmp_path: Path) -> None:
    store = stored(tmp_path / "store")
    ranges = {"paper": range(10, 30), "author": range(60), "venue": range(7, 7)}
    part = Part.of(store, 1, ranges)
    edges = part.graph.edges[CITES]
    whole = store.edges[CITES]
    assert edges.indices.tolist() == whole.indices[whole.indptr[10] : whole.indptr[30]].tolist()
    assert part.graph.labels.tolist() == store.labels[10:30].tolist()
    assert part.originals["paper"].tolist() == list(range(10, 30))
    assert len(part.graph.edges["paper", "appears_in", "venue"]) == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda meta: meta["parts"][0].update(node_counts=[1, 2]),
        lambda meta: meta["parts"][0]["node_counts"].__setitem__(0, 1),
        lambda meta: meta["node_types"][0].update(num_nodes=41),
        lambda meta: meta.update(target="nobody"),
        lambda meta: meta["arrays"].pop("original_2"),
        lambda meta: meta["parts"][1]["arrays"].pop("features_0"),
        lambda meta: meta["parts"][1]["edge_counts"].__setitem__(0, 10**6),
    ],
)
def test_sizes_that_do_not_fit_are_refused(tmp_path: Path, change: Callable[[Any], object]) -> None:
    partition(stored(tmp_path / "store"), 2, tmp_path / "parts", "random")
    file = tmp_path / "parts" / "partition.json"
    meta = json.loads(file.read_text())
    change(meta)
    del meta["digest"]
    meta["digest"] = digest_of(meta)
    file.write_text(json.dumps(meta))
    with pytest.raises(PartitionError) as caught:
        Parts.open(tmp_path / "parts")
    assert "partition.json" in caught.value.reason
