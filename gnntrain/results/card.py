"""The model card: what a model is, how good, and how it is used without gnntrain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own

from gnntrain.reporting.text import format_metric

_TASKS = {
    "multiclass": "one of {num_classes} classes for each node",
    "binary": "yes or no for each node",
    "multilabel": "{num_classes} labels, each yes or no, for each node",
    "continuous": "{num_classes} quantities of each node",
}
_OUTPUTS = {
    "multiclass": "`logits.softmax(1)` are the probabilities, `logits.argmax(1)` the class",
    "binary": "`logits[:, 0].sigmoid()` is the probability of the second class",
    "multilabel": "`logits.sigmoid()` are the labels' probabilities",
    "continuous": "a column a target, in its own units (`model.pt` alone gives standardised ones)",
}

_SHOWN_NAMES = 50


def model_card(about: Mapping[str, Any], source: str) -> str:
    """The text of `README.md`.

    Args:
        about: What `model.json` says.
        source: `model.py`.
    """
    task = _TASKS[about["task"]].format(**about)
    if about["task"] == "continuous" and about["num_classes"] == 1:
        task = "a quantity of each node"
    return "\n".join(
        [
            f"# {about['model']} on {about['dataset']}",
            "",
            f"Predicts {task}, from {about['num_features']} features a node and the edges. "
            f"{about['num_parameters']:,} parameters. Trained with gnntrain "
            f"{about['versions']['gnntrain']} (run `{about['run']}`, epoch {about['best_epoch']}).",
            "",
            *_metrics(about),
            "## Use",
            "",
            f"With torch and PyG alone ({_versions(about)}):",
            "",
            "```python",
            "import torch",
            "from model import load",
            "",
            *_use(about),
            "```",
            "",
            *_input(about),
            f"The model gives {_outputs(about)}, `[num_nodes, {about['num_outputs']}]`: "
            f"{_OUTPUTS[about['task']]}.",
            *_names(about),
            "",
            "`model.py`, whole:",
            "",
            "```python",
            source.rstrip(),
            "```",
            "",
            "## How it was trained",
            "",
            "```yaml",
            yaml.safe_dump(about["config"], sort_keys=False, allow_unicode=True).rstrip(),
            "```",
            "",
        ]
    )


def _metrics(about: Mapping[str, Any]) -> Iterator[str]:
    names = list(dict.fromkeys(name for found in about["metrics"].values() for name in found))
    if not names:
        return
    yield "| | " + " | ".join(names) + " |"
    yield "|-" * (len(names) + 1) + "|"
    for split, found in about["metrics"].items():
        figures = [format_metric(found[name]) if name in found else "" for name in names]
        yield f"| {split} | " + " | ".join(figures) + " |"
    yield ""


def _versions(about: Mapping[str, Any]) -> str:
    versions = about["versions"]
    return f"made with torch {versions['torch']}, torch_geometric {versions['torch_geometric']}"


def _use(about: Mapping[str, Any]) -> Iterator[str]:
    preparation = about["preparation"]
    if "edge_weight" in about["takes"]:
        yield "from torch_geometric.utils import remove_self_loops"
        yield ""
        yield "edge_index, edge_weight = remove_self_loops(edge_index, edge_weight)"
    elif preparation["add_self_loops"]:
        yield "from torch_geometric.utils import add_remaining_self_loops"
        yield ""
        yield "edge_index, _ = add_remaining_self_loops(edge_index)"
    yield "model = load()"
    yield "with torch.no_grad():"
    yield f"    {_outputs(about)} = model({about['takes']})"


def _outputs(about: Mapping[str, Any]) -> str:
    return "values" if about["task"] == "continuous" else "logits"


def _input(about: Mapping[str, Any]) -> Iterator[str]:
    """What the model wants of its graph."""
    preparation = about["preparation"]
    scaled = ", scaled as by PyG's `NormalizeFeatures`" * preparation["normalize_features"]
    both = ", and each edge is there in both directions (PyG's `to_undirected`)"
    yield (
        f"`x` is float32 `[num_nodes, {about['num_features']}]`, with the features in the order "
        f"they had in training{scaled}. `edge_index` is int64 `[2, num_edges]`: sources, then "
        f"targets; a node sees the sources of its edges{both * preparation['to_undirected']}."
    )
    yield ""


def _names(about: Mapping[str, Any]) -> Iterator[str]:
    names = about["class_names"]
    if names is not None:
        shown = ", ".join(map(str, names[:_SHOWN_NAMES])) + (", …" * (len(names) > _SHOWN_NAMES))
        yield ""
        yield f"The {'targets' if about['task'] == 'continuous' else 'classes'}, in order: {shown}."
