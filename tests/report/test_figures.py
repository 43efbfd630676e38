from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gnntrain.report.figures import degree_bins


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=60))
@settings(max_examples=50, deadline=None)
def test_low_degrees_are_counted_one_by_one_and_none_is_lost(degrees: list[int]) -> None:
    middles, nodes = degree_bins(np.array(degrees))
    shown = dict(zip(middles.round(6), nodes, strict=True))
    for degree in (1, 2, 3):
        assert shown.get(degree, 0) == degrees.count(degree)
    # a bin holds at least a node, and no more than there are
    assert all(0 < number <= len(degrees) for number in nodes)
    assert ((middles >= 1) & (middles <= max(degrees))).all()


def test_bins_hold_every_node() -> None:
    middles, nodes = degree_bins(np.arange(1, 1000))
    np.testing.assert_allclose(nodes, 1)
    assert 20 < len(middles) < 60
