"""Aggregation on the CPU: gradients, types and edge cases; more is in `tests.compute.test_ops`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gnntrain.models.aggregate import Aggregation, Reduce, aggregate, sampling_scale
from gnntrain.sampling.block import Block
from tests.models.blocks import full_block, graph_of
from tests.models.slow_aggregate import INDEX_TYPES


@pytest.mark.parametrize("index", INDEX_TYPES)
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_the_gradient_of_every_reduction_is_exact(reduce: Reduce, index: torch.dtype) -> None:
    block = full_block(graph_of(6, [(0, 1), (2, 1), (5, 1), (1, 4), (4, 4)]), index=index)
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda rows: aggregate(rows, Aggregation(block, reduce)), (x,))


@pytest.mark.parametrize("index", INDEX_TYPES)
@pytest.mark.parametrize(("num_src", "num_dst"), [(0, 0), (4, 0), (4, 3)])
@pytest.mark.parametrize(
    "call",
    [
        lambda block, x: aggregate(x, Aggregation(block, "sum")),
        lambda block, x: aggregate(x, Aggregation(block, "mean")),
        lambda block, x: aggregate(x, Aggregation(block, "max")),
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


def test_the_sampling_scale_is_one_where_no_edge_was_left_out() -> None:
    indptr, indices = torch.tensor([0, 2, 2, 5]), torch.zeros(5, dtype=torch.int64)
    assert sampling_scale(Block(indptr, indices, 3)) is None
    scale = sampling_scale(Block(indptr, indices, 3, degree=torch.tensor([2.0, 0.0, 12.0])))
    assert scale is not None
    assert scale.tolist() == [1, 0, 4]
