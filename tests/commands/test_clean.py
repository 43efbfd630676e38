"""`gnntrain clean` removes what it was asked to, and nothing without an answer."""

from __future__ import annotations

import errno
import gc
import os
import time
from pathlib import Path

import pytest

from gnntrain.cli import main
from gnntrain.config import FilesConfig
from gnntrain.data.store import StoredGraph
from gnntrain.run_store import prepare_store
from tests.graphs import random_graph, stored


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two stores, last used today and forty days ago, and a folder of somebody else's."""
    folder = tmp_path / "stores"
    stored(folder / "new")
    stored(folder / "old")
    gc.collect()
    then = time.time() - 40 * 24 * 3600
    os.utime(folder / "old", (then, then))
    (folder / "photos").mkdir()
    (folder / "photos" / "cat.jpg").touch()
    return folder


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.endswith(".lock")}


def answer(monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    def reply(_: str) -> str:
        if text is None:
            raise EOFError
        return text

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", reply)


def test_only_what_was_not_used_for_so_long_is_removed(folder: Path) -> None:
    assert main(["clean", str(folder), "--older-than", "30d", "--yes"]) == 0
    assert names(folder) == {"new", "photos"}
    assert main(["clean", str(folder), "--older-than=0.5h", "--yes"]) == 0
    assert names(folder) == {"new", "photos"}
    assert main(["clean", str(folder), "--yes"]) == 0
    assert names(folder) == {"photos"}
    assert main(["clean", str(folder), "--yes"]) == 0


def test_what_nobody_can_build_again_is_kept_without_all(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = FilesConfig(store_dir=str(folder))
    path = prepare_store(config, data=random_graph()).store.path
    gc.collect()
    assert main(["clean", str(folder), "--yes"]) == 0
    assert names(folder) == {path.name, "photos"}
    assert f"kept {path.name}" in capsys.readouterr().out
    assert main(["clean", str(folder), "--all", "--yes"]) == 0
    assert names(folder) == {"photos"}


def test_without_a_terminal_nothing_is_removed_unasked(folder: Path) -> None:
    assert main(["clean", str(folder)]) == 2
    assert names(folder) == {"new", "old", "photos"}


@pytest.mark.parametrize("text", ["", "n", "no", "what", None])
def test_all_but_a_yes_is_a_no(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    answer(monkeypatch, text)
    assert main(["clean", str(folder)]) == 0
    assert names(folder) == {"new", "old", "photos"}


def test_a_yes_removes_what_was_shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(monkeypatch, "Y")
    assert main(["clean", str(folder), "--older-than", "2w"]) == 0
    assert names(folder) == {"new", "photos"}
    shown = [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:3]]
    assert shown == ["old"]


def test_a_store_in_use_is_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = StoredGraph.open(folder / "old", check=False)
    assert main(["clean", str(folder), "--yes"]) == 0
    assert names(folder) == {"old", "photos"}
    assert "old" in capsys.readouterr().out
    assert graph.num_nodes == 60


def test_a_folder_that_may_not_be_changed_fails_with_its_reason(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "rename", refuse)
    assert main(["clean", str(folder), "--yes"]) == 1
    assert names(folder) == {"new", "old", "photos"}
    assert "Read-only file system" in capsys.readouterr().err


@pytest.mark.parametrize("age", ["30", "d", "-1d", "3 days", "1e3d", ""])
def test_an_age_has_a_number_and_a_unit(folder: Path, age: str) -> None:
    assert main(["clean", str(folder), f"--older-than={age}", "--yes"]) == 2
    assert names(folder) == {"new", "old", "photos"}


def test_stores_are_listed_with_the_last_used_first(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for first, last in (("new", "old"), ("old", "new")):
        os.utime(folder / first)
        assert main(["ls", "stores", str(folder)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines[2:4]] == [first, last]
        assert "2 stores" in lines[4]
    assert main(["ls", "stores", str(folder / "photos")]) == 0
