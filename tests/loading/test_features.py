from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gnntrain.loading.features import MappedFeatures
from tests.graphs import random_graph, stored

# What rounding to each type may cost, relative.
TOLERANCE = {"float32": 0.0, "float16": 2**-11, "bfloat16": 2**-8}


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_rows_come_as_float32_whatever_the_store_holds(tmp_path: Path, dtype: str) -> None:
    data = random_graph()
    source = MappedFeatures(stored(tmp_path / "store", data, feature_dtype=dtype))
    expected = torch.from_numpy(np.asarray(data.features))
    nodes = np.array([7, 0, 7, 59])
    rtol = TOLERANCE[dtype]
    torch.testing.assert_close(source.gather(nodes), expected[nodes], rtol=rtol, atol=0.0)
    torch.testing.assert_close(source.rows(3, 9), expected[3:9], rtol=rtol, atol=0.0)
    assert source.gather(nodes).dtype == torch.float32
    assert source.gather(np.array([], np.int64)).shape == (0, 5)


def test_all_rows_are_had_without_a_copy_only_where_they_are_float32(tmp_path: Path) -> None:
    store = stored(tmp_path / "full")
    whole = MappedFeatures(store).whole()
    assert whole is not None
    assert whole.data_ptr() == store.features.ctypes.data
    assert MappedFeatures(stored(tmp_path / "half", feature_dtype="float16")).whole() is None
