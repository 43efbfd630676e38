"""The sparse primitives against loops over edges, and their gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gnntrain.loading.batch import Block
from gnntrain.models import aggregate as aggregation
from gnntrain.models.aggregate import (
    Aggregation,
    Reduce,
    aggregate,
    by_products,
    chunked_maximum,
    sampling_scale,
    weighted_sum,
)
from tests.models.blocks import full_block, graph_of, rough_graph

INDEX_TYPES = [torch.int32, torch.int64]


def random_block(index: torch.dtype = torch.int64) -> Block:
    """Destinations 4 to 24 of a rough graph, so that sources and destinations differ."""
    return full_block(rough_graph(), 4, 24, index)


def edge_list(block: Block) -> list[tuple[int, int]]:
    """(destination, source) of every edge in order."""
    bounds = block.indptr.tolist()
    return [
        (dst, int(block.indices[edge]))
        for dst in range(block.num_dst)
        for edge in range(bounds[dst], bounds[dst + 1])
    ]


def slow_sum(block: Block, x: Tensor, weight: Tensor | None, scale: Tensor | None) -> Tensor:
    """A loop over edges, with weights by head."""
    heads = 1 if weight is None else weight.shape[1]
    out = [x.new_zeros(x.shape[1]) for _ in range(block.num_dst)]
    for edge, (dst, src) in enumerate(edge_list(block)):
        factor = x.new_ones(1) if weight is None else weight[edge]
        out[dst] = out[dst] + (x[src].view(heads, -1) * factor.view(heads, 1)).flatten()
    if scale is not None:
        out = [row * factor for row, factor in zip(out, scale, strict=True)]
    return torch.stack(out) if out else x.new_zeros(0, x.shape[1])


def slow_aggregate(x: Tensor, given: Aggregation) -> Tensor:
    """`Aggregation`'s formula, one edge after the other."""
    block, offset = given.block, given.block.dst_offset
    rows: list[list[Tensor]] = [[] for _ in range(block.num_dst)]
    for edge, (dst, src) in enumerate(edge_list(block)):
        factor = x.new_ones(())
        if given.weight is not None:
            factor = factor * given.weight[edge]
        if given.source_scale is not None:
            factor = factor * given.source_scale[src]
        if given.skip_loops and src == dst + offset:
            factor = x.new_zeros(())
        rows[dst].append(x[src] * factor)
    out = []
    for dst, found in enumerate(rows):
        stack = torch.stack(found) if found else x.new_zeros(1, x.shape[1])
        row = {"sum": stack.sum(0), "mean": stack.mean(0), "max": stack.amax(0)}[given.reduce]
        row = row if given.scale is None else row * given.scale[dst]
        out.append(row if given.loop is None else row + given.loop[dst] * x[dst + offset])
    return torch.stack(out) if out else x.new_zeros(0, x.shape[1])


@st.composite
def blocks(draw: st.DrawFn, max_offset: int = 8) -> Block:
    num_src = draw(st.integers(1, 8))
    offset = draw(st.integers(0, min(num_src, max_offset)))
    num_dst = draw(st.integers(0, num_src - offset))
    node = st.integers(0, num_src - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=30))
    index = draw(st.sampled_from(INDEX_TYPES))
    return full_block(graph_of(num_src, edges), offset, offset + num_dst, index)


@st.composite
def aggregations(draw: st.DrawFn, max_offset: int = 8) -> Aggregation:
    block = draw(blocks(max_offset))
    reduce: Reduce = draw(st.sampled_from(["sum", "mean", "max"]))
    if reduce == "max":
        return Aggregation(block, reduce)

    def maybe(size: int) -> Tensor | None:
        return torch.rand(size, dtype=torch.float64) if draw(st.booleans()) else None

    return Aggregation(
        block,
        reduce,
        weight=maybe(block.num_edges),
        source_scale=maybe(block.num_src),
        scale=maybe(block.num_dst),
        loop=maybe(block.num_dst),
        skip_loops=draw(st.booleans()),
    )


