from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gnntrain.loading.features import in_place
from tests.graphs import stored
from tests.hetero_graphs import random_hetero_data

# What rounding to each type may cost, relative.
TOLERANCE = {"float32": 0.0, "float16": 2**-11, "bfloat16": 2**-8}


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_rows_come_as_float32_whatever_the_store_holds(tmp_path: Path, dtype: str) -> None:
    data, rtol = random_hetero_data(), TOLERANCE[dtype]
    store = stored(tmp_path / "store", data, feature_dtype=dtype)
    sources, nodes = in_place(store), torch.tensor([7, 0, 7, 39])
    assert sources.keys() == {"paper", "author"}  # venues have none
    for name, source in sources.items():
        expected = torch.from_numpy(np.asarray(data.nodes[name].features))
        chosen, whole = source.select(nodes), source.select()
        # The number of rows is known without reading them.
        assert (len(chosen), len(whole), whole.num_features) == (4, *expected.shape)
        torch.testing.assert_close(chosen.whole(), expected[nodes], rtol=rtol, atol=0.0)
        torch.testing.assert_close(chosen.read(1, 3), expected[[0, 7]], rtol=rtol, atol=0)
        torch.testing.assert_close(whole.read(3, 9), expected[3:9], rtol=rtol, atol=0.0)
        assert chosen.whole().dtype == torch.float32
        none = source.select(torch.empty(0, dtype=torch.int64))
        assert none.whole().shape == (0, expected.shape[1])
        # All rows are had without a copy only where they are float32.
        is_view = whole.whole().data_ptr() == store.nodes[name].features.ctypes.data
        assert is_view == (dtype == "float32")
