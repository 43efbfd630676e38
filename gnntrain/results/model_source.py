"""`model.py` of an exported model: Python that makes the PyG model and loads its weights."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from gnntrain.data.graph import NODE
from gnntrain.data.preprocessing import AnyPreprocessing
from gnntrain.data.targets import TargetScale
from gnntrain.data.values import MISSING_MARKS
from gnntrain.models.pyg_model import PyGModel

_LINE = 80

_MODULE_DICT = "\nfrom torch_geometric.nn.module_dict import ModuleDict"

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

TARGET_MEAN, TARGET_STD = {mean}, {std}


def in_units(model, inputs, outputs):
    """The targets in their own units: the model was trained on standardised ones."""
    kind = torch.float32 if outputs.device.type == "mps" else torch.float64
    mean, std = torch.tensor([TARGET_MEAN, TARGET_STD], dtype=kind, device=outputs.device)
    return outputs.to(kind) * std + mean
'''

_PREPARE = '''

MISSING = {marks!r}


def is_missing(value):
    """Whether there is no value: None, NaN, or a word for it."""
    return str(value).strip().lower() in MISSING


def numbers_of(values, width):
    """float64 [num_nodes, width], NaN where a number is missing."""
    values = values.to_numpy() if hasattr(values, "to_numpy") else values
    if torch.is_tensor(values) or getattr(getattr(values, "dtype", None), "kind", "O") in "biuf":
        values = values if torch.is_tensor(values) else torch.tensor(values)
        return values.double().reshape(-1, width)
    rows = []
    for value in values:
        is_list = hasattr(value, "__len__") and not isinstance(value, str)
        row = value if is_list else [None] * width if is_missing(value) else [value]
        rows.append([float("nan") if is_missing(number) else float(number) for number in row])
    return torch.tensor(rows, dtype=torch.float64)


def codes_of(values, categories):
    """Place of each value in `categories`, len(categories) for others, and which are missing."""
    places = {{category: place for place, category in enumerate(categories)}}
    texts = [re.sub(r"^([+-]?[0-9]+)\\.0+$", r"\\1", str(value).strip()) for value in values]
    codes = torch.tensor([places.get(text, len(categories)) for text in texts])
    return codes, torch.tensor([is_missing(text) for text in texts])


def prepare(columns, {node_type}path=Path(__file__).with_name("model.json")):
    """The model's {x}, float32 [num_nodes, num_features], of the columns of a table.

    columns: {columns}. A missing value is None, NaN or "".
    """
    about = json.loads(Path(path).read_text(encoding="utf-8"))
    done, features, place = about[{made_by}, [], 0
{by_name}    for column in done["columns"]:
        values, width = columns[column["name"]], column["width"]
        if column["categories"] is not None:
            codes, missing = codes_of(values, column["categories"])
            features.append(torch.eye(len(column["categories"]) + 1)[codes, :-1])
        else:
            numbers = numbers_of(values, width)
            missing = numbers.isnan().any(1)
            mine = slice(place, place + width)
            place += width
            if done["fills"] is not None:
                fills = torch.tensor(done["fills"][mine], dtype=torch.float64)
                numbers = torch.where(numbers.isnan(), fills, numbers)
            if done["means"] is not None:
                means = torch.tensor(done["means"][mine], dtype=torch.float64)
                stds = torch.tensor(done["stds"][mine], dtype=torch.float64)
                numbers = (numbers - means) / stds
            features.append(numbers.float())
        if missing.any() and done["fills"] is None:
            raise ValueError(f"column {{column['name']}} has missing values")
        if column["indicator"]:
            features.append(missing.float()[:, None])
    x = torch.cat(features, 1)
    if about["preparation"]["normalize_features"]:
        x = x - {lowest}
        x = x / x.sum(1, keepdim=True).clamp(min=1)
    return x.to(getattr(torch, about["preparation"]["feature_dtype"])).float()
'''
_BY_PLACE = """\
    if not done["has_names"]:
        columns = {str(place): column for place, column in enumerate(torch.as_tensor(columns).T)}
