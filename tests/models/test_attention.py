"""GATv2's scores, and dropped attention weights."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from gnntrain.compute import reference
from gnntrain.models.attention import attend, pair_score
from gnntrain.sampling.block import Block
from tests.models.blocks import full_block, rough_graph


def attention_block() -> Block:
    return full_block(rough_graph(), 2, 40)


@pytest.mark.parametrize("elements", [1, 30, 2**22])
def test_pair_scores_do_not_depend_on_the_chunks(
    elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "MAX_CHUNK_ELEMENTS", elements)
    monkeypatch.setattr(reference, "MAX_COLUMN_ELEMENTS", elements)
    block = full_block(rough_graph(12, 20), 2, 12)
    left = torch.randn(12, 6, dtype=torch.float64, requires_grad=True)
    right = torch.randn(10, 6, dtype=torch.float64, requires_grad=True)
    att = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    dst = torch.arange(10).repeat_interleave(block.indptr.diff())
    pair = F.leaky_relu(left[block.indices] + right[dst], 0.2).view(-1, 2, 3)
    score = pair_score(block, left, right, att, 0.2)
    torch.testing.assert_close(score, (pair * att).sum(-1))
    assert torch.autograd.gradcheck(
        lambda a, b, c: pair_score(block, a, b, c, 0.2), (left, right, att)
    )


def test_dropped_weights_scale_the_others_up() -> None:
    torch.manual_seed(0)
    block = attention_block()
    score, loop = torch.zeros(block.num_edges, 1), torch.zeros(block.num_dst, 1)
    rows, sums = torch.ones(40, 1, requires_grad=True), []
    for _ in range(300):
        out, _ = attend(block, rows, score=score, loop=loop, dropout=0.5)
        sums.append(out.detach())
        (grad,) = torch.autograd.grad(out.sum(), rows)
        assert grad.sum().item() == pytest.approx(out.sum().item())  # the same weights are dropped
    assert torch.stack(sums).std(0).min() > 0.01
    torch.testing.assert_close(torch.stack(sums).mean(), torch.tensor(1.0), atol=0.02, rtol=0)
