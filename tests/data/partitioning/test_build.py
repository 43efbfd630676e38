"""Cutting a graph into parts on disk: what it writes, and the user's mistakes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given

from gnntrain.data import stores
from gnntrain.data.graph import GraphData
from gnntrain.data.partitioned_graph import METHODS, Method, PartitionedGraph
from gnntrain.data.partitioning import assign as assigning
from gnntrain.data.partitioning import build
from gnntrain.data.partitioning.assign import MAX_PARTS, PartIndex, assign
from gnntrain.data.partitioning.build import partition, union_of
from gnntrain.data.store import StoredGraph
from gnntrain.errors import RunError, UserError
from tests.data.oracles import assert_same_graph, small_graph, typed_graphs
from tests.disks import full_disk
from tests.examples import examples
from tests.graphs import stored
from tests.hetero_graphs import random_hetero_data


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
        assert list(Path(folder).glob("tmp*")) == []


def test_a_node_s_part_fits_in_a_byte(tmp_path: Path) -> None:
    large = stored(tmp_path / "store", small_graph(1000))
    assert partition(large, MAX_PARTS, tmp_path / "parts", "random").num_parts == MAX_PARTS
    with pytest.raises(UserError, match="from 1 to 256"):
        partition(large, MAX_PARTS + 1, tmp_path / "more", "random")


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
    assert limit < min(store.indices.nbytes, store.features.nbytes)
    command = [sys.executable, "-c", _UNDER_A_LIMIT, str(tmp_path), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "the limit holds\n"), done.stderr
    for method in ("streaming", "random"):
        parts = PartitionedGraph.open(tmp_path / method)
        assert (parts.num_nodes, parts.num_edges) == (num_nodes, num_edges)
