from __future__ import annotations

import numpy as np
import pytest

from gnntrain.report.findings import SHOWN_NODES, project, sampled


def test_a_sample_is_the_same_every_time() -> None:
    nodes = np.arange(10_000) * 3
    sample = sampled(nodes)
    assert len(np.unique(sample)) == SHOWN_NODES
    assert np.isin(sample, nodes).all()
    np.testing.assert_array_equal(sample, sampled(nodes))
    np.testing.assert_array_equal(sampled(nodes[:7]), nodes[:7])


def test_clusters_stay_apart_in_the_plane_and_places_can_be_repeated() -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, 20)) * 20
    classes = np.repeat(np.arange(3), 30)
    rows = (centres[classes] + rng.normal(size=(90, 20))).astype(np.float32)
    places = project(rows)
    assert places is not None
    means = np.stack([places[classes == i].mean(axis=0) for i in range(3)])
    nearest = np.linalg.norm(places[:, None] - means, axis=2).argmin(axis=1)
    assert (nearest == classes).all()
    np.testing.assert_array_equal(places, project(rows))


@pytest.mark.parametrize(
    "rows",
    [np.ones((9, 4)), np.full((9, 4), np.nan), np.zeros((3, 4))],
    ids=["equal", "not finite", "few"],
)
def test_what_has_no_shape_is_left_out(rows: np.ndarray) -> None:
    assert project(rows) is None
