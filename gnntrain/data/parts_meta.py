"""`partition.json`: what a graph's parts are, and what is in each file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np
from pydantic import Field

from gnntrain.data.graph import JSON, SPLITS, Int64Array, index_dtype
from gnntrain.data.store_meta import (
    OPTIONAL_ARRAYS,
    ArrayMeta,
    GraphMeta,
    Meta,
    StoreError,
    check_arrays,
    expected_arrays,
    read_description,
)
from gnntrain.data.target_scale import TargetScale
from gnntrain.errors import UserError

PARTITION_FORMAT: Final = "gnntrain-partition"
PARTITION_VERSION: Final = 1
PARTITION_FILE = "partition.json"
SHARED_ARRAYS = (*(f"split_{name}" for name in SPLITS), "class_names")
"""Arrays of the whole graph, beside `partition.json`."""
PART_ARRAYS = (
    *("indptr", "indices", "edge_weight", "features", "labels", "gcn_norm"),
    *("original", "node_ids"),
)
"""Arrays of each part, in its own folder."""

Method = Literal["streaming", "metis", "random"]
METHODS: tuple[Method, ...] = get_args(Method)


class PartitionError(UserError):
    """A partition that cannot be used; `reason` names the file and the error."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"the partition {path} cannot be used: {reason}",
            "Make it with `gnntrain partition --parts N --out DIR` and the keys of the data set.",
        )
        self.reason = reason


class PartMeta(Meta):
    """One part; its files are in the folder `part<number>`."""

    num_nodes: int = Field(ge=1)
    num_edges: int = Field(ge=0)
    num_train: int = Field(ge=0)
    arrays: dict[str, ArrayMeta]

    @property
    def num_bytes(self) -> int:
        """Bytes of all its arrays together."""
        return sum(array.bytes for array in self.arrays.values())


class PartitionMeta(GraphMeta):
    """The content of `partition.json`; `arrays` are those of the whole graph.

    Attributes:
        source: The content digest of the store that was partitioned.
        identity: That store's, see `StoreMeta`.
        method: How nodes were assigned to parts.
        num_features: Features a node.
        cut_edges: Edges whose ends lie in different parts.
        class_counts: By split, its nodes of each class; None for quantities.
        target_scale: The scale of quantities; None for classes.
        target_ranges: By split, see `Graph.target_ranges`; None for classes.
        parts: The parts, in the order of their nodes.
    """

    format: Literal["gnntrain-partition"]
    source: str
    identity: dict[str, JSON]
    method: Method
    num_features: int = Field(ge=0)
    cut_edges: int = Field(ge=0)
    class_counts: dict[str, list[int]] | None
    target_scale: TargetScale | None
    target_ranges: dict[str, list[tuple[float, float] | None]] | None
    parts: tuple[PartMeta, ...] = Field(min_length=1)

    @property
    def num_nodes(self) -> int:
        return sum(part.num_nodes for part in self.parts)

    @property
    def num_edges(self) -> int:
        return sum(part.num_edges for part in self.parts)

    @property
    def starts(self) -> Int64Array:
        """First node of each part, and the number of nodes: int64 `[num_parts + 1]`."""
        return np.cumsum([0, *(part.num_nodes for part in self.parts)], dtype=np.int64)


def part_folder(path: Path, number: int) -> Path:
    """The folder of one part of the partition at `path`."""
    return path / f"part{number}"


def read_partition(path: Path) -> PartitionMeta:
    """Read and check `partition.json` in the folder `path`; raises `StoreError`."""
    schemas = {PARTITION_VERSION: PartitionMeta}
    meta = read_description(path, PARTITION_FILE, PARTITION_FORMAT, schemas)
    index = index_dtype(meta.num_nodes).name
    shared = expected_arrays(meta, meta.num_nodes, meta.num_edges, meta.num_features)
    check_arrays(path, PARTITION_FILE, meta.arrays, SHARED_ARRAYS, shared)
    for number, part in enumerate(meta.parts):
        expected: dict[str, Any] = {
            **expected_arrays(meta, part.num_nodes, part.num_edges, meta.num_features),
            "indices": (index, (part.num_edges,)),
            "original": ("int64", (part.num_nodes,)),
        }
        where = f"{PARTITION_FILE}: part {number}"
        check_arrays(path, where, part.arrays, PART_ARRAYS, expected)
    _refuse_unequal_parts(path, meta)
    return meta


def _refuse_unequal_parts(path: Path, meta: PartitionMeta) -> None:
    """An optional array, and the type of features, is that of all parts."""
    first = meta.parts[0].arrays
    for number, part in enumerate(meta.parts):
        same_features = part.arrays["features"].dtype == first["features"].dtype
        if not same_features or any(
            (name in part.arrays) != (name in first) for name in OPTIONAL_ARRAYS
        ):
            raise StoreError(path, f"{PARTITION_FILE}: part {number} has other arrays than part 0")
