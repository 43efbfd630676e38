"""Every registration of the operators against loops over edges, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gnntrain.compute import ops
from gnntrain.compute.features import LazyFeatures
from gnntrain.models.aggregate import Aggregation, Reduce, aggregate
from gnntrain.models.attention import edge_softmax, pair_score, sum_softmax
from gnntrain.sampling.block import Block
from tests.compute.registrations import each_registration, on_gpu_kernels
from tests.compute.test_examples import DTYPES, chunks_of
from tests.examples import examples
from tests.models.blocks import full_block, graph_of, rough_graph
from tests.models.padding import padded
from tests.models.slow_aggregate import (
    INDEX_TYPES,
    aggregations,
    blocks,
    edge_list,
    slow_aggregate,
    slow_sum,
)

pytest.importorskip("triton", reason="triton is not installed")

RELATIVE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""How far results of a type may be off: they are rounded once, and were summed in float32."""
WIDTHS = [1, 3, 47]


def assert_near(got: Tensor, expected: Tensor) -> None:
    atol = 1e-9 if got.dtype == torch.float64 else 1e-4
    torch.testing.assert_close(got.cpu().double(), expected, atol=atol, rtol=RELATIVE[got.dtype])


def moved(given: Aggregation, device: str, dtype: torch.dtype) -> Aggregation:
    """On the device, with factors in the type in which sums of `dtype` are kept."""
    exact = torch.promote_types(dtype, torch.float32)
    names = ("weight", "source_scale", "scale", "loop")
    factors = {
        name: value.to(device, exact)
        for name in names
        if (value := getattr(given, name)) is not None
    }
    return replace(given, block=given.block.to(device), **factors)


def check(given: Aggregation, width: int, dtype: torch.dtype, device: str) -> None:
    """`given` on the device is the loop over edges, forward and backward."""
    torch.manual_seed(0)
    x = torch.randn(given.block.num_src, width).to(dtype)
    mine, exact = x.to(device).requires_grad_(), x.double().requires_grad_()
    got = aggregate(mine, moved(given, device, dtype))
    expected = slow_aggregate(exact, given)
    assert got.dtype == dtype
    assert_near(got.detach(), expected.detach())
    pull = torch.randn(got.shape).to(dtype)
    (gradient,) = torch.autograd.grad(got, mine, pull.to(device))
    assert gradient.dtype == dtype
    wanted = torch.zeros_like(exact)
    if expected.requires_grad:
        (wanted,) = torch.autograd.grad(expected, exact, pull.double())
    assert_near(gradient, wanted)


@each_registration
@examples(50)
@given(given=aggregations(), width=st.sampled_from(WIDTHS), dtype=st.sampled_from(DTYPES))
def test_an_aggregate_and_its_gradient_are_those_of_a_loop_over_edges(
    given: Aggregation, width: int, dtype: torch.dtype, device: str
) -> None:
    check(given, width, dtype, device)


@each_registration
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_rows_may_be_wider_than_a_tile(reduce: Reduce, device: str) -> None:
    block = full_block(graph_of(5, [(0, 1), (3, 1), (1, 1), (0, 2), (4, 4)]), 1, 4)
    check(Aggregation(block, reduce), 602, torch.bfloat16, device)


@each_registration
@examples(30)
@given(
    given=aggregations(),
    dtype=st.sampled_from(DTYPES),
    made=st.sampled_from(DTYPES),
    is_named=st.booleans(),
)
def test_stored_rows_are_reduced_where_they_lie(
    given: Aggregation, dtype: torch.dtype, made: torch.dtype, is_named: bool, device: str
) -> None:
    torch.manual_seed(0)
    num_src = given.block.num_src
    rows = torch.randn(3 * num_src, 5).to(dtype)
    nodes = torch.randint(0, 3 * num_src, (num_src,)) if is_named else None
    features = LazyFeatures(rows.to(device), None if nodes is None else nodes.to(device))
    own = moved(given, device, made)
    if own.reduce == "max":
        edges = own.block.indptr, own.block.indices, None
        got = ops.aggregate_max(*features.arguments(), *edges, made, False)[0]
    else:
        got = ops.aggregate(*features.arguments(), *own.sum(own.weight), "none", made)
    assert got.dtype == made
    sources = rows[:num_src] if nodes is None else rows[nodes]
    assert_near(got, slow_aggregate(sources.double(), given))


