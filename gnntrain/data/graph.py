"""A graph to train on (`Graph`, on disk a store), the edge lists that it is made of (`GraphData`,
which a data set's builder returns), and how (`PrepareOptions`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from pydantic import JsonValue

from gnntrain.data.summary import DataSummary
from gnntrain.data.targets import TargetScale
from gnntrain.metrics import LabelKind

if TYPE_CHECKING:
    from gnntrain.data.preprocessing import Preprocessing

JSON = JsonValue
AnyArray = npt.NDArray[Any]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.integer[Any]]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]

FeatureDtype = Literal["float32", "float16", "bfloat16"]

SPLITS = ("train", "val", "test")

NodeType = str
EdgeType = tuple[str, str, str]
"""Type of the source nodes, relation, type of the destination nodes."""

NODE: NodeType = "node"
EDGE: EdgeType = (NODE, "to", NODE)
"""The types of a homogeneous graph."""

_SHOWN_NODES = 5


@dataclass(frozen=True, eq=False)
class Nodes:
    """The nodes of one type."""

    # [num_nodes, num_features]; bfloat16 as uint16; no column: a model learns the rows.
    features: AnyArray
    feature_dtype: FeatureDtype = "float32"
    # Classes: int32 [num_nodes], −1 for "no label". Several labels: uint8 [num_nodes, num_classes].
    # Quantities: float32, or float64 where that is too coarse, [num_nodes, num_classes], NaN where
    # one is missing.
    labels: AnyArray | None = None
    splits: Mapping[str, Int64Array] = field(default_factory=dict)  # ascending, each node once
    ids: AnyArray | None = None  # the user's own: int64 or bytes (UTF-8) [num_nodes]
    feature_names: Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.features)

    @property
    def num_features(self) -> int:
        return int(self.features.shape[1])


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges of one type, by destination node (CSC): the in-neighbours of node v are
    `indices[indptr[v]:indptr[v + 1]]`, ascending."""

    indptr: Int64Array  # [num_dst + 1]
    indices: IntArray  # [num_edges], int32, or int64 for more than 2³¹ source nodes
    weight: Float32Array | None = None  # [num_edges], in the order of `indices`
    # [num_dst]: 1/√(total weight of in-edges and one self loop), whose weight is 1 where the data
    # has none; 0 where negative weights leave nothing to divide by. [num_dst, 2] with the weights
    # of the self loops, where these are not all 1. None for edges between two types.
    gcn_norm: Float32Array | None = None

    def __len__(self) -> int:
        return len(self.indices)


@dataclass(frozen=True, eq=False)
class FusedCSC:
    """The CSC of each edge type, one after the other: of type r, with
    `offsets = indptr[first_offset[r]:]`, the in-neighbours of node v are
    `indices[first_edge[r] + offsets[v] : first_edge[r] + offsets[v + 1]]`, numbered within the
    source type. Where a GPU samples, `indptr` and `indices` are tensors."""

    edge_types: tuple[EdgeType, ...]  # R of them, in the order of the arrays
    num_nodes: Mapping[NodeType, int]
    indptr: Any  # int64 [Σ (num_dst + 1)]; the offsets of a type count from its first edge
    indices: Any  # int32 or int64 [num_edges], ascending for each destination
    first_offset: Int64Array  # [R + 1]: where each edge type begins in `indptr`, and the end
    first_edge: Int64Array  # [R + 1]: where each edge type begins in `indices`, and the end

    @classmethod
    def cut(
        cls,
        edge_types: Sequence[EdgeType],
        num_nodes: Mapping[NodeType, int],
        num_edges: Sequence[int],
        indptr: Int64Array,
        indices: IntArray,
    ) -> FusedCSC:
        """The two arrays, of types with so many nodes, and edges `num_edges` of each."""
        return cls(
            edge_types=tuple(edge_types),
            num_nodes=dict(num_nodes),
            indptr=indptr,
            indices=indices,
            first_offset=np.cumsum([0, *(num_nodes[name[2]] + 1 for name in edge_types)]),
            first_edge=np.cumsum([0, *num_edges]),
        )

    def part(self, number: int) -> tuple[Int64Array, IntArray]:
        """The offsets and sources of one edge type, as views: a CSC of its own."""
        if len(self.edge_types) == 1:
            return self.indptr, self.indices
        offsets = slice(self.first_offset[number], self.first_offset[number + 1])
        edges = slice(self.first_edge[number], self.first_edge[number + 1])
        return self.indptr[offsets], self.indices[edges]

    @classmethod
    def of(cls, edges: Mapping[EdgeType, Edges], num_nodes: Mapping[NodeType, int]) -> FusedCSC:
        """Join the CSC of each edge type; copies them, unless there is one alone."""
        parts = [*edges.values()]
        if len(parts) == 1:
            indptr, indices = parts[0].indptr, parts[0].indices
        else:
            indptr = np.concatenate([part.indptr for part in parts], dtype=np.int64)
            indices = np.concatenate([part.indices for part in parts])
        return cls.cut([*edges], num_nodes, [*map(len, parts)], indptr, indices)


