"""The parts are the graph, with its nodes renamed; what is mapped, and every way to damage it."""

from __future__ import annotations

import json
import pickle
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.data.array_folder import digest_of
from gnntrain.data.graph import NODE, SPLITS, GraphData
from gnntrain.data.partitioned_graph import PartitionedGraph
from gnntrain.data.partitioning import build
from gnntrain.data.partitioning.build import write_parts
from gnntrain.data.store import StoredGraph
from gnntrain.data.targets import TargetScale
from gnntrain.errors import UserError
from tests.data.oracles import assert_same_graph, cut_edges, graphs, small_graph, typed_graphs
from tests.examples import examples
from tests.graphs import stored
from tests.hetero_graphs import random_hetero_data

KNOWN = """schema num_nodes num_edges edge_counts target summary dataset task metric num_classes
class_names content_digest is_hetero"""

PART_OF = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 0], np.uint8)


@st.composite
def partitions(draw: st.DrawFn) -> tuple[GraphData, list[int]]:
    """A graph, and a part for each of its nodes; no part is empty."""
    data: GraphData = draw(st.one_of(graphs(), typed_graphs()))
    num_nodes = sum(nodes.num_nodes for nodes in data.nodes.values())
    num_parts = draw(st.integers(1, min(num_nodes, 12)))
    others = [draw(st.integers(0, num_parts - 1)) for _ in range(num_nodes - num_parts)]
    return data, draw(st.permutations([*range(num_parts), *others]))


@examples(150)
@given(partitions())
def test_the_parts_are_the_graph_with_its_nodes_renamed(
    drawn: tuple[GraphData, list[int]],
) -> None:
    data, parts_of_nodes = drawn
    part_of = np.array(parts_of_nodes, np.uint8)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_CHUNK_BYTES", 48)
        patch.setattr(build, "_CHUNK_EDGES", 3)
        store = stored(Path(folder) / "store", data)
        write_parts(Path(folder) / "parts", store, part_of, int(part_of.max()) + 1, "random")
        parts = PartitionedGraph.open(Path(folder) / "parts")
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
        None,
    ],
    ids=["numbers", "texts", "weights", "multilabel", "continuous", "no features", "typed"],
)
def test_what_is_known_of_a_graph_in_parts_is_what_is_known_of_the_whole(
    tmp_path: Path, other: dict[str, Any] | None
) -> None:
    data = random_hetero_data() if other is None else small_graph(**other)
    store = stored(tmp_path / "store", data, feature_dtype="bfloat16")
    part_of = (np.arange(store.num_nodes) % 3).astype(np.uint8)
    assert_same_graph(write_parts(tmp_path / "parts", store, part_of, 3, "random"), store, part_of)
    for number in range(3):
        shutil.rmtree(tmp_path / "parts" / f"part{number}")
    graph = PartitionedGraph.open(tmp_path / "parts", range(0))
    assert (graph.opened, graph.num_parts) == ((), 3)
    assert graph.ranges == dict.fromkeys(store.nodes, range(0))
    for name in KNOWN.split():
        assert getattr(graph, name) == getattr(store, name), name
    for kind, nodes in store.nodes.items():
        known = graph.nodes[kind]
        assert known.feature_dtype == nodes.feature_dtype == "bfloat16"
        assert (known.ids is None) == (nodes.ids is None)
    assert [e.weight is None for e in graph.edges.values()] == [
        e.weight is None for e in store.edges.values()
    ]
    num_train = [part.num_train for part in graph.meta.parts]
    assert sum(num_train) == len(store.split("train"))
    if store.task == "continuous":
        assert (graph.target_scale(), graph.meta.class_counts) == (TargetScale.of(store), None)
    else:
        for split in SPLITS:
            assert graph.class_counts(split).tolist() == store.class_counts(split).tolist()


