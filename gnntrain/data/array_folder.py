"""A folder of `.npy` files: written row by row, described with checksums, mapped read-only.

A graph store is such a folder; a graph in parts has several.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from gnntrain.data.graph import AnyArray
from gnntrain.data.npz_members import read_header
from gnntrain.errors import RunError
from gnntrain.limits import available_cores

HEADER_BYTES = 128
SEAL_FILE = ".verified.json"

_HASH_CHUNK = 1 << 26
_READ_SIZE = 1 << 20
# A file changed this short a time before the seal was written may change again with the same
# time stamp (the clock of file systems ticks in steps of some milliseconds).
_CLOCK_STEP_NS = 20_000_000


class StoreError(RunError):
    """A store that cannot be used; `reason` names the file and the error."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"the graph store {path} cannot be used: {reason}",
            "run `gnntrain prepare` with the same options to build it again",
        )
        self.path, self.reason = path, reason


class Meta(BaseModel):
    """Strict and frozen: unknown fields and wrong types are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ArrayMeta(Meta):
    """One array: its file and what must be in it. `dtype` is logical; bfloat16 lies as uint16."""

    file: str = Field(pattern=r"^[a-z0-9_]+\.npy$")
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    checksum: str

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint16 if self.dtype == "bfloat16" else self.dtype)


Arrays = Mapping[str, ArrayMeta]
"""The arrays of a folder by name."""


def canonical_json(value: object) -> str:
    """JSON of `value` with sorted keys and no blanks, from which digests are computed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest_of(value: object, num_bytes: int = 20) -> str:
    """Hexadecimal BLAKE2b digest of a JSON value's canonical spelling."""
    return blake2b(canonical_json(value).encode(), digest_size=num_bytes).hexdigest()


# Writing


class ArrayWriter:
    """An `.npy` file that grows by whole rows; its header is written when it is closed.
    `logical_dtype` is recorded, where it differs ("bfloat16" is stored as uint16)."""

    def __init__(
        self,
        path: Path,
        dtype: np.dtype[Any] | type[np.generic],
        row_shape: tuple[int, ...] = (),
        logical_dtype: str | None = None,
    ) -> None:
        self.dtype = np.dtype(dtype)
        self._row_shape = row_shape
        plain = self.dtype.str if self.dtype.kind == "S" else self.dtype.name
        self._logical = logical_dtype or plain
        self._path = path
        self._num_rows = 0
        self._file = path.open("wb")
        self._file.write(bytes(HEADER_BYTES))

    def append(self, rows: AnyArray) -> None:
        """Add `rows`, already of the file's dtype and row shape."""
        if rows.dtype != self.dtype or rows.shape[1:] != self._row_shape:
            raise ValueError(f"{self._path.name} does not take {rows.dtype} {rows.shape}")
        self._num_rows += len(rows)
        if rows.size:
            self._file.write(np.ascontiguousarray(rows).view(np.uint8).data)

    def close(self) -> ArrayMeta:
        """Write the header and flush to disk; the result has no checksum yet."""
        shape = (self._num_rows, *self._row_shape)
        size = self._file.tell()
        self._file.seek(0)
        self._file.write(npy_header(self.dtype, shape))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return ArrayMeta(
            file=self._path.name, dtype=self._logical, shape=shape, bytes=size, checksum=""
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def write_array(folder: Path, name: str, array: AnyArray) -> ArrayMeta:
    """Write `array` to the file `<name>.npy`."""
    with ArrayWriter(folder / f"{name}.npy", array.dtype, array.shape[1:]) as writer:
        writer.append(array)
        return writer.close()


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """An npy header (version 1.0); NumPy pads it to one length, whatever the number of rows."""
    buffer = BytesIO()
    entry = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, entry)
    header = buffer.getvalue()
    if len(header) != HEADER_BYTES:
        raise ValueError(f"an npy header for {dtype} {shape} does not fit")
    return header


# Mapping


def map_arrays(folder: Path, arrays: Arrays, digest: str, *, check: bool) -> dict[str, AnyArray]:
    """All arrays of a folder, mapped read-only; raises `StoreError`.

    Args:
        digest: That of their description, which changes with the content of any array.
        check: Verify all checksums if a file was touched since they were last verified.
    """
    mapped = {name: map_array(folder, array) for name, array in arrays.items()}
    if check and not _is_sealed(folder, arrays, digest):
        verify(folder, arrays, digest)
    return mapped


