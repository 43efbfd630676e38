"""Slow, obvious answers to what the parts of a graph hold, and graphs to cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnntrain.data.build import write_store
from gnntrain.data.graph import SPLITS, GraphData, PrepareOptions
from gnntrain.data.parts import Part, Parts
from gnntrain.data.store import StoredGraph


def stored(path: Path, data: GraphData, **options: Any) -> StoredGraph:
    return write_store(path, data, PrepareOptions(**options), {"dataset": data.dataset})


def assert_same_graph(parts: Parts, store: StoredGraph, part_of: npt.NDArray[Any]) -> None:
    """Whether the parts are the graph, with its nodes renamed."""
    old_of = np.concatenate([part.original for part in parts.opened])
    assert sorted(old_of.tolist()) == list(range(store.num_nodes))
    for part in parts.opened:
        assert part.original.tolist() == np.flatnonzero(part_of == part.number).tolist()
        assert part.nodes == range(parts.starts[part.number], parts.starts[part.number + 1])
        _assert_same_nodes(part, store, old_of)
    for name in SPLITS:
        assert old_of[parts.split(name)].tolist() == store.split(name).tolist()


def _assert_same_nodes(part: Part, store: StoredGraph, old_of: npt.NDArray[Any]) -> None:
    for name in ("features", "labels", "gcn_norm", "node_ids"):
        ours, theirs = getattr(part, name), getattr(store, name)
        if theirs is None:
            assert ours is None
        else:
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs[part.original])
    for i, old in enumerate(part.original.tolist()):
        ours = slice(part.indptr[i], part.indptr[i + 1])
        theirs = slice(store.indptr[old], store.indptr[old + 1])
        assert old_of[part.indices[ours]].tolist() == store.indices[theirs].tolist()
        if store.edge_weight is not None:
            assert part.edge_weight is not None
            assert part.edge_weight[ours].tolist() == store.edge_weight[theirs].tolist()
    assert part.indptr[0] == 0
    assert part.indptr[-1] == len(part.indices)
    assert part.indices.dtype == store.indices.dtype
    assert (part.edge_weight is None) == (store.edge_weight is None)


def cut_edges(store: StoredGraph, part_of: npt.NDArray[Any]) -> int:
    destinations = np.repeat(np.arange(store.num_nodes), np.diff(store.indptr))
    return int((part_of[destinations] != part_of[store.indices]).sum())
