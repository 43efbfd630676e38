"""A graph in parts: which node goes to which, what is written, and what is opened again."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.data import stores
from gnntrain.data.graph import NODE, SPLITS, Graph, GraphData
from gnntrain.data.partitioned_graph import METHODS, Method, PartitionedGraph
from gnntrain.data.partitioning import assign as assigning
from gnntrain.data.partitioning import build
from gnntrain.data.partitioning.assign import SLACK, PartIndex, assign, stream
from gnntrain.data.partitioning.build import partition, union_of, write_parts
from gnntrain.data.store import StoredGraph
from gnntrain.data.targets import TargetScale
from gnntrain.errors import RunError, UserError
from tests.data.oracles import (
    assert_same_graph,
    cut_edges,
    graphs,
    partitions,
    small_graph,
    typed_graphs,
)
from tests.disks import full_disk
from tests.examples import examples
from tests.graphs import stored
from tests.hetero_graphs import random_hetero_data
from tests.processes import python


def communities(num_nodes: int = 4000, degree: int = 10, seed: int = 0) -> GraphData:
    """Four communities of nodes whose numbers are shuffled; a tenth of the edges leaves them.

    Some nodes have many more in-edges than others, and the training nodes are in two communities.
    """
    rng = np.random.default_rng(seed)
    community = rng.permutation(num_nodes) % 4
    members = [np.flatnonzero(community == c) for c in range(4)]
    src = rng.integers(0, num_nodes, num_nodes * degree)
    size = num_nodes // 4
    places = (size * rng.random(len(src)) ** 2).astype(np.int64)
    dst = np.stack(members)[community[src], places]
    leaves = rng.random(len(src)) < 0.1
    dst[leaves] = rng.integers(0, num_nodes, leaves.sum())
    train = np.concatenate([members[0][::3], members[1][::5]])
    rest = np.setdiff1d(np.arange(num_nodes), train)
    return small_graph(
        num_nodes, src=src, dst=dst, symmetric=True,
        splits={"train": train, "val": rest[:50], "test": rest[50:]},
    )  # fmt: skip


def loads(store: StoredGraph, part_of: PartIndex, num_parts: int) -> npt.NDArray[np.float64]:
    """The largest part's nodes, edges and training nodes, over the mean."""
    is_train = np.zeros(store.num_nodes)
    is_train[store.split("train")] = 1
    weights = [np.ones(store.num_nodes), np.diff(store.only_edges.indptr), is_train]
    sums = np.array([np.bincount(part_of, w, num_parts) for w in weights])
    largest: npt.NDArray[np.float64] = sums.max(axis=1) / np.maximum(sums.mean(axis=1), 1e-9)
    return largest


@pytest.mark.parametrize("method", ["streaming", "random"])
@examples(30)
@given(st.data())
def test_every_part_has_a_node(method: Method, data: st.DataObject) -> None:
    drawn = data.draw(graphs())
    num_parts = data.draw(st.integers(1, drawn.target_nodes.num_nodes))
    with tempfile.TemporaryDirectory() as folder:
        store = stored(Path(folder) / "store", drawn)
        part_of = assign(store, num_parts, method)
        again = assign(store, num_parts, method)
    assert set(part_of.tolist()) == set(range(num_parts))
    assert part_of.tolist() == again.tolist()


@pytest.mark.parametrize(("num_edges", "num_parts"), [(0, 3), (12, 12)])
def test_every_part_has_a_node_by_metis(tmp_path: Path, num_edges: int, num_parts: int) -> None:
    pytest.importorskip("pymetis", reason="pymetis is not installed")
    store = stored(tmp_path, small_graph(12, num_edges))
    assert set(assign(store, num_parts, "metis").tolist()) == set(range(num_parts))


@pytest.fixture(scope="module")
def store_of_communities(tmp_path_factory: pytest.TempPathFactory) -> StoredGraph:
    return stored(tmp_path_factory.mktemp("communities") / "store", communities())


@pytest.mark.parametrize(
    ("method", "num_parts"), [("streaming", 2), ("streaming", 7), ("metis", 4), ("random", 7)]
)
def test_parts_are_balanced_and_a_partitioner_cuts_fewer_edges_than_chance(
    store_of_communities: StoredGraph, method: Method, num_parts: int
) -> None:
    if method == "metis":
        pytest.importorskip("pymetis", reason="pymetis is not installed")
    store = store_of_communities
    part_of = assign(store, num_parts, method)
    assert (loads(store, part_of, num_parts) <= SLACK + 1e-9).all()
    by_chance = 1 - 1 / num_parts
    share = cut_edges(store, part_of) / store.num_edges
    if method == "random":
        assert abs(share - by_chance) < 0.02
    else:
        assert share < 0.75 * by_chance


