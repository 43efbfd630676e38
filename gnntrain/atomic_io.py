"""Atomic files and folders: written under a temporary name, then renamed; whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Give a file to write, which replaces the one at `path` once it is complete: a reader sees the
    old file or the new one, and after an error the old one stays. The draft of a killed writer is
    removed by the next one. Of several writers at a time the last one wins. A `path` that is no
    regular file (a terminal, a pipe) is written directly."""
    path = Path(os.path.realpath(path))  # a symbolic link stays one
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    with draft_of(path) as draft:
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    fsync_folder(path.parent)


def append_whole(path: Path, data: bytes) -> None:
    """Append all of `data` to a file, or nothing and an error where the disk becomes full."""
    with path.open("ab", buffering=0) as file:
        size = file.tell()
        if file.write(data) != len(data):
            file.truncate(size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Give an empty folder to fill, which then replaces `path` as a file does in `atomic_write`, if
    that is missing or empty."""
    with draft_of(path, is_folder=True) as draft:
        yield draft
        draft.replace(path)
    fsync_folder(path.parent)


@contextmanager
def draft_of(path: Path, *, is_folder: bool = False) -> Iterator[Path]:
    """Make an empty file or folder beside `path`, to be filled and renamed; else it is removed. Its
    name is random: writers in two containers may have the same process id."""
    remove_stale_drafts(path)
    while True:
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        if is_folder:
            draft.mkdir(parents=True)
        else:
            draft.touch(exist_ok=False)
        with suppress(FileNotFoundError):
            handle = _open(draft)
            with suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            if draft.exists():
                break
            os.close(handle)
        # Before it was locked, another writer took it for a killed one's.
    try:
        yield draft
    finally:
        _remove(draft)
        os.close(handle)


def remove_stale_drafts(path: Path) -> None:
    """Remove the drafts of killed writers of `path`: those that no process, on this or another
    machine, has locked. On a file system without locks they stay."""
    name_of_draft = re.compile(rf"\.{re.escape(path.name)}\.([0-9a-f]{{16}}|\d+)")
    names = list[str]()
    with suppress(OSError):
        names = os.listdir(path.parent)  # noqa: PTH208 - building Path objects is slow
    for draft in (path.with_name(name) for name in names if name_of_draft.fullmatch(name)):
        with suppress(OSError):
            handle = _open(draft)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(draft)
            finally:
                os.close(handle)


def _open(draft: Path) -> int:
    """A handle to lock; NFS locks a file only if it is open for writing."""
    mode = os.O_RDONLY if draft.is_dir() else os.O_RDWR
    return os.open(draft, mode | os.O_NOFOLLOW)


def _remove(draft: Path) -> None:
    with suppress(OSError):  # the disk may have become read-only
        shutil.rmtree(draft) if draft.is_dir() else draft.unlink(missing_ok=True)


def fsync_folder(folder: Path) -> None:
    """Flush a folder's entries, so that they survive a crash of the machine."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
