"""Synthetic graphs have exactly the shape asked for, and the graph matters on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.config import SyntheticConfig
from gnntrain.data import pair_draws
from gnntrain.data.build import write_store
from gnntrain.data.graph import FeatureRows, GraphData, PrepareOptions
from gnntrain.data.synthetic import synthetic_graph
from gnntrain.errors import UserError
from tests.examples import examples

DEFAULTS: dict[str, Any] = {
    "num_nodes": 10_000,
    "avg_degree": 15.0,
    "num_edges": None,
    "num_features": 64,
    "num_classes": 8,
    "homophily": 0.55,
    "degree_exponent": 2.5,
    "isolated_fraction": 0.01,
    "feature_signal": 2.0,
    "num_train": None,
    "num_val": None,
    "num_test": None,
    "seed": 0,
}


def graph(**changes: Any) -> GraphData:
    return synthetic_graph(SyntheticConfig.model_construct(**(DEFAULTS | changes)))


def degrees(data: GraphData) -> Any:
    ends = np.concatenate([data.src, data.dst])
    return np.bincount(ends, minlength=data.num_nodes)


def features(data: GraphData) -> Any:
    assert isinstance(data.features, FeatureRows)
    return data.features.rows(0, data.num_nodes)


def assert_equal_graphs(one: GraphData, other: GraphData) -> None:
    for name in ("src", "dst", "labels"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    for name, ids in one.splits.items():
        np.testing.assert_array_equal(ids, other.splits[name])
    np.testing.assert_array_equal(features(one), features(other))


# Shape


@examples(30)
@given(
    num_nodes=st.integers(200, 500),
    avg_degree=st.floats(0, 8),
    num_classes=st.integers(2, 5),
    homophily=st.floats(0, 1),
    degree_exponent=st.floats(1.5, 4),
    isolated_fraction=st.floats(0, 0.3),
    seed=st.integers(0, 2**63 - 1),
)
def test_edges_are_distinct_and_as_many_as_asked_within_and_between_classes(
    **sizes: Any,
) -> None:
    data = graph(**sizes)
    num_pairs = round(sizes["num_nodes"] * sizes["avg_degree"] / 2)
    assert len(data.src) == len(data.dst) == num_pairs
    assert data.symmetric
    assert (data.src != data.dst).all()
    pairs = {frozenset(pair) for pair in zip(data.src.tolist(), data.dst.tolist(), strict=True)}
    assert len(pairs) == num_pairs
    within = data.labels[data.src] == data.labels[data.dst]
    assert within.sum() == round(sizes["homophily"] * num_pairs)


def test_the_store_holds_the_exact_number_of_edges(tmp_path: Path) -> None:
    data = graph(num_nodes=1000, num_edges=12_346, avg_degree=99.0)
    store = write_store(tmp_path / "store", data, PrepareOptions(), {"dataset": "synthetic"})
    assert (store.num_nodes, store.num_edges, store.num_features) == (1000, 12_346, 64)
    assert store.num_classes == 8
    degree = np.diff(store.indptr)
    np.testing.assert_array_equal(degree, degrees(data))
    sources = np.repeat(np.arange(1000), degree)
    forward = set(zip(sources.tolist(), store.indices.tolist(), strict=True))
    assert forward == {(d, s) for s, d in forward}


@pytest.mark.parametrize("degree_exponent", [2.05, 2.5, 4.0])
def test_exactly_the_asked_fraction_of_nodes_is_isolated(degree_exponent: float) -> None:
    data = graph(avg_degree=4.0, isolated_fraction=0.05, degree_exponent=degree_exponent)
    assert (degrees(data) == 0).sum() == 500


def test_degrees_have_a_power_law_tail() -> None:
    found = {}
    for exponent in (2.2, 2.5, 3.5):
        degree = degrees(graph(num_nodes=50_000, degree_exponent=exponent, homophily=0.5))
        tail = degree[degree >= 40]
        assert degree.max() > 10 * np.median(degree)
        # The maximum-likelihood exponent of Clauset, Shalizi & Newman (2009).
        found[exponent] = 1 + len(tail) / np.log(tail / 39.5).sum()
    assert found[2.5] == pytest.approx(2.5, abs=0.35)
    assert found[2.2] < found[2.5] < found[3.5]


def test_classes_are_equally_large() -> None:
    counts = np.bincount(graph(num_nodes=1003, num_classes=7).labels)
    assert set(counts.tolist()) <= {143, 144}


def test_splits_are_disjoint_and_as_large_as_asked() -> None:
    splits = graph(num_nodes=1000).splits
    assert [len(ids) for ids in splits.values()] == [200, 200, 600]
    assert len(np.unique(np.concatenate(list(splits.values())))) == 1000
    splits = graph(num_nodes=1000, num_train=7, num_val=0, num_test=11).splits
    assert [len(ids) for ids in splits.values()] == [7, 0, 11]


@pytest.mark.parametrize("isolated_fraction", [0.0, 0.9])
def test_a_graph_of_one_node_and_no_edge_is_possible(isolated_fraction: float) -> None:
    data = graph(num_nodes=1, avg_degree=0.0, isolated_fraction=isolated_fraction, num_train=1)
    assert len(data.src) == 0


# Determinism


def test_a_seed_gives_the_same_graph_on_any_number_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = graph(seed=3)
    monkeypatch.setattr(pair_draws, "available_cores", lambda: 7)
    assert_equal_graphs(first, graph(seed=3))


def test_another_seed_gives_another_graph() -> None:
    one, other = graph(seed=1), graph(seed=2)
    assert (one.labels != other.labels).any()
    assert (one.src != other.src).any()
    assert (features(one) != features(other)).mean() > 0.99
    assert (one.splits["train"] != other.splits["train"]).any()


@examples(20)
@given(st.integers(0, 9999), st.integers(0, 9999))
def test_features_do_not_depend_on_how_rows_are_asked_for(one: int, other: int) -> None:
    data = graph()
    assert isinstance(data.features, FeatureRows)
    start, stop = sorted((one, other))
    np.testing.assert_array_equal(data.features.rows(start, stop), features(data)[start:stop])


# Signal


def test_class_means_lie_as_far_apart_as_asked() -> None:
    data = graph(num_nodes=40_000, num_features=256, feature_signal=3.0)
    rows = features(data)
    means = np.stack([rows[data.labels == label].mean(axis=0) for label in range(8)])
    distances = np.linalg.norm(means[:, None] - means[None], axis=2)[np.triu_indices(8, 1)]
    assert distances.mean() == pytest.approx(3.0, rel=0.1)
    assert (rows - means[data.labels]).std() == pytest.approx(1.0, rel=0.01)


def test_neighbours_tell_more_of_a_class_than_features_alone() -> None:
    data = graph()
    rows = features(data)
    own = nearest_mean_accuracy(data, rows)
    total = rows.copy()
    np.add.at(total, data.src, rows[data.dst])
    np.add.at(total, data.dst, rows[data.src])
    averaged = nearest_mean_accuracy(data, total / (1 + degrees(data))[:, None])
    assert 0.4 < own < 0.65
    assert averaged > own + 0.15


def nearest_mean_accuracy(data: GraphData, rows: Any) -> float:
    train, test = data.splits["train"], data.splits["test"]
    labels = data.labels[train]
    means = np.stack([rows[train][labels == label].mean(axis=0) for label in range(8)])
    scores = rows[test] @ means.T - (means**2).sum(axis=1) / 2
    return float((scores.argmax(axis=1) == data.labels[test]).mean())


# What is refused


def test_an_odd_number_of_edges_is_refused() -> None:
    with pytest.raises(UserError, match=r"num_edges is 101"):
        graph(num_edges=101)


def test_more_edges_than_the_classes_have_room_for_are_refused() -> None:
    with pytest.raises(UserError, match=r"\b1,200\b.*\b528\b"):
        graph(num_nodes=96, num_edges=3000, homophily=0.8, isolated_fraction=0.0)
    with pytest.raises(UserError, match=r"between classes"):
        graph(num_nodes=50, num_classes=2, num_edges=1000, homophily=0.0)


def test_larger_splits_than_the_graph_are_refused() -> None:
    with pytest.raises(UserError, match=r"\b120\b.*\b100\b"):
        graph(num_nodes=100, num_train=60, num_val=60, num_test=0)


def test_a_graph_at_the_highest_density_is_drawn_in_full() -> None:
    data = graph(num_nodes=100, num_classes=2, num_edges=4900, homophily=0.5, isolated_fraction=0.0)
    assert len(data.src) == 2450
