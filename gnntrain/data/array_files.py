"""Arrays of a user's graph: npy, npz and pt files, read without running code.

**Sparse matrices** are those that `scipy.sparse.save_npz` writes, one in a file, or several in one
npz file, each array after the matrix's name: `adj_data`, `adj_indices`, …. Adjacency matrices
become edges, others dense. A row is a source, a column a target, a stored 0 no edge.
"""

from __future__ import annotations

import pickle
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy_format

from gnntrain.data.graph import AnyArray, Int64Array
from gnntrain.data.names import ADJACENCIES
from gnntrain.data.npz_members import read_header
from gnntrain.data.tables import Batch, Record, Table, refuse_beyond_memory, unreadable
from gnntrain.data.values import from_numpy
from gnntrain.errors import UserError

_BATCH_ROWS = 1 << 20

TORCH_SUFFIXES = (".pt", ".pth")
ARRAY_SUFFIXES = (".npy", ".npz", *TORCH_SUFFIXES)

Arrays = Mapping[str, AnyArray]
"""The arrays of a file by name, "" where it holds just one without a name."""


def is_array_file(path: Path) -> bool:
    """Whether a file holds arrays, not a table."""
    return path.suffix.lower() in ARRAY_SUFFIXES


def load_arrays(paths: Sequence[Path]) -> Arrays:
    """The arrays of files, each array one part after the other; of one npy file mapped, not read.

    Sizes are compared with the file's and with the free memory before anything is allocated.
    """
    files: list[dict[str, AnyArray]] = []
    for path in paths:
        try:
            files.append(_load(path))
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
        for name, array in files[-1].items():
            if array.dtype.kind not in "biufUS":
                which = f"its array {name!r}" if name else "it"
                raise UserError(
                    f"{path}: {which} holds values of type {array.dtype}.",
                    "Only real numbers, truth values and texts are read; convert them first.",
                )
        for name, array in files[0].items():
            if name not in files[-1] or files[-1][name].shape[1:] != array.shape[1:]:
                raise UserError(
                    f"{path} has not the array {name!r} that {paths[0]} has, or another width.",
                    "Files of one table need the same arrays.",
                )
    if len(files) == 1:
        return files[0]
    return {name: np.concatenate([arrays[name] for arrays in files]) for name in files[0]}


def _load(path: Path) -> dict[str, AnyArray]:
    suffix = path.suffix.lower()
    if suffix == ".npy":
        with path.open("rb") as file:
            read_header(file, path.stat().st_size)
        return {"": np.load(path, mmap_mode="r", allow_pickle=False)}
    arrays: dict[str, AnyArray] = {}
    if suffix == ".npz":
        with zipfile.ZipFile(path) as archive:
            members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
            refuse_beyond_memory(path, sum(info.file_size for info in members))
            for info in members:
                with archive.open(info) as stream:
                    read_header(stream, info.file_size)
                    stream.seek(0)
                    name = info.filename.removesuffix(".npy")
                    arrays[name] = npy_format.read_array(stream, allow_pickle=False)
        return arrays
    import torch

    loaded = load_torch(path)
    tensors = loaded if isinstance(loaded, dict) else {"": loaded}
    if not all(isinstance(tensor, torch.Tensor) for tensor in tensors.values()):
        raise ValueError("it holds something else than a tensor or a dict of tensors")
    # An expanded tensor may repeat one stored number any number of times.
    refuse_beyond_memory(path, sum(t.numel() * t.element_size() for t in tensors.values()))
    for name, tensor in tensors.items():
        is_narrow = tensor.dtype == torch.bfloat16
        arrays[str(name)] = (tensor.float() if is_narrow else tensor).detach().numpy()
    return arrays


def load_torch(path: Path) -> Any:
    """What `torch.save` wrote: tensors, plain values, and classes that torch was told are safe."""
    import torch

    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            refuse_beyond_memory(path, sum(info.file_size for info in archive.infolist()))
    with (
        # Else indices beyond a sparse matrix would be read.
        torch.sparse.check_sparse_tensor_invariants(),  # type: ignore[no-untyped-call]
        warnings.catch_warnings(action="ignore"),  # about how foreign files are pickled
    ):
        return torch.load(path, map_location="cpu", weights_only=True)


def pick(arrays: Arrays, names: Sequence[str]) -> AnyArray | None:
    """The first array with one of these names."""
    return next((arrays[name] for name in names if name in arrays), None)


def pick_or_only(path: Path, arrays: Arrays, names: Sequence[str]) -> AnyArray:
    """The array with the first of these names, or the only one."""
    found = pick(arrays, [*names, *(arrays if len(arrays) == 1 else ())])
    if found is None:
        raise UserError(
            f"{path} holds arrays called {', '.join(arrays) or '(none)'}.",
            f"Rename the right one to {' or '.join(names)}.",
        )
    return found


class ArrayTable(Table):
    """Arrays `[num_rows]` as columns, and those of a matrix `[num_rows, n]` of numbers.

    `arrays` are all of the file; of edges, those beside their ends. The matrix's columns may have
    `names`.
    """

    has_names = False

    def __init__(
        self,
        path: Path,
        columns: Mapping[str, AnyArray],
        matrix: AnyArray | None = None,
        arrays: Arrays | None = None,
        names: Sequence[str] = (),
    ) -> None:
        self.path = path
        self.arrays = arrays or {}
        self._columns = list(columns.values())
        self._num_rows = len(self._columns[0] if matrix is None else matrix)
        self._matrix = matrix
        width = 0 if matrix is None else matrix.shape[1]
        self.names = (*columns, *(names or map(str, range(width))))
        self.has_names = bool(names)

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

    def read(self, places: Sequence[int]) -> Iterator[Batch]:
        for start in range(0, self._num_rows, _BATCH_ROWS):
            end = min(start + _BATCH_ROWS, self._num_rows)
            columns = {place: from_numpy(self._columns[place][start:end]) for place in places}
            yield columns, np.arange(start, end), end

    def read_fields(self, rows: Int64Array) -> list[tuple[int, Record]]:
        found: list[tuple[int, Record]] = []
        for row in rows.tolist():
            numbers = () if self._matrix is None else self._matrix[row]
            record = (*(column[row] for column in self._columns), *numbers)
            found.append((row, [str(field) for field in record]))
        return found


# Sparse matrices.

_COMPRESSED = ("data", "indices", "indptr", "shape")


def unpack_graph(path: Path, arrays: Arrays) -> dict[str, AnyArray]:
    """A file's arrays, with its sparse matrices as edges or, by their names, as dense arrays."""
    if saved_matrix(path, arrays) is not None:
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
    """`edge_index` of an adjacency matrix, and `edge_weight` unless all values are 1."""
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
    """A sparse matrix as float32 `[num_rows, num_columns]`."""
    refuse_beyond_memory(source, 4 * matrix.shape[0] * matrix.shape[1])
    dense: AnyArray = matrix.astype(np.float32).toarray()
    return dense


def saved_matrix(path: Path, arrays: Arrays) -> Any:
    """The matrix that `save_npz` wrote; None for a file of other arrays."""
    if "format" not in arrays or arrays["format"].ndim:
        return None
    kind = arrays["format"].astype(str).item()
    parts = ("data", "row", "col", "shape") if kind == "coo" else _COMPRESSED
    if kind not in ("csr", "csc", "coo") or any(part not in arrays for part in parts):
        raise UserError(
            f"{path} holds a sparse matrix in the format {kind}.",
            "Save it as CSR: scipy.sparse.save_npz(path, matrix.tocsr()).",
        )
    return _matrix(path, kind, [arrays[part] for part in parts])


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
