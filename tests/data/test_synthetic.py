"""Synthetic graphs have exactly the sizes asked for, and the graph matters on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnntrain.config import SyntheticConfig, SyntheticMAGConfig
from gnntrain.data import pair_draws
from gnntrain.data.build import write_store
from gnntrain.data.graph import EDGE, FeatureRows, GraphData, PrepareOptions
from gnntrain.data.synthetic import synthetic_graph, synthetic_mag
from gnntrain.errors import UserError
from tests.examples import examples


def graph(**changes: Any) -> GraphData:
    values = {"num_nodes": 10_000, "avg_degree": 15.0, "num_classes": 8, "num_features": 64}
    values |= {"homophily": 0.55, "degree_exponent": 2.5, "isolated_fraction": 0.01}
    return synthetic_graph(SyntheticConfig(**(values | {"feature_signal": 2.0} | changes)))


def mag(scale: float = 0.005, **changes: Any) -> GraphData:
    return synthetic_mag(SyntheticMAGConfig(**{"scale": scale, "num_classes": 8, **changes}))


def degrees(data: GraphData) -> Any:
    ends = np.concatenate([data.edges[EDGE].src, data.edges[EDGE].dst])
    return np.bincount(ends, minlength=data.target_nodes.num_nodes)


def features(data: GraphData) -> Any:
    assert isinstance(data.target_nodes.features, FeatureRows)
    return data.target_nodes.features.rows(0, data.target_nodes.num_nodes)


@examples(30)
@given(
    num_nodes=st.integers(200, 500),
    avg_degree=st.floats(0, 8),
    num_classes=st.integers(2, 5),
    homophily=st.floats(0, 1),
    degree_exponent=st.floats(2.05, 4),
    isolated_fraction=st.floats(0, 0.3),
    seed=st.integers(0, 2**63 - 1),
)
def test_edges_are_distinct_and_as_many_as_asked_within_and_between_classes(**sizes: Any) -> None:
    data = graph(**sizes)
    num_pairs = round(sizes["num_nodes"] * sizes["avg_degree"] / 2)
    assert len(data.edges[EDGE].src) == len(data.edges[EDGE].dst) == num_pairs
    assert data.edges[EDGE].symmetric
    assert (data.edges[EDGE].src != data.edges[EDGE].dst).all()
    pairs = np.sort(np.stack([*data.edges[EDGE]]), axis=0)
    assert np.unique(pairs, axis=1).shape[1] == num_pairs
    within = data.labels[data.edges[EDGE].src] == data.labels[data.edges[EDGE].dst]
    assert within.sum() == round(sizes["homophily"] * num_pairs)
    num_isolated = round(sizes["isolated_fraction"] * sizes["num_nodes"])
    if num_pairs >= sizes["num_nodes"] - num_isolated:
        assert (degrees(data) == 0).sum() == num_isolated


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


def test_classes_are_equally_large_and_splits_disjoint_and_as_large_as_asked() -> None:
    data = graph(num_nodes=1003, num_classes=7)
    assert set(np.bincount(data.labels).tolist()) <= {143, 144}
    assert [len(ids) for ids in data.splits.values()] == [201, 201, 601]
    assert len(np.unique(np.concatenate(list(data.splits.values())))) == 1003
    splits = graph(num_nodes=1000, num_train=7, num_val=0, num_test=11).splits
    assert [len(ids) for ids in splits.values()] == [7, 0, 11]


@pytest.mark.parametrize("make", [graph, mag])
def test_a_seed_gives_the_same_graph_on_any_number_of_threads(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make(seed=3)
    monkeypatch.setattr(pair_draws, "available_cores", lambda: 7)
    again, other = make(seed=3), make(seed=4)
    for edge_type in first.edges:
        pairs, same, others = (np.stack([*g.edges[edge_type]]) for g in (first, again, other))
        np.testing.assert_array_equal(pairs, same)
        assert (pairs != others).any()
    np.testing.assert_array_equal(first.labels, again.labels)
    assert (first.labels != other.labels).any()
    for split, ids in first.splits.items():
        np.testing.assert_array_equal(ids, again.splits[split])
    rows = [data.target_nodes.features.rows(0, 1000) for data in (first, again, other)]
    np.testing.assert_array_equal(rows[0], rows[1])
    assert (rows[0] != rows[2]).mean() > 0.99


@examples(20)
@given(st.integers(0, 9999), st.integers(0, 9999))
def test_features_do_not_depend_on_how_rows_are_asked_for(one: int, other: int) -> None:
    data = graph(avg_degree=0.0)
    assert isinstance(data.target_nodes.features, FeatureRows)
    start, stop = sorted((one, other))
    np.testing.assert_array_equal(
        data.target_nodes.features.rows(start, stop), features(data)[start:stop]
    )


def test_class_means_lie_as_far_apart_as_asked() -> None:
    data = graph(num_features=256, feature_signal=3.0, avg_degree=0.0)
    rows = features(data)
    means = np.stack([rows[data.labels == label].mean(axis=0) for label in range(8)])
    distances = np.linalg.norm(means[:, None] - means[None], axis=2)[np.triu_indices(8, 1)]
    assert distances.mean() == pytest.approx(3.0, rel=0.1)
    assert (rows - means[data.labels]).std() == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"num_edges": 101}, r"num_edges is 101"),
        (
            {"num_nodes": 96, "num_edges": 3000, "homophily": 0.8, "isolated_fraction": 0.0},
            r"\b1,200\b.*\b528\b",
        ),
        ({"num_nodes": 100, "num_train": 60, "num_val": 60, "num_test": 0}, r"\b120\b.*\b100\b"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        graph(**sizes)


def test_the_sizes_are_those_of_ogbn_mag_times_the_scale() -> None:
    config = SyntheticMAGConfig()
    assert sum(config.num_nodes.values()) == 1_939_743
    assert sum(config.num_edges.values()) == 21_111_007
    data = mag(0.01)
    sizes = {"paper": 7364, "author": 11_346, "institution": 87, "field_of_study": 600}
    assert {name: nodes.num_nodes for name, nodes in data.nodes.items()} == sizes
    assert len(data.edges["author", "writes", "paper"].src) == 71_457
    assert [len(ids) for ids in data.splits.values()] == [6296, 649, 419]
    assert len(np.unique(np.concatenate(list(data.splits.values())))) == 7364
    assert [nodes.num_features for nodes in data.nodes.values()] == [128, 0, 0, 0]


def test_edges_of_mag_are_distinct_with_hubs_and_an_edge_for_every_author() -> None:
    data = mag()
    for (source, _, destination), (src, dst) in data.edges.items():
        assert len(np.unique(np.stack([src, dst]), axis=1).T) == len(src)
        assert src.max() < data.nodes[source].num_nodes
        assert dst.max() < data.nodes[destination].num_nodes
    src, dst = data.edges["paper", "cites", "paper"]
    assert (src != dst).all()
    authors, _ = data.edges["author", "writes", "paper"]
    assert len(np.unique(authors)) == data.nodes["author"].num_nodes
    papers, fields = data.edges["paper", "has_topic", "field_of_study"]
    assert len(np.unique(papers)) == data.nodes["paper"].num_nodes
    assert np.bincount(fields).max() > 5 * np.median(np.bincount(fields))


def test_papers_of_an_author_share_their_class_more_often_than_by_chance() -> None:
    data = mag(0.01)
    src, dst = data.edges["paper", "cites", "paper"]
    # 0.55 are drawn within a class, an eighth of the others by chance.
    assert (data.labels[src] == data.labels[dst]).mean() == pytest.approx(0.55 + 0.45 / 8, abs=0.05)
    counts = np.zeros((data.nodes["author"].num_nodes, 8))
    authors, papers = data.edges["author", "writes", "paper"]
    np.add.at(counts, (authors, data.labels[papers]), 1)
    several = counts.sum(axis=1) >= 3
    assert (counts.max(axis=1) / counts.sum(axis=1))[several].mean() > 0.5


def test_a_graph_too_small_for_its_edges_has_half_of_all_that_could_be(tmp_path: Path) -> None:
    data = mag(1e-5, num_classes=349)
    edges = data.edges["paper", "has_topic", "field_of_study"].src
    most = data.nodes["paper"].num_nodes * data.nodes["field_of_study"].num_nodes
    assert len(edges) == most // 2
    store = write_store(tmp_path / "store", data, PrepareOptions(), {"dataset": "synthetic_mag"})
    assert len(store.edges) == 8
