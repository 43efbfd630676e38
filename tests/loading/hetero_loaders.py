"""Loaders over typed graphs, on any device."""

from __future__ import annotations

from typing import Any

import torch

from gnntrain.compute.features import as_tensor
from gnntrain.config import from_dict
from gnntrain.data.graph import Graph
from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.hetero import HeteroLoaderBuilder
from gnntrain.loading.hetero_batch import HeteroBatch
from gnntrain.loading.loader import SeedPlan
from gnntrain.sampling.block import BlockNeeds

CPU = torch.device("cpu")
ROWS = BlockNeeds(rows=True)


def hetero_builder(
    graph: Graph, needs: BlockNeeds, device: torch.device = CPU, **keys: Any
) -> HeteroLoaderBuilder:
    """With the model rgcn of as many layers as there are fan-outs."""
    fan_outs = keys.get("sampler", {}).get("fan_outs", [3, 2])
    model = {"name": "rgcn", "num_layers": len(fan_outs)}
    config = from_dict({"model": model, "sampler": {"fan_outs": fan_outs}} | keys)
    plan = SeedPlan(graph.split("train"), 7, seed=5)
    context = DistributedContext(device=device)
    return HeteroLoaderBuilder(config, graph, context, needs, plan, as_tensor(graph.labels))


def batches_of(
    graph: Graph,
    fan_outs: tuple[int, ...],
    needs: BlockNeeds = ROWS,
    **keys: Any,
) -> list[HeteroBatch]:
    """An epoch on the CPU."""
    keys["sampler"] = {"fan_outs": list(fan_outs)} | keys.get("sampler", {})
    loader = hetero_builder(graph, needs, **keys).training_loader()
    return [batch for batch in loader if isinstance(batch, HeteroBatch)]


def full_graph_batch(graph: Graph, needs: BlockNeeds) -> HeteroBatch:
    """The whole graph on the CPU."""
    (batch,) = hetero_builder(graph, needs, sampler={"name": "full"}).training_loader()
    assert isinstance(batch, HeteroBatch)
    return batch
