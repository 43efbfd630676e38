"""The folder of stores: what is built again, what is never touched, other processes, a full disk,
and what removing a store may touch."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import signal
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnntrain.config import FilesConfig
from gnntrain.data import array_folder, build, stores
from gnntrain.data.build import OpenedStore, needed_bytes, open_or_build, store_name, write_store
from gnntrain.data.graph import JSON, GraphData, PrepareOptions
from gnntrain.data.read.files import FilesBuilder
from gnntrain.data.store import StoredGraph
from gnntrain.data.stores import find_stores, locked, remove_store
from gnntrain.errors import RunError, UserError
from gnntrain.run_store import prepare_store
from tests.data.files import EDGES, write
from tests.data.oracles import Rows, small_graph
from tests.graphs import stored
from tests.processes import wait_until

IDENTITY: dict[str, JSON] = {"dataset": "sm/all", "seed": 1}
PLAIN = PrepareOptions()
NAME = store_name(IDENTITY, PLAIN)
LONG_AGO = 1_500_000_000.0


def opened(cache: Path, builder: Callable[[], GraphData] = small_graph) -> tuple[bool, str]:
    result = open_or_build(cache, lambda: IDENTITY, PLAIN, builder)
    np.testing.assert_array_equal(result.store.labels, small_graph().labels)
    return result.built, result.reason


def never(*_: object) -> Any:
    raise AssertionError("this must not be called")


def folders(cache: Path) -> list[Path]:
    return [entry for entry in cache.iterdir() if entry.is_dir()]


# Opened or built


def test_the_second_run_opens_what_the_first_built_without_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert opened(tmp_path / "new" / "cache") == (True, "built: none was there")
    monkeypatch.setattr(build, "locked", never)
    assert opened(tmp_path / "new" / "cache", never) == (False, "opened")
    monkeypatch.undo()
    half = PrepareOptions(feature_dtype="float16")
    store = open_or_build(tmp_path / "new" / "cache", lambda: IDENTITY, half, small_graph).store
    assert store.target_nodes.feature_dtype == "float16"


def test_a_damaged_store_and_one_of_other_data_are_rebuilt_with_the_reason(tmp_path: Path) -> None:
    other = open_or_build(tmp_path, lambda: {"dataset": "b"}, PLAIN, lambda: small_graph(seed=5))
    other.store.path.rename(tmp_path / NAME)
    assert opened(tmp_path) == (True, "rebuilt: it was made from other data or with other options")
    os.truncate(tmp_path / NAME / "indices.npy", 130)
    was_built, reason = opened(tmp_path)
    assert was_built
    assert reason.startswith("rebuilt: indices.npy")
    assert opened(tmp_path, never) == (False, "opened")


@pytest.mark.parametrize("name", ["thesis.txt", "features_0.npy"])
def test_a_directory_that_is_no_store_is_never_touched(tmp_path: Path, name: str) -> None:
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / name).write_text("years of work")
    with pytest.raises(UserError, match="is not a graph store"):
        opened(tmp_path, never)
    assert (tmp_path / NAME / name).read_text() == "years of work"


def test_a_store_with_a_foreign_file_in_it_is_opened_but_not_replaced(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    assert opened(tmp_path) == (True, "built: none was there")  # an empty folder is filled
    (tmp_path / NAME / "notes.txt").write_text("mine")
    assert opened(tmp_path, never) == (False, "opened")
    (tmp_path / NAME / "labels.npy").unlink()
    with pytest.raises(UserError, match=r"it holds notes\.txt"):
        opened(tmp_path)


def test_a_disk_without_room_or_that_fails_is_said_and_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="graph store") as caught:
        opened(tmp_path / "file" / "cache")
    assert "dataset.store_dir" in str(caught.value.hint)
    with monkeypatch.context() as patch:
        patch.setattr(stores, "free_bytes", lambda _: 1000)
        with pytest.raises(RunError, match=r"[0-9,]+ bytes are needed, [0-9,]+ are free"):
            opened(tmp_path)
    assert folders(tmp_path) == []
    numbers = [errno.EDQUOT, errno.EROFS]

    def fail(_: int) -> None:
        number = numbers.pop(0)
        raise OSError(number, os.strerror(number))

    for kind in (RunError, UserError):
        with pytest.raises(kind):
            opened(tmp_path, lambda: small_graph(features=Rows(np.ones((12, 5)), fail)))
        assert folders(tmp_path) == []


def test_an_estimate_of_the_disk_space_is_close(tmp_path: Path) -> None:
    data = small_graph(3000, 20_000, symmetric=True, edge_weight=np.ones(20_000, dtype=np.float32))
    options = PrepareOptions(add_self_loops=True)
    store = write_store(tmp_path / "store", data, options, IDENTITY)
    needed = needed_bytes(data, options)
    assert store.num_bytes <= needed < 1.3 * store.num_bytes + 2**17


def start_building(cache: Path, log: Path, seconds: float) -> BaseProcess:
    """Start a process that opens or builds the store; it notes in `log` that it builds."""
    process = get_context("forkserver").Process(target=_build_slowly, args=(cache, log, seconds))
    process.start()
    return process


def _build_slowly(cache: Path, log: Path, seconds: float) -> None:
    def builder() -> GraphData:
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        features = Rows(small_graph().target_nodes.features, lambda _: time.sleep(seconds))
        return small_graph(features=features)

    open_or_build(cache, lambda: IDENTITY, PLAIN, builder)


def test_of_two_processes_one_builds_and_the_other_waits(tmp_path: Path) -> None:
    log = tmp_path / "log"
    processes = [start_building(tmp_path / "cache", log, 0.5) for _ in range(2)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert len(log.read_text().split()) == 1


def test_what_a_killed_builder_left_is_swept_and_what_is_being_built_is_kept(
    tmp_path: Path,
) -> None:
    cache = tmp_path / "cache"
    process = start_building(cache, tmp_path / "log", 60.0)
    wait_until(lambda: find_stores(cache))
    (leftover,) = find_stores(cache)
    assert (leftover.is_leftover, leftover.name) == (True, NAME)
    assert not remove_store(leftover)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    other = cache / ".other-0123456789ab.building-1-abcd"  # by an earlier version
    shutil.copytree(leftover.path, other)
    assert opened(cache) == (True, "built: none was there")
    assert set(folders(cache)) == {cache / NAME, other}
    (unused,) = (store for store in find_stores(cache) if store.is_leftover)
    remove_store(unused)
    assert folders(cache) == [cache / NAME]


# Found and removed


def old_store(path: Path) -> Path:
    """A store that nobody uses, last used long ago."""
    stored(path)
    gc.collect()
    os.utime(path, (LONG_AGO, LONG_AGO))
    return path


def test_opening_a_store_is_a_use_also_of_one_that_cannot_be_written(tmp_path: Path) -> None:
    old = old_store(tmp_path / "old")
    StoredGraph.open(old, check=False)
    assert find_stores(tmp_path)[0].last_used == LONG_AGO, "listing is no use"
    old.chmod(0o500)
    try:
        assert StoredGraph.open(old).num_nodes == 60
    finally:
        old.chmod(0o700)
    StoredGraph.open(old)
    assert find_stores(tmp_path)[0].last_used > time.time() - 60


def test_what_is_no_store_is_not_found(tmp_path: Path) -> None:
    (old_store(tmp_path / "with_notes") / "notes.txt").write_text("mine")
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "meta.json").write_text('{"format": "another"}')
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "meta.json").write_text("[")
    (tmp_path / "empty").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(old_store(tmp_path / "elsewhere" / "store"))
    (tmp_path / "meta.json").write_text('{"format": "gnntrain-store"}')
    assert find_stores(tmp_path) == []


def test_a_damaged_store_of_another_version_is_removed_and_nothing_else(tmp_path: Path) -> None:
    other, path = old_store(tmp_path / "other"), old_store(tmp_path / "store")
    before = sorted(other.iterdir())
    (path / "indices.npy").unlink()
    (path / "meta.json").write_text('{"format": "gnntrain-store", "version": 99}')
    remove_store(next(store for store in find_stores(tmp_path) if store.name == "store"))
    assert {path.name for path in tmp_path.iterdir()} - {".store.lock", ".other.lock"} == {"other"}
    assert sorted(other.iterdir()) == before


def test_a_store_is_kept_while_it_is_verified_or_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = old_store(tmp_path / "store")
    (path / "indices.npy").touch()  # so that it is verified again
    (found,) = find_stores(tmp_path)
    real = array_folder.verify

    def verify_while_cleaning(*arguments: Any) -> None:
        assert not remove_store(found)
        real(*arguments)

    monkeypatch.setattr(array_folder, "verify", verify_while_cleaning)
    StoredGraph.open(path)
    gc.collect()
    with locked(path):
        assert not remove_store(found)
    assert remove_store(found)
    assert not path.exists()


# Whichever way a user's files change, the graph is that of today's; equal ones are not read

OTHER = EDGES.replace("10,20", "10,30")  # of the same size
INDPTR_OF_OTHER = [0, 1, 1, 3, 3]


@pytest.fixture
def edges(tmp_path: Path) -> Path:
    """A table of edges that has lain here for a day."""
    return aged(Path(write(tmp_path)["edges"]))


def aged(path: Path, seconds: float = 86400.0) -> Path:
    os.utime(path, (time.time() - seconds,) * 2)
    return path


def opened_files(folder: Path) -> OpenedStore:
    keys = {**paths(folder), "store_dir": str(folder / "stores")}
    return prepare_store(FilesConfig.model_validate(keys))


def paths(folder: Path) -> dict[str, str]:
    return {role: f"{folder}/{role}.csv" for role in ("features", "labels", "edges", "split")}


def stores_of(folder: Path) -> list[Path]:
    return [path for path in (folder / "stores").iterdir() if path.is_dir()]


def replaced(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def test_other_content_of_equal_size_and_time_is_another_graph(tmp_path: Path, edges: Path) -> None:
    before, times = opened_files(tmp_path).store, edges.stat()
    edges.write_text(OTHER)
    os.utime(edges, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = opened_files(tmp_path)
    assert after.built
    assert after.store.only_edges.indptr.tolist() == INDPTR_OF_OTHER
    assert before.path.is_dir(), "a run of yesterday goes on with yesterday's graph"
    edges.write_text(EDGES)  # the same content, copied or touched
    again = opened_files(tmp_path)
    assert (again.built, again.store.path) == (False, before.path)


def test_a_second_start_does_not_read_the_files(tmp_path: Path) -> None:
    files = write(tmp_path)
    table = Path(files["features"])
    table.write_text(table.read_text() + "\n" * (1 << 24))
    opened_files(tmp_path)
    time.sleep(2.1)  # until then, the file may change with the same times
    opened_files(tmp_path)
    before = num_read()
    assert not opened_files(tmp_path).built
    assert num_read() - before < 1 << 22


def num_read() -> int:
    """Bytes that this process has read so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_a_damaged_index_is_as_none(tmp_path: Path, edges: Path) -> None:
    before = opened_files(tmp_path).store.path
    for content in ("", "[1]", "null", f'{{"{edges}": 7}}', f'{{"{edges}": [1, 2]}}', "\0"):
        (tmp_path / "stores" / ".files.json").write_text(content)
        again = opened_files(tmp_path)
        assert (again.built, again.store.path) == (False, before)