class FusedEdges(dict[EdgeType, Edges]):
    """The edges of each type: views of one `FusedCSC`, which is kept as it lies on disk.
    `attributes` are `Edges.weight` and `Edges.gcn_norm`, of a graph of one edge type alone."""

    def __init__(self, fused: FusedCSC, *attributes: Float32Array | None) -> None:
        super().__init__(
            (name, Edges(*fused.part(r), *attributes)) for r, name in enumerate(fused.edge_types)
        )
        self.fused = fused


@dataclass(frozen=True)
class GraphSchema:
    """The types of a graph and their sizes: what a model of typed graphs is built for."""

    num_nodes: Mapping[NodeType, int]
    num_features: Mapping[NodeType, int]  # 0: a model learns the rows
    edge_types: tuple[EdgeType, ...]
    target: NodeType  # its nodes are the seeds

    @property
    def node_types(self) -> tuple[NodeType, ...]:
        return tuple(self.num_nodes)

    def into(self, node_type: NodeType) -> tuple[EdgeType, ...]:
        """The edge types whose destinations are of `node_type`."""
        return tuple(edge for edge in self.edge_types if edge[2] == node_type)


@dataclass(frozen=True, eq=False)
class Graph:
    """A graph to train on: nodes and edges by type.

    `num_features`, labels, splits and ids are those of the target type; `num_nodes` and `num_edges`
    count all.
    """

    nodes: Mapping[NodeType, Nodes]
    edges: Mapping[EdgeType, Edges]
    dataset: str = "graph"
    task: LabelKind = "multiclass"
    metric: str = "accuracy"
    num_classes: int = 1  # or labels where a node has several; or quantities
    class_names: list[str] | list[int] | None = None  # the user's; None: 0, 1, …
    ogb_name: str | None = None  # of the OGB evaluator to use
    summary: DataSummary | None = None  # None where a store is older than summaries
    target: NodeType = NODE  # the node type that has the labels and splits

    def __repr__(self) -> str:
        nodes = ", ".join(f"{name}: {len(nodes)}" for name, nodes in self.nodes.items())
        edges = ", ".join(f"{'/'.join(name)}: {len(edges)}" for name, edges in self.edges.items())
        return f"{type(self).__name__}({self.dataset!r}, nodes={{{nodes}}}, edges={{{edges}}})"

    @property
    def is_hetero(self) -> bool:
        """Whether it has several node types or edge types."""
        return len(self.nodes) > 1 or len(self.edges) > 1

    @property
    def schema(self) -> GraphSchema:
        return GraphSchema(
            num_nodes={name: len(nodes) for name, nodes in self.nodes.items()},
            num_features={name: nodes.num_features for name, nodes in self.nodes.items()},
            edge_types=tuple(self.edges),
            target=self.target,
        )

    @cached_property
    def fused(self) -> FusedCSC:
        """The edges of all types in two arrays; a store's are those on disk."""
        if isinstance(self.edges, FusedEdges):
            return self.edges.fused
        return FusedCSC.of(self.edges, self.schema.num_nodes)

    @property
    def target_nodes(self) -> Nodes:
        """The nodes that have the labels and splits."""
        return self.nodes[self.target]

    @property
    def only_edges(self) -> Edges:
        """Those of the only edge type, or ValueError."""
        (edges,) = self.edges.values()
        return edges

    @property
    def num_nodes(self) -> int:
        return sum(self.schema.num_nodes.values())

    @property
    def num_edges(self) -> int:
        return sum(self.edge_counts.values())

    @property
    def edge_counts(self) -> dict[EdgeType, int]:
        return {name: len(edges) for name, edges in self.edges.items()}

    @property
    def num_outputs(self) -> int:
        """Numbers a model predicts for a node: 1 for a binary task, else one a class."""
        return 1 if self.task == "binary" else self.num_classes

    # Of the target type.

    @property
    def num_features(self) -> int:
        return self.target_nodes.num_features

    @property
    def labels(self) -> AnyArray:
        labels = self.target_nodes.labels
        if labels is None:
            raise ValueError("the nodes have no labels")
        return labels

    @property
    def node_ids(self) -> AnyArray | None:
        return self.target_nodes.ids

    def split(self, name: str) -> Int64Array:
        return self.target_nodes.splits[name]

    def in_words(self, nodes: Int64Array) -> str:
        """The first of some nodes of the target type, as the user calls them."""
        of_type = f" of type {self.target}" if self.is_hetero else ""
        names = ", ".join(self.names(nodes[:_SHOWN_NODES])) or "of other machines"
        return f"nodes{of_type} {names}{', ...' if len(nodes) > _SHOWN_NODES else ''}"

    def ids_of(self, nodes: Int64Array) -> AnyArray:
        """Nodes of the target type as the user calls them: by their ids (int64 or texts), or else
        their numbers."""
        ids: AnyArray = nodes if self.node_ids is None else self.node_ids[nodes]
        return np.char.decode(ids, "utf-8") if ids.dtype.kind == "S" else ids

    def names(self, nodes: Int64Array) -> list[str]:
        """As `ids_of`, all as texts."""
        return [str(one) for one in self.ids_of(nodes).tolist()]

    def class_counts(self, split: str) -> Int64Array:
        """The number of a split's nodes with each class or label, int64 `[num_classes]`."""
        labels = self.labels[self.split(split)]
        if self.task == "multilabel":
            return np.asarray(labels.sum(axis=0, dtype=np.int64))
        return np.bincount(labels[labels >= 0], minlength=self.num_classes)

    def target_scale(self) -> TargetScale:
        return TargetScale.of(self)

    def target_ranges(self, split: str) -> list[tuple[float, float] | None]:
        """The least and the greatest value of each quantity on a split; None: no node has it."""
        columns = [column[~np.isnan(column)] for column in self.labels[self.split(split)].T]
        return [(float(c.min()), float(c.max())) if len(c) else None for c in columns]