@settings(max_examples=50, deadline=None)
@given(given=aggregations())
def test_an_aggregate_is_a_loop_over_edges(given: Aggregation) -> None:
    torch.manual_seed(0)
    x = torch.randn(given.block.num_src, 6, dtype=torch.float64)
    expected = slow_aggregate(x, given)
    torch.testing.assert_close(aggregate(x, given), expected, atol=1e-6, rtol=1e-6)


@settings(max_examples=50, deadline=None)
@given(given=aggregations(max_offset=0))
def test_its_gradient_is_that_of_the_loop(given: Aggregation) -> None:
    torch.manual_seed(0)
    x = torch.randn(given.block.num_src, 6, dtype=torch.float64, requires_grad=True)
    got, expected = aggregate(x, given), slow_aggregate(x, given)
    pull = torch.randn_like(got)
    mine = torch.autograd.grad(got, x, pull)[0]
    theirs = torch.zeros_like(x)
    if expected.requires_grad:
        theirs = torch.autograd.grad(expected, x, pull)[0]
    if given.reduce != "max":  # duplicates tie, and may share the gradient in any way
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-6)


@settings(max_examples=50, deadline=None)
@given(given=aggregations())
def test_sparse_products_aggregate_alike(given: Aggregation) -> None:
    """What devices without our kernels compute."""
    torch.manual_seed(0)
    x = torch.randn(given.block.num_src, 6, dtype=torch.float64)
    if given.reduce != "max":
        expected = slow_aggregate(x, given)
        torch.testing.assert_close(by_products(x, given), expected, atol=1e-6, rtol=1e-6)


