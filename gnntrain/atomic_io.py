"""Atomic files and folders: written under a temporary name, then renamed; whole or not at all."""

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
    """Give a file to write, which replaces the one at `path` once it is complete.

    A reader sees the old file or the new one. After an error or an interruption the temporary file
    is removed; the temporary file of a killed writer is removed by the next one. A `path` that is
    no regular file (a terminal, a pipe) is written directly.

    Raises:
        OSError: The disk refuses; the old file stays.
    """
    path = Path(os.path.realpath(path))  # a symbolic link stays one
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    temporary = _begin(path)
    try:
        with temporary.open("xb") as file, _held(file.fileno()):
            yield file
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(path)
    finally:
        _remove(temporary)
    fsync_folder(path.parent)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Give an empty folder to fill, which then replaces `path`, if that is missing or empty.

    All else as in `atomic_write`.
    """
    temporary = _begin(path)
    try:
        temporary.mkdir(parents=True)
        handle = os.open(temporary, os.O_RDONLY)
        try:
            with _held(handle):
                yield temporary
                temporary.replace(path)
        finally:
            os.close(handle)
    finally:
        _remove(temporary)
    fsync_folder(path.parent)


def _begin(path: Path) -> Path:
    """The temporary path to write to; temporary files of killed writers are removed."""
    of_the_same = re.compile(rf"\.{re.escape(path.name)}\.\d+")
    with suppress(OSError):
        for name in os.listdir(path.parent):  # noqa: PTH208 - a match is rare, a path dear
            if of_the_same.fullmatch(name):
                _remove_left_behind(path.with_name(name))
    return path.with_name(f".{path.name}.{os.getpid()}")


def _remove_left_behind(temporary: Path) -> None:
    """Remove a temporary file or folder unless a process, on this or another machine, locks it."""
    with suppress(OSError):
        handle = os.open(temporary, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(temporary)
        finally:
            os.close(handle)


@contextmanager
def _held(handle: int) -> Iterator[None]:
    """Lock the file or folder while it is being written."""
    with suppress(OSError):  # a file system without locks
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    yield


def _remove(temporary: Path) -> None:
    with suppress(OSError):  # the disk may have become read-only
        if temporary.is_dir():
            shutil.rmtree(temporary)
        else:
            temporary.unlink(missing_ok=True)


def fsync_folder(folder: Path) -> None:
    """Flush a folder's entries, so that they survive a crash of the machine."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
