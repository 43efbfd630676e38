"""What a build makes of a graph, and what it refuses."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data
from torch_geometric.transforms import NormalizeFeatures

from gnntrain.data import csc
from gnntrain.data.build import needed_bytes, write_store
from gnntrain.data.csc import column_ranges
from gnntrain.data.graph import EdgeData, GraphData, NodeData, PrepareOptions, index_dtype
from gnntrain.data.store import StoredGraph
from gnntrain.errors import UserError
from tests.data.oracles import (
    Rows,
    expected_edges,
    expected_norm,
    graphs,
    small_graph,
    stored_edges,
    typed_graphs,
)
from tests.examples import examples
from tests.hetero_graphs import random_hetero_data

PLAIN = PrepareOptions()
OPTIONS = st.builds(PrepareOptions, to_undirected=st.booleans(), add_self_loops=st.booleans())


def built(path: Path, data: GraphData, options: PrepareOptions = PLAIN) -> StoredGraph:
    return write_store(path / "store", data, options, {"dataset": data.dataset})


def refusal(path: Path, data: GraphData, options: PrepareOptions = PLAIN) -> str:
    """The message with which the graph is refused; nothing is left on disk."""
    with pytest.raises(UserError) as caught:
        built(path, data, options)
    assert not any(path.iterdir())
    return caught.value.message


# In-neighbour lists


@examples(100)
@given(st.one_of(graphs(), typed_graphs()), OPTIONS, st.sampled_from((1, 3, 1 << 20)))
def test_edges_norm_splits_and_sizes_are_those_of_the_oracle(
    tmp_path_factory: pytest.TempPathFactory, data: GraphData, options: PrepareOptions, size: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:  # blocks and chunks of edges do not show
        patch.setattr(csc, "MIN_BLOCK_EDGES", size)
        patch.setattr(csc, "CHUNK_EDGES", size)
        store = built(tmp_path_factory.mktemp("stores"), data, options)
    edges = expected_edges(data, options)
    assert stored_edges(store) == edges
    assert store.fused.indptr.dtype == np.int64
    assert store.fused.indices.dtype == np.int32
    assert all(np.shares_memory(of.indptr, store.fused.indptr) for of in store.edges.values())
    if not store.is_hetero:
        (triples,) = edges.values()
        norm = expected_norm(triples, store.num_nodes)
        np.testing.assert_allclose(np.asarray(store.only_edges.gcn_norm), norm, rtol=1e-6)
    assert store.schema.num_nodes == {name: of.num_nodes for name, of in data.nodes.items()}
    assert store.schema.num_features == {name: of.num_features for name, of in data.nodes.items()}
    assert store.target == data.target
    for name, ids in data.splits.items():
        assert store.split(name).tolist() == sorted(ids.tolist())


def test_numbers_beyond_32_bits() -> None:
    """Of edges, which are cut into blocks and need disk space, and of nodes, in the key by which
    edges are sorted."""
    assert index_dtype(2**31) == np.int32
    assert index_dtype(2**31 + 1) == np.int64
    counts = np.full(8, 2**30, dtype=np.int64)
    assert column_ranges(counts, 2**31, 100) == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert column_ranges(counts, 2**40, 3) == [(0, 3), (3, 6), (6, 8)]
    num_nodes = 2**33
    edges = EdgeData(np.array([num_nodes - 1, 5]), np.array([num_nodes - 3, num_nodes - 3]))
    block = csc._build_block(edges, num_nodes, False, False, np.array([0, 2, 0]), num_nodes - 4)
    assert block.indices.dtype == np.int64
    assert block.indices.tolist() == [5, num_nodes - 1]
    assert block.counts.tolist() == [0, 2, 0]
    ends = np.broadcast_to(np.int32(0), (2**33,))
    data = small_graph(src=ends, dst=ends, features=None)
    both_ways = needed_bytes(data, PrepareOptions(to_undirected=True))
    assert 0 <= both_ways - 2 * 4 * 2**33 < 100_000


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


def test_weights_that_are_added_up_are_told_with_their_number(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """0 and 1 in both directions, 3 to 4 three times; a self loop and the rest once."""
    src, dst = np.array([0, 1, 3, 3, 3, 2, 5]), np.array([1, 0, 4, 4, 4, 2, 2])
    weight = np.arange(7, dtype=np.float32) + 1
    options = PrepareOptions(to_undirected=True, add_self_loops=True)
    built(tmp_path, small_graph(src=src, dst=dst, edge_weight=weight), options)
    assert "3 edges are given once more" in caplog.text
    caplog.clear()
    built(tmp_path, small_graph(src=src[4:], dst=dst[4:], edge_weight=weight[4:]), options)
    assert not caplog.text


# Features, labels, ids


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_features_are_rounded_as_torch_rounds(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((12, 300)) * 10.0 ** rng.integers(-30, 4, (12, 300))
    features[0, :4] = [1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8), 0.0]
    options = PrepareOptions(feature_dtype=dtype)  # type: ignore[arg-type]
    store = built(tmp_path, small_graph(features=features), options)
    expected = torch.from_numpy(features.astype(np.float32)).to(getattr(torch, dtype))
    found = torch.from_numpy(store.target_nodes.features.copy())
    found = found.view(torch.bfloat16) if dtype == "bfloat16" else found
    assert store.target_nodes.feature_dtype == dtype
    assert torch.equal(found, expected)


def test_normalized_features_are_those_of_pyg_in_each_type(tmp_path: Path) -> None:
    data = random_hetero_data()
    paper = np.asarray(data.nodes["paper"].features)
    paper[3] = paper.min()  # of this row nothing is left
    store = built(tmp_path, data, PrepareOptions(normalize_features=True))
    for name in ("paper", "author"):
        given_rows = torch.from_numpy(np.array(data.nodes[name].features))
        expected = NormalizeFeatures()(Data(x=given_rows)).x.numpy()
        np.testing.assert_allclose(store.nodes[name].features, expected, rtol=1e-5, atol=1e-6)


FLAGS = np.random.default_rng(0).random((12, 3)) < 0.5
SPLITS = {"train": np.arange(3, 6), "val": np.arange(0), "test": np.array([0])}


@pytest.mark.parametrize(
    ("given_labels", "attributes", "stored", "num_outputs"),
    [
        ([0, np.nan, -1] + [2] * 9, {}, np.array([0, -1, -1] + [2] * 9, np.int32), 3),
        (np.arange(12) % 2, {"task": "binary", "metric": "roc_auc", "num_classes": 2}, None, 1),
        (FLAGS, {"task": "multilabel"}, FLAGS.astype(np.uint8), 3),
        (
            np.arange(12.0)[:, None] - 3,
            {"task": "continuous", "metric": "r2", "num_classes": 1},
            np.arange(12, dtype=np.float32)[:, None] - 3,  # a target of −1 is a number
            1,
        ),
    ],
    ids=["multiclass", "binary", "multilabel", "continuous"],
)
def test_labels_of_each_task(
    tmp_path: Path, given_labels: Any, attributes: dict[str, Any], stored: Any, num_outputs: int
) -> None:
    labels = np.array(given_labels)
    store = built(tmp_path, small_graph(labels=labels, splits=SPLITS, **attributes))
    expected = labels.astype(np.int32) if stored is None else stored
    assert store.labels.dtype == expected.dtype
    np.testing.assert_array_equal(store.labels, expected)
    assert store.num_outputs == num_outputs
    assert store.split("val").shape == (0,)


def test_ids_and_names_are_those_of_their_type(tmp_path: Path) -> None:
    data = random_hetero_data()
    ids = np.array([f"a{i}".encode() for i in range(60)])
    authors = replace(data.nodes["author"], ids=ids, feature_names=["h", "age", "x"])
    papers = replace(data.nodes["paper"], ids=np.arange(40) * 10**12)
    store = built(tmp_path, replace(data, nodes={**data.nodes, "author": authors, "paper": papers}))
    np.testing.assert_array_equal(np.asarray(store.nodes["author"].ids), ids)
    np.testing.assert_array_equal(np.asarray(store.node_ids), papers.ids)
    assert store.nodes["venue"].ids is None
    assert store.nodes["author"].feature_names == ("h", "age", "x")


# What is refused


def test_everything_wrong_is_said_at_once(tmp_path: Path) -> None:
    src = np.zeros(40, np.int64)
    src[[1, 3, 4]] = -1, 12, 99
    data = small_graph(
        src=src,
        dst=np.full(40, 12),
        labels=np.array([3, -2] + [0] * 10),
        features=np.zeros((11, 5), dtype=np.float32),
        edge_weight=np.full(40, np.nan, dtype=np.float32),
        node_ids=np.arange(3),
        splits={"train": np.arange(0), "val": np.array([1, 1, 2, 50]), "test": np.array([2])},
    )
    message = refusal(tmp_path, data)
    for part in (
        "3 edge ends in src are not node ids 0 … 11 "
        "(first: -1 at edge 1, 12 at edge 3, 99 at edge 4)",
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


def test_a_wrong_type_is_named(tmp_path: Path) -> None:
    data, ends = random_hetero_data(), EdgeData(np.arange(1), np.arange(1))
    author = NodeData(60, Rows(np.full((60, 3), np.nan)))
    changes: list[tuple[dict[str, Any], str]] = [
        ({"edges": {**data.edges, ("autor", "knows", "paper"): ends}}, "did you mean author?"),
        ({"edges": {}}, "no edge types"),
        ({"nodes": {**data.nodes, "empty": NodeData(0)}}, "node type empty: it has no nodes"),
        ({"nodes": {**data.nodes, "author": author}}, "author: 180 features are not finite"),
        ({"target": "papers"}, "did you mean paper?"),
    ]
    for change, part in changes:
        assert part in refusal(tmp_path, replace(data, **change))


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"labels": np.array(["a"] * 12)}, "labels is <U1, expected numbers"),
        ({"labels": np.full((12, 3), 2), "task": "multilabel"}, "36 labels are not 0 or 1"),
        ({"task": "binary"}, "num_classes is 3, a binary task has 2"),
        ({"dst": np.zeros(3, dtype=np.int32)}, "src has shape [40] and dst [3]"),
        ({"src": np.zeros(40)}, "src is float64, expected integers"),
        ({"features": np.zeros((12, 2), dtype=complex)}, "features is complex128"),
        ({"splits": {"train": np.arange(3)}}, "splits are 'train', expected train, val, test"),
        (
            {"splits": dict(SPLITS, val=np.array([5, 9, 3, 1]))},
            "train and val share 2 nodes (first: 3, 5)",
        ),
        ({"labels": np.array([-1] + [0] * 11), "splits": SPLITS}, "1 nodes of split test have no"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, change: dict[str, Any], part: str) -> None:
    assert part in refusal(tmp_path, small_graph(**change))


@pytest.mark.parametrize(
    ("dtype", "value"), [("float32", 1e39), ("float16", 70000.0), ("bfloat16", 3.4e38)]
)
def test_features_too_large_for_their_type_are_refused(
    tmp_path: Path, dtype: str, value: float
) -> None:
    features = np.zeros((12, 5))
    features[4, 2] = value
    options = PrepareOptions(feature_dtype=dtype)  # type: ignore[arg-type]
    message = refusal(tmp_path, small_graph(features=features), options)
    assert f"features do not fit in {dtype} (first: " in message
    assert "at node 4, column 2" in message


# The digest of the content, which `resume` compares: it stays the same between versions


def pinned(**more: Any) -> GraphData:
    return GraphData.of_arrays(
        dataset="pinned",
        num_nodes=6,
        src=np.array([0, 1, 2, 3, 3, 5]),
        dst=np.array([1, 2, 0, 3, 4, 0]),
        labels=np.array([0, 1, 2, 0, 1, -1]),
        num_classes=3,
        task="multiclass",
        splits={"train": np.array([0, 1]), "val": np.array([2]), "test": np.array([3])},
        features=np.arange(12, dtype=np.float32).reshape(6, 2),
        **more,
    )


def pinned_typed() -> GraphData:
    rows, ids = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([b"x", b"y", b"z"])
    return GraphData(
        dataset="pinned",
        nodes={"paper": NodeData(3, rows, ids=ids), "author": NodeData(2)},
        edges={
            ("paper", "cites", "paper"): EdgeData(np.array([0, 1, 1]), np.array([1, 2, 0])),
            ("author", "writes", "paper"): EdgeData(np.array([0, 1]), np.array([2, 1])),
        },
        target="paper",
        labels=np.array([0, 1, 0]),
        num_classes=2,
        task="binary",
        splits={"train": np.array([0]), "val": np.array([1]), "test": np.array([2])},
        reverse=True,
    )


WEIGHT = np.arange(1, 7, dtype=np.float32)
PINNED = [
    (pinned(), {}, "ba0633809ff93fa634d2e6851591266a76b2f9ca"),
    (
        pinned(edge_weight=WEIGHT, symmetric=True, node_ids=np.arange(6) * 7),
        {},
        "fda7a34f3c4aefd2285cbc0faad43fbfdeda3f62",
    ),
    (
        pinned(class_names=np.array([b"a", b"b", b"c"])),
        {"feature_dtype": "bfloat16", "to_undirected": True},
        "9e64a1d0bd0221efa4d4ae231859c25ab9be7d12",
    ),
    (
        pinned(),
        {"to_undirected": True, "add_self_loops": True},
        "fa70e6f35205a178954887cd2036446aec32fdd7",
    ),
    (pinned_typed(), {}, "a8aefc707a0d98033e386eade6607f35956968ae"),
]


@pytest.mark.parametrize(("data", "options", "digest"), PINNED)
def test_the_digest_is_that_of_earlier_versions(
    tmp_path: Path, data: GraphData, options: dict[str, Any], digest: str
) -> None:
    assert built(tmp_path, data, PrepareOptions(**options)).content_digest == digest
