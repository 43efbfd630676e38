"""A typed graph from arrays by PyG's names, those of each node type and edge type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from gnntrain.config.problems import did_you_mean
from gnntrain.data.array_files import PAIR_ARRAYS
from gnntrain.data.graph import EdgeData, EdgeType, GraphData, HeteroGraphData, NodeData, NodeType
from gnntrain.data.graph_arrays import (
    LABEL_NAMES,
    Arrays,
    edges_of_arrays,
    graph_of_arrays,
    nodes_of_arrays,
)
from gnntrain.data.preprocessing import Preprocessing
from gnntrain.data.summary import DataSummary
from gnntrain.errors import UserError

if TYPE_CHECKING:
    from gnntrain.config import FilesConfig

_NO_EDGES = np.empty((2, 0), np.int64)


def hetero_graph_of_arrays(
    nodes: Mapping[NodeType, Arrays],
    edges: Mapping[EdgeType, Arrays],
    config: FilesConfig,
    source: str,
    *,
    labelled: bool = True,
    preprocessing: Mapping[NodeType, Preprocessing] | None = None,
    is_own: bool = True,
) -> HeteroGraphData:
    """A typed graph from the arrays of its types, see `graph_of_arrays`.

    Args:
        nodes: Of each node type: `x`, `ids`, `num_nodes`; of the target type `y` and masks, too. A
            type without `x` and `num_nodes` has as many nodes as its edges count, and need not
            be there.
        edges: Of each edge type: `edge_index`, which counts the rows of the two node types.
        config: Name, target type, task, metric, and how the split is chosen or drawn.
        source: What the arrays are from, for messages: a path, or "data".
        labelled: See `graph_of_arrays`.
        preprocessing: What makes the features of a model that was trained on another graph, by node
            type; None: it is learnt from this one.
        is_own: See `graph_of_arrays`.

    Raises:
        UserError: A type is unknown, or an array is missing, or is of a type or a shape that it
            cannot have.
    """
    nodes = _all_types(nodes, list(edges), source)
    target = _target(nodes, config, source, labelled=labelled)
    given = {name: _counted(name, arrays, edges) for name, arrays in nodes.items()}
    made_by = preprocessing or {}
    learnt = graph_of_arrays(
        {**given[target], "edge_index": _NO_EDGES},
        config,
        f"{source}[{target!r}]",
        labelled=labelled,
        preprocessing=made_by.get(target),
        is_own=is_own,
    )
    summary = learnt.summary or DataSummary()
    made, left_out = {target: _node_data(learnt)}, _named(target, summary.left_out)
    for name in [name for name in given if name != target]:
        place = f"{source}[{name!r}]"
        made[name], unread = nodes_of_arrays(given[name], config, place, made_by.get(name))
        left_out |= _named(name, unread)
    lists = {}
    for edge_type, arrays in edges.items():
        sizes = (made[edge_type[0]].num_nodes, made[edge_type[2]].num_nodes)
        lists[edge_type], unread = edges_of_arrays(arrays, f"{source}[{edge_type}]", *sizes)
        left_out |= _named("/".join(edge_type), unread)
    return HeteroGraphData(
        dataset=learnt.dataset,
        nodes={name: made[name] for name in nodes},
        edges={name: EdgeData(*ends) for name, ends in lists.items()},
        target=target,
        labels=learnt.labels,
        num_classes=learnt.num_classes,
        task=learnt.task,
        splits=learnt.splits,
        class_names=learnt.class_names,
        labelled=labelled,
        metric=learnt.metric,
        summary=DataSummary(ids=_ids_in_words(made), split=summary.split, left_out=left_out),
    )


def _all_types(
    nodes: Mapping[NodeType, Arrays], edge_types: list[EdgeType], source: str
) -> Mapping[NodeType, Arrays]:
    """The node types, also those that only edges name.

    Raises:
        UserError: There are no edges, or one names a type that is like another, and perhaps
            misspelt.
    """
    if not edge_types:
        raise UserError(
            f"{source} has no edge types.",
            "Give it edges: data['author', 'writes', 'paper'].edge_index = edge_index.",
        )
    named = {name: edge_type for edge_type in edge_types for name in (edge_type[0], edge_type[2])}
    for name, edge_type in named.items():
        if name not in nodes and did_you_mean(name, nodes) is not None:
            raise UserError(
                f"{source}[{edge_type}]: {name!r} is no node type.",
                f"{_known(name, nodes)} If it is another one: data[{name!r}].num_nodes = ….",
            )
    return {name: nodes.get(name, {}) for name in (*nodes, *named)}


def _target(
    nodes: Mapping[NodeType, Arrays], config: FilesConfig, source: str, *, labelled: bool
) -> NodeType:
    """The node type to learn."""
    labels = [name for name, arrays in nodes.items() if any(key in arrays for key in LABEL_NAMES)]
    if config.target is not None:
        if config.target not in nodes:
            raise UserError(
                f"task.target={config.target}: {source} has no such node type.",
                _known(config.target, nodes),
            )
        return config.target
    if len(labels) == 1 or len(nodes) == 1:
        return (labels or list(nodes))[0]
    if not labels:
        raise UserError(
            f"{source}: no node type has labels.",
            f"Give y a label a node: data[{next(iter(nodes))!r}].y = y."
            if labelled
            else f"Set task.target to one of {', '.join(nodes)}.",
        )
    raise UserError(
        f"{source}: {', '.join(labels)} have labels.", f"Choose one: task.target={labels[0]}."
    )


def _known(name: str, nodes: Mapping[NodeType, Arrays]) -> str:
    guess = did_you_mean(name, nodes)
    told = f"The node types are {', '.join(nodes)}."
    return told if guess is None else f"{guess[0].upper()}{guess[1:]} {told}"


def _counted(name: NodeType, arrays: Arrays, edges: Mapping[EdgeType, Arrays]) -> Arrays:
    """The arrays of a node type, with the number of nodes where only edges tell it."""
    if any(key in arrays for key in ("x", "num_nodes")):
        return arrays
    largest = -1
    for (source, _, destination), given in edges.items():
        ends = next((given[key] for key in PAIR_ARRAYS if key in given), _NO_EDGES)
        is_pairs = ends.ndim == 2 and len(ends) == 2 and ends.dtype.kind in "iu"
        for end, row in zip((source, destination), ends if is_pairs else (), strict=False):
            if end == name and len(row):
                largest = max(largest, int(row.max()))
    lengths = [len(arrays[key]) for key in LABEL_NAMES if key in arrays and arrays[key].ndim]
    return {**arrays, "num_nodes": np.array(max(largest + 1, *lengths, 0))}


def _node_data(graph: GraphData) -> NodeData:
    return NodeData(
        graph.num_nodes,
        graph.features,
        graph.node_ids,
        graph.feature_names,
        graph.preprocessing,
    )


def _ids_in_words(nodes: Mapping[NodeType, NodeData]) -> str:
    own = [name for name, of_type in nodes.items() if of_type.ids is not None]
    return f"the graph's own of {', '.join(own)}, else row numbers" if own else "row numbers"


def _named(name: str, left_out: Mapping[str, str]) -> dict[str, str]:
    return {f"{name}.{key}": reason for key, reason in left_out.items()}
