"""A trained model as one of PyG's own: its weights by PyG's names, and what loads them."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from gnntrain.config import LayeredConfig, ModelConfig, PluginConfig
from gnntrain.config.problems import shown
from gnntrain.errors import UserError
from gnntrain.models import GNN
from gnntrain.plugins import MODELS, find_plugin
from gnntrain.run_store import ModelSignature

_NORMS: dict[str, dict[str, Any]] = {
    "none": {},
    "batch": {"norm": "batch_norm", "norm_kwargs": {"allow_single_element": True}},
    "layer": {"norm": "layer_norm", "norm_kwargs": {"mode": "node"}},
}

_LINE = 80

_RESIDUAL = '''

class Residual{base}({base}):
    """PyG's {base} with each layer's input added to its output, linearly mapped if need be."""

    def __init__(self, in_channels, hidden_channels, num_layers, out_channels, **options):
        super().__init__(in_channels, hidden_channels, num_layers, out_channels, **options)
        last = hidden_channels if self.jk_mode else out_channels
        widths = [in_channels, *[hidden_channels] * (num_layers - 1), last]
        self.residuals = torch.nn.ModuleList(
            torch.nn.Identity() if before == after else torch.nn.Linear(before, after)
            for before, after in zip(widths, widths[1:])
        )

    def forward(self, x, edge_index, edge_weight=None):
        weight = {{"edge_weight": edge_weight}} if self.supports_edge_weight else {{}}
        rows = []
        for i, conv in enumerate(self.convs):
            out = conv(x, edge_index, **weight)
            is_output = i == self.num_layers - 1 and not self.jk_mode
            if not is_output:
                out = self.norms[i](out)
                out = self.act(out) if self.act is not None else out
            x = out + self.residuals[i](x)
            x = x if is_output else self.dropout(x)
            rows.append(x)
        return self.lin(self.jk(rows)) if self.jk_mode else x
'''

_SOURCE = '''"""{title} Needs torch and torch_geometric only."""

from pathlib import Path

import torch
{imports}
{classes}

def load(path=Path(__file__).with_name("model.pt")):
    """The trained model, ready to predict."""
{body}
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return model.eval()
'''


@dataclass
class PyGModel:
    """What to call to get a model that takes the weights.

    Attributes:
        module: Where the class or function is.
        name: Of the class or function.
        arguments: Its arguments by name.
        first: Arguments before these, by place.
        changes: Lines of Python that make the rest of `model` what it was.
        imports: What these need, beside `name`, from `module`.
        takes: What it is called with to predict.
        residual: Whether a subclass adds each layer's input.
    """

    name: str
    arguments: dict[str, Any]
    module: str = "torch_geometric.nn"
    changes: list[str] = field(default_factory=list)
    imports: list[str] = field(default_factory=list)
    takes: str = "x, edge_index"
    residual: bool = False
    first: tuple[int, ...] = ()

    def source(self, title: str) -> str:
        """A Python file whose `load()` returns the model with its weights."""
        names = ", ".join(sorted({self.name, *self.imports}))
        call = f"Residual{self.name}" if self.residual else self.name
        arguments = [*map(repr, self.first), *(f"{k}={v!r}" for k, v in self.arguments.items())]
        lines = [f"model = {call}(", *_filled(arguments), ")", *self.changes]
        return _SOURCE.format(
            title=title,
            imports=f"from {self.module} import {names}",
            classes=_RESIDUAL.format(base=self.name) if self.residual else "",
            body=textwrap.indent("\n".join(lines), " " * 4),
        )


def _filled(arguments: list[str]) -> list[str]:
    """Lines of arguments; none is cut, since it may hold a text."""
    lines = [""]
    for argument in arguments:
        if len(lines[-1]) + len(argument) > _LINE and lines[-1]:
            lines.append("")
        lines[-1] += f"{argument}, "
    return [f"    {line.rstrip()}" for line in lines]


def pyg_model(config: ModelConfig, model: nn.Module, signature: ModelSignature) -> PyGModel:
    """How PyG makes the same model.

    Raises:
        UserError: It has none like it.
    """
    if isinstance(config, PluginConfig):
        return _plugin(config, model, signature)
    assert isinstance(config, LayeredConfig)
    match config.name:
        case "mlp":
            return _mlp(config, signature)
        case "sage":
            made = _sage(config)
        case "gcn":
            made = _gcn(signature)
        case "gat" | "gatv2":
            made = _gat(config, signature)
        case "gin":
            made = _gin(config, signature)
        case _:
            raise UserError(f"PyG has no model {config.name}.", "`gnntrain predict` uses it.")
    made.arguments = _scaffold(config, signature) | made.arguments
    made.residual = config.residual
    return made


def pyg_weights(config: ModelConfig, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights by the names they have there."""
    renamed = {"mlp": ("convs.", "lins.")}.get(config.name)
    if isinstance(config, PluginConfig):
        renamed = ("module.", "")
    if renamed is None:
        return weights
    old, new = renamed
    return {
        new + name.removeprefix(old) if name.startswith(old) else name: weight
        for name, weight in weights.items()
    }


