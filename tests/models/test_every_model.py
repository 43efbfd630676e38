"""Every model × option against stock PyG message passing with the same weights."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

from gnntrain.compute.features import LazyFeatures
from gnntrain.models import GAT, GCN, GIN, GNN, MLP, SAGE, GATv2
from gnntrain.models import plain as plain_models
from gnntrain.sampling.block import Block
from tests.models.blocks import Graph, full_block, graph_of, name_of, rough_graph, seed_blocks

IN, OUT = 6, 3

Kind = Callable[..., GNN]
Case = tuple[Kind, dict[str, Any]]

OWN_OPTIONS: list[Case] = [
    (SAGE, {}),
    (SAGE, {"aggregator": "max"}),
    (SAGE, {"aggregator": "sum"}),
    (SAGE, {"root_weight": False}),
    (SAGE, {"aggregator": "max", "root_weight": False, "normalize": True}),
    (SAGE, {"normalize": True}),
    (GCN, {}),
    (GAT, {"heads": 1}),
    (GAT, {"heads": 4, "output_heads": 3, "negative_slope": 0.1}),
    (GATv2, {"heads": 1}),
    (GATv2, {"heads": 4, "output_heads": 3, "negative_slope": 0.1}),
    (GIN, {}),
    (GIN, {"train_eps": True, "mlp_layers": 1}),
    (GIN, {"mlp_layers": 3, "train_eps": True}),
    (MLP, {}),
]

SCAFFOLDS: list[dict[str, Any]] = [
    {"num_layers": 1},
    {"num_layers": 2},
    {"num_layers": 2, "hidden_channels": 16},  # narrows so much that SAGE and GCN multiply first
    {"num_layers": 3, "norm": "batch", "activation": "elu"},
    {"num_layers": 3, "norm": "layer", "residual": True, "activation": "gelu"},
    {"num_layers": 2, "jk": "cat", "residual": True, "activation": "leaky_relu"},
    {"num_layers": 3, "jk": "max", "norm": "layer", "activation": "none"},
    {"num_layers": 1, "jk": "cat", "norm": "batch"},
]


every_model = pytest.mark.parametrize(("kind", "options"), OWN_OPTIONS, ids=name_of)
each_kind = pytest.mark.parametrize("kind", [SAGE, GCN, GAT, GATv2, GIN, MLP], ids=name_of)


def build(kind: Kind, **options: Any) -> GNN:
    torch.manual_seed(1)
    model = kind(IN, OUT, **{"hidden_channels": 8, "num_layers": 2, **options})
    for parameter in model.parameters():  # biases and ε start at 0, where an error would not show
        nn.init.normal_(parameter, std=0.4)
    for buffer_name, buffer in model.named_buffers():
        if "running" in buffer_name:
            nn.init.uniform_(buffer, 0.5, 1.5)
    return model.eval()


def pyg_forward(model: GNN, x: Tensor, graph: Graph) -> Tensor:
    """The model of PyG's layers, as it is exported, on all nodes; gradients flow to our weights."""
    conv = next(c for c in type(model.convs[0]).__mro__ if c.__module__ == plain_models.__name__)
    plain = plain_models.Layers(conv, model.schema, OUT, **model.options).to(x.dtype).eval()
    inputs = x, graph.edge_index, graph.weight if isinstance(model, GCN) else None
    out: Tensor = torch.func.functional_call(plain, model.state_dict(keep_vars=True), inputs)
    return out


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    # Sums differ in their order, hence relative to the largest number.
    scale = expected.abs().max().clamp(min=1) if expected.numel() else 1
    torch.testing.assert_close(actual / scale, expected / scale, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("scaffold", SCAFFOLDS, ids=name_of)
@every_model
def test_a_mini_batch_with_all_neighbours_and_a_whole_graph_equal_pyg(
    kind: Kind, options: dict[str, Any], scaffold: dict[str, Any]
) -> None:
    graph = rough_graph(weighted=True)  # which GCN reads
    model = build(kind, **options, **scaffold)
    x = torch.randn(graph.num_nodes, IN)
    seeds = [3, 38, 0, 11, 39, 20, 7]
    with torch.no_grad():
        expected = pyg_forward(model, x, graph)
        nodes, blocks = seed_blocks(graph, seeds, model.num_layers)
        close(model(x[nodes], blocks), expected[seeds])
        close(model(x, [full_block(graph)] * model.num_layers), expected)


@pytest.mark.parametrize(
    "scaffold",
    [{}, {"norm": "batch", "jk": "max"}, {"norm": "layer", "jk": "cat", "activation": "elu"}],
)
@pytest.mark.parametrize(
    ("kind", "name", "options", "theirs"),
    [
        (SAGE, "GraphSAGE", {}, {}),
        (SAGE, "GraphSAGE", {"aggregator": "max"}, {"aggr": "max"}),
        (SAGE, "GraphSAGE", {"aggregator": "sum"}, {"aggr": "sum"}),
        (GCN, "GCN", {}, {}),
        (GAT, "GAT", {"heads": 4, "output_heads": 4}, {"heads": 4}),
        (GAT, "GAT", {"heads": 1, "negative_slope": 0.1}, {"negative_slope": 0.1}),
        (GATv2, "GAT", {"heads": 4, "output_heads": 4}, {"heads": 4, "v2": True}),
    ],
    ids=name_of,
)
def test_pygs_own_models_take_the_weights(
    kind: Kind, name: str, options: dict[str, Any], theirs: dict[str, Any], scaffold: dict[str, Any]
) -> None:
    graph, x = rough_graph(), torch.randn(40, IN)
    model = build(kind, **(options | scaffold))
    keys = {key: model.act_and_norm.get(key) for key in ("act", "norm", "norm_kwargs")}
    own = getattr(pyg, name)(IN, 8, 2, OUT, jk=scaffold.get("jk"), **keys, **theirs).eval()
    own.load_state_dict(model.state_dict())
    with torch.no_grad():
        expected = own(x, graph.edge_index)
        close(model(x, [full_block(graph)] * 2), expected)


@every_model
def test_gradients_equal_those_of_pyg(kind: Kind, options: dict[str, Any]) -> None:
    graph = rough_graph()
    model = build(kind, **options, num_layers=2, norm="layer")
    x = torch.randn(graph.num_nodes, IN, requires_grad=True)
    seeds = [3, 38, 0, 11, 39]
    nodes, blocks = seed_blocks(graph, seeds, 2)
    pull = torch.randn(len(seeds), OUT)
    inputs = [x, *model.parameters()]
    got = torch.autograd.grad(model(x[nodes], blocks), inputs, pull)
    reference = pyg_forward(model, x, graph)[seeds]
    expected = torch.autograd.grad(reference, inputs, pull)
    for mine, theirs in zip(got, expected, strict=True):
        close(mine, theirs)


@each_kind
def test_a_batch_without_seeds_gives_every_parameter_a_gradient_of_zero(kind: Kind) -> None:
    empty = Block(
        torch.zeros(1, dtype=torch.int64),
        torch.zeros(0, dtype=torch.int64),
        num_src=0,
        norm=torch.zeros(0),
        degree=torch.zeros(0),
    )
    choices = ["none", "cat", "max"], [False, True], ["none", "batch", "layer"]
    for jk, residual, norm in itertools.product(*choices):
        model = build(kind, jk=jk, residual=residual, norm=norm).train()
        outputs = model(torch.zeros(0, IN), [empty, empty])
        assert outputs.shape == (0, OUT)
        outputs.sum().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, (jk, residual, norm, name)
            assert not parameter.grad.any(), (jk, residual, norm, name)
        for name, buffer in model.named_buffers():
            assert buffer.isfinite().all(), (jk, residual, norm, name)


@pytest.mark.parametrize(
    ("kind", "options"),
    [(GCN, {}), (GIN, {"mlp_layers": 1}), (SAGE, {"aggregator": "sum"})],
    ids=name_of,
)
def test_sums_over_sampled_neighbours_are_unbiased(kind: Kind, options: dict[str, Any]) -> None:
    graph = rough_graph(weighted=True)
    model = build(kind, **options, num_layers=1)  # linear in what is aggregated
    x, seeds = torch.randn(graph.num_nodes, IN), list(range(graph.num_nodes))
    total, num_draws = torch.zeros(len(seeds), OUT), 100
    squares = torch.zeros_like(total)
    with torch.no_grad():
        for step in range(num_draws):
            nodes, blocks = seed_blocks(graph, seeds, 1, fan_out=3, step=step)
            outputs = model(x[nodes], blocks)
            total += outputs
            squares += outputs.square()
        mean = total / num_draws
        deviation = (squares / num_draws - mean.square()).clamp(min=0).sqrt()
        error = (mean - model(x, [full_block(graph)])).abs()
    standard_error = deviation / num_draws**0.5
    assert (error <= 5 * standard_error + 1e-4).all()
    assert deviation[3].min() > 0  # the hub's neighbours really were sampled


@pytest.mark.parametrize(
    ("kind", "options"), [(SAGE, {}), (SAGE, {"aggregator": "max"}), (GAT, {}), (GATv2, {})]
)
def test_means_maxima_and_attention_are_over_the_sampled_neighbours(
    kind: Kind, options: dict[str, Any]
) -> None:
    graph, model = rough_graph(), build(kind, **options, num_layers=1)
    nodes, (block,) = seed_blocks(graph, [3, 0, 9], 1, fan_out=2)
    x, whole = torch.randn(len(nodes), IN), Block(block.indptr, block.indices, block.num_src)
    with torch.no_grad():
        close(model(x, [block]), model(x, [whole]), 0)
    assert not model.needs.degree


def test_as_many_blocks_as_layers_are_needed() -> None:
    with pytest.raises(ValueError, match="shorter"):
        build(SAGE)(torch.zeros(40, IN), [full_block(rough_graph())])


@every_model
def test_bfloat16_autocast_stays_close_and_trains(kind: Kind, options: dict[str, Any]) -> None:
    graph = rough_graph()
    torch.manual_seed(4)
    model = kind(IN, OUT, hidden_channels=8, norm="layer", jk="cat", residual=True, **options)
    x = torch.randn(graph.num_nodes, IN)
    seeds = list(range(graph.num_nodes))
    nodes, blocks = seed_blocks(graph, seeds, 2)
    expected = model(x[nodes], blocks)
    for given in (x, x.bfloat16(), x.half()):
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(given[nodes], blocks)
        close(outputs.float() / expected.abs().max(), expected / expected.abs().max(), 2e-2)
        model.zero_grad()
        outputs.float().sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_the_mlp_looks_at_the_seeds_rows_alone() -> None:
    model, x = build(MLP), torch.randn(9, IN)
    block = Block(torch.tensor([0, 1, 1, 1]), torch.tensor([8]), num_src=9)
    assert not model.uses_graph
    with torch.no_grad():
        close(model(x, [block]), model(x[:3]), 0)
        assert model(x, ()).shape == (9, OUT)


@pytest.mark.parametrize("norm", ["none", "batch", "layer"])
@every_model
def test_an_untrained_model_tells_nodes_with_different_neighbourhoods_apart(
    kind: Kind, options: dict[str, Any], norm: str
) -> None:
    nodes = range(40)
    graph = graph_of(40, [((v + step) % 40, v) for v in nodes for step in (1, 3, 7)])
    x, blocks = torch.randn(40, IN), [full_block(graph)] * 2
    more: list[dict[str, Any]] = [
        {},
        {"residual": True},
        {"activation": "elu"},
        {"jk": "cat"},
        {"jk": "max"},
    ]
    for num_outputs, scaffold in itertools.product((1, 3), more):
        model = kind(IN, num_outputs, hidden_channels=64, norm=norm, **options, **scaffold)
        with torch.no_grad():  # training: batch normalisation takes the batch's own statistics
            assert len(model.train()(x, blocks).unique(dim=0)) == 40, (num_outputs, scaffold)


@pytest.mark.parametrize("option", ["dropout", "input_dropout", "attention_dropout"])
def test_dropout_acts_in_training_alone(option: str) -> None:
    graph, x = rough_graph(), torch.randn(40, IN)
    model, plain = build(GAT, **{option: 0.5}), build(GAT)
    blocks = [full_block(graph)] * 2
    with torch.no_grad():
        close(model(x, blocks), plain(x, blocks), 0)
        model.train()
        assert not torch.allclose(model(x, blocks), model(x, blocks))


@every_model
def test_full_graph_training_keeps_the_first_aggregate_of_features_and_learns_the_same(
    kind: Kind, options: dict[str, Any]
) -> None:
    graph, x = rough_graph(), torch.rand(40, IN)

    def learnt(aggregates: dict[Any, Any] | None) -> list[Tensor]:
        torch.manual_seed(0)
        model, rows = build(kind, **options, num_layers=2), LazyFeatures(x.clone())
        block = replace(full_block(graph), aggregates=aggregates)
        optimizer = torch.optim.SGD(model.parameters(), 1e-4)
        for _ in range(3):
            optimizer.zero_grad()
            model(rows if model.needs.rows else rows.rows, [block] * 2).square().mean().backward()
            optimizer.step()
            if aggregates is not None:
                assert any(aggregates.values()) == getattr(model.convs[0], "is_linear", False)
            if aggregates and any(aggregates.values()):
                rows.rows.fill_(torch.nan)  # not read again
        return [*model.parameters()]

    for kept, computed in zip(learnt({}), learnt(None), strict=True):
        torch.testing.assert_close(kept, computed, rtol=0, atol=0)
