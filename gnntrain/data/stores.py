"""The folder of the graph stores: locks, leftovers of killed builds, foreign files, removal."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from gnntrain.atomic_io import draft_of
from gnntrain.config import DatasetConfig
from gnntrain.data.array_folder import SEAL_FILE
from gnntrain.data.store import META_FILE, StoreMeta
from gnntrain.errors import TransientError, UserError
from gnntrain.paths import free_bytes, user_cache

# ENOENT: where a folder cannot be made, some file systems say that it is not there.
_REFUSED = (
    *(errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT),
)
_LEFTOVER = re.compile(r"\.(.+)\.building[.-][0-9a-f-]+")
_ARRAY_FILE = re.compile(
    r"(indptr|indices|edge_weight|gcn_norm|labels|class_names|split_(train|val|test)"
    r"|(features|node_ids)(_[0-9]+)?)\.npy"  # without a number in formats before 3
)


def stores_folder(dataset: DatasetConfig) -> Path:
    """The folder of all stores."""
    return Path(dataset.store_dir or user_cache("dataset.store_dir") / "stores")


# The place of a store that is built


def locked(path: Path) -> AbstractContextManager[object]:
    """Hold the lock of the store at `path`, after waiting for another holder."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        return _lock(path.parent, path.name).acquire()


def refuse_foreign(path: Path) -> None:
    """Raise a UserError where a file or folder at `path` is no store: it is not touched."""
    if path.exists():
        foreign = _foreign_names(path) if path.is_dir() else [path.name]
        is_empty = path.is_dir() and not any(path.iterdir())
        if foreign or not (is_empty or (path / META_FILE).exists()):
            what = f"it holds {', '.join(foreign[:5])}" if foreign else f"it has no {META_FILE}"
            raise UserError(
                f"{path} is not a graph store ({what}), so it is not replaced",
                "Move it away, or set dataset.store_dir to another directory",
            )


@contextmanager
def disk_errors(
    path: Path, needed: int = 0, noun: str = "the graph store", key: str = "dataset.store_dir"
) -> Iterator[None]:
    """Turn errors of the disk into UserError and RunError, also where it has not the `needed` bytes
    to begin with; `key` says where to write."""
    try:
        if free_bytes(path.parent) < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise TransientError(
                f"not enough disk space for {noun} {path}: "
                f"{needed:,} bytes are needed, {free_bytes(path.parent):,} are free",
                f"Free some space there, or set {key} to a directory on another disk",
            ) from error
        if error.errno in _REFUSED:
            raise UserError(
                f"{noun} cannot be written to {path.parent} ({error.strerror})",
                f"Set {key} to a directory you may write to",
            ) from error
        raise


def store_draft(path: Path) -> AbstractContextManager[Path]:
    """An empty folder beside the store at `path`, for a while; those of killed builders go."""
    return draft_of(path.with_name(f"{path.name}.building"), is_folder=True)


def _lock(folder: Path, name: str) -> FileLock:
    """The lock for building or removing the store `name` in `folder`."""
    return FileLock(folder / f".{name}.lock")


def _foreign_names(folder: Path) -> list[str]:
    """The files in a folder that do not belong to a store, of any version of its format."""
    return [
        name
        for name in sorted(entry.name for entry in folder.iterdir())
        if name != META_FILE and SEAL_FILE not in name and not _ARRAY_FILE.fullmatch(name)
    ]


@dataclass(frozen=True)
class FoundStore:
    """A store on disk, or the leftover of a killed build."""

    path: Path
    name: str  # of the store, also of a leftover
    dataset: str  # empty where it is not known
    num_bytes: int
    last_used: float  # when a command last opened it, since 1970; of a leftover: its last writing
    is_leftover: bool = False  # it was never finished
    is_of_object: bool = False  # its graph was given in Python: nobody else can build it again


def find_stores(folder: Path) -> list[FoundStore]:
    """The stores and leftovers in a folder, the last used first; of other folders nothing."""
    found = []
    for path in folder.glob("*/"):
        with contextlib.suppress(OSError):  # removed meanwhile, or not ours to read
            store = None if path.is_symlink() or _foreign_names(path) else _store_at(path)
            found += [] if store is None else [store]
    return sorted(found, key=lambda store: (-store.last_used, store.path.name))


def _store_at(path: Path) -> FoundStore | None:
    """The store in a folder without other files; None where it is none."""
    leftover = _LEFTOVER.fullmatch(path.name)
    try:
        meta = json.loads((path / META_FILE).read_bytes())  # also that of another version
    except (OSError, ValueError, RecursionError):
        meta = None
    meta = meta if isinstance(meta, dict) else {}
    if leftover is None and meta.get("format") != StoreMeta.FORMAT:
        return None
    identity = meta.get("identity")
    return FoundStore(
        path,
        name=path.name if leftover is None else leftover[1],
        dataset=str(meta.get("dataset", "")),
        num_bytes=sum(file.stat().st_size for file in path.iterdir()),
        last_used=path.stat().st_mtime,
        is_leftover=leftover is not None,
        is_of_object=leftover is None and isinstance(identity, dict) and "content" in identity,
    )


def remove_store(store: FoundStore) -> bool:
    """Remove a store or a leftover whole; False where a process builds or reads it, OSError where
    the file system refuses."""
    try:
        with _lock(store.path.parent, store.name).acquire(timeout=0):
            if store.is_leftover:
                shutil.rmtree(store.path)
                return True
            with (
                (store.path / META_FILE).open("r+b") as meta,  # NFS locks no other
                store_draft(store.path) as removed,
            ):
                fcntl.flock(meta, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Renamed first: no process can open a half-removed store.
                shutil.rmtree(store.path.rename(removed))
                return True
    except (Timeout, BlockingIOError):
        return False
