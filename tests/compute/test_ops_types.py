"""Every registration in every type that it takes, beside the reference, against float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gnntrain.compute import ops, reference
from gnntrain.compute.features import LazyFeatures
from gnntrain.models.aggregate import Aggregation, Reduce, aggregate
from gnntrain.models.attention import dot_score, edge_softmax, pair_score, sum_softmax
from gnntrain.models.dropout import dropout
from gnntrain.models.linear import LinearSum, LinearTerm, linear_sums
from gnntrain.sampling.block import Block
from tests.compute.registrations import each_registration, registered
from tests.compute.test_ops import DTYPES
from tests.compute.test_ops_edges import chunks_of, hub_block
from tests.models.slow_aggregate import INDEX_TYPES

pytest.importorskip("triton", reason="triton is not installed")

Call = Callable[..., Any]


class Case(NamedTuple):
    """A call of `(block, *inputs)`, forward and backward; and the shapes of its inputs."""

    call: Call
    shapes: Callable[[Block], list[tuple[int, ...]]]


def blocks(index: torch.dtype) -> list[tuple[Block, int]]:
    """(block, edges of a chunk): no destination, no edge, one row, hubs cut into chunks."""

    def block(indptr: list[int], indices: list[int], num_src: int) -> Block:
        return Block(torch.tensor(indptr, dtype=index), torch.tensor(indices, dtype=index), num_src)

    hubs = block([0, 11, 11, 13], [0, 1, 1, 2, 1, 3, 1, 1, 1, 2, 1, 1, 2], 4)
    return [
        (block([0], [], 1), 512),
        (block([0, 0], [], 1), 512),
        (block([0, 3], [1, 0, 1], 2), 512),
        (hubs, 4),
    ]


def reduced(reduce: Reduce) -> Case:
    return Case(
        lambda block, x: aggregate(x, Aggregation(block, reduce)),
        lambda block: [(block.num_src, 5)],
    )


def scaled_mean(block: Block, x: Tensor, weight: Tensor, *factors: Tensor) -> Tensor:
    """With every factor that there may be, in the type in which sums are kept."""
    exact = torch.promote_types(x.dtype, torch.float32)
    source_scale, scale, loop = (part.detach().to(exact) for part in factors)
    given = Aggregation(block, "mean", weight, source_scale, scale, loop, skip_loops=True)
    return aggregate(x, given)


def scaled_shapes(block: Block) -> list[tuple[int, ...]]:
    sizes = block.num_edges, block.num_src, block.num_dst, block.num_dst
    return [(block.num_src, 47), *((size,) for size in sizes)]


def by_head(block: Block, x: Tensor, weight: Tensor) -> Tensor:
    return aggregate(x, Aggregation(block, weight=weight))


def weights_and_sums(block: Block, score: Tensor) -> tuple[Tensor, Tensor]:
    """Of a destination without in-edges the sum's logarithm is −∞."""
    weights, sums = edge_softmax(block, score)
    return weights, sums.masked_fill(sums == -torch.inf, 0)


def linear(has_root: bool, dropout: float | None) -> Case:
    def call(block: Block, x: Tensor, weight: Tensor, root: Tensor, bias: Tensor) -> Tensor:
        # Far from 0 on either side: no rounding decides what ReLU keeps.
        bias = bias + 16 * torch.tensor([1, -1, 1], dtype=bias.dtype, device=bias.device)
        given = Aggregation(block, "mean")
        term, own = LinearTerm(0, given, weight), root if has_root else None
        return linear_sums([x], [LinearSum([term], 0, block.num_dst, own, bias)], dropout)[0]

    return Case(call, lambda block: [(block.num_src, 5), (3, 5), (3, 5), (3,)])