def weighted(path: Path, seed: int = 0) -> StoredGraph:
    return stored(path, small_graph(seed=seed, edge_weight=np.arange(40, dtype=np.float32)))


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`parts`: of one type, with 5, 4 and 3 nodes; `typed`: two parts of a typed graph."""
    folder = tmp_path_factory.mktemp("partition")
    write_parts(folder / "parts", weighted(folder / "store"), PART_OF, 3, "random")
    typed = stored(folder / "typed_store", random_hetero_data())
    part_of = (np.arange(typed.num_nodes) % 2).astype(np.uint8)
    write_parts(folder / "typed", typed, part_of, 2, "random")
    # Seals hold for files that were written long enough before.
    time.sleep(0.05)
    return folder


@pytest.fixture
def path(originals: Path, tmp_path: Path) -> Path:
    """A copy of `parts`, sealed."""
    copy = shutil.copytree(originals / "parts", tmp_path / "parts")
    time.sleep(0.05)
    PartitionedGraph.open(copy)
    return copy


def reason(path: Path, parts: range | None = None) -> str:
    with pytest.raises(UserError) as caught:
        PartitionedGraph.open(path, parts)
    before, _, found = caught.value.message.partition(" cannot be used: ")
    assert before == f"the partition {path}"
    return found


def test_a_machine_opens_its_own_parts_and_needs_no_others(path: Path) -> None:
    shutil.rmtree(path / "part0")
    parts = PartitionedGraph.open(path, range(1, 3))
    assert [part.ranges[NODE] for part in parts.opened] == [range(5, 9), range(9, 12)]
    assert parts.ranges == {NODE: range(5, 12)}
    assert reason(path) == "part0: indptr.npy is missing"


def test_nodes_are_called_by_their_numbers_in_the_graph_that_was_partitioned(
    originals: Path,
) -> None:
    nodes, path = np.array([11, 5, 0]), originals / "parts"
    words = {None: "nodes 0, 1, 8", range(1, 2): "nodes 1", range(0): "nodes of other machines"}
    for parts, expected in words.items():
        assert PartitionedGraph.open(path, parts).in_words(nodes) == expected


def test_pickled_parts_are_a_path(originals: Path) -> None:
    graph = PartitionedGraph.open(originals / "parts", range(1, 2))
    content = pickle.dumps(graph)
    assert len(content) < 1000
    assert pickle.loads(content).ranges == graph.ranges


@pytest.mark.parametrize("file", ["part0/indices.npy", "part2/original_0.npy", "split_train.npy"])
def test_a_flipped_byte_is_found(path: Path, file: str) -> None:
    content = bytearray((path / file).read_bytes())
    content[-1] ^= 1
    (path / file).write_bytes(content)
    PartitionedGraph.open(path, check=False)
    assert f"{Path(file).name} has checksum " in reason(path)


def test_a_part_of_another_partition_is_found(path: Path, tmp_path: Path) -> None:
    write_parts(tmp_path / "other", weighted(tmp_path / "store", 1), PART_OF, 3, "random")
    shutil.rmtree(path / "part1")
    shutil.copytree(tmp_path / "other" / "part1", path / "part1")
    assert reason(path).startswith("part1: ")
    PartitionedGraph.open(path, range(2, 3))  # what is not opened is not read


def test_what_is_not_there_is_said(path: Path) -> None:
    assert reason(path / "part0") == "partition.json: it cannot be read (No such file or directory)"
    assert reason(path, range(2, 4)) == "it has 3 parts, not part 3"
    (path / "partition.json").write_text('{"format": "gnntrain-store"}')
    assert reason(path).startswith("partition.json")


CONTRADICTIONS: list[tuple[str, Callable[[Any], object], str]] = [
    ("parts", lambda m: m["parts"][1].update(node_counts=[9]), "part 1 gives indptr as int64 [5]"),
    ("parts", lambda m: m["parts"][1].update(edge_counts=[3]), "part 1 gives indices as int32"),
    ("parts", lambda m: m["parts"][2]["arrays"].pop("edge_weight"), "part 2 has other arrays"),
    ("typed", lambda m: m["parts"][0].update(node_counts=[1, 2]), "another number of types"),
    ("typed", lambda m: m["node_types"][0].update(num_nodes=41), "have not all nodes of paper"),
    ("typed", lambda m: m["arrays"].pop("original_2"), "does not list original_2"),
]


@pytest.mark.parametrize(("name", "change", "found"), CONTRADICTIONS)
def test_a_description_that_contradicts_itself_is_refused(
    originals: Path, tmp_path: Path, name: str, change: Callable[[Any], object], found: str
) -> None:
    meta = json.loads((originals / name / "partition.json").read_text())
    change(meta)
    del meta["digest"]
    meta["digest"] = digest_of(meta)
    (tmp_path / "partition.json").write_text(json.dumps(meta))
    assert found in reason(tmp_path)
