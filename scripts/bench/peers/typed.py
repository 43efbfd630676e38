"""A typed graph's store, as a peer reads it. Imports nothing of gnntrain."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scripts.bench.peers.turns import Spec

EdgeType = tuple[str, str, str]


@dataclass(frozen=True)
class Types:
    """A typed graph's arrays.

    Attributes:
        num_nodes: Number of nodes of each type.
        edge_types: In the order of the arrays.
        target: The type of the seeds.
        features: Of each node type with features, `[num_nodes, num_features]`.
        labels: int64, of the target type.
        train: int64, the training seeds.
        edges: Of each edge type: the offsets of its destinations, and the sources, see `FusedCSC`.
    """

    num_nodes: dict[str, int]
    edge_types: list[EdgeType]
    target: str
    features: dict[str, Tensor]
    labels: Tensor
    train: Tensor
    edges: dict[EdgeType, tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, spec: Spec) -> Types:
        """Open the store of a typed graph."""
        assert spec.types is not None
        given: dict[str, Any] = spec.types
        store = Path(spec.store)
        indptr, indices = _tensor(store, "indptr.npy"), _tensor(store, "indices.npy")
        edge_types: list[EdgeType] = [(a, b, c) for a, b, c in given["edge_types"]]
        edges, offset, first = {}, 0, 0
        for edge_type in edge_types:
            end = offset + given["num_nodes"][edge_type[2]] + 1
            offsets = indptr[offset:end]
            edges[edge_type] = offsets, indices[first : first + int(offsets[-1])]
            offset, first = end, first + int(offsets[-1])
        return cls(
            num_nodes=given["num_nodes"],
            edge_types=edge_types,
            target=given["target"],
            features={name: _tensor(store, file) for name, file in given["features"].items()},
            labels=_tensor(store, given["labels"]).long(),
            train=_tensor(store, given["train"]),
            edges=edges,
        )


def _tensor(store: Path, file: str) -> Tensor:
    return torch.from_numpy(np.load(store / file))
