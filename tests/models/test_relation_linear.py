from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.models.aggregate import Aggregation
from gnntrain.models.relation_linear import RelationLinear, RelationTerm, relation_linear
from gnntrain.sampling.block import Block
from tests.models.slow_aggregate import slow_aggregate

WIDTHS, OUT = (3, 2), 4


@st.composite
def layers(draw: st.DrawFn) -> tuple[list[Tensor], list[RelationLinear]]:
    """Rows of two types, and parts with any number of relations, of which some have no edge."""
    torch.manual_seed(draw(st.integers(0, 99)))
    sizes = [draw(st.integers(1, 5)) for _ in WIDTHS]
    rows = [torch.randn(n, w, dtype=torch.float64) for n, w in zip(sizes, WIDTHS, strict=True)]

    def weight(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    parts = []
    for own in range(draw(st.integers(1, 2))):
        num_dst, terms = draw(st.integers(0, sizes[own])), []
        for source in draw(st.lists(st.sampled_from([0, 1]), max_size=3)):
            degrees = torch.tensor([0, *(draw(st.integers(0, 3)) for _ in range(num_dst))])
            indptr = degrees.cumsum(0)
            indices = torch.randint(0, sizes[source], (int(indptr[-1]),))
            block = Block(indptr, indices, sizes[source])
            aggregation = Aggregation(block, draw(st.sampled_from(["sum", "mean"])))
            terms.append(RelationTerm(source, aggregation, weight(OUT, WIDTHS[source])))
        parts.append(RelationLinear(terms, own, num_dst, weight(OUT, WIDTHS[own]), weight(OUT)))
    return rows, parts


def slow(rows: list[Tensor], part: RelationLinear) -> Tensor:
    out = rows[part.own][: part.num_dst] @ part.root_weight.t() + part.bias
    for term in part.terms:
        out = out + slow_aggregate(rows[term.source], term.aggregation) @ term.weight.t()
    return out


@settings(deadline=None)
@given(layers(), st.booleans())
def test_outputs_and_gradients_are_those_of_separate_products(
    layer: tuple[list[Tensor], list[RelationLinear]], in_place: bool
) -> None:
    rows, parts = layer
    used = {i for part in parts for i in (part.own, *(term.source for term in part.terms))}
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
    outputs = relation_linear(pairs if in_place else leaves, parts)
    given_to = handles if in_place else leaves
    inputs = [*weights, *(leaf for leaf in given_to if leaf.requires_grad)]
    gradients = torch.autograd.grad(outputs, inputs, factors)
    for out, reference in zip(outputs, expected, strict=True):
        torch.testing.assert_close(out, reference)
    for gradient, reference in zip(gradients, wanted, strict=True):
        zeros = torch.zeros_like(gradient) if reference is None else reference
        torch.testing.assert_close(gradient, zeros)


def test_lazy_rows_without_a_tensor_take_no_gradient() -> None:
    rows = torch.randn(3, 2)
    block = Block(torch.tensor([0, 2]), torch.tensor([1, 2]), 3)
    weight = torch.randn(4, 2, requires_grad=True)
    term = RelationTerm(0, Aggregation(block, "mean"), weight)
    part = RelationLinear([term], 0, 1, torch.zeros(4, 2), torch.zeros(4))
    (out,) = relation_linear([LazyFeatures(rows)], [part])
    torch.testing.assert_close(out, rows[1:].mean(0, keepdim=True) @ weight.t())
    torch.autograd.backward(out.sum())
    assert weight.grad is not None
