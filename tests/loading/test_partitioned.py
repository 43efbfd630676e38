"""Batches of a graph in parts are those of the whole graph, whatever the partition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnntrain.config import from_dict
from gnntrain.config.types import same_fan_outs
from gnntrain.data.graph import NODE
from gnntrain.data.partitioned_graph import PartitionedGraph
from gnntrain.data.partitioning.writing import write_parts
from gnntrain.data.parts import Parts
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext, rank_range
from gnntrain.distributed.exchange import open_exchange
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.loading.loader import SeedPlan
from gnntrain.loading.partitioned import PartitionedLoaderBuilder
from gnntrain.sampling.block import BlockNeeds
from tests.graphs import random_graph, stored
from tests.loading.graphs import cpu_loader

NEEDS = BlockNeeds(norm=True, weight=True, degree=True)
WEIGHTS = np.random.default_rng(1).random(240).astype(np.float32)


def _compare_batches(context: DistributedContext, payload: tuple[str, str, dict[str, Any]]) -> None:
    """Every batch against the whole graph's, in every rank."""
    store_path, path, keys = payload
    store, whole = StoredGraph.open(Path(store_path)), Parts.open(Path(path))
    original = torch.from_numpy(np.concatenate([part.originals[NODE] for part in whole.opened]))
    own = rank_range(whole.num_parts, context.machine, context.num_machines)
    graph = PartitionedGraph.of(Parts.open(Path(path), range(own.start, own.stop)))
    options: dict[str, Any] = {"rank": context.rank, "world_size": context.world_size, "seed": 5}
    config = from_dict(keys)
    owners = [context.ranks_of(machine) for machine in range(context.num_machines)]
    with open_exchange(context, owners=owners, host=context.host, timeout=60) as exchange:
        plan = SeedPlan(graph.split("train"), 7, **options)
        made = PartitionedLoaderBuilder(config, graph, context, NEEDS, plan, exchange)
        loader = made.training_loader()
        fan_outs = same_fan_outs(config.sampler.fan_outs)
        plan = SeedPlan(store.split("train"), 7, **options)
        expected = cpu_loader(
            store,
            plan,
            needs=NEEDS,
            threads=0,
            fan_outs=fan_outs,
            replace=config.sampler.replace,
        )
        for epoch in range(2):
            loader.set_epoch(epoch)
            expected.set_epoch(epoch)
            for batch, same in zip(loader, expected, strict=True):
                assert torch.equal(original[batch.n_id], same.n_id)
                assert torch.equal(batch.x, same.x)
                assert batch.y.dtype == same.y.dtype
                np.testing.assert_array_equal(batch.y, same.y)
                assert torch.equal(batch.edge_index, same.edge_index)
                assert batch.num_sampled_nodes == same.num_sampled_nodes
                for block, other in zip(batch.blocks, same.blocks, strict=True):
                    for name in ("indptr", "indices", "norm", "degree"):
                        assert torch.equal(getattr(block, name), getattr(other, name)), name
                    assert (block.weight is None) == (other.weight is None)
                    if block.weight is not None and other.weight is not None:
                        assert torch.equal(block.weight, other.weight)
        is_alone = context.num_machines == 1
        assert (exchange.take_bytes() == {}) == is_alone
    assert len(made.why_placed) == 1


@pytest.mark.parametrize(
    ("machines", "num_parts", "keys", "data"),
    [
        ((0, 1), 2, {}, {}),
        ((0, 1), 2, {"sampler": {"fan_outs": [-1, 3], "replace": True}}, {"task": "multilabel"}),
        ((0, 0, 1), 4, {"features": {"cache_ratio": 0.2}}, {"edge_weight": WEIGHTS}),
        ((0, 1, 2), 3, {"features": {"cache_bytes": 0}}, {"task": "continuous", "metric": "r2"}),
        ((), 3, {}, {"edge_weight": WEIGHTS}),
    ],
    ids=["two machines", "with replacement", "three ranks", "no cache", "one machine"],
)
def test_batches_are_those_of_the_whole_graph_edge_by_edge(
    tmp_path: Path,
    machines: tuple[int, ...],
    num_parts: int,
    keys: dict[str, Any],
    data: dict[str, Any],
) -> None:
    store = stored(tmp_path / "store", random_graph(**data), feature_dtype="bfloat16")
    part_of = np.random.default_rng(2).integers(0, num_parts, store.num_nodes).astype(np.uint8)
    write_parts(tmp_path / "parts", store, part_of, num_parts, "random")
    keys = {"sampler": {"fan_outs": [3, 2]}} | keys
    plan = LaunchPlan(max(1, len(machines)), "cpu", 1, 60, machines)
    launch(_compare_batches, (str(store.path), str(tmp_path / "parts"), keys), plan)
