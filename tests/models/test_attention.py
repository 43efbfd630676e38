"""Dropped attention weights; the rest is tried in `tests.compute` and with every model."""

from __future__ import annotations

import pytest
import torch

from gnntrain.models.attention import attend
from tests.models.blocks import full_block, rough_graph


def test_dropped_weights_scale_the_others_up() -> None:
    torch.manual_seed(0)
    block = full_block(rough_graph(), 2, 40)
    score, loop = torch.zeros(block.num_edges, 1), torch.zeros(block.num_dst, 1)
    rows, sums = torch.ones(40, 1, requires_grad=True), []
    for _ in range(300):
        out, _ = attend(block, rows, slope=1.0, dropout=0.5, score=score, loop=loop)
        sums.append(out.detach())
        (grad,) = torch.autograd.grad(out.sum(), rows)
        assert grad.sum().item() == pytest.approx(out.sum().item())  # the same weights are dropped
    assert torch.stack(sums).std(0).min() > 0.01
    torch.testing.assert_close(torch.stack(sums).mean(), torch.tensor(1.0), atol=0.02, rtol=0)
