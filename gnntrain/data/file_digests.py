"""Checksums of files, and which files a graph is of: their paths, sizes and contents.

As git's index does, an index keeps the checksum of each file beside its size, times and inode. Only
a file of which one of these has changed is read again: archives, rsync and images write other
content with the size and the time of the old one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from gnntrain.atomic_io import atomic_write
from gnntrain.data.graph import JSON
from gnntrain.errors import UserError
from gnntrain.limits import available_cores

_INDEX = ".files.json"
# The clocks of some file systems tick in steps of two seconds.
_CLOCK_STEP_NS = 2_000_000_000
_HASH_CHUNK = 1 << 26
_READ_SIZE = 1 << 20


def identified(files: Mapping[str, Sequence[Path]], folder: Path) -> dict[str, JSON]:
    """Path, size and content digest of each file (absolute paths), by the keys that name them;
    UserError where one cannot be read. The folder of stores has the index."""
    key_of = {str(path): key for key, paths in files.items() for path in paths}
    try:
        digests = known_checksums(key_of, folder / _INDEX, _CLOCK_STEP_NS)
        return {
            key: [
                {"path": str(path), "size": path.stat().st_size, "digest": digests[str(path)]}
                for path in paths
            ]
            for key, paths in files.items()
        }
    except OSError as error:
        raise UserError(
            f"dataset.{key_of[str(error.filename)]}={error.filename}: {error.strerror}.",
            "Give the path of a file that is there.",
        ) from error


def known_checksums(names: Iterable[str], index: Path, clock_step_ns: int) -> dict[str, str]:
    """The checksum of each file, from the index where that knows the file as it is; OSError where
    one cannot be read.

    Names may be relative to the folder of the index, which is updated where it can be written. A
    file that was changed less than `clock_step_ns` before it was looked at may change again with
    the same times.
    """
    known, began = _read(index), time.time_ns()
    stamps = dict[str, list[int]]()
    for name in names:
        status = (index.parent / name).stat()
        # The ctime is one that nobody can set.
        times = [status.st_mtime_ns, status.st_ctime_ns]
        stamps[name] = [status.st_size, *times, status.st_ino]
        *stamp, seen_ns, _ = known.get(name, (0, ""))
        if stamp != stamps[name] or status.st_ctime_ns > seen_ns - clock_step_ns:
            known.pop(name, None)
    unknown = [name for name in stamps if name not in known]
    found = zip(unknown, checksums([index.parent / name for name in unknown]), strict=True)
    entries = {name: [*stamps[name], began, checksum] for name, checksum in found}
    if entries:
        # Where the index cannot be written, the files are read again next time.
        with suppress(OSError):
            index.parent.mkdir(parents=True, exist_ok=True)
            now = {k: entry for k, entry in _read(index).items() if (index.parent / k).is_file()}
            with atomic_write(index) as file:
                file.write(json.dumps(now | entries).encode())
    return {name: (known | entries)[name][-1] for name in stamps}


def _read(index: Path) -> dict[str, list[Any]]:
    """By path: size, times, inode, when these were looked at, and the checksum."""
    with suppress(OSError, ValueError, RecursionError, AttributeError, TypeError):
        known = json.loads(index.read_bytes()).items()
        return {path: entry for path, entry in known if len(entry) == 6}
    return {}


def checksums(files: Sequence[Path]) -> list[str]:
    """Checksum of each file: BLAKE2b over the BLAKE2b digests of its 64 MiB chunks, which are
    hashed in parallel."""
    with ThreadPoolExecutor(available_cores()) as pool:
        digests = [
            [
                pool.submit(_hash_chunk, file, start)
                for start in range(0, max(file.stat().st_size, 1), _HASH_CHUNK)
            ]
            for file in files
        ]
        return [
            blake2b(b"".join(digest.result() for digest in of_file), digest_size=20).hexdigest()
            for of_file in digests
        ]


def _hash_chunk(path: Path, start: int) -> bytes:
    digest, end = blake2b(), start + _HASH_CHUNK
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while data := file.read(min(end - file.tell(), _READ_SIZE)):
            digest.update(data)
    return digest.digest()
