"""Raw files that are pickles, read without running what else a pickle may ask for.

Planetoid's files (Cora, CiteSeer, PubMed; Yang et al., 2016) are pickles of Python 2, and PyG reads
them with `pickle.load`, which runs whatever code a file names. They need an array, a sparse matrix
and a dictionary of lists: nothing else is let in.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import IO, Any

import numpy as np


def load_plain(file: IO[bytes], **options: Any) -> Any:
    """As `pickle.load`, for NumPy arrays, CSR matrices, lists and dictionaries alone.

    Raises:
        UnpicklingError: The file names anything else.
    """
    return _PlainUnpickler(file, **options).load()


@contextmanager
def only_plain_pickles() -> Iterator[None]:
    """Have PyG's reader of Planetoid's files read plain data only."""
    import torch_geometric.io.planetoid as reader

    before = reader.pickle
    reader.pickle = SimpleNamespace(load=load_plain)
    try:
        yield
    finally:
        reader.pickle = before


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        from scipy.sparse import csr_matrix

        reconstruct = np.empty(0).__reduce__()[0]
        plain = {
            ("collections", "defaultdict"): defaultdict,
            ("__builtin__", "list"): list,
            ("builtins", "list"): list,
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("numpy.core.multiarray", "_reconstruct"): reconstruct,
            ("numpy._core.multiarray", "_reconstruct"): reconstruct,
            ("scipy.sparse.csr", "csr_matrix"): csr_matrix,
            ("scipy.sparse._csr", "csr_matrix"): csr_matrix,
        }
        if (module, name) not in plain:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which could run code")
        return plain[module, name]
