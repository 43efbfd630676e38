"""What a build makes of a graph, and what it refuses."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data
from torch_geometric.transforms import NormalizeFeatures
from torch_geometric.utils import to_undirected

from gnntrain.data import csc
from gnntrain.data.build import write_store
from gnntrain.data.csc import EdgeList, column_blocks, column_ranges
from gnntrain.data.graph import GraphData, PrepareOptions, index_dtype
from gnntrain.data.store import StoredGraph
from gnntrain.errors import UserError
from tests.data.oracles import (
    Rows,
    expected_columns,
    expected_norm,
    graphs,
    small_graph,
    stored_columns,
)
from tests.examples import examples

PLAIN = PrepareOptions()
OPTIONS = st.builds(PrepareOptions, to_undirected=st.booleans(), add_self_loops=st.booleans())


def built(path: Path, data: GraphData, options: PrepareOptions = PLAIN) -> StoredGraph:
    return write_store(path / "store", data, options, {"dataset": data.dataset})


def refusal(path: Path, data: GraphData, options: PrepareOptions = PLAIN) -> str:
    """The message with which the graph is refused; nothing is left on disk."""
    with pytest.raises(UserError) as caught:
        built(path, data, options)
    assert [entry.name for entry in path.iterdir()] == [".store.lock"]
    return caught.value.message


# In-neighbour lists


@examples(25)
@given(graphs(), OPTIONS)
def test_columns_norm_and_splits_are_those_of_the_oracle(
    tmp_path_factory: pytest.TempPathFactory, data: GraphData, options: PrepareOptions
) -> None:
    store = built(tmp_path_factory.mktemp("stores"), data, options)
    columns = expected_columns(data, options)
    assert stored_columns(store) == columns
    assert store.indptr.dtype == np.int64
    assert store.indices.dtype == np.int32
    np.testing.assert_allclose(store.gcn_norm, expected_norm(columns), rtol=1e-6)
    for name, ids in data.splits.items():
        assert store.split(name).tolist() == sorted(ids.tolist())


@examples(40)
@given(graphs(), st.integers(1, 5), st.booleans(), st.booleans())
def test_blocks_of_columns_do_not_show_in_the_result(
    data: GraphData, min_block_edges: int, merge: bool, fill_loops: bool
) -> None:
    edges = EdgeList(
        data.only_edges.src,
        data.only_edges.dst,
        data.only_edges.weight,
        True,
        merge=merge,
        fill_loops=fill_loops,
    )
    (whole,) = column_blocks(edges, data.target_nodes.num_nodes, min_block_edges=10**9)
    parts = list(column_blocks(edges, data.target_nodes.num_nodes, min_block_edges=min_block_edges))
    for name in ("counts", "indices", "inflow", "loop", "weight"):
        arrays = [getattr(part, name) for part in parts]
        if arrays[0] is None:
            assert whole.weight is None
        else:
            np.testing.assert_array_equal(np.concatenate(arrays), getattr(whole, name))


def test_a_graph_of_many_blocks_and_chunks_is_the_same_as_by_sorting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csc, "CHUNK_EDGES", 1000)
    monkeypatch.setattr(csc, "MIN_BLOCK_EDGES", 500)
    rng = np.random.default_rng(0)
    src, dst = rng.zipf(1.5, (2, 20_000)) % 700
    data = small_graph(700, src=src, dst=dst)
    store = built(tmp_path, data)
    order = np.lexsort((src, dst))
    np.testing.assert_array_equal(store.indices, src[order])
    np.testing.assert_array_equal(np.diff(store.indptr), np.bincount(dst, minlength=700))


def test_to_undirected_merges_as_pyg_does(tmp_path: Path) -> None:
    weight = np.random.default_rng(1).random(40).astype(np.float32)
    data = small_graph(edge_weight=weight)
    store = built(tmp_path, data, PrepareOptions(to_undirected=True))
    given_edges = torch.from_numpy(np.stack([data.only_edges.src, data.only_edges.dst])).long()
    edges, weights = to_undirected(
        given_edges, torch.from_numpy(weight), data.target_nodes.num_nodes
    )
    order = np.lexsort((edges[0].numpy(), edges[1].numpy()))
    np.testing.assert_array_equal(store.indices, edges[0].numpy()[order])
    assert store.edge_weight is not None
    np.testing.assert_allclose(store.edge_weight, weights.numpy()[order], rtol=1e-6)


def test_edges_may_be_any_columns_of_any_integers(tmp_path: Path) -> None:
    data = small_graph()
    table = np.stack([data.only_edges.src, data.only_edges.dst], axis=1)
    plain = stored_columns(built(tmp_path / "a", data))
    strided = small_graph(src=table[:, 0], dst=table[:, 1])
    swapped = small_graph(
        src=data.only_edges.src.astype(">i4"), dst=data.only_edges.dst.astype(np.uint8)
    )
    assert stored_columns(built(tmp_path / "b", strided)) == plain
    assert stored_columns(built(tmp_path / "c", swapped)) == plain


def test_a_graph_without_edges_is_stored(tmp_path: Path) -> None:
    none = np.empty(0, dtype=np.int64)
    store = built(tmp_path, small_graph(src=none, dst=none))
    assert store.num_edges == 0
    assert len(store.indices) == 0
    assert store.gcn_norm.tolist() == [1.0] * 12


def test_index_type_follows_the_number_of_nodes() -> None:
    assert index_dtype(2**31) == np.int32
    assert index_dtype(2**31 + 1) == np.int64


def test_columns_of_more_than_two_billion_edges_are_cut_without_overflow() -> None:
    counts = np.full(8, 2**30, dtype=np.int64)
    assert column_ranges(counts, 2**31, 100) == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert column_ranges(counts, 2**40, 3) == [(0, 3), (3, 6), (6, 8)]


def test_node_ids_beyond_32_bits_fit_the_sort_key() -> None:
    num_nodes = 2**33
    block = csc._build_block(
        EdgeList(np.array([num_nodes - 1, 5]), np.array([num_nodes - 3, num_nodes - 3])),
        num_nodes,
        np.array([0, 2, 0], dtype=np.int64),
        num_nodes - 4,
    )
    assert block.indices.dtype == np.int64
    assert block.indices.tolist() == [5, num_nodes - 1]
    assert block.counts.tolist() == [0, 2, 0]


def test_build_holds_little_beside_the_graph_itself(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    num_nodes = 100_000
    src, dst = rng.integers(0, num_nodes, (2, 3_000_000), dtype=np.int32)
    rows = Rows(np.broadcast_to(np.float32(1), (num_nodes, 64)))
    data = small_graph(num_nodes, 0, src=src, dst=dst, features=rows, symmetric=True)
    built(tmp_path / "warm", small_graph(symmetric=True))
    tracemalloc.start()
    store = built(tmp_path, data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak + src.nbytes + dst.nbytes < 2.5 * store.num_bytes


# Features, labels, ids


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_features_are_rounded_as_torch_rounds(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((12, 300)) * 10.0 ** rng.integers(-30, 4, (12, 300))
    features[0, :4] = [1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8), 0.0]
    data = small_graph(features=features)
    store = built(tmp_path, data, PrepareOptions(feature_dtype=dtype))  # type: ignore[arg-type]
    kind = getattr(torch, dtype)
    expected = torch.from_numpy(features.astype(np.float32)).to(kind)
    found = torch.from_numpy(store.features.copy())
    found = found.view(torch.bfloat16) if dtype == "bfloat16" else found
    assert store.feature_dtype == dtype
    assert torch.equal(found, expected)


def test_weights_that_are_added_up_are_told_with_their_number(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """0 and 1 in both directions, 3 to 4 three times; a self loop and the rest once."""
    src, dst = np.array([0, 1, 3, 3, 3, 2, 5]), np.array([1, 0, 4, 4, 4, 2, 2])
    weight = np.arange(7, dtype=np.float32) + 1
    data = small_graph(src=src, dst=dst, edge_weight=weight)
    store = built(tmp_path, data, PrepareOptions(to_undirected=True, add_self_loops=True))
    assert dict(stored_columns(store)[0])[1] == 3
    assert "3 edges are given once more" in caplog.text
    caplog.clear()
    once = small_graph(src=src[4:], dst=dst[4:], edge_weight=weight[4:])
    built(tmp_path, once, PrepareOptions(to_undirected=True))
    assert not caplog.text


def test_normalized_features_are_those_of_pyg(tmp_path: Path) -> None:
    features = np.random.default_rng(0).standard_normal((12, 5)).astype(np.float32)
    features[3] = features.min()
    store = built(tmp_path, small_graph(features=features), PrepareOptions(normalize_features=True))
    expected = NormalizeFeatures()(Data(x=torch.from_numpy(features.copy()))).x
    np.testing.assert_allclose(store.features, expected.numpy(), rtol=1e-5, atol=1e-6)
    ones = np.delete(np.arange(12), 3)
    np.testing.assert_allclose(store.features.sum(axis=1)[ones], 1.0, rtol=1e-5)


def test_streamed_features_are_stored_like_an_array(tmp_path: Path) -> None:
    features = np.random.default_rng(0).standard_normal((12, 5)).astype(np.float32)
    store = built(tmp_path, small_graph(features=Rows(features)))
    np.testing.assert_array_equal(store.features, features)


def test_whole_and_boolean_features_become_float32(tmp_path: Path) -> None:
    features = np.arange(24).reshape(12, 2) % 2 == 0
    store = built(tmp_path, small_graph(features=features))
    assert store.features.dtype == np.float32
    np.testing.assert_array_equal(store.features, features)


def test_a_graph_without_features_has_none(tmp_path: Path) -> None:
    store = built(tmp_path, small_graph(features=None))
    assert store.features.shape == (12, 0)


def test_unlabelled_nodes_are_minus_one(tmp_path: Path) -> None:
    data = small_graph(labels=np.array([0, np.nan, -1] + [2] * 9))
    data.splits = {"train": np.arange(3, 6), "val": np.arange(0), "test": np.array([0])}
    store = built(tmp_path, data)
    assert store.labels.dtype == np.int32
    assert store.labels.tolist() == [0, -1, -1] + [2] * 9
    assert store.split("val").shape == (0,)


def test_a_target_of_minus_one_is_a_number(tmp_path: Path) -> None:
    targets = np.arange(12) - 3.0
    data = small_graph(labels=targets[:, None], task="continuous", metric="r2", num_classes=1)
    store = built(tmp_path, data)
    np.testing.assert_array_equal(store.labels.ravel(), targets)


def test_multilabel_labels_are_a_matrix_of_bytes(tmp_path: Path) -> None:
    labels = np.random.default_rng(0).random((12, 3)) < 0.5
    store = built(tmp_path, small_graph(labels=labels, task="multilabel"))
    assert store.labels.dtype == np.uint8
    np.testing.assert_array_equal(store.labels, labels)
    assert store.num_outputs == 3


def test_a_binary_task_has_one_output(tmp_path: Path) -> None:
    data = small_graph(labels=np.arange(12) % 2, num_classes=2, task="binary", metric="roc_auc")
    store = built(tmp_path, data)
    assert (store.num_outputs, store.num_classes, store.metric) == (1, 2, "roc_auc")


@pytest.mark.parametrize(
    "ids", [np.arange(12) * 10**12, np.array([f"n{i}".encode() for i in range(12)])]
)
def test_own_node_ids_come_back(tmp_path: Path, ids: Any) -> None:
    store = built(tmp_path, small_graph(node_ids=ids))
    assert store.node_ids is not None
    assert store.node_ids.tolist() == ids.tolist()


# What is refused


def test_edge_ends_out_of_range_are_counted_and_shown(tmp_path: Path) -> None:
    src = np.array([0, -1, 3, 12, 99])
    message = refusal(tmp_path, small_graph(src=src, dst=np.zeros(5, dtype=np.int64)))
    assert "3 edge ends in src" in message
    assert "-1 at edge 1, 12 at edge 3, 99 at edge 4" in message


def test_everything_wrong_is_said_at_once(tmp_path: Path) -> None:
    data = small_graph(
        dst=np.full(40, 12),
        labels=np.array([3, -2] + [0] * 10),
        features=np.zeros((11, 5), dtype=np.float32),
        edge_weight=np.full(40, np.nan, dtype=np.float32),
        node_ids=np.arange(3),
    )
    data.splits = {"train": np.arange(0), "val": np.array([1, 1, 2, 50]), "test": np.array([2])}
    message = refusal(tmp_path, data)
    for part in (
        "40 edge ends in dst",
        "40 edge weights are not finite",
        "2 labels are not 0 … 2, or −1 for none (first: 3 at node 0, -2 at node 1)",
        "1 ids in split val are not node ids 0 … 11 (first: 50 at position 3)",
        "split val repeats 1 nodes (first: 1)",
        "split train is empty",
        "features has shape [11, 5]",
        "node_ids has shape [3]",
    ):
        assert part in message


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"labels": np.zeros(11, dtype=np.int64)}, "labels has shape [11], expected [12]"),
        ({"labels": np.full(12, 0.5)}, "12 labels are not 0 … 2"),
        ({"labels": np.full((12, 3), 2), "task": "multilabel"}, "36 labels are not 0 or 1"),
        ({"labels": np.array(["a"] * 12)}, "labels is <U1, expected integers"),
        ({"task": "binary"}, "num_classes is 3, a binary task has 2"),
        ({"num_nodes": 0}, "num_nodes is 0"),
        ({"dst": np.zeros(3, dtype=np.int32)}, "src has shape [40] and dst [3]"),
        ({"src": np.zeros(40)}, "src is float64, expected integers"),
        ({"edge_weight": np.zeros(3, dtype=np.float32)}, "edge_weight has shape [3]"),
        ({"features": np.zeros((12, 2), dtype=complex)}, "features is complex128"),
        ({"splits": {"train": np.arange(3)}}, "splits are 'train', expected train, val, test"),
        ({"node_ids": np.linspace(0, 1, 12)}, "node_ids is float64"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, change: dict[str, Any], part: str) -> None:
    assert part in refusal(tmp_path, small_graph(**change))


def test_overlapping_splits_are_refused(tmp_path: Path) -> None:
    data = small_graph()
    data.splits = {"train": np.arange(6), "val": np.array([5, 4, 9]), "test": np.array([9, 10])}
    message = refusal(tmp_path, data)
    assert "train and val share 2 nodes (first: 4, 5)" in message
    assert "val and test share 1 nodes (first: 9)" in message


def test_a_split_node_without_label_is_refused(tmp_path: Path) -> None:
    data = small_graph(labels=np.array([-1] * 2 + [0] * 10))
    data.splits = {"train": np.arange(2, 6), "val": np.array([1, 8]), "test": np.array([0, 7])}
    message = refusal(tmp_path, data)
    assert "1 nodes of split val" in message
    assert "1 nodes of split test" in message


@pytest.mark.parametrize("streamed", [False, True])
def test_features_that_are_not_finite_are_refused(tmp_path: Path, streamed: bool) -> None:
    features = np.ones((12, 5), dtype=np.float32)
    features[2, 1], features[7, 4] = np.nan, -np.inf
    data = small_graph(features=Rows(features) if streamed else features)
    message = refusal(tmp_path, data)
    assert "2 features" in message
    assert "nan at node 2, column 1, -inf at node 7, column 4" in message


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_features_too_large_for_their_type_are_refused(tmp_path: Path, dtype: str) -> None:
    features = np.ones((12, 5))
    features[4, 2] = {"float32": 1e39, "float16": 70000.0, "bfloat16": 3.4e38}[dtype]
    options = PrepareOptions(feature_dtype=dtype)  # type: ignore[arg-type]
    message = refusal(tmp_path, small_graph(features=features), options)
    assert dtype in message
    assert "at node 4, column 2" in message


def test_streamed_features_of_a_wrong_shape_are_refused(tmp_path: Path) -> None:
    assert "shape [11, 5]" in refusal(tmp_path, small_graph(features=Rows(np.ones((11, 5)))))
