"""Drafts: what is written beside its place and put there when it is whole, or not at all."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Give a file to write, which takes the place of what is at `path` once it is whole.

    A reader sees the old file or the new one. What an error or an interruption leaves unfinished
    is removed; what a writer that was killed has left, by the next one. What is there and no
    regular file (a terminal, a pipe) is written as it is.

    Raises:
        OSError: The disk refuses; what was there stays.
    """
    path = Path(os.path.realpath(path))  # a link goes on to point there
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    draft = _begin(path)
    try:
        with draft.open("xb") as file, _held(file.fileno()):
            yield file
            file.flush()
            os.fsync(file.fileno())
            draft.replace(path)
    finally:
        _remove(draft)
    fsync_folder(path.parent)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Give an empty folder to fill, which becomes `path`, where at most an empty one is.

    As `atomic_write` for all else.
    """
    draft = _begin(path)
    try:
        draft.mkdir(parents=True)
        handle = os.open(draft, os.O_RDONLY)
        try:
            with _held(handle):
                yield draft
                draft.replace(path)
        finally:
            os.close(handle)
    finally:
        _remove(draft)
    fsync_folder(path.parent)


def _begin(path: Path) -> Path:
    """Where to write; drafts of the same that nobody writes any more are removed."""
    of_the_same = re.compile(rf"\.{re.escape(path.name)}\.\d+")
    with suppress(OSError):
        for name in os.listdir(path.parent):  # noqa: PTH208 - a match is rare, a path dear
            if of_the_same.fullmatch(name):
                _remove_left_behind(path.with_name(name))
    return path.with_name(f".{path.name}.{os.getpid()}")


def _remove_left_behind(draft: Path) -> None:
    """Remove a draft unless a process, on whichever machine, still holds it."""
    with suppress(OSError):
        handle = os.open(draft, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(draft)
        finally:
            os.close(handle)


@contextmanager
def _held(handle: int) -> Iterator[None]:
    """Show others meanwhile that the draft is being written."""
    with suppress(OSError):  # a file system without locks
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    yield


def _remove(draft: Path) -> None:
    with suppress(OSError):  # a disk that is read-only now keeps it
        if draft.is_dir():
            shutil.rmtree(draft)
        else:
            draft.unlink(missing_ok=True)


def fsync_folder(folder: Path) -> None:
    """Have the names in a folder outlive a crash of the machine."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
