"""Whichever way a user's files change, the graph is that of today's; equal ones are not read."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gnntrain.config import FilesConfig
from gnntrain.data.build import OpenedStore
from gnntrain.data.graph import GraphData
from gnntrain.data.read.files import FilesBuilder
from gnntrain.errors import UserError
from gnntrain.run_store import prepare_store
from tests.data.files import EDGES, write

OTHER = EDGES.replace("10,20", "10,30")  # of the same size
INDPTR_OF_OTHER = [0, 1, 1, 3, 3]


@pytest.fixture
def edges(tmp_path: Path) -> Path:
    """A table of edges that has lain here for a day."""
    return aged(Path(write(tmp_path)["edges"]))


def aged(path: Path, seconds: float = 86400.0) -> Path:
    os.utime(path, (time.time() - seconds,) * 2)
    return path


def opened(folder: Path) -> OpenedStore:
    keys = {**paths(folder), "store_dir": str(folder / "stores")}
    return prepare_store(FilesConfig.model_validate(keys))


def paths(folder: Path) -> dict[str, str]:
    return {role: f"{folder}/{role}.csv" for role in ("features", "labels", "edges", "split")}


def stores(folder: Path) -> list[Path]:
    return [path for path in (folder / "stores").iterdir() if path.is_dir()]


def rewritten(path: Path, text: str) -> None:
    path.write_text(text)


def replaced(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


@pytest.mark.parametrize("change", [rewritten, replaced])
def test_other_content_of_equal_size_and_time_is_another_graph(
    tmp_path: Path, edges: Path, change: Callable[[Path, str], None]
) -> None:
    before, times = opened(tmp_path).store, edges.stat()
    change(edges, OTHER)
    os.utime(edges, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = opened(tmp_path)
    assert after.built
    assert after.store.indptr.tolist() == INDPTR_OF_OTHER
    assert before.path.is_dir(), "a run of yesterday goes on with yesterday's graph"
    change(edges, EDGES)  # the same content, copied or touched
    again = opened(tmp_path)
    assert (again.built, again.store.path) == (False, before.path)


def test_a_second_start_does_not_read_the_files(tmp_path: Path) -> None:
    files = write(tmp_path)
    table = Path(files["features"])
    table.write_text(table.read_text() + "\n" * (1 << 24))
    opened(tmp_path)
    time.sleep(2.1)  # until then, the file may change with the same times
    opened(tmp_path)
    before = num_read()
    assert not opened(tmp_path).built
    assert num_read() - before < 1 << 22


def num_read() -> int:
    """Bytes that this process has read so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_a_damaged_index_is_as_none(tmp_path: Path, edges: Path) -> None:
    before = opened(tmp_path).store.path
    for content in ("", "[1]", "null", f'{{"{edges}": 7}}', f'{{"{edges}": [1, 2]}}', "\0"):
        (tmp_path / "stores" / ".files.json").write_text(content)
        again = opened(tmp_path)
        assert (again.built, again.store.path) == (False, before)


@pytest.mark.parametrize("first", [EDGES, EDGES + "10,50\n"], ids=["good", "of no node"])
def test_a_file_replaced_while_it_is_read_is_read_anew(
    tmp_path: Path, edges: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    edges.write_text(first)
    replacing(monkeypatch, lambda number: replaced(edges, OTHER) if number == 1 else None)
    found = opened(tmp_path).store
    assert found.indptr.tolist() == INDPTR_OF_OTHER
    monkeypatch.undo()
    again = opened(tmp_path)
    assert (again.built, again.store.path) == (False, found.path)
    assert stores(tmp_path) == [found.path], "nothing is left of the first reading"


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
        opened(tmp_path)
    assert not stores(tmp_path)
