"""`model.py` of an exported model: Python that makes the PyG model and loads its weights."""

from __future__ import annotations

import textwrap

from gnntrain.data.target_scale import TargetScale
from gnntrain.models.pyg_model import PyGModel

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

_IN_UNITS = '''

MEAN, STD = torch.tensor({mean}), torch.tensor({std})


def in_units(model, inputs, outputs):
    """The targets in their own units: the model was trained on standardised ones."""
    return outputs * STD.to(outputs) + MEAN.to(outputs)
'''

_SOURCE = '''"""{title} Needs torch and torch_geometric only."""

from pathlib import Path

import torch
{imports}
{classes}{in_units}

def load(path=Path(__file__).with_name("model.pt")):
    """The trained model, ready to predict."""
{body}
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
{hook}    return model.eval()
'''


def model_source(model: PyGModel, title: str, scale: TargetScale | None = None) -> str:
    """A Python file whose `load()` returns the model with its weights.

    Args:
        model: How it is made.
        title: A sentence for the file's docstring.
        scale: How the outputs of a regression become quantities; None: of classes.
    """
    names = ", ".join(sorted({model.name, *model.imports}))
    call = f"Residual{model.name}" if model.residual else model.name
    keywords = [f"{key}={value!r}" for key, value in model.arguments.items()]
    arguments = [*map(repr, model.positionals), *keywords]
    lines = [f"model = {call}(", *_filled(arguments), ")", *model.changes]
    return _SOURCE.format(
        title=title,
        imports=f"from {model.module} import {names}",
        classes=_RESIDUAL.format(base=model.name) if model.residual else "",
        in_units="" if scale is None else _IN_UNITS.format(mean=scale.mean, std=scale.std),
        body=textwrap.indent("\n".join(lines), " " * 4),
        hook="" if scale is None else "    model.register_forward_hook(in_units)\n",
    )


def _filled(arguments: list[str]) -> list[str]:
    """Lines of arguments; none is cut, since it may hold a text."""
    lines = [""]
    for argument in arguments:
        if len(lines[-1]) + len(argument) > _LINE and lines[-1]:
            lines.append("")
        lines[-1] += f"{argument}, "
    return [f"    {line.rstrip()}" for line in lines]
