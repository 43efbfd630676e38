"""The models of typed graphs against message passing by PyG's layers with the same weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

from gnntrain.compute.features import LazyFeatures
from gnntrain.data.graph import EdgeData, Graph, NodeType
from gnntrain.errors import UserError
from gnntrain.models import plain as plain_models
from gnntrain.models.conv import HeteroGNN
from gnntrain.models.embedding import embedding_tables
from gnntrain.models.hetero_sage import HeteroSAGE
from gnntrain.models.hgt import HGT
from gnntrain.models.rgat import RGAT
from gnntrain.models.rgcn import RGCN
from tests.hetero_graphs import hetero_graph, random_hetero_data
from tests.models.blocks import name_of
from tests.models.hetero_blocks import edge_index_dict, full_hetero_block, hetero_seed_blocks

OUT = 3
SEEDS = [3, 38, 0, 11, 39, 20, 7]

Kind = Callable[..., HeteroGNN]

CASES: list[tuple[Kind, dict[str, Any]]] = [
    (RGCN, {}),
    (RGCN, {"num_bases": 2}),
    (RGCN, {"num_blocks": 4}),
    (HeteroSAGE, {}),
    (HeteroSAGE, {"aggregator": "max"}),
    (HeteroSAGE, {"aggregator": "sum", "relation_aggregator": "mean"}),
    (HGT, {"heads": 2}),
    (HGT, {"heads": 1}),
    (RGAT, {"heads": 2, "output_heads": 3, "negative_slope": 0.1}),
    (RGAT, {"heads": 1}),
    (RGAT, {"heads": 2, "across_relations": True}),
]

SCAFFOLDS: list[dict[str, Any]] = [
    {"num_layers": 1},
    {"num_layers": 2, "embedding_channels": 5},
    {"num_layers": 3, "norm": "batch", "activation": "elu"},
    {"num_layers": 3, "norm": "layer", "residual": True, "activation": "gelu"},
    {"num_layers": 2, "hidden_channels": 4, "activation": "none"},
]

RAW: list[dict[str, Any]] = [
    {"num_layers": 1},
    {"num_layers": 2, "hidden_channels": 4, "embedding_channels": 6, "residual": True},
]


every_model = pytest.mark.parametrize(("kind", "options"), CASES, ids=name_of)
every_model_but_bases = pytest.mark.parametrize(  # which need rows of one width
    ("kind", "options"), [case for case in CASES if "num_bases" not in case[1]], ids=name_of
)


def build(graph: Graph, kind: Kind, **options: Any) -> HeteroGNN:
    """A model of float64, without a weight at 0, where an error would not show."""
    torch.manual_seed(1)
    if kind is RGCN and "embedding_channels" in options:
        options["featureless"] = "embedding"
    model = kind(graph.schema, OUT, **{"hidden_channels": 8, "num_layers": 2, **options}).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    for name, buffer in model.named_buffers():
        if "running" in name:
            nn.init.uniform_(buffer, 0.5, 1.5)
    return model.eval()


def features(graph: Graph) -> dict[NodeType, Tensor]:
    found = {t: torch.from_numpy(nodes.features) for t, nodes in graph.nodes.items()}
    return {t: rows.double() for t, rows in found.items() if rows.shape[1]}


def pyg_forward(model: HeteroGNN, graph: Graph) -> Tensor:
    """The plain model with its weights; gradients flow to these."""
    conv = next(c for c in type(model.convs[0]).__mro__ if c.__module__ == plain_models.__name__)
    plain = plain_models.Layers(conv, model.schema, OUT, **model.options).double().eval()
    inputs = features(graph), edge_index_dict(graph)
    out: Tensor = torch.func.functional_call(plain, model.state_dict(keep_vars=True), inputs)
    return out


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-11) -> None:
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


def gradients(model: HeteroGNN, out: Tensor, rows: Tensor) -> dict[str, Tensor]:
    """The gradient of every parameter behind a weighted sum of outputs; of all rows of tables."""
    model.zero_grad()
    torch.autograd.backward((out * rows).sum())
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    for name, table in embedding_tables(model):
        taken = table.take_gradient()
        if taken is not None:
            whole = torch.zeros_like(table.weight)
            nodes = slice(None) if taken.nodes is None else taken.nodes
            whole[nodes] = taken.gradient
            found[f"{name}.weight"] = whole
    return found


def assert_equals_pyg(graph: Graph, model: HeteroGNN) -> None:
    """Outputs and gradients of the whole graph and of a batch with all neighbours."""
    for _, table in embedding_tables(model):
        table.weight.requires_grad_()
    expected = pyg_forward(model, graph)
    factors = torch.randn(len(SEEDS), OUT, dtype=torch.float64)
    wanted = gradients(model, expected[SEEDS], factors)
    for _, table in embedding_tables(model):
        table.weight.requires_grad_(False)

    x, block = features(graph), full_hetero_block(graph)
    whole = model(x, {}, [block] * model.num_layers)
    close(whole, expected)
    of_whole = gradients(model, whole[SEEDS], factors)
    n_id, blocks = hetero_seed_blocks(graph, SEEDS, model.num_layers)
    batch = model({t: rows[n_id[t]] for t, rows in x.items()}, n_id, blocks)
    close(batch, expected[SEEDS])
    of_batch = gradients(model, batch, factors)
    assert of_whole.keys() == of_batch.keys() == dict(model.named_parameters()).keys()
    for name, gradient in wanted.items():
        close(of_whole[name], gradient)
        close(of_batch[name], gradient)
    assert wanted.keys() == of_whole.keys()


@pytest.mark.parametrize("scaffold", SCAFFOLDS, ids=name_of)
@every_model
def test_a_whole_graph_and_a_batch_with_all_neighbours_equal_pyg(
    kind: Kind, options: dict[str, Any], scaffold: dict[str, Any]
) -> None:
    graph = hetero_graph()
    assert_equals_pyg(graph, build(graph, kind, **options, **scaffold))


@pytest.mark.parametrize("scaffold", RAW, ids=name_of)
@every_model_but_bases
def test_layers_take_raw_widths_by_type(
    kind: Kind, options: dict[str, Any], scaffold: dict[str, Any]
) -> None:
    graph = hetero_graph()
    model = build(graph, kind, **options, **scaffold, project_inputs=False)
    assert_equals_pyg(graph, model)


@pytest.mark.parametrize("reverse", [True, False])
@every_model
def test_types_without_edges_into_them_keep_their_own_term(
    kind: Kind, options: dict[str, Any], reverse: bool
) -> None:
    graph = hetero_graph(random_hetero_data(reverse=reverse))
    assert_equals_pyg(graph, build(graph, kind, **options, num_layers=3))


def test_hgt_is_pygs_hgt_conv() -> None:
    graph = hetero_graph()
    model: Any = build(graph, HGT, heads=2, num_layers=2)
    conv, h, edges = model.convs[0], features(graph), edge_index_dict(graph)
    h |= {t: table.weight for t, table in model.tables.items()}
    h = {t: model.start(t, rows) for t, rows in h.items()}
    layer: Any = pyg.HGTConv(8, 8, ([*h], [*edges]), heads=2).double()
    weights = {name: torch.zeros_like(weight) for name, weight in layer.state_dict().items()}
    for name, _ in conv.q_lin["paper"].named_parameters():
        for t in h:
            keys, values = getattr(conv.kv_lin[t], name).chunk(2)
            parts = keys, getattr(conv.q_lin[t], name), values
            weights[f"kqv_lin.lins.{t}.{name}"] = torch.cat(parts)
            weights[f"out_lin.lins.{t}.{name}"] = getattr(conv.out_lin[t], name)
    weights |= conv.skip.state_dict(prefix="skip.")
    for edge in edges:
        key = conv.p_rel.to_internal_key("__".join(edge))
        weights[f"p_rel.{key}"] = conv.p_rel[edge][None]
    for name in ("k_rel", "v_rel"):
        matrices = [getattr(conv, name)[edge] for edge in edges]
        weights[f"{name}.weight"] = torch.stack(matrices, dim=1).flatten(0, 1)
    layer.load_state_dict(weights)
    expected = layer(h, edges)
    for t, rows in conv(h, edges).items():
        close(rows, expected[t])


def test_rgat_is_a_sum_of_pygs_gat_convs() -> None:
    graph = hetero_graph()
    model: Any = build(graph, RGAT, heads=2, output_heads=3, num_layers=2)
    h, edges = features(graph), edge_index_dict(graph)
    h |= {t: table.weight for t, table in model.tables.items()}
    h = {t: model.start(t, rows) for t, rows in h.items()}
    for conv in model.convs:  # side by side, then averaged
        for t in conv.types.node_types:
            into = conv.types.into(t)
            parts = [conv.relations[edge]((h[edge[0]], h[t]), edges[edge]) for edge in into]
            close(conv(h, edges)[t], sum(parts, conv.roots[t](h[t])))


@pytest.mark.parametrize("aggregator", ["mean", "max", "sum"])
def test_typed_sums_alone_are_scaled_by_the_share_that_was_sampled(aggregator: str) -> None:
    graph = hetero_graph()
    model = build(graph, HeteroSAGE, aggregator=aggregator, num_layers=1)
    ids, (hop,) = hetero_seed_blocks(graph, list(range(20)), 1, fan_out=1)
    rows = {t: x[ids[t]] for t, x in features(graph).items()}
    edges = {}
    for t, block in hop.edges.items():
        degree = torch.from_numpy(graph.edges[t].indptr).diff()[ids[t[2]][: block.num_dst]]
        edges[t] = replace(block, degree=degree.float())
    with torch.no_grad():
        sampled, whole = (model(rows, ids, [h]) for h in (replace(hop, edges=edges), hop))
    assert torch.equal(sampled, whole) == (aggregator != "sum")
    assert model.needs.degree == (aggregator == "sum")


@pytest.mark.parametrize("norm", ["none", "batch", "layer"])
@every_model
def test_an_untrained_model_tells_nodes_apart(
    kind: Kind, options: dict[str, Any], norm: str
) -> None:
    graph = hetero_graph()
    rows = {t: x.float() for t, x in features(graph).items()}
    for num_outputs in (1, 2, 3):
        model = kind(graph.schema, num_outputs, hidden_channels=64, norm=norm, **options)
        with torch.no_grad():
            outputs = model.train()(rows, {}, [full_hetero_block(graph)] * 2)
        assert len(outputs.unique(dim=0)) == len(outputs), num_outputs


def test_only_types_that_reach_the_target_have_parameters() -> None:
    graph = hetero_graph(random_hetero_data(reverse=False))  # nothing leads from a venue
    model = build(graph, RGCN, num_layers=2)
    assert model.computed == [("paper", "author"), ("paper",)]
    assert [*model.num_inputs] == ["paper", "author"]
    assert not any("venue" in name for name in model.state_dict())


@every_model
def test_a_batch_without_nodes_of_a_type_uses_every_parameter(
    kind: Kind, options: dict[str, Any]
) -> None:
    graph = hetero_graph()
    model = build(graph, kind, **options, num_layers=2, norm="batch", residual=True).train()
    isolated = [39]
    n_id, blocks = hetero_seed_blocks(graph, isolated, 2)
    assert len(n_id["author"]) == 0
    x = {t: rows[n_id[t]] for t, rows in features(graph).items()}
    torch.autograd.backward(model(x, n_id, blocks).sum())
    missing = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert missing == []


@every_model
def test_lazy_features_give_the_same_as_rows_in_memory(kind: Kind, options: dict[str, Any]) -> None:
    graph = hetero_graph()
    for project in (True, False):
        if not project and "num_bases" in options:
            continue
        model = build(graph, kind, **options, project_inputs=project).float()
        n_id, blocks = hetero_seed_blocks(graph, SEEDS, 2)
        x = {t: rows.float() for t, rows in features(graph).items()}
        lazy = {t: LazyFeatures(rows).select(n_id[t]) for t, rows in x.items()}
        expected = model({t: rows[n_id[t]] for t, rows in x.items()}, n_id, blocks)
        torch.testing.assert_close(model(lazy, n_id, blocks), expected)


RELATIONS = [("node", f"r{i}", "node") for i in range(4)]


def graph_of_one_node_type(*, featureless: bool = False) -> Graph:
    rng, data = torch.Generator().manual_seed(0), random_hetero_data()
    edges = {name: torch.randint(0, 30, (2, 60), generator=rng) for name in RELATIONS}
    nodes = replace(data.nodes["paper"], num_nodes=40)
    if featureless:
        nodes = replace(nodes, features=None)
    return hetero_graph(
        replace(
            data,
            nodes={"node": nodes},
            edges={
                name: EdgeData(pair[0].numpy(), pair[1].numpy()) for name, pair in edges.items()
            },
            target="node",
            reverse=False,
        )
    )


def edges_and_types(graph: Graph) -> tuple[Tensor, Tensor]:
    """PyG's `edge_index` of all relations, and the relation of each edge."""
    pairs = [edge_index_dict(graph)[name] for name in RELATIONS]
    types = [torch.full((pair.shape[1],), i) for i, pair in enumerate(pairs)]
    return torch.cat(pairs, dim=1), torch.cat(types)


