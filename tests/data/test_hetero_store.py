"""Stores of typed graphs: what a build makes of them, and what it refuses."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import HeteroData
from torch_geometric.transforms import NormalizeFeatures, ToUndirected

from gnntrain.data.build import write_store
from gnntrain.data.graph import (
    EdgeData,
    EdgeType,
    Graph,
    GraphData,
    NodeData,
    PrepareOptions,
    reverse_type,
    without_reverse,
)
from gnntrain.data.store import StoredGraph
from gnntrain.data.store_meta import StoreError, digest_of
from gnntrain.errors import UserError
from tests.data.oracles import Rows
from tests.examples import examples
from tests.hetero_graphs import hetero_graph, random_hetero_data

PLAIN = PrepareOptions()
WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


def built(path: Path, data: GraphData, options: PrepareOptions = PLAIN) -> StoredGraph:
    return write_store(path / "store", data, options, {"dataset": data.dataset})


def refusal(path: Path, data: GraphData) -> str:
    """The message with which the graph is refused; nothing is left on disk."""
    with pytest.raises(UserError) as caught:
        built(path, data)
    assert [entry.name for entry in path.iterdir()] == [".store.lock"]
    return caught.value.message


def edges_of(graph: Graph) -> dict[EdgeType, list[tuple[int, int]]]:
    """The edges of each type, by destination, then source."""
    return {
        name: [
            (source, v)
            for v in range(len(edges.indptr) - 1)
            for source in edges.indices[edges.indptr[v] : edges.indptr[v + 1]].tolist()
        ]
        for name, edges in graph.edges.items()
    }


def expected_edges(
    data: GraphData, options: PrepareOptions
) -> dict[EdgeType, list[tuple[int, int]]]:
    """A slow oracle of `edges_of`."""
    result: dict[EdgeType, list[tuple[int, int]]] = {}
    for name, (src, dst) in data.edges.items():
        pairs = list(zip(src.tolist(), dst.tolist(), strict=True))
        is_inside = name[0] == name[2]
        if is_inside and options.to_undirected:
            pairs = list({*pairs, *((d, s) for s, d in pairs)})
        if is_inside and options.add_self_loops:
            size = data.nodes[name[0]].num_nodes
            pairs += [(v, v) for v in range(size) if (v, v) not in set(pairs)]
        result[name] = pairs
    for name in data.edges:
        is_alone = not any(name == reverse_type(other) for other in data.edges)
        is_asked = data.reverse or options.to_undirected
        is_done = options.to_undirected and name[0] == name[2]
        if is_asked and is_alone and not is_done and reverse_type(name) not in data.edges:
            result[reverse_type(name)] = [(d, s) for s, d in result[name]]
    return {name: sorted(pairs, key=lambda ends: ends[::-1]) for name, pairs in result.items()}


@st.composite
def typed_graphs(draw: st.DrawFn) -> GraphData:
    """Typed graphs of one to three node types, with and without given reverse types."""
    sizes = {name: draw(st.integers(1, 8)) for name in "abc"[: draw(st.integers(1, 3))]}
    name = st.sampled_from(sorted(sizes))
    kinds = draw(st.lists(st.tuples(name, st.sampled_from("rs"), name), min_size=1, max_size=4))
    kinds += [reverse_type(kind) for kind in kinds if draw(st.booleans())]
    edges: dict[EdgeType, EdgeData] = {}
    for kind in kinds:
        number = draw(st.integers(0, 12))
        dtype = draw(st.sampled_from((np.int32, np.int64, np.uint16)))
        ends = [
            draw(st.lists(st.integers(0, sizes[end] - 1), min_size=number, max_size=number))
            for end in (kind[0], kind[2])
        ]
        edges[kind] = EdgeData(np.array(ends[0], dtype), np.array(ends[1], dtype))
    target = draw(name)
    widths = {key: draw(st.integers(0, 3)) for key in sizes}
    return GraphData(
        dataset="drawn",
        nodes={
            key: NodeData(size, np.full((size, widths[key]), 0.5) if widths[key] else None)
            for key, size in sizes.items()
        },
        edges=edges,
        target=target,
        labels=np.zeros(sizes[target], np.int64),
        num_classes=2,
        task="multiclass",
        splits={"train": np.array([0]), "val": np.arange(0), "test": np.arange(0)},
        reverse=draw(st.booleans()),
    )


# What it holds


@examples(40)
@given(
    typed_graphs(),
    st.builds(PrepareOptions, to_undirected=st.booleans(), add_self_loops=st.booleans()),
)
def test_edges_are_those_of_the_oracle(
    tmp_path_factory: pytest.TempPathFactory, data: GraphData, options: PrepareOptions
) -> None:
    store = built(tmp_path_factory.mktemp("stores"), data, options)
    assert edges_of(store) == expected_edges(data, options)
    assert store.schema.num_nodes == {name: of.num_nodes for name, of in data.nodes.items()}
    assert store.schema.num_features == {name: of.num_features for name, of in data.nodes.items()}
    assert store.target == data.target


def test_all_edges_lie_in_two_arrays_that_samplers_read_without_a_copy(tmp_path: Path) -> None:
    store = built(tmp_path, random_hetero_data())
    assert store.fused.edge_types == tuple(store.edges)
    for number, edges in enumerate(store.edges.values()):
        indptr, indices = store.fused.part(number)
        assert np.shares_memory(edges.indptr, store.fused.indptr)
        np.testing.assert_array_equal(edges.indptr, indptr)
        np.testing.assert_array_equal(edges.indices, indices)
    np.testing.assert_array_equal(store.fused.indices, np.load(store.path / "indices.npy"))
    of_memory = hetero_graph(random_hetero_data()).fused
    np.testing.assert_array_equal(store.fused.indptr, of_memory.indptr)
    np.testing.assert_array_equal(store.fused.first_edge, of_memory.first_edge)


def test_to_undirected_is_that_of_pyg(tmp_path: Path) -> None:
    data = random_hetero_data(reverse=False)
    given_data = HeteroData()
    for name, nodes in data.nodes.items():
        given_data[name].num_nodes = nodes.num_nodes
    for kind, ends in data.edges.items():
        given_data[kind].edge_index = torch.from_numpy(np.stack([*ends]))
    expected = ToUndirected()(given_data)
    store = built(tmp_path, data, PrepareOptions(to_undirected=True))
    assert set(store.edges) == set(expected.edge_types)
    for kind, pairs in edges_of(store).items():
        assert Counter(pairs) == Counter(map(tuple, expected[kind].edge_index.t().tolist()))


def test_a_reverse_edge_type_that_is_there_is_not_added() -> None:
    back = reverse_type(WRITES)
    assert without_reverse([WRITES, CITES, back]) == [CITES]
    assert without_reverse([back, CITES]) == [back, CITES]


def test_normalized_features_are_those_of_pyg_in_each_type(tmp_path: Path) -> None:
    data = random_hetero_data()
    store = built(tmp_path, data, PrepareOptions(normalize_features=True))
    given_data = HeteroData()
    for name in ("paper", "author"):
        given_data[name].x = torch.from_numpy(np.array(data.nodes[name].features))
    expected = NormalizeFeatures()(given_data)
    for name in ("paper", "author"):
        np.testing.assert_allclose(
            store.nodes[name].features, expected[name].x.numpy(), rtol=1e-5, atol=1e-6
        )


def test_streamed_features_ids_and_names_are_those_of_their_type(tmp_path: Path) -> None:
    data = random_hetero_data()
    authors = replace(
        data.nodes["author"],
        features=Rows(data.nodes["author"].features),
        ids=np.array([f"a{i}".encode() for i in range(60)]),
        feature_names=["h", "age", "x"],
    )
    papers = replace(data.nodes["paper"], ids=np.arange(40) * 10**12)
    data = replace(data, nodes={**data.nodes, "author": authors, "paper": papers})
    store = built(tmp_path, data)
    np.testing.assert_array_equal(
        store.nodes["author"].features, hetero_graph(random_hetero_data()).nodes["author"].features
    )
    ids = store.nodes["author"].ids
    assert ids is not None
    assert ids[7] == b"a7"
    assert store.node_ids is not None
    assert store.node_ids[1] == 10**12
    assert store.nodes["venue"].ids is None
    assert store.nodes["author"].feature_names == ("h", "age", "x")


def test_one_node_type_with_one_edge_type_serves_homogeneous_models(tmp_path: Path) -> None:
    data = random_hetero_data(reverse=False)
    only = replace(data, nodes={"paper": data.nodes["paper"]}, edges={CITES: data.edges[CITES]})
    store = built(tmp_path, only)
    assert not store.is_hetero
    assert (store.num_nodes, store.num_edges) == (40, 120)
    pairs = [(s, d) for s, d in edges_of(store)[CITES] if s != d]
    degrees = np.bincount([d for _, d in pairs], minlength=40)
    np.testing.assert_allclose(store.gcn_norm, (1 + degrees) ** -0.5, rtol=1e-6)


# Opening


def test_the_digest_depends_on_the_types(tmp_path: Path) -> None:
    data = random_hetero_data()
    renamed = {("author", "wrote", "paper") if k == WRITES else k: v for k, v in data.edges.items()}
    one = built(tmp_path / "one", data)
    other = built(tmp_path / "other", replace(data, edges=renamed))
    assert one.content_digest != other.content_digest


def changes() -> Iterator[tuple[str, Any]]:
    yield "target", lambda meta: meta.update(target="nobody")
    yield "edge", lambda meta: meta["edge_types"][0].update(name=["author", "writes", "nobody"])
    yield "twice", lambda meta: meta["node_types"][1].update(name="paper")
    yield "edges", lambda meta: meta["edge_types"][0].update(num_edges=1)
    yield "nodes", lambda meta: meta["node_types"][1].update(num_nodes=61)
    yield "missing", lambda meta: meta["arrays"].pop("features_2")
    yield "unknown", lambda meta: meta["arrays"].update(features=meta["arrays"]["features_0"])


@pytest.mark.parametrize("change", [pytest.param(c, id=name) for name, c in changes()])
def test_sizes_and_types_that_do_not_fit_the_arrays_are_refused(
    tmp_path: Path, change: Any
) -> None:
    path = built(tmp_path, random_hetero_data()).path
    meta = json.loads((path / "meta.json").read_text())
    change(meta)
    meta.pop("digest")
    meta["digest"] = digest_of(meta)
    (path / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(StoreError) as caught:
        StoredGraph.open(path)
    assert "meta.json" in caught.value.reason


# What is refused


def test_everything_wrong_is_said_at_once_with_its_type(tmp_path: Path) -> None:
    data = random_hetero_data()
    edges = {
        **data.edges,
        WRITES: EdgeData(np.array([60, 1]), np.array([0, -1])),
        ("autor", "knows", "paper"): EdgeData(np.arange(1), np.arange(1)),
    }
    nodes = {
        **data.nodes,
        "author": NodeData(60, np.full((60, 3), np.nan), ids=np.arange(3)),
        "empty": NodeData(0),
    }
    message = refusal(tmp_path, replace(data, edges=edges, nodes=nodes, labels=np.full(40, 9)))
    for part in (
        "40 labels are not 0 … 2",
        "node type author: 180 features are not finite",
        "node type author: node_ids has shape [3], expected [60]",
        "node type empty: it has no nodes",
        "edge type author/writes/paper: 1 edge ends in src are not node ids 0 … 59",
        "edge type author/writes/paper: 1 edge ends in dst are not node ids 0 … 39",
        "edge type autor/knows/paper: 'autor' is no node type",
        "did you mean author?",
    ):
        assert part in message


def test_a_bad_streamed_feature_is_refused_with_its_type(tmp_path: Path) -> None:
    data = random_hetero_data()
    author = replace(data.nodes["author"], features=Rows(np.full((60, 3), np.inf)))
    message = refusal(tmp_path, replace(data, nodes={**data.nodes, "author": author}))
    assert "node type author: 180 features are not finite" in message


def test_a_target_that_is_no_node_type_is_refused(tmp_path: Path) -> None:
    assert "did you mean paper?" in refusal(tmp_path, random_hetero_data(target="papers"))


def test_a_graph_without_edge_types_is_refused(tmp_path: Path) -> None:
    assert "no edge types" in refusal(tmp_path, random_hetero_data(edges={}))