def map_array(folder: Path, meta: ArrayMeta) -> AnyArray:
    """One array, mapped read-only; raises `StoreError`."""
    path = folder / meta.file
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):  # a pipe would be waited for
            raise StoreError(folder, f"{meta.file} is no regular file")
        if status.st_size != meta.bytes:
            was = f"has {status.st_size} bytes, expected {meta.bytes}"
            raise StoreError(folder, f"{meta.file} {was}")
        with path.open("rb") as file:
            header = read_header(file, meta.bytes)
            offset = file.tell()
        if header.fortran_order:
            raise ValueError(f"{header.dtype} in Fortran order")
        if (header.shape, header.dtype) != (meta.shape, meta.stored_dtype):
            found = f"{header.dtype.name} {list(header.shape)}"
            expected = f"{meta.dtype} {list(meta.shape)}"
            raise StoreError(folder, f"{meta.file} holds {found}, expected {expected}")
        array = np.memmap(path, header.dtype, "r", offset, header.shape)
        return array.view(np.ndarray)
    except FileNotFoundError:
        raise StoreError(folder, f"{meta.file} is missing") from None
    except ValueError as error:
        raise StoreError(folder, f"{meta.file} is not a valid npy file ({error})") from None
    except OSError as error:
        raise StoreError(folder, f"{meta.file} cannot be read ({error.strerror})") from error


# Checksums


def checksums(files: list[Path]) -> list[str]:
    """Checksum of each file: BLAKE2b over the BLAKE2b digests of its 64 MiB chunks.

    Chunks are hashed in parallel, so that one huge file does not occupy one core only.
    """
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
    digest = blake2b()
    left = _HASH_CHUNK
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while left and (data := file.read(min(left, _READ_SIZE))):
            digest.update(data)
            left -= len(data)
    return digest.digest()


def with_checksums(folder: Path, arrays: Arrays) -> dict[str, ArrayMeta]:
    """The arrays with the checksums of their files in `folder`."""
    found = checksums([folder / array.file for array in arrays.values()])
    return {
        name: array.model_copy(update={"checksum": checksum})
        for (name, array), checksum in zip(arrays.items(), found, strict=True)
    }


def verify(folder: Path, arrays: Arrays, digest: str) -> None:
    """Compare all bytes with their checksums, and seal the folder; raises `StoreError`."""
    before = _stamps(folder, arrays)
    for name, found in with_checksums(folder, arrays).items():
        if found.checksum != arrays[name].checksum:
            was = f"has checksum {found.checksum}, expected {arrays[name].checksum}"
            raise StoreError(folder, f"{found.file} {was}")
    write_seal(folder, arrays, digest, before)


# The seal: the files of the folder passed a full verification when they had these sizes and times.

_Stamps = dict[str, list[int]]


def _stamps(folder: Path, arrays: Arrays) -> _Stamps:
    """Size and times of each array's file: what changes whenever the file is written."""
    status = {array.file: (folder / array.file).stat() for array in arrays.values()}
    return {file: [of.st_size, of.st_mtime_ns, of.st_ctime_ns] for file, of in status.items()}


def write_seal(folder: Path, arrays: Arrays, digest: str, stamps: _Stamps | None = None) -> None:
    """Note that the files, as they were when stamped, are verified, where `folder` is writable."""
    content = {"digest": digest, "files": stamps or _stamps(folder, arrays)}
    try:
        unfinished = folder / f"{SEAL_FILE}.{secrets.token_hex(8)}"
        unfinished.write_text(canonical_json(content))
        unfinished.replace(folder / SEAL_FILE)
    except OSError:
        return


def _is_sealed(folder: Path, arrays: Arrays, digest: str) -> bool:
    """Whether no file was touched since the last full verification."""
    stamps = _stamps(folder, arrays)
    try:
        seal = json.loads((folder / SEAL_FILE).read_bytes())
        sealed_ns = (folder / SEAL_FILE).stat().st_mtime_ns
    except (OSError, ValueError, RecursionError):
        return False
    newest = max(max(times) for _, *times in stamps.values())
    return bool(seal == {"digest": digest, "files": stamps} and newest < sealed_ns - _CLOCK_STEP_NS)
