"""The kind of labels, and random splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gnntrain.config import Config, PluginConfig
from gnntrain.config.models import model_names, model_section
from gnntrain.config.problems import did_you_mean
from gnntrain.data.graph import (
    EDGE,
    NODE,
    SPLITS,
    AnyArray,
    EdgeData,
    FeatureRows,
    Graph,
    GraphData,
    Int64Array,
    IntArray,
    NodeData,
    index_dtype,
)
from gnntrain.errors import UserError
from gnntrain.metrics import DEFAULT_METRICS, LabelKind


def labelled_graph(
    dataset: str,
    src: IntArray,
    dst: IntArray,
    labels: AnyArray,
    splits: Mapping[str, Int64Array],
    features: AnyArray | FeatureRows | None,
    edge_weight: AnyArray | None = None,
) -> GraphData:
    """A graph whose task, classes and metric follow from its labels, see `GraphData.labels`.

    A 0/1 matrix is multi-label; two classes are binary, more are multi-class.
    """
    task: LabelKind = "multilabel"
    if labels.ndim == 2:
        num_classes = labels.shape[1]
    else:
        num_classes = int(labels.max(initial=-1)) + 1
        task = "binary" if num_classes == 2 else "multiclass"
    return GraphData(
        dataset=dataset,
        nodes={NODE: NodeData(len(labels), features)},
        edges={EDGE: EdgeData(src, dst, edge_weight)},
        labels=labels,
        num_classes=num_classes,
        task=task,
        splits=splits,
        metric=DEFAULT_METRICS[task],
    )


def random_split(nodes: Int64Array, number: int) -> dict[str, Int64Array]:
    """Share out `nodes` at random, 60 % train, 20 % val, 20 % test.

    The split with a given number is always the same: NumPy's PCG64, seeded with the number.

    Args:
        nodes: int64 node ids, each once.
        number: Which split, 0 or more.

    Returns:
        Sorted node ids of "train", "val" and "test".
    """
    order = np.random.default_rng(number).permutation(nodes)
    first = round(0.6 * len(nodes))
    second = first + round(0.2 * len(nodes))
    parts = np.split(order, [first, min(second, len(nodes))])
    return {name: np.sort(part) for name, part in zip(SPLITS, parts, strict=True)}


def draw_split(
    nodes: Int64Array,
    ratio: Sequence[float],
    seed: int,
    number: int,
    strata: AnyArray | None = None,
) -> dict[str, Int64Array]:
    """Share out `nodes` at random: the split with a given number, of all that have the same seed.

    The shares are exact but for rounding: to one node in all, to two in each of the strata.

    Args:
        nodes: int64 node ids, each once.
        ratio: Shares of train, val and test.
        seed: Seed of all splits.
        number: Which of them, 0 or more.
        strata: `[len(nodes)]`: within each group of nodes with one value, the shares are the same.

    Returns:
        Sorted node ids of "train", "val" and "test".
    """
    order = np.random.default_rng([seed, number]).permutation(len(nodes))
    ends = np.array([len(nodes)])
    if strata is not None:
        order = order[np.argsort(strata[order], kind="stable")]
        ends = np.append(np.flatnonzero(np.diff(strata[order])) + 1, len(nodes))
    # Rounded over all groups before, so that the errors of many small groups do not add up.
    train = np.floor(ratio[0] / sum(ratio) * ends + 0.5)
    rest = max(ratio[1] + ratio[2], 1e-300)
    val = np.floor(ratio[1] / rest * (ends - train) + 0.5)
    begins = np.append(0, ends[:-1])
    first = begins + np.diff(train, prepend=0)
    second = first + np.diff(val, prepend=0)
    place = np.arange(len(nodes))
    group = np.searchsorted(ends, place, side="right")
    part = (place >= first[group]).astype(int) + (place >= second[group])
    return {name: np.sort(nodes[order[part == code]]) for code, name in enumerate(SPLITS)}


def refuse_other_labels(config: Config, dataset: str, kind: LabelKind) -> None:
    """Refuse labels that `task.type` cannot learn.

    Raises:
        UserError: They are quantities and classes are to be learnt, or the other way round.
    """
    is_regression = config.task.type == "node_regression"
    if is_regression == (kind == "continuous"):
        return
    fitting = "node_classification" if is_regression else "node_regression"
    found = "classes" if is_regression else "quantities"
    raise UserError(
        f"task.type={config.task.type}: the labels of {dataset} are {found}.",
        f"Set task.type={fitting}.",
    )


def refuse_other_types(config: Config, graph: Graph) -> None:
    """Refuse a target type without labels, and a typed graph for a model of one type.

    Raises:
        UserError: See above; or the graph has no node type `task.target`.
    """
    target, model = config.task.target, config.model
    if target is not None and target not in graph.nodes:
        told = f"Its node types are {', '.join(graph.nodes)}."
        guess = did_you_mean(target, graph.nodes)
        raise UserError(
            f"task.target={target}: {graph.dataset} has no such node type.",
            told if guess is None else f"{guess[0].upper()}{guess[1:]} {told}",
        )
    if target not in (None, graph.target):
        raise UserError(
            f"task.target={target}: {graph.dataset} has labels of {graph.target} alone.",
            f"Set task.target={graph.target}, or leave it out.",
        )
    if graph.is_hetero and not (model.is_hetero or isinstance(model, PluginConfig)):
        fitting = ", ".join(name for name in model_names() if model_section(name).is_hetero)
        raise UserError(
            f"model={model.name} computes on one type of nodes and edges, and {graph.dataset} has "
            f"more: nodes of type {', '.join(graph.nodes)}; {len(graph.edges)} edge types.",
            f"Choose a model of typed graphs: {fitting}.",
        )


def check_split_number(dataset: str, number: int, splits: Sequence[int]) -> None:
    """Raise a UserError unless `number` is one of the data set's splits."""
    if number in splits:
        return
    *others, last = map(str, splits)
    offer = f"the splits {', '.join(others)} and {last}" if others else f"only split {last}"
    choice = f"{', '.join(others)} or {last}" if others else last
    if isinstance(splits, range) and others:
        offer, choice = f"{len(splits)} splits", f"a number from {others[0]} to {last}"
    raise UserError(
        f"dataset.split={number}: {dataset} has {offer}.", f"Set dataset.split to {choice}."
    )


def smallest_int(ids: AnyArray, num_nodes: int) -> IntArray:
    """Node ids in `index_dtype`, but for ids out of range: cut to 32 bits they could look right."""
    in_range = ids.size == 0 or (ids.min() >= 0 and ids.max() < num_nodes)
    return ids.astype(index_dtype(num_nodes) if in_range else np.int64, copy=False)
