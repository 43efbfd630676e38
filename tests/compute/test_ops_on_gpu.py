"""What only a GPU shows: real sizes, the host's memory, no waiting, and who is called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from gnntrain.compute.operator import Sum
from gnntrain.models import GAT, GCN, GIN, GNN, SAGE, GATv2
from gnntrain.models.aggregate import aggregate
from gnntrain.sampling.block import Block
from tests.compute.devices import NEEDS_GPU
from tests.models.padding import padded

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


@pytest.mark.parametrize("is_sum", [True, False])
def test_hubs_of_a_million_edges_both_ways_are_reduced(is_sum: bool) -> None:
    num_edges = 1_000_003
    x = torch.randn(5000, 64, dtype=torch.float64)
    pull = torch.randn(3, 64, dtype=torch.float64)
    indices = torch.randint(0, 5000, (num_edges,), dtype=torch.int32)
    indices[1::2] = 11
    indptr = torch.tensor([0, 1, num_edges - 1, num_edges], dtype=torch.int32)
    results = []
    for device in ("cuda", "cuda", "cpu"):
        rows = x.to(device).requires_grad_()
        block = Block(indptr, indices, 5000).to(device)
        out = aggregate(rows, block, Sum() if is_sum else None)
        (gradient,) = torch.autograd.grad(out, rows, pull.to(device))
        results.append((out.detach(), gradient))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    torch.testing.assert_close(results[0][0].cpu(), results[2][0], atol=1e-8, rtol=1e-8)
    if is_sum:  # duplicates tie, and share the gradient in other ways
        torch.testing.assert_close(results[0][1].cpu(), results[2][1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", [SAGE, GCN, GAT, GATv2, GIN])
def test_equal_steps_on_padded_blocks_are_equal_and_wait_for_nothing(
    kind: Callable[..., GNN],
) -> None:
    torch.manual_seed(0)
    inner = padded(replace(big_block(torch.int32), norm=torch.rand(20_000))).to("cuda")
    indptr = inner.indptr[:1025]
    num_edges = int(indptr[-1])
    outer = Block(indptr, inner.indices[:num_edges], inner.num_dst, norm=inner.norm)
    model = kind(100, 47, hidden_channels=64, num_layers=2).to("cuda")
    x = torch.randn(inner.num_src, 100, device="cuda")
    steps = []
    for mode in ("default", "error", "error"):  # the first one compiles
        blocks = [replace(block, derived={}) for block in (inner, outer)]
        model.zero_grad()
        torch.cuda.set_sync_debug_mode(mode)
        try:
            with torch.autocast("cuda", torch.bfloat16):
                out = model(x, blocks)
            torch.autograd.backward(out.float().square().sum())
        finally:
            torch.cuda.set_sync_debug_mode("default")
        gradients = [part.grad for part in model.parameters() if part.grad is not None]
        steps.append([out.detach(), *gradients])
    for first, second in zip(steps[1], steps[2], strict=True):
        assert first.isfinite().all()
        assert torch.equal(first, second)
