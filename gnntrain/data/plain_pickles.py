"""Raw files that are pickles, refused where reading them could run code.

Planetoid's files (Cora, CiteSeer, PubMed; Yang et al., 2016) are pickles of Python 2, and PyG reads
them with `pickle.load`, which runs whatever code a file names. They need an array, a sparse matrix
and a dictionary of lists. Before PyG sees a file it is read here, where it may name nothing else;
`pickle.load` then looks up the same names.
"""

from __future__ import annotations

import io
import pickle
from collections import defaultdict
from typing import Any

import numpy as np


def refuse_code(content: bytes) -> None:
    """Read a pickle of NumPy arrays, CSR matrices, lists and dictionaries.

    Raises:
        UnpicklingError: It names anything else.
    """
    _PlainUnpickler(io.BytesIO(content), encoding="latin1").load()


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
