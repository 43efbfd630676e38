"""`partition.json`: what a graph's parts are, and what is in each file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

import numpy as np
from pydantic import Field

from gnntrain.data.graph import (
    EDGE,
    JSON,
    NODE,
    SPLITS,
    EdgeType,
    FeatureDtype,
    GraphSchema,
    Int64Array,
    NodeType,
    index_dtype,
)
from gnntrain.data.preprocessing import Preprocessing
from gnntrain.data.store_meta import (
    OPTIONAL_ARRAYS,
    ArrayMeta,
    EdgeTypeMeta,
    GraphMeta,
    HeteroNodeTypeMeta,
    Meta,
    StoreError,
    check_arrays,
    expected_arrays,
    expected_typed_arrays,
    read_description,
    refuse_broken_schema,
)
from gnntrain.data.target_scale import TargetScale
from gnntrain.errors import UserError

PARTITION_FORMAT: Final = "gnntrain-partition"
PARTITION_VERSION: Final = 1
HETERO_PARTITION_VERSION: Final = 2
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


class HeteroPartMeta(PartMeta):
    """One part of a typed graph.

    Attributes:
        node_counts: Its nodes of each type.
        edge_counts: Its edges of each type.
    """

    node_counts: tuple[int, ...]
    edge_counts: tuple[int, ...]


class PartitionMeta(GraphMeta):
    """The content of `partition.json`; `arrays` are those of the whole graph.

    Attributes:
        source: The content digest of the store that was partitioned.
        identity: That store's, see `StoreMeta`.
        method: How nodes were assigned to parts.
        num_features: Features a node, of the target type.
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
    def graph_schema(self) -> GraphSchema:
        """The types of the whole graph."""
        return GraphSchema({NODE: self.num_nodes}, {NODE: self.num_features}, (EDGE,), NODE)

    @property
    def edge_counts(self) -> dict[EdgeType, int]:
        """Edges of each type in the whole graph."""
        return {EDGE: self.num_edges}

    @property
    def feature_names_by_type(self) -> dict[NodeType, tuple[str, ...] | None]:
        """Names of the features of each node type, where they have some."""
        return {NODE: self.feature_names}

    @property
    def starts(self) -> dict[NodeType, Int64Array]:
        """By node type, first node of each part, and the number of nodes: int64
        `[num_parts + 1]`."""
        return {NODE: _starts(part.num_nodes for part in self.parts)}


class HeteroPartitionMeta(PartitionMeta):
    """The content of `partition.json` of a typed graph (version 2).

    A part's `indptr` and `indices` are those of a `FusedCSC`. Features, ids and original numbers of
    the node type at position i are the arrays `features_<i>`, `node_ids_<i>` and `original_<i>`; of
    a type without features the original numbers of all nodes are beside `partition.json`, too: a
    model's rows for them have the original order.
    """

    node_types: tuple[HeteroNodeTypeMeta, ...] = Field(min_length=1)
    edge_types: tuple[EdgeTypeMeta, ...] = Field(min_length=1)
    target: str
    parts: tuple[HeteroPartMeta, ...] = Field(min_length=1)

    @property
    def graph_schema(self) -> GraphSchema:
        """The types of the whole graph."""
        return GraphSchema(
            num_nodes={kind.name: kind.num_nodes for kind in self.node_types},
            num_features={kind.name: kind.num_features for kind in self.node_types},
            edge_types=tuple(kind.name for kind in self.edge_types),
            target=self.target,
        )

    @property
    def edge_counts(self) -> dict[EdgeType, int]:
        return {kind.name: kind.num_edges for kind in self.edge_types}

    @property
    def feature_names_by_type(self) -> dict[NodeType, tuple[str, ...] | None]:
        return {kind.name: kind.feature_names for kind in self.node_types}

    @property
    def preprocessing_by_type(self) -> dict[str, Preprocessing]:
        """See `GraphMeta`."""
        made_by = {kind.name: kind.preprocessing for kind in self.node_types}
        return {name: done for name, done in made_by.items() if done is not None}

    @property
    def starts(self) -> dict[NodeType, Int64Array]:
        return {
            kind.name: _starts(part.node_counts[number] for part in self.parts)
            for number, kind in enumerate(self.node_types)
        }


def _starts(lengths: Iterable[int]) -> Int64Array:
    return np.cumsum([0, *lengths], dtype=np.int64)


def feature_dtype_of(part: PartMeta) -> FeatureDtype:
    """Type of the features, that of all parts and node types."""
    kinds = (meta.dtype for name, meta in part.arrays.items() if name.startswith("features"))
    return cast(FeatureDtype, next(kinds))


def part_folder(path: Path, number: int) -> Path:
    """The folder of one part of the partition at `path`."""
    return path / f"part{number}"


def read_partition(path: Path) -> PartitionMeta:
    """Read and check `partition.json` in the folder `path`; raises `StoreError`."""
    schemas: dict[int, type[PartitionMeta]] = {
        PARTITION_VERSION: PartitionMeta,
        HETERO_PARTITION_VERSION: HeteroPartitionMeta,
    }
    meta = read_description(path, PARTITION_FILE, PARTITION_FORMAT, schemas)
    if isinstance(meta, HeteroPartitionMeta):
        _check_hetero(path, meta)
        return meta
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


def _check_hetero(path: Path, meta: HeteroPartitionMeta) -> None:
    schema = meta.graph_schema
    refuse_broken_schema(path, PARTITION_FILE, meta)
    shared = expected_arrays(meta, 1, 0, 0)
    originals = []
    for number, kind in enumerate(meta.node_types):
        if kind.num_features == 0:
            originals.append(f"original_{number}")
            shared[originals[-1]] = ("int64", (kind.num_nodes,))
    names = (*SHARED_ARRAYS, *originals)
    check_arrays(path, PARTITION_FILE, meta.arrays, names, shared)
    index = index_dtype(max(schema.num_nodes.values())).name
    for number, part in enumerate(meta.parts):
        where = f"{PARTITION_FILE}: part {number}"
        if (len(part.node_counts), len(part.edge_counts)) != (
            len(meta.node_types),
            len(meta.edge_types),
        ):
            raise StoreError(path, f"{where} has another number of types")
        sizes = dict(zip(schema.num_nodes, part.node_counts, strict=True))
        expected, optional = expected_typed_arrays(meta, meta, sizes, sum(part.edge_counts))
        expected |= {"indices": (index, (sum(part.edge_counts),))}
        for i, size in enumerate(part.node_counts):
            expected[f"original_{i}"] = ("int64", (size,))
        check_arrays(path, where, part.arrays, list(expected), expected, optional)
        kinds = {name: array.dtype for name, array in part.arrays.items()}
        if kinds != {name: array.dtype for name, array in meta.parts[0].arrays.items()}:
            raise StoreError(path, f"{where} has other arrays than part 0")
    for number, (name, size) in enumerate(schema.num_nodes.items()):
        if sum(part.node_counts[number] for part in meta.parts) != size:
            raise StoreError(path, f"{PARTITION_FILE}: the parts have not all nodes of {name}")


def _refuse_unequal_parts(path: Path, meta: PartitionMeta) -> None:
    """An optional array, and the type of features, is that of all parts."""
    first = meta.parts[0].arrays
    for number, part in enumerate(meta.parts):
        same_features = part.arrays["features"].dtype == first["features"].dtype
        if not same_features or any(
            (name in part.arrays) != (name in first) for name in OPTIONAL_ARRAYS
        ):
            raise StoreError(path, f"{PARTITION_FILE}: part {number} has other arrays than part 0")
