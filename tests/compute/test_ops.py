"""Every registration of the operators against loops over edges, forward and backward."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gnntrain.compute.operator import Sum
from gnntrain.compute.reference import by_head
from gnntrain.compute.rows import Transpose
from gnntrain.models.aggregate import aggregate
from gnntrain.models.attention import attend, pair_score
from gnntrain.sampling.block import Block
from tests.compute.registrations import each_registration, on_gpu_kernels
from tests.compute.test_examples import chunks_of
from tests.examples import examples
from tests.models.blocks import full_block, graph_of, rough_graph
from tests.models.padding import padded
from tests.models.slow_aggregate import (
    INDEX_TYPES,
    blocks,
    edge_list,
    slow_aggregate,
    sums,
)

pytest.importorskip("triton", reason="triton is not installed")

DTYPES = [torch.float32, torch.bfloat16]
RELATIVE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""How far results of a type may be off: they are rounded once, and were summed in float32."""
WIDTHS = [1, 3, 47]


def assert_near(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got.cpu().double(), expected, atol=1e-4, rtol=RELATIVE[got.dtype])


def check(block: Block, total: Sum | None, width: int, dtype: torch.dtype, device: str) -> None:
    """A sum or maximum on the device is the loop over edges, forward and backward."""
    torch.manual_seed(0)
    x = torch.randn(block.num_src, width).to(dtype)
    pull = torch.randn(block.num_dst, width).to(dtype)
    exact = torch.promote_types(dtype, torch.float32)  # of the factors

    def moved(part: Any) -> Any:
        part = part.to(device) if isinstance(part, Tensor) else part
        return part.to(exact) if isinstance(part, Tensor) and part.is_floating_point() else part

    results = []
    for call, own, over, rows in (
        (aggregate, total and Sum._make(map(moved, total)), block.to(device), x.to(device)),
        (slow_aggregate, total, block, x.double()),
    ):
        out = call(rows.requires_grad_(), over, own)
        grad = torch.zeros_like(rows)
        if out.requires_grad:
            (grad,) = torch.autograd.grad(
                out, rows, pull.to(out), allow_unused=True, materialize_grads=True
            )
        results.append([out.detach(), grad])
    assert results[0][0].dtype == results[0][1].dtype == dtype
    for got, expected in zip(*results, strict=True):
        assert_near(got, expected)


@each_registration
@examples(50)
@given(given=sums(), width=st.sampled_from(WIDTHS), dtype=st.sampled_from(DTYPES))
def test_an_aggregate_and_its_gradient_are_those_of_a_loop_over_edges(
    given: tuple[Block, Sum | None], width: int, dtype: torch.dtype, device: str
) -> None:
    check(*given, width, dtype, device)


@each_registration
@pytest.mark.parametrize("is_sum", [True, False])
def test_rows_may_be_wider_than_a_tile(is_sum: bool, device: str) -> None:
    block = full_block(graph_of(5, [(0, 1), (3, 1), (1, 1), (0, 2), (4, 4)]), 1, 4)
    check(block, Sum() if is_sum else None, 602, torch.bfloat16, device)


@each_registration
@pytest.mark.parametrize("index", INDEX_TYPES)
@examples(50)
@given(block=blocks())
def test_a_transposed_block_lists_every_edge_by_its_source(
    block: Block, index: torch.dtype, device: str
) -> None:
    indptr, indices = block.indptr.to(device, index), block.indices.to(device, index)
    found = Transpose(indptr, indices, block.num_src).run()
    assert {part.dtype for part in found} == {index}
    by_source: list[list[tuple[int, int]]] = [[] for _ in range(block.num_src)]
    for edge, (dst, src) in enumerate(edge_list(block)):
        by_source[src].append((dst, edge))
    pairs = list(zip(*(part.tolist() for part in found[1:]), strict=True))
    bounds = found[0].tolist()
    assert [pairs[a:b] for a, b in pairwise(bounds)] == by_source
    longer = padded(Block(indptr, indices, block.num_src))
    more = Transpose(longer.indptr, longer.indices, longer.num_src).run()
    assert set(more[0][block.num_src :].tolist()) == {block.num_edges}
    for part, wanted in zip(more, found, strict=True):
        assert torch.equal(part[: len(wanted)], wanted)
    assert block.transposed() is block.transposed()


