from __future__ import annotations

import numpy as np

from gnntrain.data.fused import FusedCSC
from tests.hetero_graphs import hetero_graph


def test_each_part_is_the_csc_of_its_edge_type() -> None:
    graph = hetero_graph()
    fused = FusedCSC.of(graph.edges, graph.schema.num_nodes)
    for number, edges in enumerate(graph.edges.values()):
        indptr, indices = fused.part(number)
        assert np.array_equal(indptr, edges.indptr)
        assert np.array_equal(indices, edges.indices)


def test_one_edge_type_is_not_copied() -> None:
    graph = hetero_graph()
    (name, edges), *_ = graph.edges.items()
    fused = FusedCSC.of({name: edges}, graph.schema.num_nodes)
    assert np.shares_memory(fused.indices, edges.indices)
    assert np.shares_memory(fused.indptr, edges.indptr)