@each_registration
def test_an_aggregate_of_stored_rows_is_float32(device: str) -> None:
    block = full_block(rough_graph(), 4, 8)
    rows = torch.randn(40, 3).half()
    given = Aggregation(block.to(device), "mean")
    got = aggregate(LazyFeatures(rows.to(device)), given)
    assert got.dtype == torch.float32
    assert_near(got, slow_aggregate(rows.double(), Aggregation(block, "mean")))


@each_registration
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("made", DTYPES)
@pytest.mark.parametrize("is_named", [False, True])
def test_rows_are_gathered_and_converted(
    is_named: bool, made: torch.dtype, dtype: torch.dtype, device: str
) -> None:
    rows = torch.randn(90, 47).to(dtype)
    nodes = torch.randint(0, 90, (80,)) if is_named else None
    table = LazyFeatures(rows.to(device), None if nodes is None else nodes.to(device))
    assert len(table) == (80 if is_named else 90)
    out = table.read(3, 74, made)
    assert out.dtype == made
    sources = rows if nodes is None else rows[nodes]
    torch.testing.assert_close(out.cpu(), sources[3:74].to(made))


@each_registration
@pytest.mark.parametrize("index", INDEX_TYPES)
@examples(50)
@given(block=blocks())
def test_a_transposed_block_lists_every_edge_by_its_source(
    block: Block, index: torch.dtype, device: str
) -> None:
    indptr, indices = block.indptr.to(device, index), block.indices.to(device, index)
    found = ops.transpose(indptr, indices, block.num_src)
    assert {part.dtype for part in found} == {index}
    by_source: list[list[tuple[int, int]]] = [[] for _ in range(block.num_src)]
    for edge, (dst, src) in enumerate(edge_list(block)):
        by_source[src].append((dst, edge))
    pairs = list(zip(*(part.tolist() for part in found[1:]), strict=True))
    bounds = found[0].tolist()
    assert [pairs[a:b] for a, b in pairwise(bounds)] == by_source
    back = block.transposed()
    assert back is block.transposed()
    assert (back.num_dst, back.num_src) == (block.num_src, block.num_dst)


def weighted_sum(block: Block, x: Tensor, weight: Tensor | None, scale: Tensor | None) -> Tensor:
    return aggregate(x, Aggregation(block, weight=weight, scale=scale))


@each_registration
@examples(40)
@given(
    block=blocks(),
    heads=st.sampled_from([0, 1, 3]),
    scaled=st.booleans(),
    dtype=st.sampled_from(DTYPES),
)
def test_a_weighted_sum_is_a_loop_over_edges_forward_and_backward(
    block: Block, heads: int, scaled: bool, dtype: torch.dtype, device: str
) -> None:
    torch.manual_seed(0)
    x = torch.randn(block.num_src, 21).to(dtype)
    weight = torch.randn(block.num_edges, heads).to(dtype) if heads else None
    scale = torch.rand(block.num_dst) if scaled else None
    pull = torch.randn(block.num_dst, 21).to(dtype)

    def compute(call: Any, device: str, kind: torch.dtype) -> list[Tensor]:
        inputs = [
            part.to(device, kind).requires_grad_() for part in (x, weight) if part is not None
        ]
        factor = None if scale is None else scale.to(device)
        out = call(block.to(device), inputs[0], inputs[1] if heads else None, factor)
        if not out.requires_grad:  # the loop, where there is no edge
            return [out, *map(torch.zeros_like, inputs)]
        options = {"allow_unused": True, "materialize_grads": True}
        return [out.detach(), *torch.autograd.grad(out, inputs, pull.to(device, kind), **options)]

    mine = compute(weighted_sum, device, dtype)
    for got, expected in zip(mine, compute(slow_sum, "cpu", torch.float64), strict=True):
        assert got.dtype == dtype
        assert_near(got, expected)


