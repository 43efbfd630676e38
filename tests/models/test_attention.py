"""Softmax over in-edges and GATv2's scores against loops, and their gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from gnntrain.compute import reference
from gnntrain.models.attention import attend, edge_softmax, pair_score
from gnntrain.sampling.block import Block
from tests.models.blocks import full_block, rough_graph


def attention_block() -> Block:
    return full_block(rough_graph(), 2, 40)


def test_weights_are_the_softmax_over_a_destinations_edges_and_itself() -> None:
    block = attention_block()
    score, loop = torch.randn(block.num_edges, 3) * 20, torch.randn(block.num_dst, 3)
    alpha, loop_alpha = edge_softmax(block, score, loop)
    bounds = block.indptr.tolist()
    for dst in range(block.num_dst):
        edges = range(bounds[dst], bounds[dst + 1])
        others = [e for e in edges if int(block.indices[e]) != dst + block.dst_offset]
        expected = torch.cat([score[others], loop[dst : dst + 1]]).softmax(0)
        got = torch.cat([alpha[others], loop_alpha[dst : dst + 1]])
        torch.testing.assert_close(got, expected)
        for edge in set(edges) - set(others):
            assert not alpha[edge].any()


def test_the_softmax_survives_huge_scores() -> None:
    block = attention_block()
    alpha, loop_alpha = edge_softmax(
        block, torch.full((block.num_edges, 1), 1e4), torch.full((block.num_dst, 1), -1e4)
    )
    assert alpha.isfinite().all()
    assert loop_alpha.isfinite().all()


def test_the_gradient_of_the_softmax_is_exact() -> None:
    block = attention_block()
    score = torch.randn(block.num_edges, 2, dtype=torch.float64, requires_grad=True)
    loop = torch.randn(block.num_dst, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: edge_softmax(block, a, b), (score, loop))


def test_the_gradient_of_attention_is_exact() -> None:
    block = attention_block()
    shapes = [(40, 6), (block.num_dst, 6), (block.num_edges, 2), (block.num_dst, 2)]
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(
        lambda z, z_dst, *scores: attend(block, z, z_dst, edge_softmax(block, *scores), 0.0), inputs
    )


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
    z, z_dst = torch.ones(40, 1), torch.ones(block.num_dst, 1)
    weights = edge_softmax(block, score, loop)
    sums = torch.stack([attend(block, z, z_dst, weights, 0.5) for _ in range(300)])
    assert sums.std(0).min() > 0.01
    torch.testing.assert_close(sums.mean(), torch.tensor(1.0), atol=0.02, rtol=0)
