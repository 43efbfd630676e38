"""Cutting a graph into parts on disk: what it writes, and the user's mistakes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import psutil
import pytest

from gnntrain.data.partitioning import build, metis
from gnntrain.data.partitioning.assign import assign
from gnntrain.data.partitioning.build import partition
from gnntrain.data.partitioning.kernels import PartIndex
from gnntrain.data.parts import METHODS, Method, Parts
from gnntrain.data.store import StoredGraph
from gnntrain.errors import RunError, UserError
from tests.data.oracles import small_graph
from tests.data.partitioning.oracles import assert_same_graph, stored
from tests.disks import full_disk


@pytest.fixture
def store(tmp_path: Path) -> StoredGraph:
    return stored(tmp_path / "store", small_graph(200, 1000))


@pytest.mark.parametrize("method", METHODS)
def test_the_parts_are_those_of_the_method(
    tmp_path: Path, store: StoredGraph, method: Method
) -> None:
    partition(store, 3, tmp_path / "parts", method)
    parts = Parts.open(tmp_path / "parts")
    assert parts.meta.method == method
    assert_same_graph(parts, store, assign(store, 3, method))


def test_an_empty_folder_is_filled(tmp_path: Path, store: StoredGraph) -> None:
    (tmp_path / "parts").mkdir()
    assert partition(store, 3, tmp_path / "parts", "random").num_parts == 3


def test_a_folder_that_is_not_empty_stays(tmp_path: Path, store: StoredGraph) -> None:
    mine = tmp_path / "parts" / "mine.txt"
    mine.parent.mkdir()
    mine.touch()
    for out in (mine.parent, mine, mine / "below"):
        with pytest.raises(UserError):
            partition(store, 3, out, "random")
    assert list(mine.parent.iterdir()) == [mine]


def test_a_folder_that_appears_meanwhile_stays(
    tmp_path: Path, store: StoredGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_process_is_faster(graph: StoredGraph, num_parts: int, method: Method) -> PartIndex:
        (tmp_path / "parts").mkdir()
        (tmp_path / "parts" / "mine.txt").touch()
        return assign(graph, num_parts, method)

    monkeypatch.setattr(build, "assign", other_process_is_faster)
    with pytest.raises(UserError, match="not an empty folder"):
        partition(store, 3, tmp_path / "parts", "random")
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["mine.txt"]
    assert not list(tmp_path.glob(".parts*"))


def test_a_full_disk_is_told_before_and_while_it_fills(
    tmp_path: Path, store: StoredGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    with full_disk(1000), pytest.raises(UserError, match="disk space"):
        partition(store, 3, tmp_path / "out" / "parts", "random")
    assert not any((tmp_path / "out").iterdir())
    monkeypatch.setattr(build, "free_bytes", lambda _: 1000)
    with pytest.raises(UserError, match="1,000 are free"):
        partition(store, 3, tmp_path / "parts", "random")
    assert not (tmp_path / "parts").exists()


def test_metis_where_it_is_not_installed(
    tmp_path: Path, store: StoredGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(_: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(metis, "find_spec", find)
    with pytest.raises(UserError) as caught:
        partition(store, 3, tmp_path / "parts", "metis")
    assert "gnntrain[partition]" in str(caught.value.hint)


def test_metis_of_a_graph_that_is_too_large(
    tmp_path: Path, store: StoredGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = psutil.virtual_memory()._replace(available=1000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    with pytest.raises(UserError, match="memory"):
        partition(store, 3, tmp_path / "parts", "metis")


def be_killed(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_metis_that_is_killed(
    tmp_path: Path, store: StoredGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metis, "_send_parts", be_killed)
    with pytest.raises(RunError, match="exit code -9"):
        partition(store, 3, tmp_path / "parts", "metis")
    assert not (tmp_path / "parts").exists()


_UNDER_A_LIMIT = """
import resource, sys
from pathlib import Path
from gnntrain.data.partitioning import writing
from gnntrain.data.partitioning.build import partition
from gnntrain.data.partitioning.kernels import PartIndex
from gnntrain.data.store import StoredGraph

folder, method, num_bytes = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
writing._CHUNK_BYTES = writing._CHUNK_EDGES = 1 << 18
partition(StoredGraph.open(folder / "small"), 3, folder / "small_parts", method)  # compiles
status = Path("/proc/self/status").read_text()
used = next(int(line.split()[1]) << 10 for line in status.splitlines() if "VmData" in line)
resource.setrlimit(resource.RLIMIT_DATA, (used + num_bytes,) * 2)
partition(StoredGraph.open(folder / "large"), 3, folder / "parts", method)
try:
    bytearray(num_bytes)
except MemoryError:
    print("the limit holds")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on a process's data is Linux's")
@pytest.mark.parametrize("method", ["streaming", "random"])
def test_no_array_of_edges_or_features_is_held_in_memory(tmp_path: Path, method: Method) -> None:
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
    command = [sys.executable, "-c", _UNDER_A_LIMIT, str(tmp_path), method, str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "the limit holds\n"), done.stderr
    parts = Parts.open(tmp_path / "parts")
    assert (parts.meta.num_nodes, parts.meta.num_edges) == (num_nodes, num_edges)