@pytest.mark.parametrize("first", [EDGES, EDGES + "10,50\n"], ids=["good", "of no node"])
def test_a_file_replaced_while_it_is_read_is_read_anew(
    tmp_path: Path, edges: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    edges.write_text(first)
    replacing(monkeypatch, lambda number: replaced(edges, OTHER) if number == 1 else None)
    found = opened_files(tmp_path).store
    assert found.only_edges.indptr.tolist() == INDPTR_OF_OTHER
    monkeypatch.undo()
    again = opened_files(tmp_path)
    assert (again.built, again.store.path) == (False, found.path)
    assert stores_of(tmp_path) == [found.path], "nothing is left of the first reading"


def replacing(monkeypatch: pytest.MonkeyPatch, change: Callable[[int], None]) -> list[int]:
    """Call `change` with 1, 2, … whenever the files of a graph have just been read."""
    numbers: list[int] = []
    build = FilesBuilder.build

    def read_then_change(self: FilesBuilder) -> GraphData:
        numbers.append(len(numbers) + 1)
        try:
            return build(self)
        finally:
            change(numbers[-1])

    monkeypatch.setattr(FilesBuilder, "build", read_then_change)
    return numbers


def test_files_that_never_rest_are_told(
    tmp_path: Path, edges: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replacing(monkeypatch, lambda number: replaced(edges, EDGES + "20,40\n" * number))
    with pytest.raises(UserError, match="changed 3 times while they were read"):
        opened_files(tmp_path)
    assert not stores_of(tmp_path)
