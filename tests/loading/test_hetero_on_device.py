"""Batches of typed graphs arrive whole on a device, by few copies and without a wait."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from gnntrain.compute.selection import KernelChoice, select
from gnntrain.data.graph import Graph, NodeData
from gnntrain.loading.hetero_batch import HeteroBatch
from gnntrain.loading.streams import tensors_in
from gnntrain.sampling.block import BlockNeeds
from tests.hetero_graphs import SIZES, hetero_graph, random_hetero_data
from tests.loading.hetero_loaders import batches_of, full_graph_batch, hetero_builder
from tests.simulated_device import no_waits, present, watched

NEEDS = [BlockNeeds(rows=True, degree=True), BlockNeeds(edge_index=True)]


@pytest.fixture(autouse=True)
def sim() -> Iterator[torch.device]:
    select(KernelChoice("torch"), "sim")
    with present():
        yield torch.device("sim", 0)


@pytest.fixture
def graph() -> Graph:
    return hetero_graph()


def assert_equal(ours: HeteroBatch, theirs: HeteroBatch) -> None:
    for name in ("x_dict", "n_id_dict", "edge_index_dict"):
        found, wanted = getattr(ours, name), getattr(theirs, name)
        assert found.keys() == wanted.keys()
        for key, tensor in found.items():
            assert tensor.device.type == "sim"
            assert torch.equal(tensor.cpu(), wanted[key]), (name, key)
    assert torch.equal(ours.y.cpu(), theirs.y)
    for hop, wanted_hop in zip(ours.blocks, theirs.blocks, strict=True):
        assert (hop.num_dst, hop.num_src) == (wanted_hop.num_dst, wanted_hop.num_src)
        for edge_type, block in hop.edges.items():
            wanted = wanted_hop.edges[edge_type].tensors
            assert block.tensors.keys() == wanted.keys()
            for name, tensor in block.tensors.items():
                assert tensor.device.type == "sim"
                assert torch.equal(tensor.cpu(), wanted[name]), (edge_type, name)


@pytest.mark.parametrize("needs", NEEDS, ids=["blocks", "edge_index"])
@pytest.mark.parametrize(
    "features", [{}, {"placement": "resident"}, {"placement": "memmap"}], ids=str
)
def test_an_epoch_is_the_cpus_by_few_copies_and_without_a_wait(
    graph: Graph, sim: torch.device, needs: BlockNeeds, features: dict[str, Any]
) -> None:
    expected = batches_of(graph, (3, 2), needs)
    builder = hetero_builder(graph, needs, sim, features=features)
    made = builder.training_loader()
    assert len(builder.why_placed) == 2
    with watched() as traffic, no_waits():
        batches = [batch for batch in made if isinstance(batch, HeteroBatch)]
    assert len(batches) == len(expected) == 3
    # by type of numbers: ids and offsets, indices, targets, degrees; the rows of two types
    assert len(traffic.copies) <= 7 * len(batches)
    assert not traffic.waits
    for ours, theirs in zip(batches, expected, strict=True):
        assert_equal(ours, theirs)
    assert not traffic.races


@pytest.mark.parametrize("needs", NEEDS, ids=["blocks", "edge_index"])
def test_the_whole_graph_lies_on_the_device(
    graph: Graph, sim: torch.device, needs: BlockNeeds
) -> None:
    (batch,) = hetero_builder(graph, needs, sim, sampler={"name": "full"}).training_loader()
    assert isinstance(batch, HeteroBatch)
    assert all(tensor.device.type == "sim" for tensor in tensors_in(batch))
    assert_equal(batch, full_graph_batch(graph, needs))


def test_what_does_not_fit_is_copied_by_batch(sim: torch.device) -> None:
    data = random_hetero_data()
    wide = np.random.default_rng(0).normal(size=(SIZES["paper"], 800)).astype(np.float32)
    nodes = {**data.nodes, "paper": NodeData(SIZES["paper"], wide)}
    graph, draws = hetero_graph(replace(data, nodes=nodes)), {"fan_outs": [1]}
    with present(total_memory=2 * wide.nbytes - 8):
        builder = hetero_builder(graph, NEEDS[0], sim, sampler=draws)
        assert {source.waits for source in builder.features.values()} == {True}
        expected = batches_of(graph, (1,), NEEDS[0])
        for ours, theirs in zip(builder.training_loader(), expected, strict=True):
            assert isinstance(ours, HeteroBatch)
            assert_equal(ours, theirs)


def test_in_full_graph_training_all_rows_lie_on_the_device(graph: Graph, sim: torch.device) -> None:
    keys: dict[str, Any] = {"sampler": {"name": "full"}, "features": {"placement": "memmap"}}
    builder = hetero_builder(graph, NEEDS[0], sim, **keys)
    (batch,) = builder.training_loader()
    assert isinstance(batch, HeteroBatch)
    assert {rows.device.type for rows in batch.rows.values()} == {"sim"}
    assert_equal(batch, full_graph_batch(graph, NEEDS[0]))
