"""Where stores lie: names, rebuilding, what is never touched, other processes, a full disk."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gnntrain.data import build
from gnntrain.data.build import open_or_build, store_name, write_store
from gnntrain.data.graph import GraphData, PrepareOptions
from gnntrain.errors import RunError, UserError
from tests.data.oracles import Rows, small_graph
from tests.data.slow_builder import IDENTITY, start_building

PLAIN = PrepareOptions()


def opened(cache: Path, builder: Callable[[], GraphData] = small_graph) -> tuple[bool, str]:
    result = open_or_build(cache, lambda: IDENTITY, PLAIN, builder)
    np.testing.assert_array_equal(result.store.labels, small_graph().labels)
    return result.built, result.reason


def never() -> GraphData:
    raise AssertionError("the builder must not be called")


def test_the_second_run_opens_what_the_first_built(tmp_path: Path) -> None:
    assert opened(tmp_path / "new" / "cache") == (True, "built: none was there")
    assert opened(tmp_path / "new" / "cache", never) == (False, "opened")


def test_the_name_follows_identity_and_options() -> None:
    name = store_name(IDENTITY, PLAIN)
    assert name.startswith("sm_all-")
    assert len(name) == len("sm_all-") + 12
    others = {
        store_name(IDENTITY | {"seed": 2}, PLAIN),
        store_name(IDENTITY, PrepareOptions(add_self_loops=True)),
        store_name(IDENTITY, PrepareOptions(feature_dtype="float16")),
    }
    assert len(others - {name}) == 3


def test_a_damaged_store_is_rebuilt_with_the_reason(tmp_path: Path) -> None:
    opened(tmp_path)
    with (tmp_path / store_name(IDENTITY, PLAIN) / "indices.npy").open("r+b") as file:
        file.truncate(130)
    was_built, reason = opened(tmp_path)
    assert was_built
    assert reason.startswith("rebuilt: indices.npy")
    assert opened(tmp_path, never) == (False, "opened")


def test_a_store_of_other_data_under_the_same_name_is_rebuilt(tmp_path: Path) -> None:
    other = open_or_build(tmp_path, lambda: {"dataset": "b"}, PLAIN, lambda: small_graph(seed=5))
    other.store.path.rename(tmp_path / store_name(IDENTITY, PLAIN))
    was_built, reason = opened(tmp_path)
    assert was_built
    assert reason.startswith("rebuilt: ")


@pytest.mark.parametrize("name", ["thesis.txt", "features_0.npy"])
def test_a_directory_that_is_no_store_is_never_touched(tmp_path: Path, name: str) -> None:
    directory = tmp_path / store_name(IDENTITY, PLAIN)
    directory.mkdir()
    (directory / name).write_text("years of work")
    with pytest.raises(UserError, match="is not a graph store"):
        opened(tmp_path, never)
    with pytest.raises(UserError, match="is not a graph store"):
        write_store(directory, small_graph(), PLAIN, IDENTITY)
    assert (directory / name).read_text() == "years of work"


def test_a_store_with_a_foreign_file_in_it_is_not_replaced(tmp_path: Path) -> None:
    opened(tmp_path)
    directory = tmp_path / store_name(IDENTITY, PLAIN)
    (directory / "notes.txt").write_text("mine")
    assert opened(tmp_path, never) == (False, "opened")
    (directory / "labels.npy").unlink()
    with pytest.raises(UserError, match=r"it holds notes\.txt"):
        opened(tmp_path)


def test_an_empty_directory_is_filled(tmp_path: Path) -> None:
    (tmp_path / store_name(IDENTITY, PLAIN)).mkdir()
    assert opened(tmp_path) == (True, "built: none was there")


def test_opening_needs_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(tmp_path)
    monkeypatch.setattr(build, "locked", never)
    assert opened(tmp_path, never) == (False, "opened")


def test_a_cache_directory_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="graph store") as caught:
        opened(tmp_path / "file" / "cache")
    assert "dataset.store_dir" in str(caught.value.hint)


def test_too_little_disk_space_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "free_bytes", lambda _: 1000)
    with pytest.raises(RunError, match=r"[0-9,]+ bytes are needed, [0-9,]+ are free"):
        opened(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_dir()] == []


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, RunError),
        (errno.EDQUOT, RunError),
        (errno.EROFS, UserError),
        (errno.ENOENT, UserError),
    ],
)
def test_a_disk_that_fails_in_the_middle_leaves_nothing_behind(
    tmp_path: Path, number: int, kind: type[Exception]
) -> None:
    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    rows = Rows(np.ones((12, 5)), fail)
    with pytest.raises(kind):
        opened(tmp_path, lambda: small_graph(features=rows))
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_dir()] == []


def test_errors_of_the_builder_are_its_own(tmp_path: Path) -> None:
    def fail() -> GraphData:
        raise PermissionError(errno.EACCES, "the raw file")

    with pytest.raises(PermissionError, match="the raw file"):
        opened(tmp_path, fail)


def test_an_estimate_of_the_disk_space_is_close(tmp_path: Path) -> None:
    data = small_graph(3000, 20_000, symmetric=True, edge_weight=np.ones(20_000, dtype=np.float32))
    options = PrepareOptions(add_self_loops=True)
    store = write_store(tmp_path / "store", data, options, IDENTITY)
    needed = build.needed_bytes(data, options)
    assert store.num_bytes <= needed < 1.3 * store.num_bytes + 2**17


def _wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("waited in vain")


def test_of_two_processes_one_builds_and_the_other_waits(tmp_path: Path) -> None:
    log = tmp_path / "log"
    processes = [start_building(tmp_path / "cache", log, 0.5) for _ in range(2)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert len(log.read_text().split()) == 1


def _leftovers(cache: Path) -> list[Path]:
    return list(cache.glob(".*.building-*"))


def test_what_a_killed_builder_left_is_swept(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    process = start_building(cache, tmp_path / "log", 60.0)
    _wait_for(lambda: bool(_leftovers(cache)))
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    (left,) = _leftovers(cache)
    shutil.copytree(left, cache / ".other-0123456789ab.building-1-abcd")
    assert opened(cache) == (True, "built: none was there")
    assert _leftovers(cache) == []
