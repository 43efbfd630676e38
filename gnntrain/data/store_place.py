"""The place of a graph store: its lock, disk errors, and foreign files."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from gnntrain.atomic_io import fsync_folder
from gnntrain.config import DatasetConfig
from gnntrain.data.store_meta import META_FILE, SEAL_FILE, is_array_file
from gnntrain.errors import RunError, TransientError, UserError
from gnntrain.paths import user_cache

# Where a folder cannot be made, some file systems say that it is not there.
_REFUSED = (
    *(errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOTDIR, errno.EEXIST, errno.ENOENT),
)


def stores_folder(dataset: DatasetConfig) -> Path:
    """The folder of all stores."""
    return Path(dataset.store_dir or user_cache("dataset.store_dir") / "stores")


def clear_place(path: Path) -> None:
    """Prepare the place of a store whose lock this process holds.

    Temporary directories of builders that died are removed.

    Raises:
        UserError: A file or folder at `path` is no store: it is not touched.
    """
    _refuse_foreign(path)
    _remove_leftovers(path.parent, path.name)


def _refuse_foreign(path: Path) -> None:
    if not path.exists():
        return
    foreign = foreign_names(path) if path.is_dir() else [path.name]
    is_empty = path.is_dir() and not any(path.iterdir())
    if foreign or not (is_empty or (path / META_FILE).exists()):
        what = f"it holds {', '.join(foreign[:5])}" if foreign else f"it has no {META_FILE}"
        raise UserError(
            f"{path} is not a graph store ({what}), so it is not replaced",
            "Move it away, or set dataset.store_dir to another directory",
        )


def foreign_names(folder: Path) -> list[str]:
    """The files in a folder that do not belong to a store."""
    names = sorted(entry.name for entry in folder.iterdir())
    return [
        name
        for name in names
        if name != META_FILE and not name.startswith(SEAL_FILE) and not is_array_file(name)
    ]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of the store at `path`, after waiting for another holder."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = store_lock(path.parent, path.name)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def disk_errors(path: Path, needed: int = 0) -> Iterator[None]:
    """Turn errors of the disk into UserError and RunError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise disk_full(path, needed) from error
        if error.errno in _REFUSED:
            raise UserError(
                f"the graph store cannot be written to {path.parent} ({error.strerror})",
                "Set dataset.store_dir to a directory you may write to",
            ) from error
        raise


def disk_full(path: Path, needed: int) -> RunError:
    return TransientError(
        f"not enough disk space for the graph store {path}: "
        f"{needed:,} bytes are needed, {free_bytes(path.parent):,} are free",
        "Free some space there, or set dataset.store_dir to a directory on another disk",
    )


def store_lock(directory: Path, name: str) -> FileLock:
    """The lock for building or removing the store `name` in `directory`."""
    return FileLock(directory / f".{name}.lock")


def _remove_leftovers(directory: Path, locked: str) -> None:
    """Nobody holds the lock of a builder that died; `locked` is the name of our own store."""
    for leftover in directory.glob(".*.building-*"):
        name = leftover.name[1:].rpartition(".building-")[0]
        try:
            if name == locked:
                shutil.rmtree(leftover)
            else:
                with store_lock(directory, name).acquire(timeout=0):
                    shutil.rmtree(leftover)
        except (Timeout, OSError):
            continue


def free_bytes(directory: Path) -> int:
    return shutil.disk_usage(directory).free


def temporary_sibling(path: Path) -> Path:
    return path.with_name(f".{path.name}.building-{os.getpid()}-{secrets.token_hex(4)}")


def move_into_place(building: Path, path: Path) -> None:
    replaced = temporary_sibling(path)
    if path.exists():
        path.rename(replaced)
    building.rename(path)
    fsync_folder(path.parent)
    if replaced.exists():
        shutil.rmtree(replaced, ignore_errors=True)
