"""`synthetic_mag` has exactly the sizes asked for, and the graph matters on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnntrain.config import SyntheticMAGConfig
from gnntrain.data import pair_draws
from gnntrain.data.build import write_store
from gnntrain.data.graph import FeatureRows, HeteroGraphData, PrepareOptions
from gnntrain.data.synthetic import synthetic_mag


def graph(scale: float = 0.005, **changes: Any) -> HeteroGraphData:
    values: dict[str, Any] = {"scale": scale, "num_classes": 8, **changes}
    return synthetic_mag(SyntheticMAGConfig(**values))


def test_the_sizes_are_those_of_ogbn_mag_times_the_scale() -> None:
    config = SyntheticMAGConfig()
    assert sum(config.num_nodes.values()) == 1_939_743
    assert sum(config.num_edges.values()) == 21_111_007
    data = graph(0.01)
    assert {name: nodes.num_nodes for name, nodes in data.nodes.items()} == {
        "paper": 7364,
        "author": 11_346,
        "institution": 87,
        "field_of_study": 600,
    }
    assert len(data.edges["author", "writes", "paper"].src) == 71_457
    assert [len(ids) for ids in data.splits.values()] == [6296, 649, 419]
    assert len(np.unique(np.concatenate(list(data.splits.values())))) == 7364
    assert [nodes.num_features for nodes in data.nodes.values()] == [128, 0, 0, 0]


def test_edges_are_distinct_join_nodes_of_their_types_and_no_paper_cites_itself() -> None:
    data = graph()
    for (source, _, destination), (src, dst) in data.edges.items():
        assert len(np.unique(np.stack([src, dst]), axis=1).T) == len(src)
        assert src.max() < data.nodes[source].num_nodes
        assert dst.max() < data.nodes[destination].num_nodes
    src, dst = data.edges["paper", "cites", "paper"]
    assert (src != dst).all()


def test_every_author_wrote_a_paper_and_fields_have_hubs() -> None:
    data = graph()
    authors, _ = data.edges["author", "writes", "paper"]
    assert len(np.unique(authors)) == data.nodes["author"].num_nodes
    papers, fields = data.edges["paper", "has_topic", "field_of_study"]
    assert len(np.unique(papers)) == data.nodes["paper"].num_nodes
    degrees = np.bincount(fields)
    assert degrees.max() > 5 * np.median(degrees)


def test_papers_of_an_author_share_their_class_more_often_than_by_chance() -> None:
    data = graph(0.01)
    src, dst = data.edges["paper", "cites", "paper"]
    # 0.55 are drawn within a class, an eighth of the others by chance.
    assert (data.labels[src] == data.labels[dst]).mean() == pytest.approx(0.55 + 0.45 / 8, abs=0.05)
    counts = np.zeros((data.nodes["author"].num_nodes, 8))
    authors, papers = data.edges["author", "writes", "paper"]
    np.add.at(counts, (authors, data.labels[papers]), 1)
    several = counts.sum(axis=1) >= 3
    assert (counts.max(axis=1) / counts.sum(axis=1))[several].mean() > 0.5


def test_a_seed_gives_the_same_graph_on_any_number_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = graph(seed=3)
    monkeypatch.setattr(pair_draws, "available_cores", lambda: 7)
    again, other = graph(seed=3), graph(seed=4)
    for name, (src, dst) in first.edges.items():
        np.testing.assert_array_equal(src, again.edges[name].src)
        np.testing.assert_array_equal(dst, again.edges[name].dst)
        assert (src != other.edges[name].src).any() or (dst != other.edges[name].dst).any()
    assert isinstance(first.nodes["paper"].features, FeatureRows)
    assert (first.labels == again.labels).all()


@pytest.mark.parametrize("scale", [1e-4, 1e-5])
def test_a_graph_too_small_for_its_edges_has_half_of_all_that_could_be(
    tmp_path: Path, scale: float
) -> None:
    data = graph(scale, num_classes=349)
    edges = data.edges["paper", "has_topic", "field_of_study"].src
    room = data.nodes["paper"].num_nodes * data.nodes["field_of_study"].num_nodes
    assert len(edges) == min(round(7_505_078 * scale), room // 2)
    store = write_store(tmp_path / "store", data, PrepareOptions(), {"dataset": "synthetic_mag"})
    assert store.is_hetero
    assert len(store.edges) == 8