@each_registration
@examples(50)
@given(block=blocks(), is_weighted=st.booleans())
def test_every_destination_has_one_self_loop_behind_its_other_edges(
    block: Block, is_weighted: bool, device: str
) -> None:
    loops = torch.rand(block.num_dst) if is_weighted else None
    weight = torch.rand(block.num_edges) if is_weighted else None
    expected: list[tuple[int, int, float]] = []
    for dst, (first, last) in enumerate(pairwise(block.indptr.tolist())):
        own, in_edges = dst + block.dst_offset, range(first, last)
        others = [(int(block.indices[e]), e) for e in in_edges if block.indices[e] != own]
        expected += [(dst, src, 1.0 if weight is None else float(weight[e])) for src, e in others]
        expected += [(dst, own, 1.0 if loops is None else float(loops[dst]))]
    given = replace(block, weight=weight, max_in_edges=30).to(device)
    found = given.with_self_loops(None if loops is None else loops.to(device))
    weights = [1.0] * found.num_edges if found.weight is None else found.weight.tolist()
    edges = zip(edge_list(found), weights[: len(expected)], strict=True)
    assert [(*edge, number) for edge, number in edges] == expected
    assert (found.weight is None) == (not is_weighted)
    assert found.num_edges == block.num_edges + block.num_dst
    assert not found.indices[len(expected) :].any()
    assert found.indptr.dtype == found.indices.dtype == block.indices.dtype
    assert (found.max_in_edges, found.dst_offset) == (31, block.dst_offset)
    longer = padded(given, destinations=0).with_self_loops(loops)
    assert torch.equal(longer.indptr, found.indptr)
    assert edge_list(longer) == edge_list(found)


def slow_attend(
    block: Block, rows: Tensor, score: Tensor, target: Tensor | None
) -> tuple[Tensor, Tensor]:
    """A loop over destinations, with the softmax by torch; `score` by edge, or by node."""
    edges, heads = edge_list(block), score.shape[1]
    outs, log_sums = [rows[:0]], [score[:0]]
    for dst in range(block.num_dst):
        own = [(edge, src) for edge, (end, src) in enumerate(edges) if end == dst]
        sources = [src for _, src in own]
        if target is None:
            scores = score[[edge for edge, _ in own]]
        else:
            scores = F.leaky_relu(score[sources] + target[dst], 0.2)
        shares = scores.softmax(0).unsqueeze(-1)
        outs.append((shares * by_head(rows[sources], heads)).sum(0).view(1, -1))
        log_sums.append(scores.logsumexp(0)[None])
    return torch.cat(outs), torch.cat(log_sums)


@each_registration
@examples(40)
@given(block=blocks(), heads=st.sampled_from([1, 3]), by_node=st.booleans())
def test_attention_is_a_loop_over_destinations_forward_and_backward(
    block: Block, heads: int, by_node: bool, device: str
) -> None:
    torch.manual_seed(0)
    number = block.num_src if by_node else block.num_edges
    shapes = [(block.num_src, 4 * heads), (number, heads), (block.num_dst, heads)]
    rows, score, target = map(torch.randn, shapes)
    pulls = [torch.randn(block.num_dst, 4 * heads), torch.randn(block.num_dst, heads)]
    inputs = [rows, score * 5, *([target * 5] if by_node else [])]

    def fast(block: Block, rows: Tensor, score: Tensor, end: Any = None) -> tuple[Tensor, Tensor]:
        if not by_node:
            return attend(block, rows, slope=1.0, dropout=0.0, score=score)
        whole = torch.cat([rows, score], dim=1)
        return attend(block, whole, slope=0.2, dropout=0.0, target=end)

    def slow(block: Block, rows: Tensor, score: Tensor, end: Any = None) -> tuple[Tensor, Tensor]:
        return slow_attend(block, rows, score, end)

    results: list[list[Tensor]] = []
    for call, place, kind in ((fast, device, torch.float32), (slow, "cpu", torch.float64)):
        given = [part.to(place, kind).requires_grad_() for part in inputs]
        out, pull = call(block.to(place), *given), [part.to(place, kind) for part in pulls]
        options: dict[str, Any] = {"allow_unused": True, "materialize_grads": True}
        grads = torch.autograd.grad(out, given, pull, **options)
        results.append([*(part.detach() for part in out), *grads])
    for got, expected in zip(*results, strict=True):
        assert got.dtype == torch.float32
        assert_near(got, expected)


