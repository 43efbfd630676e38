"""Arrays inside an .npz file, which `np.load` would read as a whole (ogbn-papers100M: 57 GB): one
that is stored uncompressed is mapped into memory, a compressed one unpacked a range at a time."""

from __future__ import annotations

import math
import tokenize
import zipfile
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy_format

from gnntrain.data.graph import AnyArray

_LOCAL_HEADER_BYTES = 30


def read_header(
    stream: IO[bytes], num_bytes: int | None = None
) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Read the header of an npy file of `num_bytes`: the array's shape, whether it is in Fortran
    order, and its type; the stream is then at the array. ValueError where it is broken, tells of
    pickled objects, or of another size."""
    version = npy_format.read_magic(stream)
    if version not in ((1, 0), (2, 0), (3, 0)):  # the last is as the second, in UTF-8
        raise ValueError(f"it has npy version {version}")
    is_first = version == (1, 0)
    read = npy_format.read_array_header_1_0 if is_first else npy_format.read_array_header_2_0
    try:
        shape, fortran_order, dtype = read(stream)
    except (SyntaxError, tokenize.TokenError, RecursionError, MemoryError) as error:
        raise ValueError("its header is broken") from error
    if dtype.hasobject:
        raise ValueError("it holds pickled objects")
    if num_bytes is not None:
        left = num_bytes - stream.tell()
        if math.prod(shape) * dtype.itemsize != left or any(length < 0 for length in shape):
            raise ValueError(
                f"its header tells of {list(shape)} {dtype}, but {left:,} bytes are there"
            )
    return shape, fortran_order, dtype


def open_member(path: Path, name: str) -> AnyArray | StreamedRows:
    """Array `name` of the npz file at `path`: a read-only memory map, or else a stream of rows.
    KeyError where it is not there; ValueError where it has not 1 or 2 dimensions of numbers."""
    archive = zipfile.ZipFile(path)
    info = archive.getinfo(f"{name}.npy")
    stream = archive.open(info)
    shape, fortran_order, dtype = read_header(stream)
    if len(shape) not in (1, 2):
        raise ValueError(f"it has {len(shape)} dimensions")
    if info.compress_type != zipfile.ZIP_STORED:
        if fortran_order and len(shape) == 2:
            raise ValueError("it is compressed and in Fortran order")
        return StreamedRows(stream, shape, dtype)
    header_bytes = stream.tell()
    archive.close()
    # The local header may be longer than the central directory's entry says.
    with path.open("rb") as file:
        file.seek(info.header_offset)
        local = file.read(_LOCAL_HEADER_BYTES)
    name_bytes, extra_bytes = np.frombuffer(local[26:30], "<u2").tolist()
    offset = info.header_offset + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes + header_bytes
    return np.memmap(path, dtype, "r", offset, shape, "F" if fortran_order else "C")


class StreamedRows:
    """Rows of a compressed array `[n]` or `[n, m]`, whose file is at its first value; going back
    unpacks it anew."""

    def __init__(
        self, stream: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> None:
        self._stream = stream
        self._header_bytes = stream.tell()
        self.shape, self.dtype = shape, dtype
        self.num_features = shape[1] if len(shape) == 2 else 1

    def rows(self, start: int, stop: int) -> AnyArray:
        """Rows `start` up to `stop`: `[stop - start, num_features]`."""
        width = self.num_features
        return self.values(start * width, stop * width).reshape(-1, width)

    def values(self, start: int, stop: int) -> AnyArray:
        """Values `start` up to `stop` of the array as if it had one dimension."""
        self._stream.seek(self._header_bytes + start * self.dtype.itemsize)
        raw = self._stream.read((stop - start) * self.dtype.itemsize)
        if len(raw) < (stop - start) * self.dtype.itemsize:
            raise ValueError(f"{self._stream.name} ends too early")
        return np.frombuffer(raw, self.dtype)