def test_rgcn_of_one_node_type_is_pygs_rgcn_conv() -> None:
    graph = graph_of_one_node_type()
    for options in ({}, {"num_bases": 2}, {"num_blocks": 4}):
        model = build(graph, RGCN, num_layers=1, **options)
        conv: Any = model.convs[0]
        width = 8
        layer: Any = pyg.RGCNConv(width, OUT, 4).double()
        weights = [conv.relation_weight(name).t() for name in RELATIONS]
        layer.weight = nn.Parameter(torch.stack(weights))
        layer.root = nn.Parameter(conv.roots["node"].weight.t())
        layer.bias = nn.Parameter(conv.roots["node"].bias)
        h = model.start("node", features(graph)["node"])
        expected = layer(h, *edges_and_types(graph))
        close(model(features(graph), {}, [full_hetero_block(graph)]), expected)


@pytest.mark.parametrize("kind", [pyg.RGCNConv, pyg.FastRGCNConv])
@pytest.mark.parametrize("num_bases", [None, 2])
def test_rgcn_without_features_is_pygs_rgcn_conv_of_none(
    kind: type[pyg.RGCNConv], num_bases: int | None
) -> None:
    """As in the paper: the input is one-hot, so that each relation has a row for each node."""
    graph = graph_of_one_node_type(featureless=True)
    model: Any = build(graph, RGCN, num_layers=1, num_bases=num_bases)
    (conv,), (table,) = model.convs, model.tables.values()
    *bases, root = table.weight.split(OUT, dim=1)
    layer: Any = kind(graph.num_nodes, OUT, 4, num_bases=num_bases).double()
    layer.weight, layer.root = nn.Parameter(torch.stack(bases)), nn.Parameter(root)
    layer.bias = nn.Parameter(conv.biases["node"])
    if num_bases is not None:
        layer.comp = nn.Parameter(conv.comp)
    expected = layer(None, *edges_and_types(graph))
    factors = torch.randn(len(SEEDS), OUT, dtype=torch.float64)
    torch.autograd.backward((expected[SEEDS] * factors).sum())

    close(model({}, {}, [full_hetero_block(graph)]), expected)
    for n_id, blocks in (({}, [full_hetero_block(graph)]), hetero_seed_blocks(graph, SEEDS, 1)):
        out = model({}, n_id, blocks)
        out = out if n_id else out[SEEDS]
        close(out, expected[SEEDS])
        found = gradients(model, out, factors)
        close(found["tables.node.weight"], torch.cat([*layer.weight.grad, layer.root.grad], dim=1))
        close(found["convs.0.biases.node"], layer.bias.grad)
        if num_bases is not None:
            close(found["convs.0.comp"], layer.comp.grad)


def test_bases_fit_a_graph_with_the_edge_types_in_another_order() -> None:
    data = random_hetero_data()
    turned = replace(data, edges=dict(reversed(list(data.edges.items()))))
    outputs, state = [], None
    for graph in map(hetero_graph, (data, turned)):
        model = build(graph, RGCN, num_bases=2)
        state = model.state_dict() if state is None else state
        model.load_state_dict(state)
        outputs.append(model(features(graph), {}, [full_hetero_block(graph)] * 2))
    close(*outputs)


def test_bases_need_one_width() -> None:
    with pytest.raises(UserError, match="paper: 5"):
        RGCN(hetero_graph().schema, OUT, num_bases=2, project_inputs=False)
