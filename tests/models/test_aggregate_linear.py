"""A layer in one operator, on every registration, against the layer operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import GCNConv, SAGEConv

from gnntrain.compute.features import LazyFeatures
from gnntrain.models import GAT, GCN, GIN, GNN, SAGE, GATv2
from gnntrain.models.aggregate import Aggregation, sampling_scale
from gnntrain.models.aggregate_linear import AggregateLinear
from gnntrain.sampling.block import Block
from tests.compute.registrations import each_registration, registered
from tests.models.blocks import Graph, full_block, rough_graph, seed_blocks
from tests.models.padding import padded
from tests.models.slow_aggregate import slow_aggregate

pytest.importorskip("triton", reason="triton is not installed")

NEAR: dict[torch.dtype, Any] = {
    torch.float64: {"atol": 1e-9, "rtol": 1e-9},
    torch.float32: {"atol": 1e-4, "rtol": 1e-4},
    torch.float16: {"atol": 2e-2, "rtol": 1e-2},
    torch.bfloat16: {"atol": 1e-1, "rtol": 3e-2},
}


def some_block(num_dst: int = 9) -> Block:
    return full_block(rough_graph(14, 30, weighted=True), 0, num_dst, torch.int32)


def layer(aggregation: Aggregation, device: str, has_root: bool, **to: Any) -> AggregateLinear:
    torch.manual_seed(1)
    block = aggregation.block.to(device)
    names = ("weight", "source_scale", "scale", "loop")
    given: dict[str, Any] = {name: getattr(aggregation, name) for name in names}
    moved: dict[str, Any] = {
        name: None if value is None else value.to(device) for name, value in given.items()
    }
    weight, root, bias = (
        torch.randn(shape).to(device, **to).requires_grad_() for shape in ((5, 6), (5, 6), (5,))
    )
    own = replace(aggregation, block=block, **moved)
    return AggregateLinear(own, weight, root if has_root else None, bias)


def aggregations() -> dict[str, Aggregation]:
    """As of SAGE and GCN."""
    block = some_block()
    assert block.norm is not None
    norm_src = block.norm[:, 0].contiguous()
    norm = norm_src[: block.num_dst]
    gcn: dict[str, Any] = {"weight": block.weight, "source_scale": norm_src, "scale": norm}
    return {
        "mean": Aggregation(block, "mean"),
        "sum": Aggregation(block, scale=torch.rand(block.num_dst)),
        "gcn": Aggregation(block, **gcn, loop=norm.square(), skip_loops=True),
    }


def by_operations(linear: AggregateLinear, x: Tensor, given: Aggregation) -> Tensor:
    """In float64 on the CPU."""
    rows = slow_aggregate(x, given)
    out = rows @ linear.weight.cpu().double().t() + linear.bias.cpu().double()
    if linear.root_weight is not None:
        out = out + x[: len(out)] @ linear.root_weight.cpu().double().t()
    return out


def parameters_of(linear: AggregateLinear) -> list[Tensor]:
    parts = [linear.weight, linear.bias]
    return parts if linear.root_weight is None else [*parts, linear.root_weight]


@each_registration
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "has_root"), [("mean", True), ("mean", False), ("sum", True), ("gcn", False)]
)
def test_a_layer_is_its_operations_forward_and_backward(
    name: str, has_root: bool, dtype: torch.dtype, device: str
) -> None:
    given = aggregations()[name]
    linear = layer(given, device, has_root, dtype=dtype)
    x = torch.randn(14, 6).to(dtype)
    mine, exact = x.to(device).requires_grad_(), x.double().requires_grad_()
    got, expected = linear(mine, None), by_operations(linear, exact, given)
    assert got.dtype == dtype
    torch.testing.assert_close(got.detach().cpu().double(), expected.detach(), **NEAR[dtype])
    pull, own = torch.randn(expected.shape).to(dtype), parameters_of(linear)
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
    given = aggregations()["mean"]
    linear = layer(given, device, True)
    rows, nodes = torch.randn(30, 6).to(stored), torch.randint(0, 30, (14,))
    table = LazyFeatures(rows.to(device), nodes.to(device))
    with torch.autocast(device, computed, enabled=computed != torch.float32):
        got = linear(table, None)
    assert got.dtype == computed
    expected = by_operations(linear, rows[nodes].double(), given)
    torch.testing.assert_close(got.detach().cpu().double(), expected.detach(), **NEAR[computed])
    own = parameters_of(linear)
    gradients = torch.autograd.grad(got.float().sum(), own)
    for gradient, wanted in zip(gradients, torch.autograd.grad(expected.sum(), own), strict=True):
        assert gradient.dtype == torch.float32
        torch.testing.assert_close(gradient, wanted, atol=0.3, rtol=0.03)


@each_registration
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_relu_and_dropout_go_backward_through_what_was_kept(dropout: float, device: str) -> None:
    linear = layer(aggregations()["mean"], device, True, dtype=torch.float64)
    x = torch.randn(14, 6, dtype=torch.float64, device=device, requires_grad=True)
    plain, out = linear(x, None), linear(x, dropout)
    kept = out != 0
    factor = 1 / (1 - dropout)
    torch.testing.assert_close(out, torch.where(kept, plain.relu() * factor, 0.0))
    assert (kept <= (plain > 0)).all()
    assert kept.any()
    assert torch.equal(kept, plain > 0) == (dropout == 0)
    pull, inputs = torch.randn_like(out), [x, *parameters_of(linear)]
    mine = torch.autograd.grad(out, inputs, pull)
    masked = torch.where(kept, pull * factor, 0.0)
    torch.testing.assert_close(mine, torch.autograd.grad(plain, inputs, masked))


@each_registration
def test_layers_are_pygs(device: str) -> None:
    graph = rough_graph(14, 30)
    block, x = full_block(graph), torch.randn(14, 6, device=device)
    edges = graph.edge_index.to(device)
    torch.manual_seed(0)
    sage = SAGEConv(6, 5).to(device)
    linear = AggregateLinear(
        Aggregation(block.to(device), "mean"), sage.lin_l.weight, sage.lin_r.weight, sage.lin_l.bias
    )
    torch.testing.assert_close(linear(x, None), sage(x, edges))
    gcn = GCNConv(6, 5).to(device)
    norm = graph.norm.to(device)
    given = Aggregation(
        block.to(device),
        source_scale=norm,
        scale=norm,
        loop=norm.square(),
        skip_loops=True,
    )
    linear = AggregateLinear(given, gcn.lin.weight, None, gcn.bias)
    torch.testing.assert_close(linear(x, None), gcn(x, edges))


MODELS: list[tuple[Callable[..., GNN], dict[str, Any]]] = [
    (SAGE, {}),
    (SAGE, {"aggregator": "sum", "dropout": 0.0, "norm": "layer", "residual": True}),
    (SAGE, {"aggregator": "max"}),
    (GCN, {}),
    (GIN, {}),
    (GAT, {"heads": 2}),
    (GATv2, {"heads": 2}),
]


def drawn(graph: Graph) -> tuple[Tensor, list[Block]]:
    return seed_blocks(graph, [3, 0, 7, 11], 2, 3, torch.Generator().manual_seed(0))


def results(
    model: GNN, x: Tensor | LazyFeatures, blocks: Sequence[Block], num: int
) -> list[Tensor]:
    """Outputs of the seeds and the gradients of all parameters (and of `x`)."""
    model.zero_grad()
    out = model(x, blocks)[:num]
    torch.autograd.backward(out.square().sum())
    gradients = [part.grad for part in model.parameters()]
    return [out.detach(), *(part.clone() for part in gradients if part is not None)]


@pytest.mark.parametrize(("kind", "options"), MODELS)
def test_models_compute_as_on_the_cpu_with_and_without_padding(
    kind: Callable[..., GNN], options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    nodes, blocks = drawn(rough_graph(14, 30, weighted=True))
    x = torch.randn(len(nodes), 6)
    model = kind(6, 3, hidden_channels=8, num_layers=2, **options)
    expected = results(model, x, blocks, 4)
    longer = torch.cat([x, 9 * torch.randn(4, 6)])
    inner = padded(blocks[0], destinations=2)
    outer = padded(blocks[1], sources=2)
    features = LazyFeatures(torch.cat([longer, x]), torch.arange(len(longer)))
    with registered("cuda"):
        for block in blocks:
            block.derived.clear()
        given: list[tuple[Any, list[Block]]] = [(x, blocks), (longer, [inner, outer])]
        given += [(features, [inner, outer])] if model.needs.rows else []
        for rows, own in given:
            got = results(model, rows, own, 4)
            torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_an_estimated_sum_is_scaled_where_destinations_are_padding() -> None:
    _, blocks = drawn(rough_graph(14, 30))
    scale = sampling_scale(padded(blocks[0]))
    expected = sampling_scale(blocks[0])
    assert scale is not None
    assert expected is not None
    assert torch.equal(scale, torch.cat([expected, torch.zeros(3)]))
