"""Arrays of a user's graph: npy, npz and pt files, read without running code."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy_format

from gnntrain.data.graph import AnyArray, Int64Array
from gnntrain.data.names import (
    ADJACENCIES,
    EDGE_ARRAYS,
    FEATURE_ARRAYS,
    ID_ARRAYS,
    MASK_ARRAYS,
    NODE_ARRAYS,
)
from gnntrain.data.npz_members import read_header
from gnntrain.data.tables import MAX_COLUMNS, Batch, Record, Table, refuse_beyond_memory, unreadable
from gnntrain.data.targets import check_split_number
from gnntrain.data.values import from_numpy
from gnntrain.errors import UserError

_BATCH_ROWS = 1 << 20

ARRAY_SUFFIXES = (".npy", ".npz", ".pt", ".pth")

Arrays = Mapping[str, AnyArray]
"""The arrays of a file by name; the name is "" where a file holds just one without a name."""


def load_arrays(path: Path) -> Arrays:
    """All arrays of a file; a single one in an npy file is mapped, not read.

    Sizes are compared with the file's and with the free memory before anything is allocated.

    Raises:
        UserError: The file cannot be read, does not fit in memory, or holds pickled objects or
            anything but arrays of real numbers and texts.
    """
    try:
        arrays = _load(path)
    except UserError:
        raise
    except Exception as error:  # zipfile, NumPy and torch stumble over damage in many ways
        if "pickle" in str(error) or isinstance(error, pickle.UnpicklingError):
            # Their own advice is to load it unsafely.
            raise UserError(
                f"{path} cannot be read: it holds Python objects, and only arrays are loaded.",
                "Save arrays of numbers or texts, by numpy.savez or as a dict of tensors.",
            ) from error
        raise unreadable(path, error) from error
    for name, array in arrays.items():
        if array.dtype.kind not in "biufUS":
            which = f"its array {name!r}" if name else "it"
            raise UserError(
                f"{path}: {which} holds values of type {array.dtype}.",
                "Only real numbers, truth values and texts are read; convert them first.",
            )
    return arrays


def load_all(paths: Sequence[Path]) -> Arrays:
    """The arrays of several files, each array one part after the other.

    Raises:
        UserError: See `load_arrays`; or a file lacks an array of the first one's.
    """
    first, *others = files = [load_arrays(path) for path in paths]
    for path, arrays in zip(paths[1:], others, strict=True):
        for name, array in first.items():
            if name not in arrays or arrays[name].shape[1:] != array.shape[1:]:
                raise UserError(
                    f"{path} has not the array {name!r} that {paths[0]} has, or another width.",
                    "Files of one table need the same arrays.",
                )
    if not others:
        return first
    return {name: np.concatenate([arrays[name] for arrays in files]) for name in first}


def _load(path: Path) -> Arrays:
    if path.suffix.lower() in (".pt", ".pth"):
        return _load_torch(path)
    if path.suffix.lower() == ".npy":
        with path.open("rb") as file:
            read_header(file, path.stat().st_size)
        return {"": np.load(path, mmap_mode="r", allow_pickle=False)}
    with zipfile.ZipFile(path) as archive:
        members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        refuse_beyond_memory(path, sum(info.file_size for info in members))
        arrays: dict[str, AnyArray] = {}
        for info in members:
            with archive.open(info) as stream:
                read_header(stream, info.file_size)
                stream.seek(0)
                name = info.filename.removesuffix(".npy")
                arrays[name] = npy_format.read_array(stream, allow_pickle=False)
        return arrays


def _load_torch(path: Path) -> Arrays:
    import torch

    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            refuse_beyond_memory(path, sum(info.file_size for info in archive.infolist()))
    with warnings.catch_warnings(action="ignore"):  # about how foreign files are pickled
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    tensors = loaded if isinstance(loaded, dict) else {"": loaded}
    if not all(isinstance(tensor, torch.Tensor) for tensor in tensors.values()):
        raise ValueError("it holds something else than a tensor or a dict of tensors")
    # An expanded tensor may repeat one stored number any number of times.
    refuse_beyond_memory(path, sum(t.numel() * t.element_size() for t in tensors.values()))
    wide = {name: t.float() if t.dtype == torch.bfloat16 else t for name, t in tensors.items()}
    return {str(name): tensor.detach().numpy() for name, tensor in wide.items()}


def pick(arrays: Arrays, names: Sequence[str]) -> AnyArray | None:
    """The first array with one of these names."""
    return next((arrays[name] for name in names if name in arrays), None)


def pick_or_only(path: Path, arrays: Arrays, names: Sequence[str]) -> AnyArray:
    """The array with the first of these names, or the only one.

    Raises:
        UserError: There are several, without such a name.
    """
    found = pick(arrays, names)
    if found is not None:
        return found
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    raise UserError(
        f"{path} holds arrays called {', '.join(arrays) or '(none)'}.",
        f"Rename the right one to {' or '.join(names)}.",
    )


class ArrayTable(Table):
    """Arrays as columns.

    Args:
        path: Their file.
        columns: Arrays `[num_rows]` by name.
        matrix: More columns, of numbers: `[num_rows, n]`.
        arrays: All arrays of the file; of edges, those beside their ends.
    """

    def __init__(
        self,
        path: Path,
        columns: Mapping[str, AnyArray],
        matrix: AnyArray | None = None,
        arrays: Arrays | None = None,
    ) -> None:
        self.path = path
        self.arrays = arrays or {}
        self._columns = list(columns.values())
        self._num_rows = len(self._columns[0] if matrix is None else matrix)
        self._matrix = matrix
        self.names = (*columns, *map(str, range(0 if matrix is None else matrix.shape[1])))

    @property
    def main(self) -> range:
        """Places of the matrix, or of the last column where there is none."""
        width = 1 if self._matrix is None else self._matrix.shape[1]
        return range(len(self.names) - width, len(self.names))

    def column(self, place: int) -> AnyArray:
        """A column that is no part of the matrix."""
        return self._columns[place]

    def array(self, places: Sequence[int]) -> AnyArray | None:
        first = len(self._columns)
        if self._matrix is None or not places or min(places) < first:
            return None
        is_whole = list(places) == list(range(first, len(self.names)))
        return self._matrix if is_whole else self._matrix[:, np.asarray(places) - first]

    def read(self, places: Sequence[int]) -> Iterator[Batch]:  # noqa: ARG002
        for start in range(0, self._num_rows, _BATCH_ROWS):
            end = min(start + _BATCH_ROWS, self._num_rows)
            arrays = enumerate(self._columns)
            yield (
                {place: from_numpy(array[start:end]) for place, array in arrays},
                np.arange(start, end),
                end,
            )

    def read_fields(self, rows: Int64Array) -> list[tuple[int, Record]]:
        found: list[tuple[int, Record]] = []
        for row in rows.tolist():
            numbers = () if self._matrix is None else self._matrix[row]
            found.append(
                (row, [str(field) for field in (*(c[row] for c in self._columns), *numbers)])
            )
        return found


def open_arrays(
    path: Path,
    arrays: Arrays,
    names: Sequence[str],
    *,
    labels: Collection[str] = (),
    id_name: str | None = None,
    split: int = 0,
) -> ArrayTable:
    """A file of arrays as a table: the main array (by name, or the only one) and columns.

    Columns are ids, masks and labels. The main array is the table's matrix, or its last column.

    Args:
        path: The file.
        arrays: Its arrays.
        names: Names of the main array.
        labels: Names of arrays `[num_rows]` that are columns.
        id_name: Name of the array of ids; None: a usual one.
        split: The number of the split, of several in a mask.

    Raises:
        UserError: There is no such array, or the arrays have not one row a node.
    """
    arrays = unpack_features(path, arrays)
    candidates = {
        n: a for n, a in arrays.items() if n in names or n not in (*NODE_ARRAYS, *EDGE_ARRAYS)
    }
    main = pick_or_only(path, candidates, names)
    main_name = next(name for name, array in candidates.items() if array is main)
    is_features = names is FEATURE_ARRAYS
    if main.ndim not in (1, 2) or (main.ndim == 1 and is_features):
        raise UserError(f"{path}: shape {list(main.shape)} instead of one row a node.")
    if main.ndim == 2 and main.shape[1] > MAX_COLUMNS:
        raise UserError(f"{path} has {main.shape[1]:,} columns, more than {MAX_COLUMNS:,}.")
    if main.ndim == 2 and main.dtype.kind not in "biuf":
        raise UserError(f"{path}: its values are of type {main.dtype}, not numbers.")
    columns = {}
    for name, array in arrays.items():
        is_label = name in labels and array.ndim == 1
        is_other = name in (*ID_ARRAYS, *MASK_ARRAYS, id_name)
        if name == main_name or not (is_label or is_other):
            continue
        if array.ndim == 2 and name in MASK_ARRAYS:  # [num_rows, num_splits]
            check_split_number(f"{path}: {name}", split, range(array.shape[1]))
            array = array[:, split]
        if array.shape != (len(main),):
            raise UserError(f"{path}: {len(main)} rows, and {name} of shape {list(array.shape)}.")
        columns[name] = array
    if main.ndim == 1 or (main.shape[1] == 1 and not is_features):
        return ArrayTable(path, {**columns, main_name: main.reshape(-1)}, arrays=arrays)
    return ArrayTable(path, columns, main, arrays)


_COMPRESSED = ("data", "indices", "indptr", "shape")
_PARTS = {"csr": _COMPRESSED, "csc": _COMPRESSED, "coo": ("data", "row", "col", "shape")}


def unpack_edges(
    path: Path, arrays: Mapping[str, AnyArray], *, square: bool = True
) -> Mapping[str, AnyArray]:
    """A file's arrays; those of a sparse matrix become `edge_index` and perhaps `edge_weight`.

    Raises:
        UserError: The matrix is broken, or should be square and is not.
    """
    matrix = _saved_matrix(path, arrays)
    return arrays if matrix is None else edges_of(matrix, path, square=square)


def unpack_features(path: Path, arrays: Mapping[str, AnyArray]) -> Mapping[str, AnyArray]:
    """A file's arrays; those of a sparse matrix become the dense array `features`.

    Raises:
        UserError: The matrix is broken, or takes more than the free memory when it is dense.
    """
    matrix = _saved_matrix(path, arrays)
    return arrays if matrix is None else {"features": densified(matrix, path)}


def unpack_graph(path: Path, arrays: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
    """A file's arrays, with its sparse matrices as edges or, by their names, as dense arrays.

    Raises:
        UserError: A matrix is broken, or takes more than the free memory when it is dense.
    """
    if _saved_matrix(path, arrays) is not None:
        raise UserError(
            f"{path} holds one sparse matrix, not a whole graph.",
            "Give it as dataset.edges or as dataset.features.",
        )
    unpacked = dict(arrays)
    for name in [key.removesuffix("_indptr") for key in arrays if key.endswith("_indptr")]:
        parts = [f"{name}_{part}" for part in _COMPRESSED]
        if all(part in arrays for part in parts):
            matrix = _matrix(path, "csr", [unpacked.pop(part) for part in parts])
            is_graph = name in ADJACENCIES
            unpacked |= edges_of(matrix, path) if is_graph else {name: densified(matrix, path)}
    return unpacked


def edges_of(matrix: Any, source: Path | str, *, square: bool = True) -> dict[str, AnyArray]:
    """`edge_index` of an adjacency matrix, and `edge_weight` unless all values are 1.

    Raises:
        UserError: The matrix should be square and is not.
    """
    if square and matrix.shape[0] != matrix.shape[1]:
        raise UserError(
            f"{source}: the adjacency matrix has shape {list(matrix.shape)}.",
            "An adjacency matrix is square: a row and a column a node.",
        )
    entries = matrix.tocoo()
    there = entries.data != 0
    ends = np.stack([entries.row[there], entries.col[there]]).astype(np.int64)
    weight = entries.data[there]
    return {"edge_index": ends} | ({} if (weight == 1).all() else {"edge_weight": weight})


def densified(matrix: Any, source: Path | str) -> AnyArray:
    """A sparse matrix as float32 `[num_rows, num_columns]`.

    Raises:
        UserError: It takes more than the free memory.
    """
    refuse_beyond_memory(source, 4 * matrix.shape[0] * matrix.shape[1])
    dense: AnyArray = matrix.astype(np.float32).toarray()
    return dense


def _saved_matrix(path: Path, arrays: Mapping[str, AnyArray]) -> Any:
    """The matrix that `save_npz` wrote; None for a file of other arrays."""
    if "format" not in arrays or arrays["format"].ndim:
        return None
    kind = arrays["format"].astype(str).item()
    if kind not in _PARTS or any(part not in arrays for part in _PARTS[kind]):
        raise UserError(
            f"{path} holds a sparse matrix in the format {kind}.",
            "Save it as CSR: scipy.sparse.save_npz(path, matrix.tocsr()).",
        )
    return _matrix(path, kind, [arrays[part] for part in _PARTS[kind]])


def _matrix(path: Path, kind: str, parts: list[AnyArray]) -> Any:
    import scipy.sparse

    values, *indices, shape = parts
    try:
        size = tuple(int(length) for length in shape)
        if kind == "coo":
            return scipy.sparse.coo_array((values, tuple(indices)), shape=size)
        matrix = getattr(scipy.sparse, f"{kind}_array")((values, *indices), shape=size)
        matrix.check_format(full_check=True)
    except (ValueError, TypeError, OverflowError) as error:
        raise UserError(
            f"{path} holds a sparse matrix that is broken: {error}.",
            "Save it again with scipy.sparse.save_npz.",
        ) from error
    return matrix