@each_registration
@examples(30)
@given(given=aggregations().filter(lambda given: given.reduce != "max"))
def test_the_gradient_of_a_weight_counts_every_factor(given: Aggregation, device: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(given.block.num_src, 5, dtype=torch.float64)
    weight = torch.rand(given.block.num_edges, dtype=torch.float64, requires_grad=True)
    pull = torch.randn(given.block.num_dst, 5, dtype=torch.float64)
    weighted = replace(given, weight=weight)
    gradients = []
    for out in (
        aggregate(x.to(device), moved(weighted, device, torch.float64)),
        slow_aggregate(x, weighted),
    ):
        gradient = torch.zeros_like(weight)
        if out.requires_grad:
            (gradient,) = torch.autograd.grad(out, weight, pull.to(out.device))
        gradients.append(gradient)
    assert_near(gradients[0], gradients[1])


def slow_softmax(block: Block, score: Tensor, loop: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """A loop over destinations."""
    weights = torch.zeros_like(score)
    seconds = []
    edges = edge_list(block)
    for dst in range(block.num_dst):
        own = [
            edge
            for edge, (end, src) in enumerate(edges)
            if end == dst and (loop is None or src != dst + block.dst_offset)
        ]
        scores = score[own] if loop is None else torch.cat([score[own], loop[dst : dst + 1]])
        found = scores.softmax(0)
        weights = weights.index_put((torch.tensor(own, dtype=torch.int64),), found[: len(own)])
        seconds.append(scores.logsumexp(0) if loop is None else found[-1])
    return weights, torch.stack(seconds) if seconds else score.new_zeros(0, score.shape[1])


@each_registration
@examples(40)
@given(
    block=blocks(),
    heads=st.sampled_from([1, 3]),
    is_double=st.booleans(),
    has_loops=st.booleans(),
)
def test_the_edge_softmax_is_a_loop_over_destinations_forward_and_backward(
    block: Block, heads: int, is_double: bool, has_loops: bool, device: str
) -> None:
    torch.manual_seed(0)
    dtype = torch.float64 if is_double else torch.float32
    shapes = [(block.num_edges, heads), (block.num_dst, heads)]
    scores = [torch.randn(shape, dtype=dtype) * 5 for shape in shapes[: 1 + has_loops]]
    pulls = [torch.randn(shape, dtype=dtype) for shape in shapes]
    results = []
    for call, place, kind in (
        (edge_softmax, device, dtype),
        (slow_softmax, "cpu", torch.float64),
    ):
        inputs = [score.to(place, kind).requires_grad_() for score in scores]
        out = call(block.to(place), *inputs)
        options: dict[str, Any] = {"allow_unused": True, "materialize_grads": True}
        pull = [part.to(place, kind) for part in pulls]
        some = [part for part in out if part.requires_grad]
        grads = torch.autograd.grad(some, inputs, pull[-len(some) :], **options)
        results.append([*(part.detach() for part in out), *grads])
    for got, expected in zip(*results, strict=True):
        assert got.dtype == dtype
        assert_near(got, expected)


@each_registration
@pytest.mark.parametrize("sign", [1, -1])
def test_the_edge_softmax_survives_huge_scores(sign: int, device: str) -> None:
    block = full_block(graph_of(3, [(0, 2), (1, 2)]), 2, 3).to(device)
    score = torch.full((2, 1), sign * 1e4, device=device)
    alpha, loop_alpha = edge_softmax(block, score, torch.zeros(1, 1, device=device))
    assert alpha.tolist() == ([[0.5], [0.5]] if sign > 0 else [[0], [0]])
    assert loop_alpha.tolist() == [[0 if sign > 0 else 1]]


@each_registration
def test_in_neighbours_that_share_a_maximum_share_its_gradient(device: str) -> None:
    block = full_block(graph_of(4, [(0, 3), (1, 3), (2, 3)]), 3, 4).to(device)
    x = torch.tensor([[2.0], [2.0], [1.0], [9.0]], device=device, requires_grad=True)
    torch.autograd.backward(aggregate(x, Aggregation(block, "max")).sum())
    assert x.grad is not None
    assert x.grad.flatten().tolist() == [0.5, 0.5, 0, 0]


@each_registration
def test_a_hubs_maximum_and_its_ties_are_found_among_all_its_edges(device: str) -> None:
    torch.manual_seed(0)
    block = Block(torch.tensor([0, 300]), torch.randint(0, 60, (300,)), 60)
    x = torch.randint(0, 9, (60, 5)).double()
    results = []
    for call, place in ((aggregate, device), (slow_aggregate, "cpu")):
        rows = x.to(place).requires_grad_()
        out = call(rows, Aggregation(block.to(place), "max"))
        results.append((out.detach(), *torch.autograd.grad(out.sum(), rows)))
    for got, expected in zip(*results, strict=True):
        assert_near(got, expected)


@each_registration
@pytest.mark.parametrize("place", [0, 30, 69])
def test_not_a_number_is_the_maximum_wherever_it_stands(place: int, device: str) -> None:
    x = torch.zeros(70, 1, device=device)
    x[place] = torch.nan
    indptr = torch.tensor([0, 70], device=device)
    block = Block(indptr, torch.arange(70, device=device), 70)
    assert aggregate(x, Aggregation(block, "max")).isnan().all()


@each_registration
def test_a_maximum_of_nothing_but_minus_infinity_is_that(device: str) -> None:
    block = full_block(graph_of(2, [(0, 1)])).to(device)
    x = torch.full((2, 1), -torch.inf, device=device)
    out = aggregate(x, Aggregation(block, "max"))
    assert out.flatten().tolist() == [0, -torch.inf]


@each_registration
def test_a_hub_is_summed_finer_than_bfloat16(device: str) -> None:
    degree = 10_000
    indptr, indices = torch.tensor([0, degree]), torch.arange(degree)
    block = Block(indptr, indices, num_src=degree).to(device)
    x = torch.full((degree, 2), 0.01, dtype=torch.bfloat16, device=device)
    out = aggregate(x, Aggregation(block))
    assert out[0, 0].item() == pytest.approx(100, rel=5e-3)


@each_registration
@pytest.mark.parametrize(("num_src", "num_dst"), [(0, 0), (4, 0), (4, 3)])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_blocks_without_edges_give_zeros_and_zero_gradients(
    reduce: Reduce, num_src: int, num_dst: int, device: str
) -> None:
    indptr, indices = torch.zeros(num_dst + 1, dtype=torch.int32), torch.zeros(0, dtype=torch.int32)
    block = Block(indptr, indices, num_src).to(device)
    x = torch.randn(num_src, 4, device=device, requires_grad=True)
    out = aggregate(x, Aggregation(block, reduce))
    torch.autograd.backward(out.sum())
    assert out.tolist() == [[0] * 4] * num_dst
    assert x.grad is not None
    assert x.grad.tolist() == [[0] * 4] * num_src


@each_registration
def test_rows_that_do_not_lie_one_after_the_other_are_reduced(device: str) -> None:
    block, x = full_block(rough_graph(), 4, 8), torch.randn(40, 8)
    every_other = aggregate(x.to(device)[:, ::2], Aggregation(block.to(device)))
    assert_near(every_other, slow_aggregate(x[:, ::2].double(), Aggregation(block)))


HUB = 19


def hub_block(offset: int = 0, index: torch.dtype = torch.int32) -> Block:
    """A hub both ways, self loops, duplicate edges and a node without any."""
    edges = [(i % 6, 2) for i in range(HUB)] + [(4, i % 5) for i in range(HUB)]
    return full_block(graph_of(7, [*edges, (0, 0), (3, 1), (3, 1), (5, 5)]), offset, 6, index)


def given_by(reduce: Reduce, block: Block) -> Aggregation:
    """With every factor that there may be."""
    if reduce == "max":
        return Aggregation(block, reduce)
    torch.manual_seed(1)
    sizes = block.num_edges, block.num_src, block.num_dst, block.num_dst
    names = ("weight", "source_scale", "scale", "loop")
    factors: dict[str, Any] = {
        name: torch.rand(size, dtype=torch.float64) for name, size in zip(names, sizes, strict=True)
    }
    return Aggregation(block, reduce, **factors, skip_loops=True)


@on_gpu_kernels
def test_chunks_of_a_block_without_destinations_read_nothing(device: str) -> None:
    """As padding may leave one."""
    indptr, indices = torch.zeros(1, dtype=torch.int32), torch.zeros(9, dtype=torch.int32)
    block, nothing = Block(indptr, indices, 1).to(device), torch.empty(0, 4, device=device)
    with chunks_of(2):
        score = pair_score(block, nothing.new_ones(1, 4), nothing, nothing.new_ones(2, 2), 0.2)
        alpha, _ = edge_softmax(block, score, nothing[:, :2])
        out = aggregate(nothing.new_ones(1, 4), Aggregation(block, weight=alpha))
    assert not alpha.any()
    assert out.shape == (0, 4)


def gradients(
    call: Callable[..., Any], block: Block, inputs: list[Tensor], device: str, dtype: torch.dtype
) -> list[Tensor]:
    """What a call gives, and the gradients of its inputs; the same for equal calls."""
    moved = [part.to(device, dtype).requires_grad_() for part in inputs]
    out = call(block.to(device), *moved)
    outs = list(out) if isinstance(out, tuple) else [out]
    if not any(part.requires_grad for part in outs):  # a loop over no edges
        return [*outs, *map(torch.zeros_like, moved)]
    torch.manual_seed(7)
    pulls = [torch.randn(part.shape, dtype=torch.float64).to(part) for part in outs]
    options = {"allow_unused": True, "materialize_grads": True}
    return [*(part.detach() for part in outs), *torch.autograd.grad(outs, moved, pulls, **options)]


def attention_calls(block: Block, heads: int, width: int) -> list[tuple[Any, list[Tensor]]]:
    """(call, inputs)."""
    torch.manual_seed(0)
    edges, dst = block.num_edges, block.num_dst
    source, target, loop = (torch.randn(rows, heads) for rows in (block.num_src, dst, dst))
    left, right = (torch.randn(rows, heads * width) for rows in (block.num_src, dst))
    score, att = torch.randn(edges, heads) * 3, torch.randn(heads, width)
    return [
        (edge_softmax, [score, loop]),
        (edge_softmax, [score]),
        (_with_slope(sum_softmax), [source, target, loop]),
        (_with_slope(pair_score), [left, right, att]),
        (lambda own, x, weight: weighted_sum(own, x, weight, None), [left, score]),
    ]


def _with_slope(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *inputs: call(*inputs, 0.2)


@each_registration
@pytest.mark.parametrize("size", [512, 4])
def test_attention_over_a_padded_block_is_that_over_the_block(size: int, device: str) -> None:
    block, shape = hub_block(), (2, 3)
    longer = padded(block)
    for mine, inputs in attention_calls(block, *shape):
        with chunks_of(size):
            expected = gradients(mine, block, inputs, device, torch.float64)
            more = [_longer(part, block, longer) for part in inputs]
            got = gradients(_cut(mine, block), longer, more, device, torch.float64)
        for part, wanted in zip(got, expected, strict=True):
            assert_near(part[: len(wanted)], wanted.cpu())
            assert not part[len(wanted) :].any()


def _longer(part: Tensor, block: Block, longer: Block) -> Tensor:
    """Numbers for nodes that are too many; for edges anything, even what is not a number."""
    sizes = {block.num_src: longer.num_src, block.num_dst: longer.num_dst}
    if len(part) == block.num_edges:
        more, fill = longer.num_edges - len(part), torch.nan
    else:
        more, fill = sizes.get(len(part), len(part)) - len(part), 3.0
    return torch.cat([part, part.new_full((more, *part.shape[1:]), fill)])


def _cut(call: Callable[..., Any], block: Block) -> Callable[..., Any]:
    """What belongs to the block: the rest is nobody's."""

    def cut(longer: Block, *inputs: Tensor) -> Any:
        out = call(longer, *inputs)
        if isinstance(out, tuple):
            return out[0][: block.num_edges], out[1][: block.num_dst]
        return out[: block.num_edges if len(out) == longer.num_edges else block.num_dst]

    return cut


@each_registration
@pytest.mark.parametrize("size", [512, 4])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_an_aggregate_over_a_padded_block_is_that_over_the_block(
    reduce: Reduce, size: int, device: str
) -> None:
    given = given_by(reduce, hub_block())
    torch.manual_seed(0)
    block, longer = given.block, padded(given.block)
    x = torch.randn(block.num_src, 3, dtype=torch.float64)
    more = torch.cat([x, torch.full((4, 3), torch.nan, dtype=torch.float64)])
    names = {"weight": 5, "source_scale": 4, "scale": 3, "loop": 3}
    factors: dict[str, Any] = {
        name: torch.cat([value, value.new_ones(by)]).to(device)
        for name, by in names.items()
        if (value := getattr(given, name)) is not None
    }
    same = {name: value[: -names[name]] for name, value in factors.items()}
    with chunks_of(size):
        expected = gradients(
            lambda own, rows: aggregate(rows, replace(given, block=own, **same)),
            block, [x], device, torch.float64,
        )  # fmt: skip
        got = gradients(
            lambda own, rows: aggregate(rows, replace(given, block=own, **factors))[
                : block.num_dst
            ],
            longer, [more], device, torch.float64,
        )  # fmt: skip
    assert_near(got[0], expected[0].cpu())
    assert_near(got[1][: block.num_src], expected[1].cpu())


@each_registration
@examples(20)
@given(block=blocks(max_offset=0))
def test_padding_is_nobodys_out_edge(block: Block, device: str) -> None:
    block = block.to(device)
    longer = padded(block)
    expected = ops.transpose(block.indptr, block.indices, block.num_src)
    got = ops.transpose(longer.indptr, longer.indices, longer.num_src)
    assert got[0][: block.num_src + 1].tolist() == expected[0].tolist()
    assert set(got[0][block.num_src :].tolist()) == {block.num_edges}
    for part, wanted in zip(got[1:], expected[1:], strict=True):
        assert part[: block.num_edges].tolist() == wanted.tolist()
