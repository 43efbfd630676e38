from __future__ import annotations

import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from gnntrain.atomic_io import atomic_folder, atomic_write, remove_stale_drafts
from gnntrain.errors import Interrupted
from gnntrain.training.checkpoint import save_checkpoint
from tests.processes import python


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_reader_sees_the_old_file_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")
    for error in (OSError(28, "No space left on device"), Interrupted()):
        with suppress(type(error)), atomic_write(path) as file:
            file.write(b"ne")
            raise error
        assert path.read_text() == "old"
        assert names(tmp_path) == ["page.html"]
    with atomic_write(path) as file:
        file.write(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert names(tmp_path) == ["page.html"]


@pytest.mark.parametrize("kind", ["file", "checkpoint"])
def test_what_is_written_is_on_the_disk_before_it_has_its_name(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "out", list[tuple[bool, bool]]()

    def note(handle: int) -> None:
        synced.append((stat.S_ISREG(os.fstat(handle).st_mode), path.read_bytes() == b"old"))

    monkeypatch.setattr(os, "fsync", note)
    path.write_text("old")
    if kind == "checkpoint":
        save_checkpoint(path, {"epoch": 1})
    else:
        with atomic_write(path) as file:
            file.write(b"new")
    assert synced == [(True, True), (False, False)]  # the file, then its folder


def test_a_folder_comes_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "export"
    with suppress(Interrupted), atomic_folder(path) as folder:
        (folder / "a").touch()
        raise Interrupted
    assert names(path.parent) == []
    with atomic_folder(path) as folder:
        (folder / "a").touch()
        assert not path.exists()
    assert names(path.parent) == ["export"]
    assert names(path) == ["a"]


def test_a_link_stays_and_a_pipe_is_written_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("elsewhere")
    with atomic_write(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "elsewhere").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with atomic_write(tmp_path / "pipe") as file:
        file.write(b"new")
    assert os.read(reader, 9) == b"new"
    assert (tmp_path / "pipe").is_fifo()
    os.close(reader)


def killed_writing(kind: str, path: Path) -> Path:
    """The draft of a process that was killed in the middle of it."""
    code = f"import os\nfrom pathlib import Path\nfrom gnntrain.atomic_io import {kind}\n"
    code += f"with {kind}(Path({str(path)!r})):\n    os.kill(os.getpid(), 9)\n"
    assert python("-c", code).returncode == -9
    (draft,) = path.parent.glob(f".{path.name}.*")
    return draft


def test_what_a_killed_writer_left_is_swept_by_the_next_and_nothing_else(tmp_path: Path) -> None:
    for kind in (atomic_write, atomic_folder):
        left = killed_writing(kind.__name__, tmp_path / "out")
        with kind(tmp_path / "out"):
            assert not left.exists()
            (alive,) = tmp_path.glob(".out.*")
            for other in (".out.swp", ".out.lock", ".other.1", "out.1"):
                (tmp_path / other).touch()
            remove_stale_drafts(tmp_path / "out")
            assert alive.exists()  # its writer lives
        assert names(tmp_path) == [".other.1", ".out.lock", ".out.swp", "out", "out.1"]
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()


def test_many_writers_of_one_file_never_lose_a_draft(tmp_path: Path) -> None:
    path, texts = tmp_path / "out", [str(number) * 100 for number in range(8)]

    def write(text: str) -> None:
        for _ in range(20):
            with atomic_write(path) as file:
                file.write(text.encode())
            assert path.read_text() in texts

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, texts))
    assert names(tmp_path) == ["out"]
