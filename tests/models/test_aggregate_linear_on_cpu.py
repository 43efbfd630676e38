"""A layer in one pass equals the layer operation by operation, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.loading.features import rows_of
from gnntrain.models.aggregate import Aggregation, aggregate
from gnntrain.models.aggregate_linear import AggregateLinear
from gnntrain.models.dropout import Dropout, dropout
from gnntrain.sampling.block import Block
from tests.graphs import random_graph, stored
from tests.models.blocks import full_block, rough_graph


def block_of(num_dst: int = 25) -> Block:
    """The first nodes of a rough graph as destinations."""
    return full_block(rough_graph(), 0, num_dst, torch.int32)


def layer(
    dtype: torch.dtype = torch.float64, has_root: bool = True, **given: Any
) -> AggregateLinear:
    torch.manual_seed(1)
    weight, root, bias = torch.randn(5, 6), torch.randn(5, 6), torch.randn(5)
    parts = [part.to(dtype).requires_grad_() for part in (weight, root, bias)]
    aggregation = Aggregation(block_of(), "mean")
    aggregation = replace(aggregation, **given)
    return AggregateLinear(aggregation, parts[0], parts[1] if has_root else None, parts[2])


def by_operations(linear: AggregateLinear, x: Tensor) -> Tensor:
    out = aggregate(x, linear.aggregation) @ linear.weight.t() + linear.bias
    if linear.root_weight is not None:
        out = out + x[: len(out)] @ linear.root_weight.t()
    return out


@pytest.fixture(params=[1, 2])
def _threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small chunks, so that several tasks with several chunks each are needed."""
    monkeypatch.setattr("gnntrain.compute.cpu.CHUNK_ROWS", 3)
    monkeypatch.setattr("gnntrain.compute.cpu._TASK_WORK", 8)
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("has_root", [True, False])
def test_one_pass_gives_what_the_operations_give(has_root: bool) -> None:
    linear = layer(has_root=has_root)
    x = torch.randn(40, 6, dtype=torch.float64, requires_grad=True)
    inputs = [x, linear.weight, linear.bias]
    if linear.root_weight is not None:
        inputs.append(linear.root_weight)
    got, expected = linear(x, None), by_operations(linear, x)
    torch.testing.assert_close(got, expected)
    pull = torch.randn_like(got)
    mine, theirs = (torch.autograd.grad(out, inputs, pull) for out in (got, expected))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("has_root", [True, False])