CASES = {
    "sum": reduced("sum"),
    "max": reduced("max"),
    "scaled mean": Case(scaled_mean, scaled_shapes),
    "heads": Case(by_head, lambda block: [(block.num_src, 15), (block.num_edges, 3)]),
    "linear": linear(has_root=False, dropout=None),
    "root, ReLU": linear(has_root=True, dropout=0.0),
    "softmax": Case(edge_softmax, lambda block: [(block.num_edges, 3), (block.num_dst, 3)]),
    "sum softmax": Case(
        partial(sum_softmax, slope=0.2),
        lambda block: [(block.num_src, 3), (block.num_dst, 3), (block.num_dst, 3)],
    ),
    "softmax, no loops": Case(weights_and_sums, lambda block: [(block.num_edges, 3)]),
    "dot scores": Case(
        partial(dot_score, heads=3), lambda block: [(block.num_src, 15), (block.num_dst, 15)]
    ),
    "heads of columns": Case(
        lambda block, x, weight: by_head(block, x[:, 15:], weight),
        lambda block: [(block.num_src, 30), (block.num_edges, 3)],
    ),
    "dot scores of columns": Case(
        lambda block, x, query: dot_score(block, x[:, 15:], query, 3),
        lambda block: [(block.num_src, 30), (block.num_dst, 15)],
    ),
    "sum of columns": Case(
        lambda block, x: aggregate(x[:, 5:], Aggregation(block)),
        lambda block: [(block.num_src, 11)],
    ),
    "pair scores": Case(
        partial(pair_score, slope=0.2),
        lambda block: [(block.num_src, 15), (block.num_dst, 15), (3, 5)],
    ),
}


def computed(call: Call, block: Block, inputs: list[Tensor]) -> list[Tensor]:
    """The outputs, and the gradients of the inputs behind random gradients of the outputs."""
    inputs = [part.detach().requires_grad_() for part in inputs]
    out = call(replace(block, derived={}), *inputs)
    outs: list[Tensor] = list(out) if isinstance(out, tuple) else [out]
    torch.manual_seed(7)  # rounded: each type holds these numbers
    pulls = [torch.randn(part.shape).bfloat16().half().to(part) for part in outs]
    gradients = torch.autograd.grad(outs, inputs, pulls, allow_unused=True, materialize_grads=True)
    return [*(part.detach() for part in outs), *gradients]


class Expected(NamedTuple):
    """What the reference makes of some inputs, in their type and in float64."""

    block: Block
    chunk: int
    inputs: list[Tensor]
    given: list[Tensor]
    exact: list[Tensor]


@cache
def expected(name: str, dtype: torch.dtype, index: torch.dtype) -> list[Expected]:
    call, shapes = CASES[name]
    results = []
    with registered(reference, "CPU"):
        for block, chunk in blocks(index):
            torch.manual_seed(0)
            inputs = [torch.randn(shape).to(dtype) for shape in shapes(block)]
            exact = computed(call, block, [part.double() for part in inputs])
            results.append(Expected(block, chunk, inputs, computed(call, block, inputs), exact))
    return results


def error(got: Tensor, exact: Tensor) -> float:
    return float((got.cpu().double() - exact).abs().max()) if got.numel() else 0.0


@each_registration
@pytest.mark.parametrize("index", INDEX_TYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_an_operator_errs_no_more_than_the_reference(
    name: str, dtype: torch.dtype, index: torch.dtype, device: str
) -> None:
    for block, chunk, inputs, given, exact in expected(name, dtype, index):
        with chunks_of(chunk):
            moved = [part.to(device) for part in inputs]
            found = computed(CASES[name].call, block.to(device), moved)
        for got, other, best in zip(found, given, exact, strict=True):
            assert got.dtype == other.dtype
            unit = torch.finfo(got.dtype).eps * max(1, error(best, torch.zeros(())))
            assert error(other, best) <= 16 * unit
            assert error(got, best) <= 2 * error(other, best) + 2 * unit


@each_registration
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(0, 3), (13, 7), (5, 3, 9)], ids=str)
def test_dropout_scales_what_it_keeps_and_its_gradient_alike(
    shape: tuple[int, ...], dtype: torch.dtype, device: str
) -> None:
    torch.manual_seed(0)
    x = (torch.rand(shape) + 1).to(device, dtype).requires_grad_()
    out = dropout(x, 0.5)
    pull = (torch.rand(shape) + 1).to(out)
    (gradient,) = torch.autograd.grad(out, x, pull)
    kept = out != 0
    assert out.numel() == 0 or 0.2 < kept.float().mean() < 0.8
    assert out.dtype == gradient.dtype == dtype
    assert torch.equal(out, torch.where(kept, 2 * x, 0))
    assert torch.equal(gradient, torch.where(kept, 2 * pull, 0))


