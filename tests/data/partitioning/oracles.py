"""Slow, obvious answers to what the parts of a graph hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gnntrain.data.graph import SPLITS
from gnntrain.data.partitioned_graph import Part, PartitionedGraph
from gnntrain.data.store import StoredGraph

PartIndex = npt.NDArray[Any]


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
        _assert_same_edges(part, store, old_of)
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


def _assert_same_edges(part: Part, store: StoredGraph, old_of: dict[str, PartIndex]) -> None:
    assert part.graph.edges.keys() == store.edges.keys()
    for kind, whole in store.edges.items():
        edges, originals = part.graph.edges[kind], part.originals[kind[2]]
        assert edges.indptr[0] == 0
        assert edges.indptr[-1] == len(edges.indices)
        assert (edges.weight is None) == (whole.weight is None)
        assert (edges.gcn_norm is None) == (whole.gcn_norm is None)
        if edges.gcn_norm is not None and whole.gcn_norm is not None:
            np.testing.assert_array_equal(edges.gcn_norm, whole.gcn_norm[originals])
        for i, old in enumerate(originals.tolist()):
            ours = slice(edges.indptr[i], edges.indptr[i + 1])
            theirs = slice(whole.indptr[old], whole.indptr[old + 1])
            assert old_of[kind[0]][edges.indices[ours]].tolist() == whole.indices[theirs].tolist()
            if edges.weight is not None and whole.weight is not None:
                assert edges.weight[ours].tolist() == whole.weight[theirs].tolist()


def cut_edges(store: StoredGraph, part_of: PartIndex) -> int:
    parts, cut = by_type(store, part_of), 0
    for (source, _, destination), edges in store.edges.items():
        destinations = np.repeat(np.arange(len(edges.indptr) - 1), np.diff(edges.indptr))
        cut += (parts[destination][destinations] != parts[source][edges.indices]).sum()
    return int(cut)
