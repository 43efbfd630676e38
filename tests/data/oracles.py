"""Slow, obvious answers to what the store holds, and graphs to ask about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from gnntrain.data.graph import (
    SPLITS,
    EdgeData,
    EdgeType,
    Graph,
    GraphData,
    NodeData,
    PrepareOptions,
    reverse_type,
)
from gnntrain.data.partitioned_graph import Part, PartitionedGraph
from gnntrain.data.store import StoredGraph
from tests.graphs import random_graph

PartIndex = npt.NDArray[Any]
Triples = list[tuple[int, int, float]]
"""Source, destination and weight of each edge, by destination, then source."""


def small_graph(num_nodes: int = 12, num_edges: int = 40, **changes: Any) -> GraphData:
    return random_graph(num_nodes, num_edges, **({"dataset": "small"} | changes))


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
    num_nodes, num_edges = draw(st.integers(1, 12)), draw(st.integers(0, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    src, dst = rng.integers(0, num_nodes, (2, num_edges)) * (rng.random((2, num_edges)) < 0.7)
    dtype = draw(st.sampled_from((np.int32, np.int64, np.uint16)))
    weight = (rng.integers(-8, 40, num_edges) / 4).astype(np.float32)
    first, second = sorted(draw(st.tuples(st.integers(1, num_nodes), st.integers(1, num_nodes))))
    splits = np.split(rng.permutation(num_nodes), [first, second])
    return GraphData.of_arrays(
        dataset="drawn",
        num_nodes=num_nodes,
        src=src.astype(dtype),
        dst=dst.astype(dtype),
        labels=rng.integers(0, 3, num_nodes),
        num_classes=3,
        task="multiclass",
        splits=dict(zip(("train", "val", "test"), splits, strict=True)),
        features=np.arange(2.0 * num_nodes, dtype=np.float32).reshape(num_nodes, 2),
        symmetric=draw(st.booleans()),
        edge_weight=weight if draw(st.booleans()) else None,
    )


@st.composite
def typed_graphs(draw: st.DrawFn) -> GraphData:
    """Typed graphs of one to three node types, with and without given reverse types."""
    sizes = {name: draw(st.integers(1, 8)) for name in "abc"[: draw(st.integers(1, 3))]}
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    name = st.sampled_from(sorted(sizes))
    kinds = draw(st.lists(st.tuples(name, st.sampled_from("rs"), name), min_size=1, max_size=4))
    kinds += [reverse_type(kind) for kind in kinds if draw(st.booleans())]
    edges: dict[EdgeType, EdgeData] = {}
    for kind in kinds:
        number, dtype = draw(st.integers(0, 12)), draw(st.sampled_from((np.int32, np.uint16)))
        src, dst = (rng.integers(0, sizes[end], number, dtype) for end in (kind[0], kind[2]))
        edges[kind] = EdgeData(src, dst)
    target = draw(name)
    nodes = {
        key: NodeData(size, np.full((size, width), 0.5) if width else None)
        for key, size in sizes.items()
        for width in [draw(st.integers(0, 3))]
    }
    return GraphData(
        dataset="drawn",
        nodes=nodes,
        edges=edges,
        target=target,
        labels=np.zeros(sizes[target], np.int64),
        num_classes=2,
        task="multiclass",
        splits={"train": np.array([0]), "val": np.arange(0), "test": np.arange(0)},
        reverse=draw(st.booleans()),
    )


@st.composite
def partitions(draw: st.DrawFn) -> tuple[GraphData, list[int]]:
    """A graph, and a part for each of its nodes; no part is empty."""
    data: GraphData = draw(st.one_of(graphs(), typed_graphs()))
    num_nodes = sum(nodes.num_nodes for nodes in data.nodes.values())
    num_parts = draw(st.integers(1, min(num_nodes, 12)))
    others = [draw(st.integers(0, num_parts - 1)) for _ in range(num_nodes - num_parts)]
    return data, draw(st.permutations([*range(num_parts), *others]))


def expected_edges(data: GraphData, options: PrepareOptions) -> dict[EdgeType, Triples]:
    """The edges of each type in a store, duplicates in the order in which they are given."""
    result: dict[EdgeType, Triples] = {}
    for name, (src, dst) in data.edges.items():
        edges, is_inside = data.edges[name], name[0] == name[2]
        weight = np.ones(len(src)) if edges.weight is None else edges.weight
        triples = list(zip(src.tolist(), dst.tolist(), weight.tolist(), strict=True))
        if is_inside and (edges.symmetric or options.to_undirected):
            triples = [e for s, d, w in triples for e in ((s, d, w), (d, s, w))]
        if is_inside and options.to_undirected:
            total: dict[tuple[int, int], float] = {}
            for s, d, w in triples:
                total[s, d] = total.get((s, d), 0.0) + w
            one = edges.weight is None
            triples = [(s, d, 1.0 if one else w) for (s, d), w in total.items()]
        if is_inside and options.add_self_loops:
            with_loop = {s for s, d, _ in triples if s == d}
            num_nodes = data.nodes[name[0]].num_nodes
            triples += [(v, v, 1.0) for v in range(num_nodes) if v not in with_loop]
        result[name] = triples
    for name, edges in data.edges.items():
        is_mirrored = name[0] == name[2] and (edges.symmetric or options.to_undirected)
        has_reverse = reverse_type(name) in data.edges or name in map(reverse_type, data.edges)
        if (data.reverse or options.to_undirected) and not (is_mirrored or has_reverse):
            result[reverse_type(name)] = [(d, s, w) for s, d, w in result[name]]
    return {name: sorted(of, key=lambda edge: edge[1::-1]) for name, of in result.items()}


def stored_edges(graph: Graph) -> dict[EdgeType, Triples]:
    """The same, as a graph has them."""
    result = {}
    for name, edges in graph.edges.items():
        weight = np.ones(len(edges)) if edges.weight is None else edges.weight
        dst = np.repeat(np.arange(len(edges.indptr) - 1), np.diff(edges.indptr))
        result[name] = list(zip(edges.indices.tolist(), dst.tolist(), weight.tolist(), strict=True))
    return result


def expected_norm(triples: Triples, num_nodes: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """1/√(total weight of in-edges with one self loop), 0 where that is no number; and the loops'
    weights, where these are not all 1."""
    loops, inflow = [1.0] * num_nodes, [0.0] * num_nodes
    for source, node, weight in triples:
        if source == node:
            loops[node] = weight
        else:
            inflow[node] += weight
    totals = [loop + total for loop, total in zip(loops, inflow, strict=True)]
    norm = np.array([t**-0.5 if t > 0 else 0.0 for t in totals], dtype=np.float32)
    if all(loop == 1 for loop in loops):
        return norm
    return np.stack([norm, np.array(loops, dtype=np.float32)], axis=1)


def by_type(store: StoredGraph, part_of: PartIndex) -> dict[str, PartIndex]:
    ends = np.cumsum([len(nodes) for nodes in store.nodes.values()])
    return dict(zip(store.nodes, np.split(part_of, ends[:-1]), strict=True))


def assert_same_graph(parts: PartitionedGraph, store: StoredGraph, part_of: PartIndex) -> None:
    """Whether the parts are the graph, with the nodes of each type renamed."""
    old_of = {
        name: np.concatenate([part.originals[name] for part in parts.opened])
        for name in store.nodes
    }
    for name, part_of_node in by_type(store, part_of).items():
        assert sorted(old_of[name].tolist()) == list(range(len(store.nodes[name])))
        for number, part in zip(parts.parts, parts.opened, strict=True):
            expected = np.flatnonzero(part_of_node == number)
            assert part.originals[name].tolist() == expected.tolist()
            first, stop = parts.starts[name][number : number + 2]
            assert part.ranges[name] == range(first, stop)
        if not store.nodes[name].num_features:
            assert parts.originals[name].tolist() == old_of[name].tolist()
    for part in parts.opened:
        _assert_same_nodes(part, store)
    _assert_same_edges(parts, store, old_of)
    for split in SPLITS:
        assert old_of[store.target][parts.split(split)].tolist() == store.split(split).tolist()


def _assert_same_nodes(part: Part, store: StoredGraph) -> None:
    for name, nodes in store.nodes.items():
        ours, rows = part.graph.nodes[name], part.originals[name]
        for attribute in ("features", "labels", "ids"):
            of_part, whole = getattr(ours, attribute), getattr(nodes, attribute)
            assert (of_part is None) == (whole is None)
            if whole is not None:
                assert of_part.dtype == whole.dtype
                np.testing.assert_array_equal(of_part, whole[rows])


def _assert_same_edges(
    parts: PartitionedGraph, store: StoredGraph, old_of: dict[str, PartIndex]
) -> None:
    found: dict[EdgeType, Triples] = {kind: [] for kind in store.edges}
    for part in parts.opened:
        assert part.graph.edges.keys() == store.edges.keys()
        for kind, triples in stored_edges(part.graph).items():
            sources, originals = old_of[kind[0]].tolist(), part.originals[kind[2]]
            found[kind] += [(sources[s], int(originals[d]), weight) for s, d, weight in triples]
            ours, whole = part.graph.edges[kind], store.edges[kind]
            assert (ours.weight is None) == (whole.weight is None)
            assert (ours.gcn_norm is None) == (whole.gcn_norm is None)
            if ours.gcn_norm is not None and whole.gcn_norm is not None:
                np.testing.assert_array_equal(ours.gcn_norm, whole.gcn_norm[originals])
    in_order = {kind: sorted(of, key=lambda edge: edge[1]) for kind, of in found.items()}
    assert in_order == stored_edges(store)


def cut_edges(store: StoredGraph, part_of: PartIndex) -> int:
    parts, cut = by_type(store, part_of), 0
    for (source, _, destination), edges in store.edges.items():
        destinations = np.repeat(np.arange(len(edges.indptr) - 1), np.diff(edges.indptr))
        cut += (parts[destination][destinations] != parts[source][edges.indices]).sum()
    return int(cut)
