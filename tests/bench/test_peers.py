"""What the contestants work out beside what is timed."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch_geometric.data import Data

from gnntrain.data.graph import EDGE, NODE
from gnntrain.sampling.base import SampleKey
from gnntrain.sampling.block import Block
from scripts.bench.__main__ import Graph, spec_of
from scripts.bench.peers.floor import Work, work_of
from scripts.bench.peers.pyg import SAGE, hops_of, run
from scripts.bench.peers.turns import Turns
from tests.graphs import random_graph, stored
from tests.hetero_graphs import random_hetero_data
from tests.pyg_backends import use_backend
from tests.sampling.graphs import cpu_sampler, csc, seeds_of


def sampled(seed: int, num_hops: int) -> Data:
    """A mini-batch as PyG's `NeighborLoader` gives it, of a graph with isolated nodes."""
    generator = torch.Generator().manual_seed(seed)
    src, dst = torch.randint(0, 40, (2, 120), generator=generator)
    x = torch.rand(50, 6, generator=generator)
    seeds = torch.randperm(50, generator=generator)[:8]
    sampler = cpu_sampler(csc(50, src.numpy(), dst.numpy()), [3] * num_hops)
    out = sampler.sample(seeds_of(seeds), SampleKey(seed, 0, 0))
    return Data(
        x=x[out.nodes[NODE]],
        edge_index=out.edge_index()[EDGE],
        batch_size=len(seeds),
        true_nodes=out.num_sampled_nodes[NODE],
        true_edges=out.num_sampled_edges[EDGE],
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("num_hops", [1, 2, 3])
def test_hops_are_found_in_the_order_of_nodes_and_edges(seed: int, num_hops: int) -> None:
    batch = sampled(seed, num_hops)
    assert hops_of(batch, num_hops) == (batch.true_nodes, batch.true_edges)


def test_a_trimmed_forward_gives_the_seeds_what_the_whole_one_gives() -> None:
    batch = sampled(0, 2)
    model = SAGE(6, 4, 3, 2)
    whole = model(batch.x, batch.edge_index, None)[: batch.batch_size]
    trimmed = model(batch.x, batch.edge_index, hops_of(batch, 2))[: batch.batch_size]
    torch.testing.assert_close(trimmed, whole)


@pytest.mark.parametrize(
    ("stage", "is_typed"),
    [
        *((stage, False) for stage in ("sampling", "gather", "step", "inference")),
        *((stage, True) for stage in ("sampling", "step")),
    ],
)
def test_stock_pyg_takes_its_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, is_typed: bool
) -> None:
    use_backend("torch_sparse", monkeypatch)
    monkeypatch.setitem(sys.modules, "torch_sparse", SimpleNamespace(__version__="0"))
    monkeypatch.setattr("sys.stdin", io.StringIO("run 2\nquit\n"))
    data = random_graph()
    if is_typed:
        data = random_hetero_data()
        data.nodes["author"].features = None
    graph = Graph("random", (3, 2), (), hidden=4, is_typed=is_typed)
    spec = replace(spec_of(graph, stage, stored(tmp_path / "store", data)), batch_size=8)
    answers = io.StringIO()
    run(Turns(spec, answers))
    hello, turn = map(json.loads, answers.getvalue().splitlines())
    assert hello["ready"]
    assert turn["edges"] > 0
    assert turn["seconds"] > 0


def test_the_floor_counts_products_of_destinations_and_reads_of_rows() -> None:
    def block(num_dst: int, num_edges: int) -> Block:
        indptr = torch.linspace(0, num_edges, num_dst + 1).to(torch.int32)
        return Block(indptr, torch.zeros(num_edges, dtype=torch.int32), num_src=num_dst)

    outer, inner = block(2, 10), block(5, 20)
    work = work_of([inner, outer], [7, 4, 3], feature_bytes=4, activation_bytes=2)
    # Innermost: forward and the weights' gradients of two maps; then also the input's gradients.
    num_bytes = (20 + 5) * 7 * 4 + 2 * (10 + 2) * 4 * 2
    assert work == Work(5, 2 * 2 * (2 * 5 * 7 * 4) + 3 * 2 * (2 * 2 * 4 * 3), num_bytes)
