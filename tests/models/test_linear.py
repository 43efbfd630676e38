"""A layer in one operator, and sums over relations, against the layer operation by operation."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.compute.operator import Sum
from gnntrain.models.aggregate import LinearSum, LinearTerm, linear_sums
from gnntrain.sampling.block import Block
from tests.compute.registrations import each_registration
from tests.models.blocks import full_block, rough_graph
from tests.models.slow_aggregate import slow_aggregate

pytest.importorskip("triton", reason="triton is not installed")

NEAR: dict[torch.dtype, Any] = {
    torch.float64: {"atol": 1e-9, "rtol": 1e-9},
    torch.float32: {"atol": 1e-4, "rtol": 1e-4},
    torch.float16: {"atol": 2e-2, "rtol": 1e-2},
    torch.bfloat16: {"atol": 1e-1, "rtol": 3e-2},
}


class Layer(NamedTuple):
    """weight · aggregate + root_weight · own row + bias."""

    block: Block
    total: Sum
    weight: Tensor
    root_weight: Tensor | None
    bias: Tensor

    def __call__(self, x: Tensor | LazyFeatures, dropout: float | None) -> Tensor:
        terms = [LinearTerm(0, self.weight, block=self.block, total=self.total)]
        if self.root_weight is not None:
            terms.insert(0, LinearTerm(0, self.root_weight))
        part = LinearSum(terms, self.block.num_dst, self.bias)
        return linear_sums([x], [part], dropout)[0]

    @property
    def parameters(self) -> list[Tensor]:
        parts = [self.weight, self.bias]
        return parts if self.root_weight is None else [*parts, self.root_weight]


def layer(block: Block, total: Sum, device: str = "cpu", has_root: bool = True, **to: Any) -> Layer:
    torch.manual_seed(1)
    moved = Sum._make(part.to(device) if isinstance(part, Tensor) else part for part in total)
    weight, root, bias = (
        torch.randn(shape).to(device, **to).requires_grad_() for shape in ((5, 6), (5, 6), (5,))
    )
    return Layer(block.to(device), moved, weight, root if has_root else None, bias)


def totals() -> tuple[Block, dict[str, Sum]]:
    """A block, and sums over it as of SAGE and GCN."""
    block = full_block(rough_graph(14, 30, weighted=True), 0, 9, torch.int32)
    assert block.norm is not None
    norm_src = block.norm[:, 0].contiguous()
    return block, {
        "mean": mean_of(block),
        "sum": Sum(scale=torch.rand(block.num_dst)),
        "gcn": Sum(block.weight, norm_src, norm_src[: block.num_dst]),
    }


def mean_of(block: Block) -> Sum:
    return Sum(scale=block.edges.shares(torch.float32))


def by_operations(linear: Layer, x: Tensor, block: Block, total: Sum) -> Tensor:
    """In float64 on the CPU."""
    rows = slow_aggregate(x, block, total)
    out = rows @ linear.weight.cpu().double().t() + linear.bias.cpu().double()
    if linear.root_weight is not None:
        out = out + x[: len(out)] @ linear.root_weight.cpu().double().t()
    return out


@each_registration
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "has_root"), [("mean", True), ("mean", False), ("sum", True), ("gcn", False)]
)
def test_a_layer_is_its_operations_forward_and_backward(
    name: str, has_root: bool, dtype: torch.dtype, device: str
) -> None:
    block, sums = totals()
    linear = layer(block, sums[name], device, has_root, dtype=dtype)
    x = torch.randn(14, 6).to(dtype)
    mine, exact = x.to(device).requires_grad_(), x.double().requires_grad_()
    got, expected = linear(mine, None), by_operations(linear, exact, block, sums[name])
    assert got.dtype == dtype
    torch.testing.assert_close(got.detach().cpu().double(), expected.detach(), **NEAR[dtype])
    pull, own = torch.randn(expected.shape).to(dtype), linear.parameters
    gradients = torch.autograd.grad(got, [mine, *own], pull.to(device))
    wanted = torch.autograd.grad(expected, [exact, *own], pull.double())
    for gradient, other in zip(gradients, wanted, strict=True):
        assert gradient.dtype == dtype
        torch.testing.assert_close(gradient.cpu().double(), other.cpu().double(), **NEAR[dtype])


@each_registration
@pytest.mark.parametrize(
    ("stored", "computed"),
    [
        (torch.float16, torch.float32),
        (torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float16),
    ],
    ids=str,
)
def test_stored_rows_go_through_a_layer_in_the_type_of_autocast(
    computed: torch.dtype, stored: torch.dtype, device: str
) -> None:
    block, sums = totals()
    linear = layer(block, sums["mean"], device)
    rows, nodes = torch.randn(30, 6).to(stored), torch.randint(0, 30, (14,))
    table = LazyFeatures(rows.to(device), nodes.to(device))
    with torch.autocast(device, computed, enabled=computed != torch.float32):
        got = linear(table, None)
    assert got.dtype == computed
    expected = by_operations(linear, rows[nodes].double(), block, sums["mean"])
    torch.testing.assert_close(got.detach().cpu().double(), expected.detach(), **NEAR[computed])
    gradients = torch.autograd.grad(got.float().sum(), linear.parameters)
    wanted = torch.autograd.grad(expected.sum(), linear.parameters)
    for gradient, other in zip(gradients, wanted, strict=True):
        assert gradient.dtype == torch.float32
        torch.testing.assert_close(gradient, other, atol=0.3, rtol=0.03)


@each_registration
@pytest.mark.parametrize("probability", [0.0, 0.5])
def test_relu_and_dropout_go_backward_through_what_was_kept(
    probability: float, device: str
) -> None:
    block, sums = totals()
    linear = layer(block, sums["mean"], device, dtype=torch.float64)
    x = torch.randn(14, 6, dtype=torch.float64, device=device, requires_grad=True)
    plain, out = linear(x, None), linear(x, probability)
    kept = out != 0
    factor = 1 / (1 - probability)
    torch.testing.assert_close(out, torch.where(kept, plain.relu() * factor, 0.0))
    assert (kept <= (plain > 0)).all()
    assert kept.any()
    assert torch.equal(kept, plain > 0) == (probability == 0)
    pull, inputs = torch.randn_like(out), [x, *linear.parameters]
    mine = torch.autograd.grad(out, inputs, pull)
    masked = torch.where(kept, pull * factor, 0.0)
    torch.testing.assert_close(mine, torch.autograd.grad(plain, inputs, masked))


def test_neither_chunks_nor_threads_change_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    rows = torch.arange(0, 20_001, 2, dtype=torch.int32)
    block = Block(rows, torch.randint(10_000, (20_000,), dtype=torch.int32), 10_000)
    x, linear = torch.randn(10_000, 6), layer(block, mean_of(block))
    before, grads = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        torch.manual_seed(7)
        grads.append(torch.autograd.grad(linear(x, 0.5).square().sum(), linear.parameters))
    for other in grads[1:]:
        torch.testing.assert_close(other, grads[0], rtol=0, atol=0)
    torch.set_num_threads(2)
    expected = linear(x, None)
    monkeypatch.setattr("gnntrain.compute.cpu.CHUNK_ROWS", 3)
    monkeypatch.setattr("gnntrain.compute.cpu._TASK_WORK", 8)
    torch.testing.assert_close(linear(x, None), expected)
    torch.set_num_threads(before)


def test_a_weights_gradient_of_bfloat16_is_as_exact_as_torchs() -> None:
    """It is summed over chunks of rows, in float32; the last of them is filled up with zeros."""
    torch.manual_seed(0)
    number = 131_772
    x, grad = torch.randn(number, 16).relu().bfloat16(), torch.randn(number, 8).bfloat16()
    weight = torch.randn(8, 16)
    rows = torch.arange(number + 1, dtype=torch.int32)
    block = Block(rows, rows[:-1], number)
    with torch.autocast("cpu", torch.bfloat16):
        out = Layer(block, mean_of(block), weight.requires_grad_(), None, torch.zeros(8))(x, None)
    torch.testing.assert_close(out.detach(), x @ weight.detach().bfloat16().t())
    (ours,) = torch.autograd.grad(out, weight, grad)
    exact = grad.t().double() @ x.double()
    errors = [(found.double() - exact).abs().max() for found in (ours, grad.t() @ x)]
    assert errors[0] <= errors[1]


WIDTHS, OUT = (3, 2), 4


@st.composite
def layers(draw: st.DrawFn) -> tuple[list[Tensor], list[LinearSum]]:
    """Rows of two types, and parts with any number of relations, of which some have no edge."""
    torch.manual_seed(draw(st.integers(0, 99)))
    sizes = [draw(st.integers(1, 5)) for _ in WIDTHS]
    rows = [torch.randn(n, w, dtype=torch.float64) for n, w in zip(sizes, WIDTHS, strict=True)]

    def weight(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    parts = []
    for own in range(draw(st.integers(1, 2))):
        num_dst = draw(st.integers(0, sizes[own]))
        terms = [LinearTerm(own, weight(OUT, WIDTHS[own]))]
        for source in draw(st.lists(st.sampled_from([0, 1]), max_size=3)):
            degrees = torch.tensor([0, *(draw(st.integers(0, 3)) for _ in range(num_dst))])
            indptr = degrees.cumsum(0)
            indices = torch.randint(0, sizes[source], (int(indptr[-1]),))
            block = Block(indptr, indices, sizes[source])
            scale = block.edges.shares(torch.float64) if draw(st.booleans()) else None
            total = Sum(scale=scale)
            of_edges = weight(OUT, WIDTHS[source])
            terms.append(LinearTerm(source, of_edges, block=block, total=total))
        parts.append(LinearSum(terms, num_dst, weight(OUT)))
    return rows, parts


def slow(rows: list[Tensor], part: LinearSum) -> Tensor:
    own, *terms = part.terms
    out = rows[own.source][: part.num_dst] @ own.weight.t() + part.bias
    for term in terms:
        assert term.block is not None
        out = out + slow_aggregate(rows[term.source], term.block, term.total) @ term.weight.t()
    return out


@settings(deadline=None)
@given(layers(), st.booleans())
def test_sums_over_relations_are_those_of_separate_products(
    layer: tuple[list[Tensor], list[LinearSum]], in_place: bool
) -> None:
    rows, parts = layer
    used = {term.source for part in parts for term in part.terms}
    leaves = [r.clone().requires_grad_(i in used) for i, r in enumerate(rows)]
    expected = [slow(leaves, part) for part in parts]
    factors = [torch.randn_like(out) for out in expected]
    weights = [weight for part in parts for weight in part.parameters]
    inputs = [*weights, *(leaf for leaf in leaves if leaf.requires_grad)]
    wanted = torch.autograd.grad(expected, inputs, factors, allow_unused=True)

    handles = [
        rows[0].new_empty(()).expand(r.shape).requires_grad_(i in used) for i, r in enumerate(rows)
    ]
    pairs: list[Any] = [(LazyFeatures(r), h) for r, h in zip(rows, handles, strict=True)]
    outputs = linear_sums(pairs if in_place else leaves, parts)
    given_to = handles if in_place else leaves
    inputs = [*weights, *(leaf for leaf in given_to if leaf.requires_grad)]
    gradients = torch.autograd.grad(outputs, inputs, factors)
    for out, reference in zip(outputs, expected, strict=True):
        torch.testing.assert_close(out, reference)
    for gradient, reference in zip(gradients, wanted, strict=True):
        zeros = torch.zeros_like(gradient) if reference is None else reference
        torch.testing.assert_close(gradient, zeros)
