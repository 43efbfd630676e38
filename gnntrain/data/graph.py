"""What a data-set builder hands over, and how it is prepared on its way into a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
import numpy.typing as npt
from pydantic import JsonValue

from gnntrain.metrics import LabelKind

JSON = JsonValue
AnyArray = npt.NDArray[Any]
IntArray = npt.NDArray[np.integer[Any]]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]

Task = LabelKind
FeatureDtype = Literal["float32", "float16", "bfloat16"]

FEATURE_DTYPES: tuple[str, ...] = get_args(FeatureDtype)
SPLITS = ("train", "val", "test")


@runtime_checkable
class FeatureRows(Protocol):
    """Features that are read or generated a range of nodes at a time, never held as a whole."""

    @property
    def num_features(self) -> int: ...

    def rows(self, start: int, stop: int) -> AnyArray:
        """Features of the nodes `start` up to `stop`: `[stop - start, num_features]`.

        A pure function of its arguments: a store may ask for the same rows twice.
        """
        ...


@dataclass
class GraphData:
    """A graph with labels and splits, all NumPy arrays (memory maps included).

    Attributes:
        dataset: Name of the data set.
        num_nodes: Number of nodes; node ids are `0 … num_nodes - 1`.
        src: `[num_given_edges]` int32 or int64, source node of each edge.
        dst: `[num_given_edges]` int32 or int64, destination node; `src` is its in-neighbour.
        labels: Multi-class and binary: integers `[num_nodes]`, −1 is "no label" (whole numbers
            as floats are taken too, with NaN for "no label"). Multi-label: 0/1
            `[num_nodes, num_classes]`.
        num_classes: Number of classes; 2 for a binary task.
        task: Kind of labels.
        splits: Node ids of exactly "train", "val" and "test".
        features: `[num_nodes, num_features]` numbers, an object that streams them, or None.
        symmetric: `src`/`dst` give each undirected edge once; the store holds both directions. A
            self loop is stored twice, as OGB's `add_inverse_edge` and PyG's `to_undirected` do.
        edge_weight: float32 `[num_given_edges]`, or None.
        node_ids: The user's own ids: int64 or bytes (UTF-8) `[num_nodes]`, or None.
        class_names: The classes in the user's words (where a node has several labels: the labels),
            int64 or bytes (UTF-8) `[num_classes]`, or None for 0, 1, ….
        labelled: False for a graph that nothing is to be learnt from: it needs no training node.
        metric: Metric of the data set, e.g. "accuracy" or "roc_auc".
        ogb_name: Name of the OGB evaluator to use, if any.
    """

    dataset: str
    num_nodes: int
    src: IntArray
    dst: IntArray
    labels: AnyArray
    num_classes: int
    task: Task
    splits: Mapping[str, IntArray]
    features: AnyArray | FeatureRows | None
    symmetric: bool = False
    edge_weight: AnyArray | None = None
    node_ids: AnyArray | None = None
    class_names: AnyArray | None = None
    labelled: bool = True
    metric: str = "accuracy"
    ogb_name: str | None = None

    @property
    def num_features(self) -> int:
        if self.features is None:
            return 0
        if isinstance(self.features, np.ndarray):
            return int(self.features.shape[1])
        return self.features.num_features


@dataclass(frozen=True)
class PrepareOptions:
    """How a graph is prepared; recorded in the store and part of its identity.

    Attributes:
        to_undirected: Add the reverse of every edge, then merge duplicate edges, summing their
            weights (as PyG's `to_undirected` does: a weighted self loop counts twice, once a
            direction). A graph given as `symmetric` has its reverse edges already, so that
            only duplicates are merged.
        add_self_loops: Give a self loop of weight 1 to each node that has none.
        normalize_features: Subtract the smallest value of the whole matrix from it, then divide
            each row by its sum where that exceeds 1 (as PyG's `NormalizeFeatures` does).
        feature_dtype: How features are stored; bfloat16 is rounded to nearest even.
    """

    to_undirected: bool = False
    add_self_loops: bool = False
    normalize_features: bool = False
    feature_dtype: FeatureDtype = "float32"
