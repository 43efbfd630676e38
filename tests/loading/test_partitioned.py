"""Batches of a graph in parts are those of the whole graph, whatever the partition."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnntrain.data.graph import Graph
from gnntrain.data.partitioned_graph import PartitionedGraph
from gnntrain.data.partitioning.writing import write_parts
from gnntrain.data.store import StoredGraph
from gnntrain.distributed.context import DistributedContext, rank_range
from gnntrain.distributed.exchange import open_exchange
from gnntrain.distributed.launch import LaunchPlan, launch
from gnntrain.loading.remote import TARGETS
from gnntrain.loading.sharded import ROWS
from gnntrain.sampling.block import BlockNeeds
from gnntrain.sampling.remote import DRAW
from tests.graphs import random_graph, stored
from tests.hetero_graphs import random_hetero_data
from tests.loading.graphs import WEIGHTS, assert_same, builder, plan_of


def _compare_batches(context: DistributedContext, payload: tuple[Path, dict[str, Any]]) -> None:
    """Every batch against the whole graph's, in every rank."""
    folder, keys = payload
    whole: Graph = StoredGraph.open(folder / "store")
    parts = PartitionedGraph.open(folder / "parts")
    originals = {
        name: torch.from_numpy(np.concatenate([part.originals[name] for part in parts.opened]))
        for name in whole.nodes
    }
    own = rank_range(parts.num_parts, context.machine, context.num_machines)
    graph = PartitionedGraph.open(folder / "parts", range(own.start, own.stop))
    needs = BlockNeeds(norm=not graph.is_hetero, weight=True, degree=True)
    ranks = {"rank": context.rank, "world_size": context.world_size}
    owners = [context.ranks_of(machine) for machine in range(context.num_machines)]
    with open_exchange(context, owners=owners, host=context.host, timeout=60) as exchange:
        made = builder(
            graph,
            needs,
            context=context,
            plan=plan_of(graph, **ranks),
            options={"exchange": exchange, "owners_draw": True},
            **keys,
        )
        loader = made.training_loader()
        expected = builder(whole, needs, plan=plan_of(whole, **ranks), **keys).training_loader()
        for epoch in range(2):
            loader.set_epoch(epoch)
            expected.set_epoch(epoch)
            for batch, same in zip(loader, expected, strict=True):
                n_id = {
                    # Nodes without features have the numbers of the whole graph.
                    name: originals[name][ids] if whole.nodes[name].num_features else ids
                    for name, ids in batch.n_id_dict.items()
                }
                assert_same(replace(batch, n_id_dict=n_id), same)
        calls = {name.partition("/")[0] for name in exchange.take_bytes()}
        # Degrees and weights come with the draws, not by a call for each edge type.
        assert calls <= {DRAW, TARGETS, ROWS, *(["norm"] if needs.norm else [])}
        assert (calls == set()) == (context.num_machines == 1)
    assert len(made.why_placed) == len(made.features)


@pytest.mark.parametrize(
    ("machines", "num_parts", "keys", "data"),
    [
        ((0, 1), 2, {}, {}),
        ((0, 1), 2, {"sampler": {"fan_outs": [-1, 3], "replace": True}}, {"task": "multilabel"}),
        ((0, 0, 1), 4, {"features": {"cache_ratio": 0.2}}, {"edge_weight": WEIGHTS}),
        ((), 3, {}, {"edge_weight": WEIGHTS}),
        ((0, 1, 2), 5, {"sampler": {"fan_outs": {"default": [-1, 2]}}}, None),
        (
            (0, 0, 1),
            5,
            {"sampler": {"fan_outs": [3, 2], "fan_out_scope": "node", "replace": True}},
            None,
        ),
    ],
    ids=[
        *("two machines", "with replacement", "three ranks", "one machine"),
        *("typed, three machines", "typed, by node"),
    ],
)
def test_batches_are_those_of_the_whole_graph_edge_by_edge(
    tmp_path: Path,
    machines: tuple[int, ...],
    num_parts: int,
    keys: dict[str, Any],
    data: dict[str, Any] | None,
) -> None:
    graph = random_hetero_data() if data is None else random_graph(**data)
    store = stored(tmp_path / "store", graph, feature_dtype="bfloat16")
    part_of = np.random.default_rng(2).integers(0, num_parts, store.num_nodes).astype(np.uint8)
    if data is None:
        part_of[-7:] = [0, 0, 1, 2, 3, 3, 0]  # the last part has no venue
    write_parts(tmp_path / "parts", store, part_of, num_parts, "random")
    plan = LaunchPlan(max(1, len(machines)), "cpu", 1, 60, machines)
    launch(_compare_batches, (tmp_path, keys), plan)
