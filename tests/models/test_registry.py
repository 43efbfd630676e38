"""From a configuration to a model, built in or by entry point."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from gnntrain import plugins as installed
from gnntrain.config import ModelConfig, model_names
from gnntrain.data.graph import EDGE, NODE, GraphSchema
from gnntrain.errors import UserError
from gnntrain.models import GAT, GNN, SAGE, HeteroGNN, build_model
from gnntrain.plugins import MODELS

SCHEMA = GraphSchema({NODE: 9}, {NODE: 5}, (EDGE,), NODE)


def make_sage(in_channels: int, out_channels: int) -> GNN:
    return SAGE(in_channels, out_channels)


def make_wrapped(in_channels: int, out_channels: int) -> nn.Module:
    return nn.Sequential(SAGE(in_channels, out_channels))


def make_nothing(in_channels: int, out_channels: int) -> str:
    return f"{in_channels} {out_channels}"


class Broken(SAGE):
    def __init__(self, in_channels: int, out_channels: int, **options: Any) -> None:
        super().__init__(in_channels, out_channels, **options)
        self.depth = {"depth": 2}["dpeth"]


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    points = {
        "own-sage": f"{__name__}:make_sage",
        "own-class": "gnntrain.models:SAGE",
        "broken": f"{__name__}:Broken",
        "nothing": f"{__name__}:make_nothing",
        "wrapped": f"{__name__}:make_wrapped",
        "gone": "no_such_package:Model",
        "renamed": f"{__name__}:no_such_name",
    }
    found = EntryPoints(EntryPoint(name, value, MODELS) for name, value in points.items())
    monkeypatch.setattr(installed, "entry_points", lambda **wanted: found.select(**wanted))


TYPED = GraphSchema({"a": 3, "b": 4}, {"a": 5, "b": 0}, (("a", "x", "a"), ("b", "y", "a")), "a")
BN = "weight bias running_mean running_var num_batches_tracked"
SAVED: list[tuple[dict[str, Any], dict[str, str]]] = [
    (
        {"name": "sage", "norm": "batch", "jk": "cat", "residual": True},
        {
            "convs.0.lin_l.": "weight bias",
            "convs.0.lin_r.": "weight",
            "norms.0.module.": BN,
            "residuals.0.": "weight bias",
            "lin.": "weight bias",
        },
    ),
    (
        {"name": "rgcn", "num_bases": 2},
        {
            "tables.b.": "weight",
            "projections.a.": "weight bias",
            "convs.0.": "bases comp",
            "convs.0.roots.a.": "weight bias",
            "convs.0.biases.": "b",
        },
    ),
    (
        {"name": "rgcn", "num_blocks": 2, "featureless": "embedding"},
        {
            "tables.b.": "weight",
            "projections.a.": "weight bias",
            "convs.0.blocks.": "<a___x___a> <b___y___a>",
            "convs.0.roots.a.": "weight bias",
            "convs.0.roots.b.": "weight bias",
        },
    ),
    (
        {"name": "rgat", "norm": "layer"},
        {
            "tables.b.": "weight",
            "projections.a.": "weight bias",
            "convs.0.relations.<a___x___a>.": "att_src att_dst lin.weight",
            "convs.0.relations.<b___y___a>.": "att_src att_dst lin.weight",
            "convs.0.roots.a.": "weight bias",
            "convs.0.roots.b.": "weight bias",
            "norms.0.a.": "weight bias",
            "norms.0.b.": "weight bias",
        },
    ),
    (
        {"name": "hgt"},
        {
            "tables.b.": "weight",
            "projections.a.": "weight bias",
            "convs.0.kv_lin.a.": "weight bias",
            "convs.0.kv_lin.b.": "weight bias",
            "convs.0.q_lin.a.": "weight bias",
            "convs.0.out_lin.a.": "weight bias",
            "convs.0.own_lin.b.": "weight bias",
            "convs.0.skip.": "a b",
            "convs.0.k_rel.": "<a___x___a> <b___y___a>",
            "convs.0.v_rel.": "<a___x___a> <b___y___a>",
            "convs.0.p_rel.": "<a___x___a> <b___y___a>",
        },
    ),
]


@pytest.mark.parametrize(("options", "names"), SAVED)
def test_weights_keep_the_names_that_checkpoints_have(
    options: dict[str, Any], names: dict[str, str]
) -> None:
    keys = {"num_layers": 2, "hidden_channels": 8}
    state = build_model(SimpleNamespace(**keys, **options), TYPED, 3).state_dict()
    expected = {start + end for start, ends in names.items() for end in ends.split()}
    last = ("convs.1.", "norms.1.", "residuals.1.")
    assert {name for name in state if not name.startswith(last)} == expected


@pytest.mark.parametrize("name", model_names())
def test_the_schema_of_every_built_in_model_is_its_class(name: str) -> None:
    section = ModelConfig(name=name)
    model = build_model(section, SCHEMA, 3)
    assert isinstance(model, HeteroGNN if section.is_hetero else GNN)
    assert type(model).__name__.lower() == name.replace("_", "")
    assert model.uses_graph == section.uses_graph
    assert model.is_hetero == section.is_hetero
    assert {key: getattr(section, key) for key in model.config_defaults} == model.config_defaults


def test_a_subclass_gives_an_option_another_default() -> None:
    class TwoHeads(GAT):
        heads = 2

    assert TwoHeads(5, 3).convs[0].heads == 2
    assert TwoHeads(5, 3, heads=4).convs[0].heads == 4


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize(
    ("name", "keys", "schema", "message"),
    [
        ("own-sage", {"options": {"widht": 4}}, SCHEMA, r"model.options=\{'widht': 4\}"),
        ("own-class", {"options": {"widht": 4}}, SCHEMA, "unexpected keyword argument 'widht'"),
        ("own-class", {"options": {"aggregator": "men"}}, SCHEMA, "'men'"),
        ("broken", {"options": {"norm": "layer"}}, SCHEMA, r"KeyError: 'dpeth' \(.*test_registry"),
        ("own-sage", {"num_layers": 3}, SCHEMA, r"num_layers=3.* has 2 layers"),
        ("own-sage", {}, TYPED, "2 node types and 2 edge types"),
        ("nothing", {}, SCHEMA, "returned a str, not a model"),
        ("wrapped", {}, SCHEMA, "computes on blocks"),
        ("gone", {}, SCHEMA, "No module named 'no_such_package'"),
        ("renamed", {}, SCHEMA, "cannot be used"),
    ],
)
def test_broken_plugins_are_explained(
    name: str, keys: dict[str, Any], schema: GraphSchema, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        build_model(SimpleNamespace(name=name, **keys), schema, 3)


@pytest.mark.usefixtures("plugins")
def test_a_fault_of_a_package_is_no_mistake_in_options_that_were_not_given() -> None:
    with pytest.raises(KeyError, match="dpeth"):
        build_model(SimpleNamespace(name="broken"), SCHEMA, 3)