def test_its_gradients_are_exact(has_root: bool) -> None:
    linear = layer(has_root=has_root)
    x = torch.randn(40, 6, dtype=torch.float64, requires_grad=True)

    def forward(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return replace(linear, weight=weight, bias=bias)(rows, None)

    assert torch.autograd.gradcheck(forward, (x, linear.weight, linear.bias))


def test_a_block_without_destinations_has_zero_gradients() -> None:
    block = Block(torch.zeros(1, dtype=torch.int32), torch.zeros(0, dtype=torch.int32), 3)
    linear = replace(layer(), aggregation=Aggregation(block, "mean"))
    out = linear(torch.zeros(3, 6, dtype=torch.float64), 0.0)
    assert out.shape == (0, 5)
    torch.autograd.backward(out.sum())
    assert linear.weight.grad is not None
    assert not linear.weight.grad.any()


def test_gcns_weights_and_loops_go_through_it() -> None:
    generator = torch.Generator().manual_seed(0)
    block = block_of()

    def draw(size: int) -> Tensor:
        return torch.rand(size, dtype=torch.float64, generator=generator)

    linear = layer(
        has_root=False,
        weight=draw(block.num_edges),
        source_scale=draw(block.num_src),
        scale=draw(block.num_dst),
        loop=draw(block.num_dst),
    )
    linear = replace(linear, aggregation=replace(linear.aggregation, skip_loops=True, reduce="sum"))
    x = torch.randn(40, 6, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(linear(x, None), by_operations(linear, x))
    assert torch.autograd.gradcheck(lambda rows: linear(rows, None), (x,))


def test_relu_and_dropout_go_backward_through_what_was_kept() -> None:
    linear = layer()
    x = torch.randn(40, 6, dtype=torch.float64, requires_grad=True)
    plain, factor = linear(x, None), 2.0
    out = linear(x, 0.5)
    kept = out != 0
    torch.testing.assert_close(out, torch.where(kept, plain.relu() * factor, 0.0))
    assert 0.15 < kept.double().mean() < 0.35
    pull = torch.randn_like(out)
    mine = torch.autograd.grad(out, [x, linear.weight, linear.bias], pull)
    masked = torch.where(kept, pull * factor, 0.0)
    theirs = torch.autograd.grad(plain, [x, linear.weight, linear.bias], masked)
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_stored_rows_are_aggregated_where_they_lie(tmp_path: Path, dtype: str) -> None:
    store = stored(tmp_path / "store", random_graph(), feature_dtype=dtype)
    nodes = np.random.default_rng(0).permutation(60)[:40]
    rows = LazyFeatures(rows_of(store.only_nodes)).select(nodes)
    x = rows.whole()
    linear = layer(torch.float32)
    weight, root_weight = torch.randn(5, 5, requires_grad=True), torch.randn(5, 5)
    linear = replace(linear, weight=weight, root_weight=root_weight)
    torch.testing.assert_close(linear(rows, None), by_operations(linear, x))
    for reduce in ("sum", "mean", "max"):
        aggregation = Aggregation(block_of(), reduce)
        torch.testing.assert_close(aggregate(rows, aggregation), aggregate(x, aggregation))
    out = linear(rows, 0.0)
    mine = torch.autograd.grad(out.sum(), weight)
    theirs = torch.autograd.grad(by_operations(linear, x).relu().sum(), weight)
    torch.testing.assert_close(mine, theirs)


def test_autocast_computes_in_bfloat16_and_keeps_the_gradients_types() -> None:
    linear, x = layer(torch.float32), torch.randn(40, 6)
    with torch.autocast("cpu", torch.bfloat16):
        hidden = linear(x, 0.0)
        again = replace(
            linear,
            aggregation=Aggregation(Block(torch.tensor([0, 3]), torch.tensor([1, 1, 24]), 25)),
            weight=torch.randn(5, 5, requires_grad=True),
            root_weight=None,
        )
        out = again(hidden, None)
    assert hidden.dtype == out.dtype == torch.bfloat16
    torch.testing.assert_close(hidden.float(), by_operations(linear, x).relu(), atol=0.1, rtol=0.02)
    torch.autograd.backward(out.float().sum())
    assert linear.weight.grad is not None
    assert linear.weight.grad.dtype == torch.float32
    assert linear.weight.grad.abs().sum() > 0


def test_the_weights_gradients_do_not_depend_on_the_threads() -> None:
    torch.manual_seed(0)
    block = Block(
        torch.arange(0, 20_001, 2, dtype=torch.int32),
        torch.randint(10_000, (20_000,), dtype=torch.int32),
        10_000,
    )
    x = torch.randn(10_000, 6)
    linear = replace(layer(torch.float32), aggregation=Aggregation(block, "mean"))
    before, grads = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        torch.manual_seed(7)
        out = linear(x, 0.5)
        grads.append(torch.autograd.grad(out.square().sum(), [linear.weight, linear.bias]))
    torch.set_num_threads(before)
    for other in grads[1:]:
        torch.testing.assert_close(other, grads[0], rtol=0, atol=0)


def test_a_weights_gradient_of_bfloat16_is_as_exact_as_torchs() -> None:
    """It is summed over tasks, in float32."""
    torch.manual_seed(0)
    number = 131_072
    x, grad = torch.randn(number, 16).relu().bfloat16(), torch.randn(number, 8).bfloat16()
    weight = torch.randn(8, 16)
    rows = torch.arange(number + 1, dtype=torch.int32)
    block = Block(rows, rows[:-1], number)
    linear = AggregateLinear(
        Aggregation(block, "mean"), weight.requires_grad_(), None, torch.zeros(8)
    )
    with torch.autocast("cpu", torch.bfloat16):
        out = linear(x, None)
    (ours,) = torch.autograd.grad(out, weight, grad)
    exact = grad.t().double() @ x.double()
    errors = [(found.double() - exact).abs().max() for found in (ours, grad.t() @ x)]
    assert errors[0] <= errors[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dropout_scales_what_it_keeps_and_its_gradient(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.full((300, 4, 5), 3.0, dtype=dtype, requires_grad=True)
    out = dropout(x, 0.25)
    assert out.shape == x.shape
    assert 0.7 < (out != 0).double().mean() < 0.8
    torch.testing.assert_close(out[out != 0], torch.full_like(out[out != 0], 4.0))
    torch.autograd.backward(out.sum())
    assert x.grad is not None
    torch.testing.assert_close(x.grad * 3, out.detach(), rtol=0.01, atol=0)


def test_dropout_follows_torchs_seed_and_rests_in_evaluation() -> None:
    module, x = Dropout(0.5), torch.ones(20, 8)
    draws = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        draws.append(module(x))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert module.eval()(x) is x
