from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from gnntrain.data.dataset_warnings import dataset_warnings
from tests.graphs import random_graph, stored
from tests.hetero_graphs import hetero_graph, random_hetero_data


def test_a_graph_like_any_other_has_no_warning(tmp_path: Path) -> None:
    assert list(dataset_warnings(stored(tmp_path / "store"))) == []


def test_a_graph_without_edges_and_one_without_validation_nodes_are_told(tmp_path: Path) -> None:
    none = np.empty(0, np.int64)
    splits = {"train": np.arange(6), "val": none, "test": np.arange(9, 12)}
    graph = random_graph(12, 30, src=none, dst=none, splits=splits)
    edges, validation = dataset_warnings(stored(tmp_path / "store", graph))
    assert "no edges" in edges
    assert "last epoch counts as the best" in validation


def test_a_typed_graph_whose_types_all_count_has_no_warning() -> None:
    assert list(dataset_warnings(hetero_graph())) == []


def test_an_empty_edge_type_and_a_type_that_no_path_joins_to_the_target_are_told() -> None:
    data = random_hetero_data(reverse=False)
    none = np.empty(0, np.int64)
    edges = {**data.edges, ("author", "knows", "author"): (none, none)}
    empty, apart = dataset_warnings(hetero_graph(replace(data, edges=edges)))
    assert "author/knows/author" in empty
    assert "venue" in apart
