"""A store's graph, sampled on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gnntrain.data.graph import Graph
from gnntrain.loading.features import InPlaceFeatures
from gnntrain.loading.graph import GraphTensors
from gnntrain.loading.loader import BlockLoader, SeedPlan
from gnntrain.sampling.block import NO_NEEDS, BlockNeeds
from gnntrain.sampling.cpu import CPUSampler


def cpu_loader(
    store: Graph,
    plan: SeedPlan,
    fan_outs: Sequence[int] = (3, 2),
    *,
    needs: BlockNeeds = NO_NEEDS,
    replace: bool = False,
    **options: Any,
) -> BlockLoader:
    """Mini-batches that are drawn on the CPU, from rows in the store."""
    graph = GraphTensors.of(store, needs)
    given = graph.indptr, graph.indices, fan_outs
    sampler = CPUSampler(*given, replace=replace, edge_ids=needs.weight)
    return BlockLoader(graph, InPlaceFeatures.of(store), sampler, plan, needs=needs, **options)
