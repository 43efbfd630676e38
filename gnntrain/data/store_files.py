"""A graph store's array files: mapped, checksummed, and watched for changes."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import stat
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

import numpy as np

from gnntrain.data.graph import AnyArray
from gnntrain.data.npz_members import read_header
from gnntrain.data.store_meta import (
    META_FILE,
    SEAL_FILE,
    ArrayMeta,
    StoreError,
    canonical_json,
)
from gnntrain.limits import available_cores

_HASH_CHUNK = 1 << 26
_READ_SIZE = 1 << 20
# A file changed this short a time before the seal was written may change again with the same
# time stamp (the clock of file systems ticks in steps of some milliseconds).
_CLOCK_STEP_NS = 20_000_000


class ArrayFolder(Protocol):
    """What is known of a folder of arrays."""

    @property
    def arrays(self) -> Mapping[str, ArrayMeta]: ...

    @property
    def digest(self) -> str:
        """Changes whenever the content of an array changes."""
        ...


def map_array(path: Path, meta: ArrayMeta) -> AnyArray:
    """One array of the store at `path`, mapped read-only; raises `StoreError`."""
    try:
        if not stat.S_ISREG((path / meta.file).lstat().st_mode):
            raise StoreError(path, f"{meta.file} is no regular file")
        with (path / meta.file).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != meta.bytes:
                raise StoreError(path, f"{meta.file} has {size} bytes, expected {meta.bytes}")
            header = read_header(file, size)
            if header.fortran_order:
                raise ValueError(f"{header.dtype} in Fortran order")
            if (header.shape, header.dtype) != (meta.shape, meta.stored_dtype):
                raise StoreError(
                    path,
                    f"{meta.file} holds {header.dtype.name} {list(header.shape)}, "
                    f"expected {meta.dtype} {list(meta.shape)}",
                )
            array = np.memmap(file, header.dtype, "r", file.tell(), header.shape)
            return array.view(np.ndarray)
    except FileNotFoundError:
        raise StoreError(path, f"{meta.file} is missing") from None
    except ValueError as error:
        raise StoreError(path, f"{meta.file} is not a valid npy file ({error})") from None
    except OSError as error:
        raise StoreError(path, f"{meta.file} cannot be read ({error.strerror})") from error


def checksums(files: list[Path]) -> list[str]:
    """Checksum of each file: BLAKE2b over the BLAKE2b digests of its 64 MiB chunks.

    Chunks are hashed in parallel, so that one huge file does not occupy one core only.
    """
    chunks = [
        [(file, start) for start in range(0, max(file.stat().st_size, 1), _HASH_CHUNK)]
        for file in files
    ]
    with ThreadPoolExecutor(available_cores()) as pool:
        digests = [[pool.submit(_hash_chunk, *chunk) for chunk in of_file] for of_file in chunks]
        return [
            blake2b(b"".join(digest.result() for digest in of_file), digest_size=20).hexdigest()
            for of_file in digests
        ]


def with_checksums(folder: Path, arrays: Mapping[str, ArrayMeta]) -> dict[str, ArrayMeta]:
    """The arrays' metadata with the checksums of their files in `folder`."""
    found = checksums([folder / array.file for array in arrays.values()])
    return {
        name: array.model_copy(update={"checksum": checksum})
        for (name, array), checksum in zip(arrays.items(), found, strict=True)
    }


def verify(path: Path, meta: ArrayFolder) -> None:
    """Compare the bytes of all arrays with their checksums, and seal the folder.

    Raises:
        StoreError: A file differs.
    """
    before = stamps_of(path, meta)
    for name, found in with_checksums(path, meta.arrays).items():
        if found.checksum != meta.arrays[name].checksum:
            raise StoreError(
                path,
                f"{found.file} has checksum {found.checksum}, "
                f"expected {meta.arrays[name].checksum}",
            )
    write_seal(path, meta, before)


def _hash_chunk(path: Path, start: int) -> bytes:
    digest = blake2b()
    left = _HASH_CHUNK
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while left and (data := file.read(min(left, _READ_SIZE))):
            digest.update(data)
            left -= len(data)
    return digest.digest()


Stamps = dict[str, list[int]]


def stamps_of(path: Path, meta: ArrayFolder) -> Stamps:
    """Size and times of each array's file: what changes whenever the file is written."""
    stamps: Stamps = {}
    for array in meta.arrays.values():
        status = (path / array.file).stat()
        stamps[array.file] = [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    return stamps


def write_seal(path: Path, meta: ArrayFolder, stamps: Stamps | None = None) -> None:
    """Note that the files as stamped passed a full verification, where `path` is writable."""
    content = {"digest": meta.digest, "files": stamps or stamps_of(path, meta)}
    try:
        unfinished = path / f"{SEAL_FILE}.{secrets.token_hex(8)}"
        unfinished.write_text(canonical_json(content))
        unfinished.replace(path / SEAL_FILE)
    except OSError:
        return


def is_sealed(path: Path, meta: ArrayFolder) -> bool:
    """Whether no file was touched since the last full verification."""
    stamps = stamps_of(path, meta)
    try:
        seal = json.loads((path / SEAL_FILE).read_bytes())
        sealed_ns = (path / SEAL_FILE).stat().st_mtime_ns
    except (OSError, ValueError, RecursionError):
        return False
    newest = max(max(times) for _, *times in stamps.values())
    return bool(
        seal == {"digest": meta.digest, "files": stamps} and newest < sealed_ns - _CLOCK_STEP_NS
    )


def note_use(path: Path) -> None:
    """Keep when the store was last opened, as the time of its folder, where `path` is writable."""
    with contextlib.suppress(OSError):
        os.utime(path)


def hold(path: Path) -> contextlib.ExitStack:
    """Mark the store as in use, so that `gnntrain clean` keeps it until what is returned is closed.

    A shared lock on `meta.json`, after that of a `clean` that has begun: the store is gone then. On
    file systems without locks there is none.
    """
    stack = contextlib.ExitStack()
    with contextlib.suppress(OSError):
        file = stack.enter_context((path / META_FILE).open("rb"))
        fcntl.flock(file, fcntl.LOCK_SH)
    return stack