def test_random_parts_differ_by_one_node_and_one_training_node(tmp_path: Path) -> None:
    store = stored(tmp_path, small_graph(1003, 3000))
    part_of = assign(store, 7, "random")
    for sizes in (np.bincount(part_of), np.bincount(part_of[store.split("train")])):
        assert sizes.max() - sizes.min() <= 1
    # About a seventh of the pairs of neighbouring numbers meet, as under independent draws.
    assert 0.05 < np.mean(part_of[:-1] == part_of[1:]) < 0.2


def slow_pass(
    store: StoredGraph, part_of: list[int], num_parts: int, factor: float, *, is_first: bool
) -> None:
    """A pass of `stream`, as `gnntrain.data.partitioning.assign` describes it."""
    train, bounds = set(store.split("train").tolist()), store.only_edges.indptr.tolist()
    own = [(1, v - u, int(node in train)) for node, (u, v) in enumerate(pairwise(bounds))]
    shares = [sum(loads) / num_parts for loads in zip(*own, strict=True)]
    limits = [
        max(1.1 * share // 1, -(-share // 1), max(node[i] for node in own) if i == 1 else 1)
        for i, share in enumerate(shares)
    ]
    cost = max(store.num_edges, 1) / 2 / num_parts
    placed: dict[int, int] = {} if is_first else dict(enumerate(part_of))
    for node in range(store.num_nodes):
        placed.pop(node, None)
        scores = []
        for part in range(num_parts):
            excess = growth = 0.0
            for i in range(3):
                load = sum(own[v][i] for v, p in placed.items() if p == part)
                if own[node][i]:
                    unit = 1 / shares[i]
                    excess = max(excess, (load + own[node][i] - limits[i]) * unit)
                    growth += own[node][i] * unit * (load * unit) ** 0.5
            sources = store.only_edges.indices[bounds[node] : bounds[node + 1]].tolist()
            gain = sum(placed.get(source) == part for source in sources)
            scores.append((-excess, gain - 1.5 * cost * factor * growth, -part))
        placed[node] = -max(scores)[2]
    part_of[:] = [placed[node] for node in range(store.num_nodes)]


@examples(60)
@given(st.data())
def test_a_pass_places_each_node_by_its_score(data: st.DataObject) -> None:
    drawn = data.draw(graphs())
    num_parts = data.draw(st.integers(1, min(4, drawn.target_nodes.num_nodes)))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        store = stored(Path(folder) / "store", drawn)
        patch.setattr(assigning, "_FACTORS", (2.0, 0.7))
        patch.setattr(assigning, "_NODES_AT_ONCE", 5)
        found = stream(store, num_parts)
        expected = [0] * store.num_nodes
        slow_pass(store, expected, num_parts, 2.0, is_first=True)
        slow_pass(store, expected, num_parts, 0.7, is_first=False)
    assert found.tolist() == expected


# Cutting a graph into parts on disk: what it writes, and the mistakes of a user


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StoredGraph:
    return stored(tmp_path_factory.mktemp("graph") / "store", small_graph(200, 1000))


@pytest.mark.parametrize("method", METHODS)
def test_a_typed_graph_is_cut_as_one_graph(tmp_path: Path, method: Method) -> None:
    if method == "metis":
        pytest.importorskip("pymetis", reason="pymetis is not installed")
    store = stored(tmp_path / "store", random_hetero_data())
    (tmp_path / "parts").mkdir()  # an empty folder is filled
    assert partition(store, 3, tmp_path / "parts", method).num_parts == 3
    parts = PartitionedGraph.open(tmp_path / "parts")
    assert parts.meta.method == method
    with union_of(store, tmp_path) as union:
        assert_same_graph(parts, store, assign(union, 3, method))
    sizes = [part.num_nodes for part in parts.meta.parts]
    assert max(sizes) <= 1.15 * sum(sizes) / 3
    assert max(part.num_train for part in parts.meta.parts) <= 8  # of 20


@examples(40)
@given(typed_graphs())
def test_the_union_has_all_edges_of_all_types(data: GraphData) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = stored(Path(folder) / "store", data)
        ends = np.cumsum([0, *(len(nodes) for nodes in store.nodes.values())]).tolist()
        firsts = dict(zip(store.nodes, ends, strict=False))

        def pairs(graph: Graph, firsts: dict[str, int]) -> list[tuple[int, int]]:
            return sorted(
                (firsts[kind[2]] + v, firsts[kind[0]] + source)
                for kind, edges in graph.edges.items()
                for v in range(len(edges.indptr) - 1)
                for source in edges.indices[edges.indptr[v] : edges.indptr[v + 1]].tolist()
            )

        with union_of(store, Path(folder)) as union:
            assert pairs(union, dict.fromkeys(union.nodes, 0)) == pairs(store, firsts)
            shift = firsts[store.target] if store.is_hetero else 0
            assert union.split("train").tolist() == (store.split("train") + shift).tolist()
        assert list(Path(folder).glob("tmp*")) == []


def test_a_folder_that_appears_meanwhile_stays(
    tmp_path: Path, store: StoredGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_process_is_faster(graph: StoredGraph, num_parts: int, method: Method) -> PartIndex:
        (tmp_path / "parts").mkdir()
        (tmp_path / "parts" / "mine.txt").touch()
        return assign(graph, num_parts, method)

    monkeypatch.setattr(build, "assign", other_process_is_faster)
    with pytest.raises(UserError, match="Directory not empty"):
        partition(store, 3, tmp_path / "parts", "random")
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["mine.txt"]
    assert not list(tmp_path.glob(".parts*"))


def test_a_full_disk_is_told_before_and_while_it_fills(
    tmp_path: Path, store: StoredGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    with full_disk(1000), pytest.raises(RunError, match="disk space"):
        partition(store, 3, tmp_path / "out" / "parts", "random")
    assert not any((tmp_path / "out").iterdir())
    monkeypatch.setattr(stores, "free_bytes", lambda _: 10_000)
    with pytest.raises(RunError, match="10,000 are free"):
        partition(store, 3, tmp_path / "parts", "random")
    assert not (tmp_path / "parts").exists()


def test_metis_that_is_not_installed_or_needs_too_much_memory(
    tmp_path: Path, store: StoredGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(build, "find_spec", lambda _: None)
        with pytest.raises(UserError) as caught:
            partition(store, 3, tmp_path / "parts", "metis")
    assert "gnntrain[partition]" in str(caught.value.hint)
    pytest.importorskip("pymetis", reason="pymetis is not installed")
    free = psutil.virtual_memory()._replace(available=1000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    with pytest.raises(UserError, match="memory"):
        partition(store, 3, tmp_path / "parts", "metis")


def be_killed(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_metis_that_is_killed(
    tmp_path: Path, store: StoredGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pymetis", reason="pymetis is not installed")
    monkeypatch.setattr(assigning, "_send_parts", be_killed)
    with pytest.raises(RunError, match="exit code -9"):
        partition(store, 3, tmp_path / "parts", "metis")
    assert not (tmp_path / "parts").exists()


_UNDER_A_LIMIT = """
import resource, sys
from pathlib import Path
from gnntrain.data.partitioning import build
from gnntrain.data.partitioning.build import partition
from gnntrain.data.store import StoredGraph

folder, num_bytes = Path(sys.argv[1]), int(sys.argv[2])
build._CHUNK_BYTES = build._CHUNK_EDGES = 1 << 18
methods = "streaming", "random"
for method in methods:
    partition(StoredGraph.open(folder / "small"), 3, folder / f"small_{method}", method)  # compiles
status = Path("/proc/self/status").read_text()
used = next(int(line.split()[1]) << 10 for line in status.splitlines() if "VmData" in line)
resource.setrlimit(resource.RLIMIT_DATA, (used + num_bytes,) * 2)
for method in methods:
    partition(StoredGraph.open(folder / "large"), 3, folder / method, method)
try:
    bytearray(4 * num_bytes)  # too large to come out of memory that was freed before
except MemoryError:
    print("the limit holds")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on a process's data is Linux's")
def test_no_array_of_edges_or_features_is_held_in_memory(tmp_path: Path) -> None:
    """The limit is below the bytes of the indices, and of the features, of the whole graph."""
    rng = np.random.default_rng(0)
    num_nodes, num_edges = 100_000, 8_000_000
    large = small_graph(
        num_nodes, 4,
        src=rng.integers(0, num_nodes, num_edges, np.int32),
        dst=rng.integers(0, num_nodes, num_edges, np.int32),
        features=rng.random((num_nodes, 80), np.float32),
    )  # fmt: skip
    stored(tmp_path / "small", small_graph())
    store = stored(tmp_path / "large", large)
    limit = 26 << 20
    assert limit < min(store.only_edges.indices.nbytes, store.target_nodes.features.nbytes)
    done = python("-c", _UNDER_A_LIMIT, tmp_path, limit)
    assert (done.returncode, done.stdout) == (0, "the limit holds\n"), done.stderr
    for method in ("streaming", "random"):
        parts = PartitionedGraph.open(tmp_path / method)
        assert (parts.num_nodes, parts.num_edges) == (num_nodes, num_edges)


# The parts are the graph, with its nodes renamed; what is mapped, and every way to damage it


KNOWN = """schema num_nodes num_edges edge_counts target summary dataset task metric num_classes
class_names content_digest is_hetero"""

PART_OF = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 0], np.uint8)


@examples(150)
@given(partitions())
def test_the_parts_are_the_graph_with_its_nodes_renamed(drawn: tuple[GraphData, list[int]]) -> None:
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
        {"edge_weight": np.arange(40, dtype=np.float32)},
        {"labels": np.eye(12, 3), "task": "multilabel"},
        {"labels": np.eye(12, 3), "task": "continuous", "metric": "r2"},
        {"features": None},
        None,
    ],
    ids=["ids", "weights", "multilabel", "continuous", "no features", "typed"],
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
    assert len(pickle.dumps(graph)) < 1000
    assert pickle.loads(pickle.dumps(graph)).ranges == graph.ranges


@pytest.mark.parametrize("file", ["part2/original_0.npy", "split_train.npy"])
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