def index_dtype(num_nodes: int) -> np.dtype[Any]:
    """The smaller of int32 and int64 that holds every node id."""
    return np.dtype(np.int32 if num_nodes - 1 <= np.iinfo(np.int32).max else np.int64)


@runtime_checkable
class FeatureRows(Protocol):
    """Features that are read or generated a range of nodes at a time, never held as a whole."""

    @property
    def num_features(self) -> int: ...

    def rows(self, start: int, stop: int) -> AnyArray:
        """`[stop - start, num_features]`, a pure function: a store may ask for rows twice."""
        ...


@dataclass
class NodeData:
    """The nodes of one type, as a data set's builder gives them.

    Attributes:
        num_nodes: Number of nodes; node ids are `0 … num_nodes - 1`.
        features: `[num_nodes, num_features]` numbers, an object that streams them, or None.
        ids: The user's own ids: int64 or bytes (UTF-8) `[num_nodes]`, or None.
        feature_names: Names of the features, where they have some.
        preprocessing: The preprocessing of a user's columns, if any.
    """

    num_nodes: int
    features: AnyArray | FeatureRows | None = None
    ids: AnyArray | None = None
    feature_names: Sequence[str] | None = None
    preprocessing: Preprocessing | None = None

    @property
    def num_features(self) -> int:
        if isinstance(self.features, np.ndarray):
            return int(self.features.shape[1])
        return 0 if self.features is None else self.features.num_features

    def rows(self, start: int, stop: int) -> AnyArray:
        """The features of a range of nodes; without features, rows of no number."""
        if self.features is None:
            return np.empty((stop - start, 0), np.float32)
        if isinstance(self.features, np.ndarray):
            return self.features[start:stop]
        return self.features.rows(start, stop)


@dataclass
class EdgeData:
    """The edges of one type, as a data set's builder gives them; `src, dst = edges` unpacks them.

    Attributes:
        src: `[num_given_edges]` int32 or int64, source node of each edge.
        dst: `[num_given_edges]` int32 or int64, destination node; `src` is its in-neighbour.
        weight: float32 `[num_given_edges]`, or None.
        symmetric: `src`/`dst` give each undirected edge once; the store holds both directions. A
            self loop is stored twice, as OGB's `add_inverse_edge` and PyG's `to_undirected` do.
    """

    src: IntArray
    dst: IntArray
    weight: AnyArray | None = None
    symmetric: bool = False

    def __iter__(self) -> Iterator[IntArray]:
        return iter((self.src, self.dst))


