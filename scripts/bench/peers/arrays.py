"""A graph's store, as a peer reads it. Imports nothing of gnntrain."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from scripts.bench.peers.turns import Spec

EdgeType = tuple[str, str, str]


@dataclass(frozen=True)
class Arrays:
    """A graph's arrays by type; a homogeneous graph has one node type and one edge type.

    Attributes:
        num_nodes: Number of nodes of each type.
        target: The type of the seeds.
        features: Of each node type with features, `[num_nodes, num_features]`.
        labels: int64, of the target type.
        train: int64, the training seeds.
        edges: Of each edge type: the offsets of its destinations, and the sources, see `FusedCSC`.
    """

    num_nodes: dict[str, int]
    target: str
    features: dict[str, Tensor]
    labels: Tensor
    train: Tensor
    edges: dict[EdgeType, tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, spec: Spec) -> Arrays:
        """Open a store."""

        def tensor(file: str) -> Tensor:
            return torch.from_numpy(np.load(Path(spec.store) / file))

        indptr, indices = tensor("indptr.npy"), tensor("indices.npy")
        types = spec.types or {
            "num_nodes": {"node": len(indptr) - 1},
            "edge_types": [("node", "to", "node")],
            "target": "node",
            "features": {"node": "features_0.npy"},
        }
        edges, offset, first = {}, 0, 0
        for source, relation, destination in types["edge_types"]:
            end = offset + types["num_nodes"][destination] + 1
            offsets = indptr[offset:end]
            sources = indices[first : first + int(offsets[-1])]
            edges[source, relation, destination] = offsets, sources
            offset, first = end, first + len(sources)
        return cls(
            num_nodes=types["num_nodes"],
            target=types["target"],
            features={name: tensor(file) for name, file in types["features"].items()},
            labels=tensor("labels.npy").long(),
            train=tensor("split_train.npy"),
            edges=edges,
        )

    @property
    def width(self) -> int:
        """Numbers a feature row, the same of all types."""
        (width,) = {rows.shape[1] for rows in self.features.values()}
        return width

    def embeddings(self, *, sparse: bool) -> nn.ModuleDict:
        """Learnt rows of the types without features, as wide as the others'."""
        tables = nn.ModuleDict()
        for name, size in self.num_nodes.items():
            if name not in self.features:
                tables[name] = table = nn.Embedding(size, self.width, sparse=sparse)
                nn.init.xavier_uniform_(table.weight)
        return tables