def _scaffold(config: LayeredConfig, signature: ModelSignature) -> dict[str, Any]:
    return {
        "in_channels": signature.num_features,
        "hidden_channels": config.hidden_channels,
        "num_layers": config.num_layers,
        "out_channels": signature.num_outputs,
        "dropout": config.dropout,
        "act": None if config.activation == "none" else config.activation,
        **_NORMS[config.norm],
        **({} if config.jk == "none" else {"jk": config.jk}),
    }


def _widths(config: LayeredConfig, signature: ModelSignature) -> list[tuple[int, int]]:
    last = signature.num_outputs if config.jk == "none" else config.hidden_channels
    hidden = [config.hidden_channels] * (config.num_layers - 1)
    return list(pairwise([signature.num_features, *hidden, last]))


def _sage(config: Any) -> PyGModel:
    options = {"root_weight": config.root_weight, "normalize": config.normalize}
    return PyGModel("GraphSAGE", {"aggr": config.aggregator, **options})


def _gcn(signature: ModelSignature) -> PyGModel:
    takes = "x, edge_index, edge_weight" if signature.has_edge_weight else "x, edge_index"
    return PyGModel("GCN", {}, takes=takes)


def _gat(config: Any, signature: ModelSignature) -> PyGModel:
    v2 = {"v2": True} if config.name == "gatv2" else {}
    options = {"heads": config.heads, "negative_slope": config.negative_slope}
    made = PyGModel("GAT", {**v2, **options})
    if config.jk == "none" and config.output_heads != config.heads:
        conv = "GATv2Conv" if v2 else "GATConv"
        before, after = _widths(config, signature)[-1]
        made.imports.append(conv)
        made.changes += [
            f"model.convs[-1] = {conv}({before}, {after}, heads={config.output_heads}, "
            f"concat=False, negative_slope={config.negative_slope})"
        ]
    if config.attention_dropout != config.dropout:
        made.changes += [
            "for conv in model.convs:",
            f"    conv.dropout = {config.attention_dropout}",
        ]
    return made


def _gin(config: Any, signature: ModelSignature) -> PyGModel:
    made = PyGModel("GIN", {"train_eps": config.train_eps})
    if config.mlp_layers != 2:
        made.imports += ["GINConv", "MLP"]
        options = {"act": None if config.activation == "none" else config.activation}
        options |= _NORMS[config.norm] or {"norm": None}
        given = ", ".join(f"{key}={value!r}" for key, value in options.items())
        made.changes += [
            f"for i, (before, after) in enumerate({_widths(config, signature)}):",
            f"    mlp = MLP([before, *[after] * {config.mlp_layers}], {given})",
            f"    model.convs[i] = GINConv(mlp, train_eps={config.train_eps})",
        ]
    return made


def _mlp(config: LayeredConfig, signature: ModelSignature) -> PyGModel:
    for key, value, plain in (("residual", config.residual, False), ("jk", config.jk, "none")):
        if value != plain:
            raise UserError(
                f"PyG has no MLP with model.{key}={shown(value)}.",
                f"Train it without model.{key}; `gnntrain predict` uses it as it is.",
            )
    arguments = _scaffold(config, signature)
    return PyGModel(
        "MLP", arguments if "norm" in arguments else {**arguments, "norm": None}, takes="x"
    )


def _plugin(config: PluginConfig, model: nn.Module, signature: ModelSignature) -> PyGModel:
    if isinstance(model, GNN):
        raise UserError(
            f"model {config.name} derives from gnntrain's GNN: it needs gnntrain to run.",
            "`gnntrain predict` uses it as it is.",
        )
    point = find_plugin(MODELS, config.name)
    first = (signature.num_features, signature.num_outputs)
    return PyGModel(point.attr, dict(config.options), module=point.module, first=first)