"""

_SOURCE = '''"""{title} Needs {needs}."""

{standard}from pathlib import Path

import torch
{imports}
{classes}{in_units}

def load(path=Path(__file__).with_name("model.pt")):
    """The trained model, ready to predict."""
{body}
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
{hook}    return model.eval()
{prepare}'''


def model_source(
    model: PyGModel,
    title: str,
    preprocessing: AnyPreprocessing | None = None,
    scale: TargetScale | None = None,
    *,
    has_lowest: bool = False,
) -> str:
    """A Python file whose `load()` returns the model with its weights.

    Args:
        model: How it is made.
        title: A sentence for the file's docstring.
        preprocessing: What makes features of a user's columns, of a typed graph by node type.
            Where it is more than their order, `prepare(columns)`, or of a typed graph
            `prepare(columns, node_type)`, does it.
        scale: How the outputs of a regression become quantities; None: of classes.
        has_lowest: Whether `model.json` has what `normalize_features` subtracts: runs of older
            versions have not kept it.
    """
    prepare = "" if preprocessing is None else _prepare(preprocessing, has_lowest)
    own = model.own_package
    call = f"Residual{model.name}" if model.residual else model.name
    keywords = [f"{key}={value!r}" for key, value in model.arguments.items()]
    arguments = [*model.positionals, *keywords]
    made = [f"model = {call}(", *_filled(arguments), ")"] if arguments else [f"model = {call}()"]
    standard = [*model.standard_imports, *(["import json", "import re"] if prepare else [])]
    return _SOURCE.format(
        title=title,
        needs="torch and torch_geometric only" if own is None else f"torch and {own}",
        imports=f"from {model.module} import {', '.join(sorted({*model.imported}))}"
        + _MODULE_DICT * bool(model.definition),
        classes=_RESIDUAL.format(base=model.name) if model.residual else model.definition,
        in_units="" if scale is None else _IN_UNITS.format(mean=scale.mean, std=scale.std),
        body=textwrap.indent("\n".join([*made, *model.changes]), " " * 4),
        hook="" if scale is None else "    model.register_forward_hook(in_units)\n",
        standard="".join(f"{line}\n" for line in sorted(standard)),
        prepare=prepare,
    )


def _prepare(preprocessing: AnyPreprocessing, has_lowest: bool) -> str:
    """The function `prepare`; nothing if the features are the numbers as they are."""
    is_typed = isinstance(preprocessing, Mapping)
    parts = [*preprocessing.values()] if isinstance(preprocessing, Mapping) else [preprocessing]
    if all(part.is_identity for part in parts):
        return ""
    forms = {
        "list or array by name": any(part.has_names for part in parts),
        "a matrix [num_nodes, num_columns]": not all(part.has_names for part in parts),
    }
    node_type = "node_type" if is_typed else repr(NODE)
    return _PREPARE.format(
        marks=MISSING_MARKS,
        columns=", or ".join(form for form, is_taken in forms.items() if is_taken),
        by_name="" if all(part.has_names for part in parts) else _BY_PLACE,
        node_type="node_type, " if is_typed else "",
        x="x_dict[node_type]" if is_typed else "x",
        lowest=f'about["lowest"][{node_type}]' if has_lowest else "x.min()",
        made_by='"preprocessing_by_type"][node_type]' if is_typed else '"preprocessing"]',
    )


def _filled(arguments: list[str]) -> list[str]:
    """Lines of arguments; none is cut, since it may hold a text."""
    lines = [""]
    for argument in arguments:
        if len(lines[-1]) + len(argument) > _LINE and lines[-1]:
            lines.append("")
        lines[-1] += f"{argument}, "
    return [f"    {line.rstrip()}" for line in lines]
