"""Graphs behind PyG's interfaces `FeatureStore` and `GraphStore`, and graphs made from PyG's.

Apart from `gnntrain.data.graph`, because importing PyG takes a second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
import torch_geometric.typing
from torch import Tensor
from torch_geometric.data import EdgeAttr, FeatureStore, GraphStore, TensorAttr
from torch_geometric.data.graph_store import EdgeLayout

from gnntrain.compute.features import as_tensor
from gnntrain.data.csc import in_edges
from gnntrain.data.graph import (
    EDGE,
    NODE,
    SPLITS,
    AnyArray,
    Edges,
    EdgeType,
    FeatureDtype,
    Graph,
    Nodes,
    NodeType,
)
from gnntrain.data.targets import (
    infer_label_kind,
)
from gnntrain.metrics import DEFAULT_METRICS

_MASKS = {f"{split}_mask": split for split in SPLITS}
_ATTRIBUTES = ("x", "y", *_MASKS)


class PyGGraph(FeatureStore, GraphStore):  # type: ignore[misc]  # PyG is not typed
    """A graph as PyG's loaders take it, `NodeLoader((graph, graph), …)`. Read-only.

    Tensors of a node type, by `attr_name`:

    - `x`: the features as they are stored, bfloat16 included; all rows are the mapped pages. A type
      without features has none.
    - `y`: class numbers as int64, −1 for "no label"; multi-label: float32 0 and 1.
    - `train_mask`, `val_mask`, `test_mask`: bool.

    An edge type has the tensor `edge_weight`, where edges have weights, and its edge index in CSC
    layout. As in PyG's `Data`, a homogeneous graph lists its only types as None; both names are
    understood. Writing and removing is refused: PyG's methods return False.

    Of all forms of a graph that PyG's samplers accept, this one costs the least memory. pyg-lib
    reads the mapped `indices`; only `indptr` is copied, 4 bytes a node. torch-sparse reads 64-bit
    numbers alone: where `indices` are int32 they are copied, 8 bytes an edge on every rank, for all
    loaders of a `PyGGraph` together. (A `Data` with an `edge_index` takes 16 bytes an edge.)
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        GraphStore.__init__(self)
        self._graph = graph
        self._is_homogeneous = len(graph.nodes) == len(graph.edges) == 1
        # Converted arrays are kept.
        self._tensors: dict[tuple[NodeType | EdgeType, str], Tensor | None] = {}
        self._edge_index: dict[EdgeType, tuple[Tensor, Tensor]] = {}

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """The tensors of all node types."""
        return [
            TensorAttr(None if self._is_homogeneous else name, attribute)
            for name, nodes in self._graph.nodes.items()
            for attribute in _ATTRIBUTES
            if attribute != "x" or nodes.num_features or self._is_homogeneous
            if attribute != "y" or nodes.labels is not None
            if attribute not in _MASKS or _MASKS[attribute] in nodes.splits
        ]

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """The edge index of each edge type, in CSC layout."""
        attrs = []
        for name in self._graph.edges:
            src, _, dst = name
            size = len(self._graph.nodes[src]), len(self._graph.nodes[dst])
            shown = None if self._is_homogeneous else name
            attrs.append(EdgeAttr(shown, EdgeLayout.CSC, size=size))
        return attrs

    def _get_tensor(self, attr: TensorAttr) -> Tensor | None:
        group = attr.group_name
        if group is None and self._is_homogeneous:
            (group,) = self._graph.nodes
        if (group, attr.attr_name) not in self._tensors:
            self._tensors[group, attr.attr_name] = self._new_tensor(group, attr.attr_name)
        tensor = self._tensors[group, attr.attr_name]
        return tensor if tensor is None or attr.index is None else tensor[attr.index]

    def _new_tensor(self, group: NodeType | EdgeType, attribute: str) -> Tensor | None:
        if group in self._graph.nodes:
            return _tensor_of(self._graph.nodes[cast(NodeType, group)], attribute)
        edges = self._graph.edges.get(cast(EdgeType, group))
        if edges is None or edges.weight is None or attribute != "edge_weight":
            return None
        return as_tensor(edges.weight)

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        tensor = self._get_tensor(attr)
        return None if tensor is None else tuple(tensor.shape)

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[Tensor, Tensor] | None:
        """Source nodes `[num_edges]` and offsets `[num_dst + 1]`, of one integer type."""
        name = edge_attr.edge_type
        if name is None and self._is_homogeneous:
            (name,) = self._graph.edges
        if name not in self._graph.edges or edge_attr.layout != EdgeLayout.CSC:
            return None
        if name not in self._edge_index:
            self._edge_index[name] = pyg_csc(self._graph.edges[name])
        return self._edge_index[name]

    def _refuse(self, *_: Any) -> bool:
        """PyG's answer to a write that failed."""
        return False

    _put_tensor = _remove_tensor = _put_edge_index = _remove_edge_index = _refuse