@each_registration
@pytest.mark.parametrize("sign", [1, -1])
def test_attention_survives_huge_scores(sign: int, device: str) -> None:
    block = full_block(graph_of(3, [(0, 2), (1, 2)]), 2, 3).to(device)
    score = torch.tensor([[sign * 1e4]] * 2 + [[0.0]], device=device)
    rows, block = torch.eye(3, device=device), block.with_self_loops()
    out, _ = attend(block, rows, slope=1.0, dropout=0.0, score=score)
    assert out.tolist() == ([[0.5, 0.5, 0]] if sign > 0 else [[0, 0, 1]])


def test_dropped_weights_scale_the_others_up() -> None:
    torch.manual_seed(0)
    block = full_block(rough_graph(), 2, 40).with_self_loops()
    score = torch.zeros(block.num_edges, 1)
    rows, sums = torch.ones(40, 1, requires_grad=True), []
    for _ in range(300):
        out, _ = attend(block, rows, slope=1.0, dropout=0.5, score=score)
        sums.append(out.detach())
        (grad,) = torch.autograd.grad(out.sum(), rows)
        assert grad.sum().item() == pytest.approx(out.sum().item())  # the same weights are dropped
    assert torch.stack(sums).std(0).min() > 0.01
    torch.testing.assert_close(torch.stack(sums).mean(), torch.tensor(1.0), atol=0.02, rtol=0)


@each_registration
@pytest.mark.parametrize("att", [False, True])
def test_scores_read_nothing_beside_a_heads_columns(att: bool, device: str) -> None:
    block = full_block(graph_of(3, [(0, 2), (1, 2)]), 2, 3).to(device)
    rows, weight = torch.ones(3, 16, device=device), torch.ones(2, 5, device=device)
    rows[:, 5:] = torch.nan  # the second head's, and what stands beside both
    right = torch.ones(1, 10, device=device)
    score = pair_score(block, rows[:, :10], right, 2, 1.0, weight if att else None)
    assert score.isnan().tolist() == [[False, True]] * 2
    assert score[:, 0].tolist() == [10.0 if att else 5.0] * 2


@each_registration
@pytest.mark.parametrize("place", [0, 30, 69])
def test_not_a_number_is_the_maximum_wherever_it_stands(place: int, device: str) -> None:
    x = torch.zeros(70, 1, device=device)
    x[place] = torch.nan
    indptr = torch.tensor([0, 70], device=device)
    block = Block(indptr, torch.arange(70, device=device), 70)
    assert aggregate(x, block, None).isnan().all()


@each_registration
def test_a_maximum_of_nothing_but_minus_infinity_is_that(device: str) -> None:
    block = full_block(graph_of(2, [(0, 1)])).to(device)
    x = torch.full((2, 1), -torch.inf, device=device)
    out = aggregate(x, block, None)
    assert out.flatten().tolist() == [0, -torch.inf]


@each_registration
def test_a_hub_is_summed_finer_than_bfloat16(device: str) -> None:
    degree = 10_000
    indptr, indices = torch.tensor([0, degree]), torch.arange(degree)
    block = Block(indptr, indices, num_src=degree).to(device)
    x = torch.full((degree, 2), 0.01, dtype=torch.bfloat16, device=device)
    out = aggregate(x, block, Sum())
    assert out[0, 0].item() == pytest.approx(100, rel=5e-3)


@on_gpu_kernels
def test_chunks_of_a_block_without_destinations_read_nothing(device: str) -> None:
    """As padding may leave one."""
    indptr, indices = torch.zeros(1, dtype=torch.int32), torch.zeros(9, dtype=torch.int32)
    block, nothing = Block(indptr, indices, 1).to(device), torch.empty(0, 4, device=device)
    with chunks_of(2):
        att = nothing.new_ones(2, 2)
        score = pair_score(block, nothing.new_ones(1, 4), nothing, 2, 0.2, att)
        out, _ = attend(block, nothing.new_ones(1, 4), slope=1.0, dropout=0.0, score=score)
    assert out.shape == (0, 4)