def adam_step(weight: Tensor, *moments_nodes_grad: Tensor, l2: float, decay: float) -> None:
    """The second step of Adam with a learning rate of 0.1."""
    step_size, root = 0.1 / (1 - 0.9**2), math.sqrt(1 - 0.999**2)
    ops.adam_rows(weight, *moments_nodes_grad, 0.9, 0.999, decay, l2, step_size, root, 1e-8)


@each_registration
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_adam_changes_the_named_rows_as_torchs_adam_does(
    kind: type[torch.optim.Adam], dtype: torch.dtype, device: str
) -> None:
    torch.manual_seed(0)
    nodes = torch.tensor([6, 0, 3])
    weight = torch.randn(9, 5, dtype=dtype)
    rows = torch.nn.Parameter(weight[nodes])
    optimizer = kind([rows], lr=0.1, weight_decay=0.2)
    gradients = torch.randn(2, 3, 5, dtype=dtype)
    rows.grad = gradients[0]
    optimizer.step()
    state = optimizer.state[rows]
    matrices = [weight, torch.zeros_like(weight), torch.zeros_like(weight)]
    for matrix, known in zip(matrices, (rows, state["exp_avg"], state["exp_avg_sq"]), strict=True):
        matrix[nodes] = known.detach()
    before = [matrix.clone() for matrix in matrices]
    rows.grad = gradients[1]
    optimizer.step()
    is_decoupled = kind is torch.optim.AdamW
    moved = [matrix.to(device) for matrix in matrices]
    factors = {"l2": 0.0, "decay": 0.98} if is_decoupled else {"l2": 0.2, "decay": 1.0}
    given = nodes.to(device), gradients[1].to(device)
    adam_step(*moved, *given, l2=factors["l2"], decay=factors["decay"])
    known = rows, state["exp_avg"], state["exp_avg_sq"]
    for found, old, new in zip(moved, before, known, strict=True):
        old[nodes] = new.detach()
        torch.testing.assert_close(found.cpu(), old)


class Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """The names of the operators of ours that were called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.name())
        return func(*args, **(kwargs or {}))


def test_no_operator_is_left_out() -> None:
    block = hub_block()
    with Seen() as seen:
        for call, shapes in CASES.values():
            computed(call, block, [torch.randn(shape) for shape in shapes(block)])
        computed(lambda _, x: dropout(x, 0.5), block, [torch.randn(3, 3)])
        LazyFeatures(torch.randn(3, 3), torch.arange(3)).read(0, 2)
        adam_step(*torch.randn(3, 3, 3), torch.arange(3), torch.randn(3, 3), l2=0.0, decay=1.0)
    assert {name for name in seen.names if name.startswith("gnntrain::")} == {
        f"gnntrain::{name}" for name in ops.SCHEMAS
    }


@each_registration
def test_other_types_are_refused(device: str) -> None:
    block = hub_block().to(device)
    numbers = torch.ones(block.num_src, 3, dtype=torch.int64, device=device)
    half = torch.ones(block.num_edges, 3, dtype=torch.float16, device=device)
    edges = block.indptr, block.indices, block.max_in_edges
    for refused in (
        lambda: aggregate(numbers, Aggregation(block)),
        lambda: aggregate(numbers, Aggregation(block, "max")),
        lambda: aggregate(LazyFeatures(numbers), Aggregation(block)),
        lambda: LazyFeatures(numbers).read(0, 2),
        lambda: pair_score(block, numbers, numbers[:6], torch.ones(1, 3, device=device), 0.2),
        lambda: ops.edge_softmax(half, None, half[:6], 1.0, 0, *edges),
        lambda: ops.transpose(block.indptr.short(), block.indices.short(), block.num_src),
    ):
        with pytest.raises(TypeError, match="does not take"):
            refused()
