"""The model card: what a model is, how good, and how it is used without gnntrain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own

from gnntrain.data.summary import from_plain
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
            f"With {_packages(about)} ({_versions(about)}):",
            "",
            "```python",
            "import torch",
            f"from model import load{', prepare' * _prepares(about)}",
            "",
            *_use(about),
            "```",
            "",
            *_input(about),
            f"The model gives {_outputs(about)}, `[num_nodes, {about['num_outputs']}]`: "
            f"{_OUTPUTS[about['task']]}.",
            *_names(about),
            *_balance(about),
            "",
            "`model.py`, whole:",
            "",
            "```python",
            source.rstrip(),
            "```",
            "",
            *_data(about),
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


def _data(about: Mapping[str, Any]) -> Iterator[str]:
    """What was read to make the graph."""
    read = from_plain(about["data"])
    if read is None:
        return
    yield from ("## What it was trained on", "")
    yield from (f"- {label}: {text}" for label, text in read.lines())
    yield ""


def _versions(about: Mapping[str, Any]) -> str:
    versions = about["versions"]
    return f"made with torch {versions['torch']}, torch_geometric {versions['torch_geometric']}"


def _packages(about: Mapping[str, Any]) -> str:
    own = about["own_package"]
    return "torch and PyG alone" if own is None else f"torch, PyG and the package `{own}`"


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
    if _prepares(about):
        yield "x = prepare(columns)"
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
    directions = both * preparation["to_undirected"]
    if _prepares(about):
        yield from _columns(about["preprocessing"])
    yield (
        f"`x` is float32 `[num_nodes, {about['num_features']}]`, with the features in the order "
        f"they had in training{_order(about)}{scaled}. `edge_index` is int64 `[2, num_edges]`: "
        f"sources, then targets; a node sees the sources of its edges{directions}."
    )
    yield ""


def _prepares(about: Mapping[str, Any]) -> bool:
    """Whether `model.py` has `prepare`."""
    done = about["preprocessing"] or {"fills": None, "means": None, "columns": ()}
    has_categories = any(column["categories"] is not None for column in done["columns"])
    return has_categories or done["fills"] is not None or done["means"] is not None


def _order(about: Mapping[str, Any]) -> str:
    found = about["preprocessing"]
    if found is None or not found["has_names"] or _prepares(about):
        return ""
    return f" ({_shown([column['name'] for column in found['columns']])})"


def _columns(preprocessing: Mapping[str, Any]) -> Iterator[str]:
    """What `prepare` takes and does."""
    columns = preprocessing["columns"]
    numbers = [column["name"] for column in columns if column["categories"] is None]
    categories = [column["name"] for column in columns if column["categories"] is not None]
    if preprocessing["has_names"]:
        kinds = [f"numbers: {_shown(numbers)}"] * bool(numbers)
        kinds += [f"categories: {_shown(categories)}"] * bool(categories)
        yield f"`columns` maps the names of columns to lists or arrays ({'; '.join(kinds)})."
    else:
        yield f"`columns` is a matrix `[num_nodes, {len(columns)}]`."
    if categories:
        yield "Each category of training is a feature of 0 and 1; any other is 0 in all of them."
    if preprocessing["fills"] is not None:
        yield 'Missing numbers (None, NaN, "") are filled with the values in `model.json`.'
    if preprocessing["means"] is not None:
        yield "Numbers are standardised by the mean and standard deviation of the training split."
    yield ""


def _shown(names: Sequence[Any]) -> str:
    return ", ".join(map(str, names[:_SHOWN_NAMES])) + ", …" * (len(names) > _SHOWN_NAMES)


def _names(about: Mapping[str, Any]) -> Iterator[str]:
    names = about["class_names"]
    if names is not None:
        yield ""
        what = "targets" if about["task"] == "continuous" else "classes"
        yield f"The {what}, in order: {_shown(names)}."


def _balance(about: Mapping[str, Any]) -> Iterator[str]:
    """What a weighted loss does to the probabilities."""
    if about["config"]["trainer"].get("class_weights") == "balanced":
        yield ""
        yield (
            "Classes were weighted by their rarity in training (`trainer.class_weights=balanced`): "
            "probabilities are those of classes of equal size."
        )
