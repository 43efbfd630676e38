from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.data.graph import FeatureRows
from gnntrain.data.sparse import SparseRows, load_sparse
from tests.examples import examples


@given(st.integers(0, 9), st.integers(0, 9), st.sampled_from(["csr", "csc", "coo"]))
@examples(20)
def test_a_range_of_rows_is_dense(start: int, stop: int, kind: str) -> None:
    start, stop = sorted((start, stop))
    dense = np.random.default_rng(0).integers(0, 3, (9, 4))
    features = SparseRows(sp.csr_matrix(dense).asformat(kind))
    assert isinstance(features, FeatureRows)
    assert (len(features), features.num_features) == dense.shape
    found = features.rows(start, stop)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, dense[start:stop])


def test_a_saved_matrix_is_read(tmp_path: Path) -> None:
    matrix = sp.random(6, 5, 0.4, format="csr", random_state=0)
    sp.save_npz(tmp_path / "m.npz", matrix)
    np.testing.assert_array_equal(load_sparse(tmp_path / "m.npz").toarray(), matrix.toarray())


def test_a_file_of_other_arrays_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", x=np.ones(2))
    with pytest.raises(ValueError, match=r"m\.npz"):
        load_sparse(tmp_path / "m.npz")