@settings(max_examples=50, deadline=None)
@given(block=blocks(), heads=st.sampled_from([0, 1, 3]), scaled=st.booleans())
def test_a_weighted_sum_is_a_loop_over_edges_forward_and_backward(
    block: Block, heads: int, scaled: bool
) -> None:
    torch.manual_seed(0)
    x = torch.randn(block.num_src, 6, dtype=torch.float64, requires_grad=True)
    inputs, weight = [x], None
    if heads:
        weight = torch.randn(block.num_edges, heads, dtype=torch.float64, requires_grad=True)
        inputs.append(weight)
    scale = torch.rand(block.num_dst, dtype=torch.float64) if scaled else None
    got, expected = (call(block, x, weight, scale) for call in (weighted_sum, slow_sum))
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-6)
    pull = torch.randn_like(got)
    for mine, theirs in zip(
        torch.autograd.grad(got, inputs, pull),
        torch.autograd.grad(expected, inputs, pull, allow_unused=True, materialize_grads=True)
        if expected.requires_grad
        else [torch.zeros_like(value) for value in inputs],
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("index", INDEX_TYPES)
@pytest.mark.parametrize("heads", [1, 2])
def test_the_gradient_of_a_weighted_sum_is_exact(heads: int, index: torch.dtype) -> None:
    block = random_block(index)
    x = torch.randn(block.num_src, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(block.num_edges, heads, dtype=torch.float64, requires_grad=True)
    scale = torch.rand(block.num_dst, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda rows, factors: weighted_sum(block, rows, factors, scale), (x, weight)
    )


@pytest.mark.parametrize("index", INDEX_TYPES)
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_the_gradient_of_every_reduction_is_exact(reduce: Reduce, index: torch.dtype) -> None:
    block = full_block(graph_of(6, [(0, 1), (2, 1), (5, 1), (1, 4), (4, 4)]), index=index)
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda rows: aggregate(rows, Aggregation(block, reduce)), (x,))


@pytest.mark.parametrize("elements", [1, 16, 2**22])
def test_the_chunked_maximum_is_the_maximum(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregation, "MAX_CHUNK_ELEMENTS", elements)
    graph = graph_of(7, [(0, 1), (2, 1), (5, 1), (1, 4), (4, 4), (2, 5), (3, 5)])
    block = full_block(graph)
    x = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(chunked_maximum(block, x), aggregate(x, Aggregation(block, "max")))
    assert torch.autograd.gradcheck(lambda rows: chunked_maximum(block, rows), (x,))


def test_in_neighbours_that_share_a_maximum_share_its_gradient() -> None:
    block = full_block(graph_of(4, [(0, 3), (1, 3), (2, 3)]), 3, 4)
    x = torch.tensor([[2.0], [2.0], [1.0], [9.0]], requires_grad=True)
    torch.autograd.backward(chunked_maximum(block, x).sum())
    assert x.grad is not None
    assert x.grad.flatten().tolist() == [0.5, 0.5, 0, 0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_the_result_has_the_type_of_the_rows(reduce: Reduce, dtype: torch.dtype) -> None:
    block = random_block()
    x = torch.randn(block.num_src, 4).to(dtype).requires_grad_()
    out = aggregate(x, Aggregation(block, reduce))
    assert out.dtype == dtype
    torch.autograd.backward(out.sum())
    assert x.grad is not None
    assert x.grad.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_weighted_sum_has_the_type_of_the_rows(dtype: torch.dtype) -> None:
    block = random_block()
    x = torch.randn(block.num_src, 4).to(dtype).requires_grad_()
    weight = torch.rand(block.num_edges, 1).requires_grad_()
    out = weighted_sum(block, x, weight, torch.rand(block.num_dst))
    assert out.dtype == dtype
    torch.autograd.backward(out.sum())
    assert x.grad is not None
    assert x.grad.dtype == dtype
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32


def test_a_hub_is_summed_finer_than_bfloat16() -> None:
    degree = 100_000
    block = Block(torch.tensor([0, degree]), torch.arange(degree), num_src=degree)
    x = torch.full((degree, 2), 0.01, dtype=torch.bfloat16)
    assert aggregate(x, Aggregation(block))[0, 0].item() == pytest.approx(1000, rel=5e-3)


@pytest.mark.parametrize("index", INDEX_TYPES)
@pytest.mark.parametrize(("num_src", "num_dst"), [(0, 0), (4, 0), (4, 3)])
@pytest.mark.parametrize(
    "call",
    [
        lambda block, x: aggregate(x, Aggregation(block, "sum")),
        lambda block, x: aggregate(x, Aggregation(block, "mean")),
        lambda block, x: aggregate(x, Aggregation(block, "max")),
        lambda block, x: weighted_sum(block, x, torch.zeros(0, 2, requires_grad=True)),
        chunked_maximum,
    ],
)
def test_blocks_without_edges_give_zeros_and_zero_gradients(
    call: Callable[..., Tensor], num_src: int, num_dst: int, index: torch.dtype
) -> None:
    block = Block(torch.zeros(num_dst + 1, dtype=index), torch.zeros(0, dtype=index), num_src)
    x = torch.randn(num_src, 4, requires_grad=True)
    out = call(block, x)
    assert out.shape == (num_dst, 4)
    assert not out.any()
    torch.autograd.backward(out.sum())
    assert x.grad is not None
    assert x.grad.shape == x.shape
    assert not x.grad.any()


def test_rows_that_do_not_lie_one_after_the_other_are_aggregated() -> None:
    block, x = random_block(), torch.randn(40, 8)
    weight = torch.rand(block.num_edges, 2)
    torch.testing.assert_close(
        weighted_sum(block, x[:, ::2], weight),
        weighted_sum(block, x[:, ::2].contiguous(), weight),
    )


def test_sources_are_numbered_in_64_bits_where_32_are_too_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    block = random_block(torch.int32)
    x, weight = torch.randn(40, 6, requires_grad=True), torch.rand(block.num_edges, 3)
    expected = weighted_sum(block, x, weight)
    monkeypatch.setattr(aggregation, "_INT32_MAX", 100)
    got = weighted_sum(block, x, weight.requires_grad_())
    torch.testing.assert_close(got, expected)
    torch.autograd.backward(got.sum())


def test_duplicates_may_outnumber_the_pairs_of_nodes() -> None:
    block = full_block(graph_of(2, [(0, 1)] * 5), 1, 2)
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, 1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda rows, factors: weighted_sum(block, rows, factors), (x, weight)
    )


def test_the_sampling_scale_is_one_where_no_edge_was_left_out() -> None:
    indptr, indices = torch.tensor([0, 2, 2, 5]), torch.zeros(5, dtype=torch.int64)
    assert sampling_scale(Block(indptr, indices, 3)) is None
    scale = sampling_scale(Block(indptr, indices, 3, degree=torch.tensor([2.0, 0.0, 12.0])))
    assert scale is not None
    assert scale.tolist() == [1, 0, 4]
