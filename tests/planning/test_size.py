"""Sizes of graphs that are not prepared."""

from __future__ import annotations

import pytest

from gnntrain.app import compose_config
from gnntrain.planning import size
from tests.planning.plans import opened


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_size_of_a_store_is_known_before_it_is_built(dtype: str, small: list[str]) -> None:
    keys = [*small, f"dataset.feature_dtype={dtype}", "dataset.num_nodes=3000"]
    config, graph = opened(keys)
    assert size.expected_bytes(config.dataset) == pytest.approx(graph.num_bytes, rel=0.1)
    published = compose_config(["dataset=ogbn-products"]).config.dataset
    assert size.expected_bytes(published) == pytest.approx(1.53e9, rel=0.05)
