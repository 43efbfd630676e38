"""A folder of `.npy` files: written row by row, described with checksums, mapped read-only.

A graph store is such a folder; a graph in parts has several.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from pydantic import Field

from gnntrain.data.file_digests import known_checksums
from gnntrain.data.graph import AnyArray
from gnntrain.data.summary import Meta
from gnntrain.errors import RunError
from gnntrain.limits import available_memory

HEADER_BYTES = 128
SEAL_FILE = ".verified.json"

# Of pages of 2 MiB a processor reads rows here and there up to a third faster than of 4 KiB. Linux
# keeps a file in pages as large as the pieces in which it was written or read (ext4 since 6.16).
_PIECE_BYTES = 1 << 21

# The clock of file systems that hold stores ticks in steps of some milliseconds.
_CLOCK_STEP_NS = 20_000_000


class StoreError(RunError):
    """A store that cannot be used; `reason` names the file and the error."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"the graph store {path} cannot be used: {reason}",
            "run `gnntrain prepare` with the same options to build it again",
        )
        self.path, self.reason = path, reason


class ArrayMeta(Meta):
    """One array: its file and what must be in it. bfloat16 lies as uint16, which is no other."""

    file: str = Field(pattern=r"^[a-z0-9_]+\.npy$")
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    checksum: str


def stored_dtype(name: str) -> np.dtype[Any]:
    """The type of an array's numbers in its file."""
    return np.dtype(np.uint16 if name == "bfloat16" else name)


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
    """An `.npy` file that grows by whole rows; its header is written anew when it is closed."""

    def __init__(
        self,
        path: Path,
        dtype: np.dtype[Any] | type[np.generic],
        row_shape: tuple[int, ...] = (),
    ) -> None:
        self.dtype = np.dtype(dtype)
        self._row_shape = row_shape
        self._path = path
        self._num_rows = 0
        self._file = path.open("wb", buffering=_PIECE_BYTES)
        write_header(self._file, self.dtype, (0, *row_shape))

    def append(self, rows: AnyArray) -> None:
        """Add `rows`, already of the file's dtype and row shape."""
        if rows.dtype != self.dtype or rows.shape[1:] != self._row_shape:
            raise ValueError(f"{self._path.name} does not take {rows.dtype} {rows.shape}")
        self._num_rows += len(rows)
        if rows.size:
            data = np.ascontiguousarray(rows).view(np.uint8).data.cast("B")
            while data:
                left = _PIECE_BYTES - self._file.tell() % _PIECE_BYTES
                self._file.write(data[:left])
                data = data[left:]

    def close(self) -> ArrayMeta:
        """Write the header and flush to disk; the result has no checksum yet."""
        shape = (self._num_rows, *self._row_shape)
        size = self._file.tell()
        self._file.seek(0)
        write_header(self._file, self.dtype, shape)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        logical = self.dtype.str if self.dtype.kind == "S" else self.dtype.name
        return ArrayMeta(
            file=self._path.name,
            dtype="bfloat16" if logical == "uint16" else logical,
            shape=shape,
            bytes=size,
            checksum="",
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


def write_header(file: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Write an npy header (version 1.0); NumPy pads it to one length, whatever the number of
    rows."""
    entry = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, entry)


# Mapping


def map_arrays(folder: Path, arrays: Arrays, *, check: bool) -> dict[str, AnyArray]:
    """All arrays of a folder, mapped read-only, with `check` verified; raises `StoreError`."""
    mapped = {name: map_array(folder, array) for name, array in arrays.items()}
    # Such pages are read whole, which pays where all of them fit into memory.
    size = sum(array.bytes for array in arrays.values())
    if hasattr(mmap, "MADV_HUGEPAGE") and 2 * size < available_memory():
        with suppress(OSError):  # a kernel without such pages
            for array in mapped.values():
                memory: Any = array.base  # a memmap, and its base is the map
                memory.base.madvise(mmap.MADV_HUGEPAGE)
    if check:
        verify(folder, arrays)
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
        # The header says the same, which the checksum tells.
        dtype = stored_dtype(meta.dtype)
        header_bytes = meta.bytes - math.prod(meta.shape) * dtype.itemsize
        mapped = np.memmap(path, dtype, "r", header_bytes, meta.shape)
        return mapped.view(np.ndarray)
    except FileNotFoundError:
        raise StoreError(folder, f"{meta.file} is missing") from None
    except OSError as error:
        raise StoreError(folder, f"{meta.file} cannot be read ({error.strerror})") from error


# Checksums. The seal is the index of those that were verified, where the folder is writable.


def with_checksums(folder: Path, arrays: Arrays) -> dict[str, ArrayMeta]:
    """The arrays with the checksums of their files in `folder`, which is sealed."""
    return {
        name: array.model_copy(update={"checksum": checksum})
        for (name, array), checksum in zip(arrays.items(), _checksums(folder, arrays), strict=True)
    }


def verify(folder: Path, arrays: Arrays, *, afresh: bool = False) -> None:
    """Compare the checksums of all files that were touched since this was done, or all `afresh`;
    raises `StoreError`."""
    for array, found in zip(arrays.values(), _checksums(folder, arrays, afresh), strict=True):
        if found != array.checksum:
            was = f"has checksum {found}, expected {array.checksum}"
            raise StoreError(folder, f"{array.file} {was}")


def _checksums(folder: Path, arrays: Arrays, afresh: bool = False) -> Iterable[str]:
    files = [array.file for array in arrays.values()]
    step = 2**63 if afresh else _CLOCK_STEP_NS
    return known_checksums(files, folder / SEAL_FILE, step).values()