@dataclass
class GraphData:
    """A graph with labels and splits of one node type, all NumPy arrays (memory maps included).

    Attributes:
        dataset: Name of the data set.
        nodes: The nodes of each type.
        edges: The edges of each type, numbered within their node types.
        labels: Multi-class and binary: integers `[num_nodes]`, −1 is "no label" (whole numbers
            as floats are taken too, with NaN for "no label"). Multi-label: 0/1
            `[num_nodes, num_classes]`. Quantities: numbers `[num_nodes, num_classes]`, NaN
            where one is missing.
        num_classes: Number of classes, 2 for a binary task; of labels; of quantities.
        task: Kind of labels.
        splits: Node ids of exactly "train", "val" and "test".
        target: The node type of the labels and splits.
        class_names: The user's names of the classes (labels, quantities),
            int64 or bytes (UTF-8) `[num_classes]`, or None for 0, 1, ….
        labelled: False for a graph to predict on only: it needs no training node.
        metric: Metric of the data set, e.g. "accuracy" or "roc_auc".
        ogb_name: Name of the OGB evaluator to use, if any.
        summary: Summary of the files; None: made from the arrays alone.
        reverse: Add the reverse of every edge type, unless it is there already: of
            `(author, writes, paper)` it is `(paper, rev_writes, author)`.
    """

    dataset: str
    nodes: Mapping[NodeType, NodeData]
    edges: Mapping[EdgeType, EdgeData]
    labels: AnyArray
    num_classes: int
    task: LabelKind
    splits: Mapping[str, IntArray]
    target: NodeType = NODE
    class_names: AnyArray | None = None
    labelled: bool = True
    metric: str = "accuracy"
    ogb_name: str | None = None
    summary: DataSummary | None = None
    reverse: bool = False

    @classmethod
    def of_arrays(
        cls,
        *,
        num_nodes: int,
        src: IntArray,
        dst: IntArray,
        features: AnyArray | FeatureRows | None = None,
        edge_weight: AnyArray | None = None,
        symmetric: bool = False,
        node_ids: AnyArray | None = None,
        feature_names: Sequence[str] | None = None,
        **attributes: Any,
    ) -> GraphData:
        """A homogeneous graph, of the one type `NODE` and `EDGE`; see `NodeData`, `EdgeData` and,
        for the other attributes, `GraphData`."""
        nodes = NodeData(num_nodes, features, node_ids, feature_names)
        edges = EdgeData(src, dst, edge_weight, symmetric)
        return cls(nodes={NODE: nodes}, edges={EDGE: edges}, **attributes)

    @property
    def is_homogeneous(self) -> bool:
        """Whether it has one type of nodes and edges, without names of their own."""
        return [*self.nodes] == [NODE] and [*self.edges] == [EDGE]

    @property
    def target_nodes(self) -> NodeData:
        """The nodes that have the labels and splits."""
        return self.nodes[self.target]


HeteroGraphData = GraphData
"""The name of the same record in packages written for earlier versions."""


def reverse_type(edge_type: EdgeType) -> EdgeType:
    """The edge type of the reverse edges."""
    source, relation, destination = edge_type
    return destination, f"rev_{relation}", source


@dataclass(frozen=True)
class PrepareOptions:
    """How a graph is prepared; recorded in the store and part of its identity."""

    # As PyG's `ToUndirected`: add the reverse of every edge that is not `symmetric`, then merge
    # duplicate edges, summing their weights (a weighted self loop counts twice, once a direction).
    # Edges between two types get a reverse edge type instead.
    to_undirected: bool = False
    # Give a self loop of weight 1 to each node that has none, in edge types within a node type.
    add_self_loops: bool = False
    # Subtract the smallest value of all features of a node type, then divide each row by its sum
    # where that exceeds 1 (as PyG's `NormalizeFeatures` does).
    normalize_features: bool = False
    feature_dtype: FeatureDtype = "float32"  # bfloat16 is rounded to nearest even
    # By node type, what is subtracted instead: of the graph that a model was trained on.
    lowest: Mapping[NodeType, float] | None = None

    def to_dict(self) -> dict[str, JSON]:
        plain = asdict(self)
        return {k: plain[k] for k in plain if k != "lowest" or self.lowest is not None}
