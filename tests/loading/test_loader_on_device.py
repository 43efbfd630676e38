"""The places of a graph on a device for which there are no kernels of ours.

That its batches arrive whole, and without a wait, is shown in `test_run_on_simulated_gpu.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gnntrain.compute.selection import KernelChoice, select
from gnntrain.data.graph import Graph
from gnntrain.sampling.block import BlockNeeds
from tests.graphs import random_graph, stored
from tests.loading.graphs import (
    KINDS,
    assert_same,
    builder,
    cpu_loader,
    full_loader,
    graph_of,
    plan_of,
)
from tests.simulated_device import present

ALL = BlockNeeds(norm=True, weight=True, degree=True)


@pytest.fixture(autouse=True)
def sim() -> Iterator[torch.device]:
    select(KernelChoice("torch"), "sim")
    with present():
        yield torch.device("sim", 0)


@pytest.fixture(scope="module", params=[*zip(KINDS, ("float32", "bfloat16"), strict=True)])
def graph(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Graph:
    kind, dtype = request.param
    return graph_of(kind, tmp_path_factory.mktemp("graph") / "store", dtype)


def test_typed_rows_that_do_not_fit_are_copied_by_batch(tmp_path: Path, sim: torch.device) -> None:
    graph = graph_of("typed", tmp_path / "store")
    wide = np.random.default_rng(0).normal(size=(len(graph.nodes["paper"]), 800))
    paper = replace(graph.nodes["paper"], features=wide.astype(np.float32))
    graph = replace(graph, nodes={**graph.nodes, "paper": paper})
    with present(total_memory=2 * paper.features.nbytes - 8):
        made = builder(graph, ALL, sim, sampler={"fan_outs": [1]})
        assert {source.waits for source in made.features.values()} == {True}
        expected = cpu_loader(graph, plan_of(graph), (1,), needs=ALL, threads=0)
        for ours, theirs in zip(made.training_loader(), expected, strict=True):
            assert_same(ours, theirs, "sim")


def test_the_whole_graph_keeps_64_bit_sources(tmp_path: Path, sim: torch.device) -> None:
    store = stored(tmp_path / "store", random_graph())
    edges = replace(store.only_edges, indices=store.indices.astype(np.int64))
    wide = replace(store, edges=dict.fromkeys(store.edges, edges))
    needs = BlockNeeds(edge_index=True)
    (batch,) = builder(wide, needs, sim, sampler={"name": "full"}).training_loader()
    (expected,) = full_loader(wide, plan_of(wide), needs)
    assert_same(batch, expected, "sim")
    (block,) = batch.hops[0].edges.values()
    assert block.indices.dtype == torch.int64


def test_the_whole_graph_lies_once_on_the_device_if_half_its_memory_holds_it(
    graph: Graph, sim: torch.device
) -> None:
    full = {"name": "full"}
    with present() as module:
        made = builder(graph, ALL, sim, sampler=full)
        assert made.graph_on_device is not None
        held = [source.select().rows for source in made.features.values()]
        before = module.memory_allocated(sim) + sum(rows.nbytes for rows in held)
        batch = next(iter(made.training_loader()))
        tensors = [*batch.x_dict.values(), batch.y, *batch.n_id_dict.values()]
        # The norm counts: that of a block is the graph's own.
        tensors += [block.indptr for block in batch.hops[0].edges.values()]
        size = sum(-(-tensor.nbytes // 512) * 512 for tensor in tensors)
        assert module.memory_allocated(sim) <= before + size + 1024
    with present(total_memory=4000):
        made = builder(graph, ALL, sim, sampler=full)
        assert made.graph_on_device is None
        assert {source.select().device.type for source in made.features.values()} == {"cpu"}
