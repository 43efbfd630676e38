"""What only a GPU shows: real sizes, the host's memory, no waiting, and who is called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from gnntrain.compute.device import DeviceTable
from gnntrain.loading.batch import Block
from gnntrain.models import GAT, GCN, GIN, GNN, SAGE, GATv2
from gnntrain.models.aggregate import Aggregation, Reduce, aggregate, weighted_sum
from tests.compute.devices import NEEDS_GPU
from tests.compute.test_device import assert_near
from tests.models.blocks import full_block, rough_graph
from tests.models.slow_aggregate import INDEX_TYPES

pytestmark = NEEDS_GPU


def big_block(index: torch.dtype) -> Block:
    """20,000 nodes, about 10 in-edges each, and a hub of 100,000 both ways."""
    draw = torch.Generator().manual_seed(0)
    dst = torch.randint(0, 20_000, (200_000,), generator=draw)
    dst = torch.cat([dst, torch.full((100_000,), 7)]).sort().values
    indices = torch.randint(0, 20_000, (300_000,), generator=draw)
    indices[torch.randperm(300_000, generator=draw)[:100_000]] = 11
    indptr = torch.searchsorted(dst, torch.arange(20_001))
    return Block(indptr.to(index), indices.to(index), 20_000)


@pytest.mark.parametrize("index", INDEX_TYPES)
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_large_blocks_aggregate_as_on_the_cpu(reduce: Reduce, index: torch.dtype) -> None:
    block = big_block(index)
    x = torch.randn(20_000, 100, dtype=torch.float64)
    pull = torch.randn(20_000, 100, dtype=torch.float64)
    results = []
    for device in ("cpu", "cuda"):
        rows = x.to(device).requires_grad_()
        out = aggregate(rows, Aggregation(block.to(device), reduce))
        (gradient,) = torch.autograd.grad(out, rows, pull.to(device))
        results.append((out.detach(), gradient))
    assert_near(results[1][0], results[0][0])
    if reduce != "max":  # duplicates tie, and share the gradient in other ways
        # The CPU's kernels take the shares of a mean in float32.
        torch.testing.assert_close(results[1][1].cpu(), results[0][1], atol=1e-6, rtol=1e-6)


def test_weighted_sums_are_those_of_the_cpu() -> None:
    block = big_block(torch.int32)
    x, weight = torch.randn(20_000, 96).double(), torch.rand(300_000, 4).double()
    results = []
    for device in ("cpu", "cuda"):
        inputs = [part.to(device).requires_grad_() for part in (x, weight)]
        out = weighted_sum(block.to(device), inputs[0], inputs[1])
        results.append([out.detach(), *torch.autograd.grad(out.sum(), inputs)])
    for cpu, cuda in zip(*results, strict=True):
        assert_near(cuda, cpu)


@pytest.mark.parametrize("kind", [SAGE, GCN, GAT, GATv2, GIN])
def test_models_compute_as_on_the_cpu(kind: Callable[..., GNN]) -> None:
    torch.manual_seed(0)
    block, x = full_block(rough_graph(weighted=True)), torch.randn(40, 47)
    model = kind(47, 5, hidden_channels=24, num_layers=2)
    results = []
    for device in ("cpu", "cuda"):
        model.to(device).zero_grad()
        out = model(x.to(device), [block.to(device)] * 2)
        torch.autograd.backward(out.square().sum())
        gradients = [part.grad for part in model.parameters() if part.grad is not None]
        results.append([part.detach().cpu() for part in (out, *gradients)])
    for cpu, cuda in zip(*results, strict=True):
        torch.testing.assert_close(cuda, cpu, atol=1e-3, rtol=1e-3)


def test_pinned_rows_are_read_over_the_bus() -> None:
    block, rows = big_block(torch.int32), torch.randn(30_000, 100).bfloat16()
    nodes = torch.randperm(30_000)[:20_000]
    given = Aggregation(block.to("cuda"), "mean")
    pinned = aggregate(DeviceTable(rows.pin_memory(), nodes.cuda()), given)
    assert torch.equal(pinned, aggregate(DeviceTable(rows.cuda(), nodes.cuda()), given))


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_nothing_waits_for_the_gpu(reduce: Reduce) -> None:
    block = big_block(torch.int32).to("cuda")
    x = torch.randn(20_000, 100, device="cuda", requires_grad=True)
    torch.autograd.backward(aggregate(x, Aggregation(block, reduce)).sum())  # compiles
    block = replace(block, derived={})
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.autograd.backward(aggregate(x, Aggregation(block, reduce)).sum())
    finally:
        torch.cuda.set_sync_debug_mode("default")
