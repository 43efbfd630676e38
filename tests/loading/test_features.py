from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gnntrain.loading.features import InPlaceFeatures
from tests.graphs import random_graph, stored

# What rounding to each type may cost, relative.
TOLERANCE = {"float32": 0.0, "float16": 2**-11, "bfloat16": 2**-8}


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_rows_come_as_float32_whatever_the_store_holds(tmp_path: Path, dtype: str) -> None:
    data = random_graph()
    source = InPlaceFeatures.of(stored(tmp_path / "store", data, feature_dtype=dtype))
    expected = torch.from_numpy(np.asarray(data.features))
    nodes = torch.tensor([7, 0, 7, 59])
    rtol = TOLERANCE[dtype]
    torch.testing.assert_close(source.select(nodes).whole(), expected[nodes], rtol=rtol, atol=0.0)
    torch.testing.assert_close(source.select(nodes).read(1, 3), expected[[0, 7]], rtol=rtol, atol=0)
    torch.testing.assert_close(source.select().read(3, 9), expected[3:9], rtol=rtol, atol=0.0)
    assert source.select(nodes).whole().dtype == torch.float32
    assert source.select(torch.empty(0, dtype=torch.int64)).whole().shape == (0, 5)


def test_all_rows_are_had_without_a_copy_only_where_they_are_float32(tmp_path: Path) -> None:
    store = stored(tmp_path / "full")
    whole = InPlaceFeatures.of(store).select().whole()
    assert whole.data_ptr() == store.features.ctypes.data
    half = stored(tmp_path / "half", feature_dtype="float16")
    assert InPlaceFeatures.of(half).select().whole().data_ptr() != half.features.ctypes.data


def test_named_rows_know_their_number_without_being_read(tmp_path: Path) -> None:
    source = InPlaceFeatures.of(stored(tmp_path / "store"))
    assert len(source.select()) == 60
    assert len(source.select(torch.tensor([5, 5, 1]))) == 3
    assert source.select().num_features == 5
