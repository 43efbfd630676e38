"""Graphs behind PyG's interfaces `FeatureStore` and `GraphStore`.

Apart from `gnntrain.data.graph`, because importing PyG takes a second.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch_geometric.typing
from torch import Tensor
from torch_geometric.data import EdgeAttr, FeatureStore, GraphStore, TensorAttr
from torch_geometric.data.graph_store import EdgeLayout

from gnntrain.compute.features import as_tensor
from gnntrain.data.graph import SPLITS, EdgeType, Graph, Nodes, NodeType

_MASKS = {f"{split}_mask": split for split in SPLITS}


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
        attrs = []
        for name, nodes in self._graph.nodes.items():
            names = ["x"] if nodes.num_features or self._is_homogeneous else []
            names += ["y"] if nodes.labels is not None else []
            names += [mask for mask, split in _MASKS.items() if split in nodes.splits]
            shown = None if self._is_homogeneous else name
            attrs += [TensorAttr(shown, attribute) for attribute in names]
        return attrs

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """The edge index of each edge type, in CSC layout."""
        nodes = self._graph.nodes
        return [
            EdgeAttr(
                None if self._is_homogeneous else name,
                EdgeLayout.CSC,
                size=(len(nodes[name[0]]), len(nodes[name[2]])),
            )
            for name in self._graph.edges
        ]

    def _get_tensor(self, attr: TensorAttr) -> Tensor | None:
        group, attribute = attr.group_name, attr.attr_name
        if group is None and self._is_homogeneous:
            (group,) = self._graph.nodes
        if (group, attribute) not in self._tensors:
            tensor = None
            if group in self._graph.nodes:
                tensor = _tensor_of(self._graph.nodes[group], attribute)
            elif group in self._graph.edges and attribute == "edge_weight":
                weight = self._graph.edges[group].weight
                tensor = None if weight is None else as_tensor(weight)
            self._tensors[group, attribute] = tensor
        tensor = self._tensors[group, attribute]
        return tensor if tensor is None or attr.index is None else tensor[attr.index]

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
            edges = self._graph.edges[name]
            # PyG's library reads offsets, indices and seeds of one type.
            narrow = torch_geometric.typing.WITH_PYG_LIB and len(edges) <= np.iinfo(np.int32).max
            dtype = edges.indices.dtype if narrow else np.dtype(np.int64)
            indices, indptr = (
                as_tensor(array.astype(dtype, copy=False))
                for array in (edges.indices, edges.indptr)
            )
            self._edge_index[name] = indices, indptr
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
