"""Graphs of one type and of many, and their loaders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnntrain.config import from_dict
from gnntrain.data.graph import Graph
from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.batch import Batch
from gnntrain.loading.build import LoaderBuilder
from gnntrain.loading.features import in_place
from gnntrain.loading.graph import GraphTensors
from gnntrain.loading.loader import FullGraphLoader, SampledLoader, SeedPlan
from gnntrain.sampling.base import Sampler
from gnntrain.sampling.block import NO_NEEDS, BlockNeeds
from gnntrain.sampling.cpu import CPUSampler
from tests.graphs import random_graph, stored
from tests.hetero_graphs import random_hetero_data

CPU = torch.device("cpu")
KINDS = ("one type", "typed")
WEIGHTS = np.random.default_rng(1).random(240).astype(np.float32)


def graph_of(kind: str, path: Path, dtype: str = "float32") -> Graph:
    """A stored graph of one type, or a typed one (whose store has no weights); both are weighted.

    The one type has norms as well.
    """
    if kind == "one type":
        return stored(path, random_graph(edge_weight=WEIGHTS), feature_dtype=dtype)
    store, draw = stored(path, random_hetero_data(), feature_dtype=dtype), np.random.default_rng(1)
    edges = {
        name: replace(own, weight=draw.random(len(own)).astype(np.float32))
        for name, own in store.edges.items()
    }
    return replace(store, edges=edges)


def plan_of(graph: Graph, batch_size: int = 7, **options: Any) -> SeedPlan:
    """The training seeds of a rank."""
    return SeedPlan(graph.split("train"), batch_size, **{"seed": 5, **options})


def cpu_loader(
    graph: Graph,
    plan: SeedPlan,
    fan_outs: Sequence[int] = (3, 2),
    *,
    needs: BlockNeeds = NO_NEEDS,
    replace: bool = False,
    kind: type[Sampler] = CPUSampler,
    targets: Tensor | None = None,
    **options: Any,
) -> SampledLoader:
    """Mini-batches that are drawn on the CPU, from rows in the store; each edge type has the same
    fan-outs."""
    by_type = {name: tuple(fan_outs) for name in graph.edges}
    drawn = kind(graph.fused, by_type, replace=replace, edge_ids=needs.weight)
    tensors = GraphTensors.of(graph, needs, targets=targets)
    return SampledLoader(tensors, in_place(graph), drawn, plan, needs=needs, **options)


def gpu_loader(
    graph: Graph,
    plan: SeedPlan,
    device: str,
    fan_outs: Sequence[int],
    *,
    needs: BlockNeeds,
    **options: Any,
) -> SampledLoader:
    """Mini-batches that Triton's kernels draw, from edges and rows on the device."""
    from gnntrain.sampling.gpu import GPUSampler

    place = torch.device(device)
    tensors = GraphTensors.of(graph, needs, place)
    edges = tensors.only_edges
    fused = replace(graph.fused, indptr=edges.indptr, indices=edges.indices)
    by_type = dict.fromkeys(graph.edges, tuple(fan_outs))
    sampler = GPUSampler(fused, by_type, edge_ids=needs.weight)
    return SampledLoader(tensors, in_place(graph, place), sampler, plan, needs=needs, **options)


def full_loader(
    graph: Graph, plan: SeedPlan, needs: BlockNeeds = NO_NEEDS, targets: Tensor | None = None
) -> FullGraphLoader:
    """The whole graph on the CPU, for a model of two layers."""
    tensors = GraphTensors.of(graph, needs, targets=targets)
    return FullGraphLoader(tensors, in_place(graph), plan, num_layers=2, needs=needs)


def builder(
    graph: Graph,
    needs: BlockNeeds = NO_NEEDS,
    device: torch.device = CPU,
    *,
    context: DistributedContext | None = None,
    plan: SeedPlan | None = None,
    options: dict[str, Any] | None = None,
    **keys: Any,
) -> LoaderBuilder:
    """With a model of as many layers as there are fan-outs.

    `options` are further arguments of the builder, `keys` are of the configuration.
    """
    fan_outs = keys.get("sampler", {}).get("fan_outs", [3, 2])
    num_layers = len(fan_outs["default"] if isinstance(fan_outs, dict) else fan_outs)
    model = {"name": "rgcn" if graph.is_hetero else "sage", "num_layers": num_layers}
    config = from_dict({"model": model, "sampler": {"fan_outs": fan_outs}} | keys)
    return LoaderBuilder(
        config,
        graph,
        context or DistributedContext(device=device),
        needs,
        plan or plan_of(graph),
        torch.from_numpy(graph.labels),
        is_typed=graph.is_hetero,
        **(options or {}),
    )


def assert_same(ours: Batch, theirs: Batch, device: str = "cpu") -> None:
    """Equal batches, ours on this device."""

    def compare(found: Tensor, wanted: Tensor, name: object) -> None:
        assert found.device.type == torch.device(device).type, name
        assert found.dtype == wanted.dtype, name
        assert torch.equal(found.cpu(), wanted), name

    for name in ("n_id_dict", "x_dict", "edge_index_dict"):
        found, wanted = getattr(ours, name), getattr(theirs, name)
        assert found.keys() == wanted.keys()
        for key, tensor in found.items():
            compare(tensor, wanted[key], (name, key))
    compare(ours.y, theirs.y, "y")
    for name in ("batch_size", "num_counted", "global_batch_size"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert (ours.sample is None) == (theirs.sample is None)
    if theirs.sample is not None:
        assert ours.num_sampled_nodes_dict == theirs.num_sampled_nodes_dict
        assert ours.num_sampled_edges_dict == theirs.num_sampled_edges_dict
    for hop, wanted_hop in zip(ours.hops, theirs.hops, strict=True):
        assert (hop.num_dst, hop.num_src) == (wanted_hop.num_dst, wanted_hop.num_src)
        for edge_type, wanted_block in wanted_hop.edges.items():
            block = hop.edges[edge_type]
            assert block.num_src == wanted_block.num_src
            assert block.tensors.keys() == wanted_block.tensors.keys()
            for key, tensor in block.tensors.items():
                compare(tensor, wanted_block.tensors[key], (edge_type, key))
