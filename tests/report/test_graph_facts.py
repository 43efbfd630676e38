from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnntrain.report.graph_facts import degrees_of


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=60))
@settings(max_examples=50, deadline=None)
def test_low_degrees_are_counted_one_by_one_and_none_is_lost(degrees: list[int]) -> None:
    found = degrees_of(np.concatenate([[0], np.cumsum(degrees)]))
    assert found.num_isolated == degrees.count(0)
    assert found.largest == max(degrees)
    assert found.mean == pytest.approx(np.mean(degrees))
    shown = dict(zip(found.degree.round(6), found.nodes_per_degree, strict=True))
    for degree in (1, 2, 3):
        assert shown.get(degree, 0) == degrees.count(degree)
    # a bin holds at least a node, and no more than there are
    assert all(0 < nodes <= len(degrees) for nodes in found.nodes_per_degree)
    assert (found.degree >= 1).all()
    assert (found.degree <= max(degrees)).all()


def test_bins_hold_every_node() -> None:
    degrees = np.arange(1, 1000)
    found = degrees_of(np.concatenate([[0], np.cumsum(degrees)]))
    np.testing.assert_allclose(found.nodes_per_degree, 1)
    assert 20 < len(found.degree) < 60