def _tensor_of(nodes: Nodes, attribute: str) -> Tensor | None:
    if attribute == "x":
        rows = as_tensor(nodes.features)
        return rows.view(torch.bfloat16) if nodes.feature_dtype == "bfloat16" else rows
    if attribute == "y" and nodes.labels is not None:
        labels = as_tensor(nodes.labels)
        return labels.long() if labels.dim() == 1 else labels.float()
    split = nodes.splits.get(_MASKS.get(attribute, ""))
    if split is None:
        return None
    mask = torch.zeros(len(nodes), dtype=torch.bool)
    mask[as_tensor(split)] = True
    return mask


def pyg_csc(edges: Edges) -> tuple[Tensor, Tensor]:
    """Source nodes and offsets, in the type that PyG's sampling library reads.

    Nothing is copied that has this type already, see `PyGGraph`.
    """
    narrow = torch_geometric.typing.WITH_PYG_LIB and len(edges) <= np.iinfo(np.int32).max
    # Offsets, indices and seeds must be of one type.
    dtype = edges.indices.dtype if narrow else np.dtype(np.int64)
    indices = as_tensor(edges.indices.astype(dtype, copy=False))
    return indices, as_tensor(edges.indptr.astype(dtype, copy=False))


def graph_of(
    feature_store: FeatureStore,
    graph_store: GraphStore,
    *,
    dataset: str = "graph",
) -> Graph:
    """A graph in memory from PyG's interfaces: a `Data`, a `HeteroData`, or a store of your own.

    Args:
        feature_store: Has a tensor `x` for node types with features, and for one type `y` and the
            masks `train_mask`, `val_mask` and `test_mask`, as `PyGGraph` describes them.
        graph_store: Has the edges in any layout, and the size of types without features.
        dataset: Name of the data set.

    Raises:
        ValueError: Not exactly one node type has labels, or the size of one is not known.
    """
    tensors: dict[NodeType, dict[str, Tensor]] = defaultdict(dict)
    for attr in feature_store.get_all_tensor_attrs():
        if attr.attr_name in _ATTRIBUTES:
            if not attr.is_set("group_name"):  # a `Data` leaves it open
                attr.group_name = None
            attr.index = None
            value = torch.as_tensor(feature_store.get_tensor(attr))
            tensors[attr.group_name or NODE][attr.attr_name] = value
    nodes = {name: _nodes_of(given) for name, given in tensors.items() if "x" in given}
    for name, size in _sizes_by_edges(graph_store).items():
        if name not in nodes:
            nodes[name] = _nodes_of({"x": torch.empty(size, 0), **tensors[name]})
    labels = {name: each.labels for name, each in nodes.items() if each.labels is not None}
    if len(labels) != 1:
        raise ValueError(f"{len(labels)} node types have labels instead of one")
    ((target, given_labels),) = labels.items()
    task, num_classes = infer_label_kind(given_labels)
    return Graph(
        target=target,
        nodes=nodes,
        edges=_edges_by_type(graph_store, nodes),
        dataset=dataset,
        task=task,
        metric=DEFAULT_METRICS[task],
        num_classes=num_classes,
    )


def _sizes_by_edges(store: GraphStore) -> dict[NodeType, int]:
    """The number of nodes of each type, as far as edges tell it."""
    sizes = {}
    for attr in store.get_all_edge_attrs():
        if attr.edge_type is not None and attr.size is not None:
            for name, size in zip(attr.edge_type[::2], attr.size, strict=True):
                if size is not None:
                    sizes[name] = size
    return sizes


_ARRAY_TYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


def _nodes_of(tensors: Mapping[str, Tensor]) -> Nodes:
    x, y = tensors["x"].contiguous(), tensors.get("y")
    if x.dtype not in _ARRAY_TYPES:
        x = x.float()
    feature_dtype = _ARRAY_TYPES[x.dtype]
    stored = x.view(torch.uint16) if x.dtype == torch.bfloat16 else x
    labels: AnyArray | None = None
    if y is not None:
        labels = _labels_of(y)
        labels = labels.astype(np.int32 if labels.ndim == 1 else np.uint8)
    splits = {
        split: np.flatnonzero(tensors[name].numpy())
        for name, split in _MASKS.items()
        if name in tensors
    }
    return Nodes(stored.numpy(), cast(FeatureDtype, feature_dtype), labels, splits)


def _edges_by_type(store: GraphStore, nodes: Mapping[NodeType, Nodes]) -> dict[EdgeType, Edges]:
    src, dst, _ = store.coo()
    if isinstance(src, Tensor):
        src, dst = {EDGE: src}, {EDGE: dst}
    return {
        name: in_edges(
            src[name].numpy(),
            dst[name].numpy(),
            num_src=len(nodes[name[0]]),
            num_dst=len(nodes[name[2]]),
            has_norm=name[0] == name[2],
        )
        for name in src
    }


def _array(tensor: Tensor) -> AnyArray:
    array: AnyArray = tensor.detach().cpu().numpy()
    return array


def _labels_of(y: Tensor) -> AnyArray:
    """Class numbers, int64 `[num_nodes]`, or labels as they are, `[num_nodes, num_classes]`."""
    labels = _array(y[:, 0] if y.shape[1:] == (1,) else y)
    return labels.astype(np.int64) if labels.ndim == 1 else labels
