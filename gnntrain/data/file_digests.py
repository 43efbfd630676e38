"""Which files a graph is of: their paths, sizes and contents.

As git's index does, the folder of stores keeps a digest of each file's content beside its size,
times and inode. Only a file of which one of these has changed is read again: archives, rsync and
images write other content with the size and the time of the old one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gnntrain.atomic_io import atomic_write
from gnntrain.data.array_folder import checksums
from gnntrain.data.graph import JSON
from gnntrain.errors import UserError

_INDEX = ".files.json"
# The clocks of some file systems tick in steps of two seconds: a file that was changed so short a
# time before it was looked at may change again with the same times.
_CLOCK_STEP_NS = 2_000_000_000


def identified(files: Mapping[str, Sequence[Path]], folder: Path) -> dict[str, JSON]:
    """Path, size and content digest of each file, by the keys that name them.

    Args:
        files: The files by key, such as `edges`.
        folder: The folder of stores.

    Raises:
        UserError: A file is not there, or cannot be read.
    """
    key_of = {path: key for key, paths in files.items() for path in paths}
    known = _read(folder / _INDEX)
    began = time.time_ns()
    stamps, unknown = dict[Path, list[int]](), list[Path]()
    try:
        for path in key_of:
            status = path.stat()
            times = [status.st_mtime_ns, status.st_ctime_ns]
            stamps[path] = [status.st_size, *times, status.st_ino]
            *stamp, seen_ns, _ = known.get(str(path), (0, ""))
            # The ctime, which nobody can set.
            if stamp != stamps[path] or status.st_ctime_ns > seen_ns - _CLOCK_STEP_NS:
                unknown.append(path)
        digests = checksums(unknown)
    except OSError as error:
        path = Path(error.filename)
        raise UserError(
            f"dataset.{key_of[path]}={path}: {error.strerror}.",
            "Give the path of a file that is there.",
        ) from error
    if unknown:
        entries = {
            str(path): [*stamps[path], began, digest]
            for path, digest in zip(unknown, digests, strict=True)
        }
        known |= entries
        # Where the index cannot be written, the files are read again next time.
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            kept = {
                path: entry
                for path, entry in _read(folder / _INDEX).items()
                if Path(path).is_file()
            }
            with atomic_write(folder / _INDEX) as file:
                file.write(json.dumps({**kept, **entries}).encode())
    return {
        key: [
            {"path": str(path), "size": stamps[path][0], "digest": known[str(path)][-1]}
            for path in paths
        ]
        for key, paths in files.items()
    }


def _read(index: Path) -> dict[str, list[Any]]:
    """By path: size, times, inode, when these were looked at, and the digest of the content."""
    with suppress(OSError, ValueError, RecursionError, AttributeError, TypeError):
        known = json.loads(index.read_bytes()).items()
        return {path: entry for path, entry in known if len(entry) == 6}
    return {}
