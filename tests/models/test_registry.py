"""From a configuration to a model, built in or by entry point."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch_geometric.nn import GCNConv, SAGEConv, to_hetero

from gnntrain import plugins as installed
from gnntrain.config import ModelConfig, model_names
from gnntrain.data.graph import EDGE, NODE, GraphSchema
from gnntrain.errors import UserError
from gnntrain.models import GNN, SAGE, HeteroGNN, PlainModel, build_model
from gnntrain.models.base import HeteroScaffold, Scaffold
from gnntrain.models.embedding import EmbeddingTable
from gnntrain.models.registry import model_class
from gnntrain.models.rgcn import RGCN
from gnntrain.plugins import MODELS
from tests.hetero_graphs import hetero_graph
from tests.models.hetero_blocks import edge_index_dict, hetero_seed_blocks

SCHEMA = GraphSchema({NODE: 9}, {NODE: 5}, (EDGE,), NODE)


class PlainGCN(nn.Module):
    """A model as a PyG user writes it."""

    def __init__(self, in_channels: int, out_channels: int, width: int) -> None:
        super().__init__()
        self.first, self.second = GCNConv(in_channels, width), GCNConv(width, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        rows: Tensor = self.second(self.first(x, edge_index).relu(), edge_index)
        return rows


def make_sage(in_channels: int, out_channels: int) -> GNN:
    return SAGE(in_channels, out_channels)


class LazySAGE(nn.Module):
    """As `to_hetero` wants it: the widths are those of the first rows that it sees."""

    def __init__(self, out_channels: int) -> None:
        super().__init__()
        self.first, self.second = SAGEConv((-1, -1), 8), SAGEConv((-1, -1), out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        rows: Tensor = self.second(self.first(x, edge_index).relu(), edge_index)
        return rows


def make_typed(schema: GraphSchema, out_channels: int) -> nn.Module:
    metadata = list(schema.node_types), list(schema.edge_types)
    made: nn.Module = to_hetero(LazySAGE(out_channels), metadata)
    return made


def make_rgcn(schema: GraphSchema, out_channels: int, width: int) -> HeteroGNN:
    return RGCN(schema, out_channels, hidden_channels=width)


def make_nothing(in_channels: int, out_channels: int) -> str:
    return f"{in_channels} {out_channels}"


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    here = __name__
    found = EntryPoints(
        EntryPoint(name, value, MODELS)
        for name, value in [
            ("plain", f"{here}:PlainGCN"),
            ("own-sage", f"{here}:make_sage"),
            ("typed", f"{here}:make_typed"),
            ("own-rgcn", f"{here}:make_rgcn"),
            ("nothing", f"{here}:make_nothing"),
            ("gone", "no_such_package:Model"),
            ("renamed", f"{here}:no_such_name"),
        ]
    )
    loaders: dict[str, Callable[[], Any]] = {
        "PlainGCN": lambda: PlainGCN,
        "make_sage": lambda: make_sage,
        "make_typed": lambda: make_typed,
        "make_rgcn": lambda: make_rgcn,
        "make_nothing": lambda: make_nothing,
    }
    load = EntryPoint.load

    def load_here(point: EntryPoint) -> Any:
        # Tests are not importable by name; all else fails as it would.
        return loaders[point.attr]() if point.attr in loaders else load(point)

    monkeypatch.setattr(installed, "_plugin_names", installed._plugin_names.__wrapped__)
    monkeypatch.setattr(EntryPoint, "load", load_here)
    monkeypatch.setattr(installed, "entry_points", lambda **wanted: found.select(**wanted))


@pytest.mark.parametrize("name", model_names())
def test_every_name_builds_a_model_with_its_defaults(name: str) -> None:
    model = build_model(SimpleNamespace(name=name), SCHEMA, 3)
    assert isinstance(model, GNN | HeteroGNN)
    assert model.num_layers == 2
    assert model.out_channels == 3


def test_options_reach_the_model() -> None:
    config = SimpleNamespace(name="gat", hidden_channels=12, heads=3, num_layers=3, jk="cat")
    model = build_model(config, 5, 2)
    assert isinstance(model, GNN)
    assert [conv.heads for conv in model.convs] == [3, 3, 3]
    assert model.jk_channels == 2


@pytest.mark.parametrize(
    ("config", "attributes"),
    [
        (
            {"name": "gat", "negative_slope": 0.3, "attention_dropout": 0.4, "output_heads": 5},
            {"negative_slope": 0.3, "dropout": 0.4, "heads": 5, "concat": False},
        ),
        (
            {"name": "gatv2", "negative_slope": 0.3, "attention_dropout": 0.4, "output_heads": 5},
            {"negative_slope": 0.3, "dropout": 0.4, "heads": 5, "concat": False},
        ),
        (
            {
                "name": "sage",
                "aggregator": "max",
                "root_weight": False,
                "normalize": True,
                "jk": "cat",
            },
            {"aggr": "max", "root_weight": False, "normalize": True},
        ),
    ],
)
def test_options_reach_the_convolutions(config: dict[str, Any], attributes: dict[str, Any]) -> None:
    model = build_model(SimpleNamespace(**config), 5, 3)
    assert isinstance(model, GNN)
    last = model.convs[-1]
    assert {key: getattr(last, key) for key in attributes} == attributes


def test_gins_epsilon_and_mlp_are_as_asked() -> None:
    fixed = build_model(SimpleNamespace(name="gin"), 5, 3)
    learned = build_model(SimpleNamespace(name="gin", train_eps=True, mlp_layers=3), 5, 3)
    assert "convs.0.eps" not in dict(fixed.named_parameters())
    assert "convs.0.eps" in dict(learned.named_parameters())
    assert isinstance(learned, GNN)
    assert learned.get_submodule("convs.0.nn").num_layers == 3


@pytest.mark.parametrize("name", model_names())
def test_the_schema_of_every_built_in_model_is_its_class(name: str) -> None:
    section = ModelConfig(name=name)
    scaffold = HeteroScaffold if section.is_hetero else Scaffold
    assert set(scaffold.__annotations__) <= set(vars(section))
    model = build_model(section, SCHEMA, 3)
    assert isinstance(model, HeteroGNN if section.is_hetero else GNN)
    assert type(model) is model_class(name)
    assert model.uses_graph == section.uses_graph
    assert model.is_hetero == section.is_hetero
    assert {key: getattr(section, key) for key in model.config_defaults} == model.config_defaults


def test_an_unknown_name_is_answered_with_the_nearest_and_all() -> None:
    with pytest.raises(UserError, match="no model is called 'sgae'") as caught:
        build_model(SimpleNamespace(name="sgae"), 5, 3)
    assert caught.value.hint is not None
    assert "did you mean sage?" in caught.value.hint
    assert "gatv2" in caught.value.hint


@pytest.mark.usefixtures("plugins")
def test_unknown_names_are_told_the_installed_plugins_too() -> None:
    with pytest.raises(UserError) as caught:
        build_model(SimpleNamespace(name="plane"), 5, 3)
    assert "did you mean plain?" in str(caught.value)
    assert "own-sage" in str(caught.value)


@pytest.mark.usefixtures("plugins")
def test_a_plain_pyg_model_runs_on_a_mini_batch() -> None:
    config = SimpleNamespace(name="plain", options={"width": 4}, hidden_channels=128)
    model = build_model(config, 5, 3)
    assert isinstance(model, PlainModel)
    x, edge_index = torch.randn(6, 5), torch.tensor([[4, 5], [0, 1]])
    torch.testing.assert_close(model(x, edge_index), model.module(x, edge_index))


@pytest.mark.usefixtures("plugins")
def test_a_plugin_that_is_one_of_our_models_is_used_as_it_is() -> None:
    assert type(build_model(SimpleNamespace(name="own-sage", options={}), 5, 3)) is SAGE


@pytest.mark.usefixtures("plugins")
def test_a_plain_model_of_typed_graphs_gets_rows_of_every_type() -> None:
    graph = hetero_graph()
    config = SimpleNamespace(name="typed", options={}, embedding_channels=6)
    model = build_model(config, graph.schema, 3)
    assert isinstance(model, PlainModel)
    assert not any(is_lazy(parameter) for parameter in model.parameters())
    table = model.tables["venue"]
    assert isinstance(table, EmbeddingTable)
    assert table.weight.shape == (7, 6)
    x = {t: torch.from_numpy(graph.nodes[t].features) for t in ("paper", "author")}
    edges = edge_index_dict(graph)
    whole = model.module({**x, "venue": table.weight}, edges)["paper"]
    torch.testing.assert_close(model(x, edges), whole)

    seeds = [3, 0, 11]
    n_id, blocks = hetero_seed_blocks(graph, seeds, 2)
    some = {
        edge: torch.stack([block.indices, torch.arange(block.num_dst).repeat_interleave(counts)])
        for edge, block in blocks[0].edges.items()
        for counts in [block.indptr.diff()]
    }
    found = model({t: rows[n_id[t]] for t, rows in x.items()}, some, n_id)
    torch.testing.assert_close(found[: len(seeds)], whole[seeds])


@pytest.mark.usefixtures("plugins")
def test_a_plugin_that_is_a_model_of_typed_graphs_is_used_as_it_is() -> None:
    config = SimpleNamespace(name="own-rgcn", options={"width": 8})
    model = build_model(config, hetero_graph().schema, 3)
    assert type(model) is RGCN
    assert model.hidden_channels == 8


@pytest.mark.usefixtures("plugins")
def test_a_plugin_of_another_number_of_layers_is_told() -> None:
    config = SimpleNamespace(name="own-rgcn", options={"width": 8}, num_layers=3)
    with pytest.raises(UserError, match=r"num_layers=3.* has 2 layers"):
        build_model(config, hetero_graph().schema, 3)


@pytest.mark.usefixtures("plugins")
def test_a_plugin_of_one_type_refuses_a_typed_graph() -> None:
    with pytest.raises(UserError, match="3 node types and 6 edge types"):
        build_model(SimpleNamespace(name="own-sage"), hetero_graph().schema, 3)


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("plain", {"widht": 4}, r"does not take model.options=\{'widht': 4\}"),
        ("nothing", {}, "returned a str, not a model"),
        ("gone", {}, "cannot be imported: No module named 'no_such_package'"),
        ("renamed", {}, "cannot be imported"),
    ],
)
def test_broken_plugins_are_explained(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_model(SimpleNamespace(name=name, options=options), 5, 3)
