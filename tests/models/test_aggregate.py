"""Weighted sums and attention; the operators behind them are tried in `tests.compute`."""

from __future__ import annotations

import pytest
import torch

from gnntrain.compute import reference
from gnntrain.models.aggregate import Aggregation, aggregate
from gnntrain.models.attention import attend
from tests.compute.registrations import registered
from tests.models.blocks import full_block, rough_graph


def test_sources_are_numbered_in_64_bits_where_32_are_too_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    block = full_block(rough_graph(), 4, 24, torch.int32)
    x, weight = torch.randn(40, 6, requires_grad=True), torch.rand(block.num_edges, 3)
    expected = aggregate(x, Aggregation(block, weight=weight))
    monkeypatch.setattr(reference, "_INT32_MAX", 100)
    with registered("reference"):
        got = aggregate(x, Aggregation(block, weight=weight.requires_grad_()))
        torch.testing.assert_close(got, expected)
        torch.autograd.backward(got.sum())


def test_dropped_weights_scale_the_others_up() -> None:
    torch.manual_seed(0)
    block = full_block(rough_graph(), 2, 40)
    score, loop = torch.zeros(block.num_edges, 1), torch.zeros(block.num_dst, 1)
    rows, sums = torch.ones(40, 1, requires_grad=True), []
    for _ in range(300):
        out, _ = attend(block, rows, score=score, loop=loop, dropout=0.5)
        sums.append(out.detach())
        (grad,) = torch.autograd.grad(out.sum(), rows)
        assert grad.sum().item() == pytest.approx(out.sum().item())  # the same weights are dropped
    assert torch.stack(sums).std(0).min() > 0.01
    torch.testing.assert_close(torch.stack(sums).mean(), torch.tensor(1.0), atol=0.02, rtol=0)
