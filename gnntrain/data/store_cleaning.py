"""The stores of a folder: their sizes, when each was last used, and how one is removed."""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from filelock import Timeout

from gnntrain.data.store_meta import FORMAT, META_FILE
from gnntrain.data.store_place import foreign_names, store_lock, temporary_sibling

_LEFTOVER = re.compile(r"\.(.+)\.building-\d+-[0-9a-f]+")


class StoreInUse(Exception):
    """A process builds or reads the store."""


@dataclass(frozen=True)
class FoundStore:
    """A store on disk, or the leftover of a killed build.

    Attributes:
        path: Its folder.
        dataset: Name of the data set; empty where it is not known.
        num_bytes: Bytes of its files.
        last_used: When a command last opened it, in seconds since 1970; of a leftover: when it
            was written.
        is_leftover: Whether it was never finished.
        is_of_object: Whether its graph was given in Python: nobody else can build it again.
    """

    path: Path
    dataset: str
    num_bytes: int
    last_used: float
    is_leftover: bool = False
    is_of_object: bool = False

    @property
    def name(self) -> str:
        """Name of the store, also of a leftover."""
        found = _LEFTOVER.fullmatch(self.path.name)
        return found[1] if found else self.path.name


def find_stores(folder: Path) -> list[FoundStore]:
    """The stores and leftovers in a folder, the last used first; of other folders nothing."""
    try:
        paths = [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
    except OSError:  # no store was built yet
        return []
    found = []
    for path in paths:
        with contextlib.suppress(OSError):  # removed meanwhile, or not ours to read
            store = _found(path)
            found += [] if store is None else [store]
    return sorted(found, key=lambda store: (-store.last_used, store.path.name))


def _found(path: Path) -> FoundStore | None:
    """The store at `path`; None where the folder is none."""
    if foreign_names(path):
        return None
    leftover = _LEFTOVER.fullmatch(path.name)
    meta = _meta_of(path)
    if leftover is None and meta.get("format") != FORMAT:
        return None
    num_bytes = sum(file.stat().st_size for file in path.iterdir())
    dataset = str(meta.get("dataset", ""))
    identity = meta.get("identity") if leftover is None else None
    is_of_object = isinstance(identity, dict) and "content" in identity
    last_used = path.stat().st_mtime
    return FoundStore(path, dataset, num_bytes, last_used, leftover is not None, is_of_object)


def _meta_of(path: Path) -> dict[str, object]:
    """What `meta.json` says, also that of another version; empty where it cannot be read."""
    try:
        raw = json.loads((path / META_FILE).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return raw if isinstance(raw, dict) else {}


def remove_store(store: FoundStore) -> None:
    """Remove a store or a leftover whole.

    Raises:
        StoreInUse: A process builds or reads it.
        OSError: The file system refuses.
    """
    try:
        with store_lock(store.path.parent, store.name).acquire(timeout=0):
            if store.is_leftover:
                shutil.rmtree(store.path)
                return
            with (store.path / META_FILE).open("r+b") as meta:  # NFS locks no other
                fcntl.flock(meta, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Renamed first: no process can open a half-removed store.
                removed = temporary_sibling(store.path)
                store.path.rename(removed)
            shutil.rmtree(removed)
    except (Timeout, BlockingIOError):
        raise StoreInUse from None
