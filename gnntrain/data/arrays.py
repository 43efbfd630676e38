"""Writing `.npy` files chunk by chunk, with features converted to the stored type."""

from __future__ import annotations

import os
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from gnntrain.data.checks import bad_graph, feature_problems
from gnntrain.data.graph import AnyArray, FeatureDtype, Float32Array, NodeData, PrepareOptions
from gnntrain.data.store_meta import ArrayMeta

HEADER_BYTES = 128
_CHUNK_BYTES = 1 << 23


class ArrayWriter:
    """An `.npy` file that grows by whole rows; its header is written when it is closed.

    Attributes:
        dtype: The numbers' type, as stored.

    Args:
        path: The file to create.
        dtype: As stored.
        row_shape: Shape of a row, `()` for a one-dimensional array.
        logical_dtype: As recorded, where it differs ("bfloat16" is stored as uint16).
    """

    def __init__(
        self,
        path: Path,
        dtype: np.dtype[Any] | type[np.generic],
        row_shape: tuple[int, ...] = (),
        logical_dtype: str | None = None,
    ) -> None:
        self.dtype = np.dtype(dtype)
        self._row_shape = row_shape
        self._logical = logical_dtype or (
            self.dtype.str if self.dtype.kind == "S" else self.dtype.name
        )
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

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def write_array(directory: Path, name: str, array: AnyArray) -> ArrayMeta:
    """Write `array` to the file `<name>.npy`."""
    with ArrayWriter(directory / f"{name}.npy", array.dtype, array.shape[1:]) as writer:
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


def stored_feature_dtype(options: PrepareOptions) -> np.dtype[Any]:
    """NumPy has no bfloat16: its bits are stored as uint16."""
    return np.dtype(np.uint16 if options.feature_dtype == "bfloat16" else options.feature_dtype)


def lowest_feature(nodes: NodeData, dataset: str) -> float:
    """The smallest value of all features, which `normalize_features` subtracts; 0 without any."""
    chunks = _chunks(nodes, dataset, "")
    return min((float(rows.min()) for _, rows in chunks if rows.size), default=0.0)


def prepared_features(
    nodes: NodeData, dtype: FeatureDtype, lowest: float | None, dataset: str, where: str = ""
) -> Iterator[AnyArray]:
    """The features as they are stored, some MiB at a time.

    Args:
        nodes: The nodes of one type.
        dtype: How features are stored.
        lowest: Subtracted before each row is divided by its sum; None: neither is done.
        dataset: Name of the data set, for messages.
        where: What a problem begins with: the node type of a typed graph.

    Raises:
        UserError: A value is no finite number, or does not fit into the type.
    """
    for start, rows in _chunks(nodes, dataset, where):
        problems = list(feature_problems(rows, start))
        with np.errstate(over="ignore"):
            values = rows.astype(np.float32, copy=False)
            if lowest is not None:
                values = _row_normalized(values, lowest)
            stored = encoded(values, dtype)
        problems = problems or list(_overflow_problems(rows, stored, start, dtype))
        if problems:
            raise bad_graph(dataset, [f"{where}{problem}" for problem in problems])
        yield stored


def _chunks(nodes: NodeData, dataset: str, where: str) -> Iterator[tuple[int, AnyArray]]:
    features, num_features = nodes.features, nodes.num_features
    step = max(1, _CHUNK_BYTES // max(1, 4 * num_features))
    for start in range(0, nodes.num_nodes, step):
        stop = min(start + step, nodes.num_nodes)
        if features is None:
            rows: AnyArray = np.empty((stop - start, 0), dtype=np.float32)
        elif isinstance(features, np.ndarray):
            rows = features[start:stop]
        else:
            rows = features.rows(start, stop)
        if rows.shape != (stop - start, num_features):
            expected = [stop - start, num_features]
            problem = f"{where}features of nodes {start} … {stop - 1} have shape {list(rows.shape)}"
            raise bad_graph(dataset, [f"{problem}, expected {expected}"])
        yield start, rows


def _row_normalized(values: Float32Array, lowest: float) -> Float32Array:
    shifted = values - np.float32(lowest)
    sums = shifted.sum(axis=1, keepdims=True)
    np.divide(shifted, np.maximum(sums, 1), out=shifted)
    return shifted


def encoded(values: Float32Array, dtype: str) -> AnyArray:
    """Features as they are stored."""
    if dtype != "bfloat16":
        return values.astype(dtype, copy=False)
    import torch  # rounds to nearest even

    bits: AnyArray = torch.tensor(values).bfloat16().view(torch.uint16).numpy()
    return bits


def _overflow_problems(
    given: AnyArray, stored: AnyArray, first_node: int, dtype: str
) -> Iterator[str]:
    if dtype == "bfloat16":
        infinite = (stored & np.uint16(0x7FFF)) == np.uint16(0x7F80)
    else:
        infinite = np.isinf(stored)
    bad = np.argwhere(infinite)
    if len(bad):
        node, column = bad[0].tolist()
        yield (
            f"{len(bad)} features do not fit in {dtype} "
            f"(first: {given[node, column]} at node {first_node + node}, column {column})"
        )
