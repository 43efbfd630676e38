"""Sparse matrices as scipy saves them: adjacency matrices become edges, features become dense.

`scipy.sparse.save_npz` writes the arrays of one matrix; other tools write several matrices into one
npz file, each array after the matrix's name: `adj_data`, `adj_indices`, `adj_indptr`, `adj_shape`.
A row of an adjacency matrix is a source, a column a target. A stored 0 is no edge, and values that
are not all 1 are weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gnntrain.data.graph import AnyArray
from gnntrain.data.tables import refuse_beyond_memory
from gnntrain.errors import UserError

ADJACENCIES = ("adj", "adj_matrix", "adjacency")
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
