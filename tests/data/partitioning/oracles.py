"""Slow, obvious answers to what the parts of a graph hold, and graphs to cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnntrain.data.build import write_store
from gnntrain.data.graph import NODE, SPLITS, GraphData, PrepareOptions
from gnntrain.data.parts import Part, Parts
from gnntrain.data.store import StoredGraph


def stored(path: Path, data: GraphData, **options: Any) -> StoredGraph:
    return write_store(path, data, PrepareOptions(**options), {"dataset": data.dataset})


def assert_same_graph(parts: Parts, store: StoredGraph, part_of: npt.NDArray[Any]) -> None:
    """Whether the parts are the graph, with its nodes renamed."""
    old_of = np.concatenate([part.originals[NODE] for part in parts.opened])
    assert sorted(old_of.tolist()) == list(range(store.num_nodes))
    for part in parts.opened:
        assert part.originals[NODE].tolist() == np.flatnonzero(part_of == part.number).tolist()
        assert part.ranges[NODE] == range(*parts.starts[NODE][part.number : part.number + 2])
        _assert_same_nodes(part, store, old_of)
    for name in SPLITS:
        assert old_of[parts.splits[name]].tolist() == store.split(name).tolist()


def _assert_same_nodes(part: Part, store: StoredGraph, old_of: npt.NDArray[Any]) -> None:
    for name in ("features", "labels", "gcn_norm", "node_ids"):
        ours, theirs = getattr(part.graph, name), getattr(store, name)
        if theirs is None:
            assert ours is None
        else:
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs[part.originals[NODE]])
    for i, old in enumerate(part.originals[NODE].tolist()):
        ours = slice(part.graph.indptr[i], part.graph.indptr[i + 1])
        theirs = slice(store.indptr[old], store.indptr[old + 1])
        assert old_of[part.graph.indices[ours]].tolist() == store.indices[theirs].tolist()
        if store.edge_weight is not None:
            assert part.graph.edge_weight is not None
            assert part.graph.edge_weight[ours].tolist() == store.edge_weight[theirs].tolist()
    assert part.graph.indptr[0] == 0
    assert part.graph.indptr[-1] == len(part.graph.indices)
    assert part.graph.indices.dtype == store.indices.dtype
    assert (part.graph.edge_weight is None) == (store.edge_weight is None)


def cut_edges(store: StoredGraph, part_of: npt.NDArray[Any]) -> int:
    destinations = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    return int((part_of[destinations] != part_of[store.indices]).sum())
