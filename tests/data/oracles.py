"""Slow, obvious answers to what the store holds, and graphs to ask about."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st

from gnntrain.data.graph import GraphData, PrepareOptions
from gnntrain.data.store import StoredGraph

Columns = list[list[tuple[int, float]]]


def small_graph(num_nodes: int = 12, num_edges: int = 40, seed: int = 0, **other: Any) -> GraphData:
    """A random graph with self loops, duplicates and isolated nodes; `other` replaces fields."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(num_nodes)
    third = num_nodes // 3
    fields: dict[str, Any] = {
        "dataset": "small",
        "num_nodes": num_nodes,
        "src": rng.integers(0, max(1, num_nodes - 2), num_edges).astype(np.int32),
        "dst": rng.integers(0, max(1, num_nodes - 2), num_edges).astype(np.int32),
        "labels": rng.integers(0, 3, num_nodes),
        "num_classes": 3,
        "task": "multiclass",
        "splits": {
            "train": order[:third],
            "val": order[third : 2 * third],
            "test": order[2 * third :],
        },
        "features": rng.standard_normal((num_nodes, 5)).astype(np.float32),
    }
    return GraphData.of_arrays(**(fields | other))


class Rows:
    """Streams the rows of an array; `before` is called with the first node of each request."""

    def __init__(self, array: Any, before: Callable[[int], None] = lambda _: None) -> None:
        self.array, self.before = array, before
        self.num_features = array.shape[1]

    def rows(self, start: int, stop: int) -> Any:
        self.before(start)
        return self.array[start:stop]


@st.composite
def graphs(draw: st.DrawFn) -> GraphData:
    """Graphs of up to 12 nodes: isolated nodes, self loops, duplicates, hubs, empty splits."""
    num_nodes = draw(st.integers(1, 12))
    node = st.one_of(st.just(0), st.integers(0, num_nodes - 1))
    edges = draw(st.lists(st.tuples(node, node), max_size=40))
    dtype = draw(st.sampled_from((np.int32, np.int64, np.uint16)))
    ends = np.array(edges, dtype=dtype).reshape(-1, 2)
    weight = None
    if draw(st.booleans()):
        quarters = st.integers(-8, 40).map(lambda value: value / 4)
        given = draw(st.lists(quarters, min_size=len(edges), max_size=len(edges)))
        weight = np.array(given, dtype=np.float32)
    ids = draw(st.permutations(range(num_nodes)))
    first, second = sorted(draw(st.tuples(st.integers(1, num_nodes), st.integers(1, num_nodes))))
    labels = draw(st.lists(st.integers(0, 2), min_size=num_nodes, max_size=num_nodes))
    return GraphData.of_arrays(
        dataset="drawn",
        num_nodes=num_nodes,
        src=ends[:, 0],
        dst=ends[:, 1],
        labels=np.array(labels),
        num_classes=3,
        task="multiclass",
        splits={
            "train": np.array(ids[:first], dtype=np.int64),
            "val": np.array(ids[first:second], dtype=np.int64),
            "test": np.array(ids[second:], dtype=np.int64),
        },
        features=np.arange(2.0 * num_nodes, dtype=np.float32).reshape(num_nodes, 2),
        symmetric=draw(st.booleans()),
        edge_weight=weight,
    )


def expected_columns(data: GraphData, options: PrepareOptions) -> Columns:
    """In-neighbours and weights of every node, sorted by id, duplicates in input order."""
    given = data.only_edges
    weight = np.ones(len(given.src)) if given.weight is None else given.weight
    edges = list(zip(given.src.tolist(), given.dst.tolist(), weight.tolist(), strict=True))
    if given.symmetric or options.to_undirected:
        edges = [e for s, d, w in edges for e in ((s, d, w), (d, s, w))]
    if options.to_undirected:
        total: dict[tuple[int, int], float] = {}
        for s, d, w in edges:
            total[s, d] = total.get((s, d), 0.0) + w
        edges = [(s, d, w) for (s, d), w in total.items()]
        if given.weight is None:
            edges = [(s, d, 1.0) for s, d, _ in edges]
    if options.add_self_loops:
        with_loop = {s for s, d, _ in edges if s == d}
        edges += [(v, v, 1.0) for v in range(data.target_nodes.num_nodes) if v not in with_loop]
    columns: Columns = [[] for _ in range(data.target_nodes.num_nodes)]
    for s, d, w in edges:
        columns[d].append((s, w))
    return [sorted(column, key=lambda edge: edge[0]) for column in columns]


def stored_columns(store: StoredGraph) -> Columns:
    """The same, as read from a store."""
    weight = np.ones(store.num_edges) if store.edge_weight is None else store.edge_weight
    edges = list(zip(store.indices.tolist(), weight.tolist(), strict=True))
    bounds = store.indptr.tolist()
    return [edges[first:last] for first, last in pairwise(bounds)]


def expected_norm(columns: Columns) -> np.ndarray[Any, np.dtype[np.float32]]:
    """1/√(total weight of in-edges with one self loop), 0 where that is no number; and the loops'
    weights, where these are not all 1."""
    loops = [([1] + [w for s, w in column if s == v])[-1] for v, column in enumerate(columns)]
    inflow = [sum(w for s, w in column if s != v) for v, column in enumerate(columns)]
    totals = [loop + total for loop, total in zip(loops, inflow, strict=True)]
    norm = np.array([t**-0.5 if t > 0 else 0.0 for t in totals], dtype=np.float32)
    if all(loop == 1 for loop in loops):
        return norm
    return np.stack([norm, np.array(loops, dtype=np.float32)], axis=1)
