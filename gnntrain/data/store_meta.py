"""`meta.json` of a graph store: its schema and its checks."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Collection, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gnntrain.data.graph import JSON, SPLITS
from gnntrain.data.preprocessing import Preprocessing
from gnntrain.data.summary import DataSummary
from gnntrain.errors import RunError
from gnntrain.metrics import LabelKind

FORMAT: Final = "gnntrain-store"
VERSION: Final = 1
HETERO_VERSION: Final = 2
META_FILE = "meta.json"
SEAL_FILE = ".verified.json"
OPTIONAL_ARRAYS = ("edge_weight", "node_ids", "class_names")
ARRAYS = (
    *("indptr", "indices", "features", "labels", "gcn_norm"),
    *(f"split_{name}" for name in SPLITS),
    *OPTIONAL_ARRAYS,
)


class StoreError(RunError):
    """A store that cannot be used; `reason` names the file and the error."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"the graph store {path} cannot be used: {reason}",
            "run `gnntrain prepare` with the same options to build it again",
        )
        self.path, self.reason = path, reason


class Meta(BaseModel):
    """Strict and frozen: unknown fields and wrong types are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ArrayMeta(Meta):
    """One array: its file and what must be in it. `dtype` is logical; bfloat16 lies as uint16."""

    file: str = Field(pattern=r"^[a-z0-9_]+\.npy$")
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    checksum: str

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint16 if self.dtype == "bfloat16" else self.dtype)


class NodeTypeMeta(Meta):
    """A type of nodes."""

    name: str
    num_nodes: int = Field(ge=1)
    num_features: int = Field(ge=0)


class HeteroNodeTypeMeta(NodeTypeMeta):
    """A type of nodes of a typed graph."""

    feature_names: tuple[str, ...] | None = None
    preprocessing: Preprocessing | None = None


class EdgeTypeMeta(Meta):
    """A type of edges; `name` is source type, relation, destination type."""

    name: tuple[str, str, str]
    num_edges: int = Field(ge=0)


class GraphMeta(Meta):
    """A graph's metadata, of a store or a partition; `digest` is taken over all other fields.

    `arrays` are the files beside the metadata. `lowest` is what `normalize_features` subtracted, by
    node type.
    """

    version: int
    made_by: str
    dataset: str
    task: LabelKind
    metric: str
    ogb_name: str | None
    num_classes: int = Field(ge=1)
    options: dict[str, JSON]
    arrays: dict[str, ArrayMeta]
    feature_names: tuple[str, ...] | None = None
    summary: DataSummary | None = None
    preprocessing: Preprocessing | None = None
    lowest: dict[str, float] | None = None
    digest: str = Field(exclude=True)

    @property
    def preprocessing_by_type(self) -> dict[str, Preprocessing] | None:
        """The preprocessing of the node types of a typed graph that have some; None of others."""
        return None


class StoreMeta(GraphMeta):
    """The content of `meta.json` of a homogeneous graph (version 1)."""

    format: Literal["gnntrain-store"]
    node_types: tuple[NodeTypeMeta, ...] = Field(min_length=1, max_length=1)
    edge_types: tuple[EdgeTypeMeta, ...] = Field(min_length=1, max_length=1)
    identity: dict[str, JSON]

    @property
    def content_digest(self) -> str:
        """Digest of the arrays' checksums and their meaning, not of their origin.

        Raw files may be moved or touched. Names of classes do not count: the model does not learn
        them.
        """
        return digest_of(self._content())

    @property
    def target_type(self) -> NodeTypeMeta:
        """The type of nodes that have the labels."""
        return self.node_types[0]

    @property
    def feature_dtype(self) -> str:
        """Type of the features, that of all node types."""
        return next(meta.dtype for name, meta in self.arrays.items() if name.startswith("features"))

    def _content(self) -> dict[str, object]:
        arrays = {name: array for name, array in self.arrays.items() if name != "class_names"}
        return {
            "arrays": {name: array.checksum for name, array in arrays.items()},
            "dtypes": {name: array.dtype for name, array in arrays.items()},
            "task": self.task,
            "metric": self.metric,
            "num_classes": self.num_classes,
        }


class HeteroStoreMeta(StoreMeta):
    """The content of `meta.json` of a typed graph (version 2).

    `indptr` and `indices` are those of a `FusedCSC`. Features and ids of the node type at position
    i are the arrays `features_<i>` and `node_ids_<i>`; labels and splits are the target type's.
    """

    node_types: tuple[HeteroNodeTypeMeta, ...] = Field(min_length=1)
    edge_types: tuple[EdgeTypeMeta, ...] = Field(min_length=1)
    target: str

    @property
    def target_type(self) -> NodeTypeMeta:
        return next(kind for kind in self.node_types if kind.name == self.target)

    @property
    def preprocessing_by_type(self) -> dict[str, Preprocessing]:
        """See `GraphMeta`."""
        made_by = {kind.name: kind.preprocessing for kind in self.node_types}
        return {name: done for name, done in made_by.items() if done is not None}

    def _content(self) -> dict[str, object]:
        node_types = [kind.name for kind in self.node_types]
        edge_types = [list(kind.name) for kind in self.edge_types]
        types = {"node_types": node_types, "edge_types": edge_types, "target": self.target}
        return super()._content() | types


def canonical_json(value: object) -> str:
    """JSON of `value` with sorted keys and no blanks, from which digests are computed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest_of(value: object, num_bytes: int = 20) -> str:
    """Hexadecimal BLAKE2b digest of a JSON value's canonical spelling."""
    return blake2b(canonical_json(value).encode(), digest_size=num_bytes).hexdigest()


_Schema = TypeVar("_Schema", bound=GraphMeta)


def read_meta(path: Path) -> StoreMeta:
    """Read and check `meta.json` of the store at `path`; raises `StoreError`."""
    schemas: dict[int, type[StoreMeta]] = {VERSION: StoreMeta, HETERO_VERSION: HeteroStoreMeta}
    meta = read_description(path, META_FILE, FORMAT, schemas)
    if isinstance(meta, HeteroStoreMeta):
        _check_hetero_store(path, meta)
    else:
        _check_store(path, meta)
    return meta


def read_description(
    path: Path, file: str, file_format: str, schemas: Mapping[int, type[_Schema]]
) -> _Schema:
    """Read a graph's metadata from `path / file`, and check its format, version and digest.

    Args:
        path: The folder.
        file: The file.
        file_format: Its format.
        schemas: Its schema in each version that can be read.

    Raises:
        StoreError: It is missing, damaged, or of another format or version.
    """
    try:
        if not stat.S_ISREG((path / file).lstat().st_mode):
            raise StoreError(path, f"{file} is no regular file")
        text = (path / file).read_bytes()
        raw = json.loads(text)
    except FileNotFoundError:
        what = f"it has no {file}" if path.is_dir() else "it does not exist"
        raise StoreError(path, what) from None
    except OSError as error:
        raise StoreError(path, f"{file} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError):
        raise StoreError(path, f"{file} is not valid JSON") from None
    if not isinstance(raw, dict) or raw.get("format") != file_format:
        raise StoreError(path, f"{file} does not describe a {file_format}")
    version = raw.get("version")
    schema = schemas.get(version) if isinstance(version, int) else None
    if schema is None:
        known = " and ".join(map(str, schemas))
        raise StoreError(path, f"it has format version {version}, this gnntrain reads {known}")
    if raw.pop("digest", None) != digest_of(raw):
        raise StoreError(path, f"{file} was changed: its digest does not match")
    try:
        return schema.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise StoreError(path, f"{file}: {where}: {first['msg']}") from None


def write_description(path: Path, meta: GraphMeta) -> None:
    """Write a graph's metadata with its digest, and flush it to disk."""
    content = meta.model_dump(mode="json")
    content["digest"] = digest_of(content)
    with path.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


Expected = Mapping[str, tuple[str, tuple[int, ...]]]
"""By array: a regular expression for its type, and its shape."""


def expected_arrays(
    meta: GraphMeta, num_nodes: int, num_edges: int, num_features: int
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Types and shapes of the arrays of that many nodes and in-edges."""
    ids = r"int64|\|S[1-9][0-9]*"
    labels = {
        "multilabel": ("uint8", (num_nodes, meta.num_classes)),
        "continuous": ("float32|float64", (num_nodes, meta.num_classes)),
    }
    return {
        "indptr": ("int64", (num_nodes + 1,)),
        "indices": ("int32|int64", (num_edges,)),
        "edge_weight": ("float32", (num_edges,)),
        "features": ("float32|float16|bfloat16", (num_nodes, num_features)),
        "labels": labels.get(meta.task, ("int32", (num_nodes,))),
        "gcn_norm": ("float32", (num_nodes,)),
        "node_ids": (ids, (num_nodes,)),
        "class_names": (ids, (meta.num_classes,)),
    }


def _check_store(path: Path, meta: StoreMeta) -> None:
    nodes, edges = meta.node_types[0], meta.edge_types[0]
    expected = expected_arrays(meta, nodes.num_nodes, edges.num_edges, nodes.num_features)
    check_arrays(path, META_FILE, meta.arrays, ARRAYS, expected)


def _check_hetero_store(path: Path, meta: HeteroStoreMeta) -> None:
    refuse_broken_schema(path, META_FILE, meta)
    sizes = {kind.name: kind.num_nodes for kind in meta.node_types}
    num_edges = sum(kind.num_edges for kind in meta.edge_types)
    expected, optional = expected_typed_arrays(meta, meta, sizes, num_edges)
    whole = expected_arrays(meta, 0, 0, 0)
    expected |= {"class_names": whole["class_names"]}
    names = [*expected, *(f"split_{name}" for name in SPLITS)]
    check_arrays(path, META_FILE, meta.arrays, names, expected, ("class_names", *optional))


class TypedMeta(Protocol):
    """The types of a graph in its metadata."""

    @property
    def node_types(self) -> tuple[HeteroNodeTypeMeta, ...]: ...

    @property
    def edge_types(self) -> tuple[EdgeTypeMeta, ...]: ...

    @property
    def target(self) -> str: ...


def refuse_broken_schema(path: Path, file: str, types: TypedMeta) -> None:
    """Raise a `StoreError` where types are listed twice, or named and not listed."""
    node_types = [kind.name for kind in types.node_types]
    edge_types = [kind.name for kind in types.edge_types]
    ends = {end for source, _, destination in edge_types for end in (source, destination)}
    for name in sorted({types.target, *ends} - set(node_types)):
        raise StoreError(path, f"{file} does not list the node type {name!r}")
    if len(set(node_types)) < len(node_types) or len(set(edge_types)) < len(edge_types):
        raise StoreError(path, f"{file} lists a type twice")


def expected_typed_arrays(
    meta: GraphMeta, types: TypedMeta, sizes: Mapping[str, int], num_edges: int
) -> tuple[dict[str, tuple[str, tuple[int, ...]]], list[str]]:
    """Types and shapes of the arrays of a typed graph, or of a part of one; and those of them that
    may be missing.

    Args:
        meta: The graph's metadata.
        types: Its types.
        sizes: Nodes of each type.
        num_edges: Edges of all types.
    """
    expected = expected_arrays(meta, sizes[types.target], num_edges, 0)
    for name in ("edge_weight", "features", "node_ids", "class_names"):
        del expected[name]
    offsets = sum(sizes[kind.name[2]] + 1 for kind in types.edge_types)
    expected["indptr"] = ("int64", (offsets,))
    optional = ["gcn_norm"]
    for number, kind in enumerate(types.node_types):
        of_kind = expected_arrays(meta, sizes[kind.name], 0, kind.num_features)
        expected[f"features_{number}"] = of_kind["features"]
        expected[f"node_ids_{number}"] = of_kind["node_ids"]
        optional.append(f"node_ids_{number}")
    return expected, optional


def is_array_file(name: str) -> bool:
    """Whether a file of a store may have this name, with the ending `.npy`."""
    stem = re.sub(r"(features|node_ids)_[0-9]+", r"\1", name.removesuffix(".npy"))
    return name.endswith(".npy") and stem in ARRAYS


def check_arrays(
    path: Path,
    file: str,
    arrays: Mapping[str, ArrayMeta],
    names: Collection[str],
    expected: Expected,
    optional: Collection[str] = OPTIONAL_ARRAYS,
) -> None:
    """Compare the arrays' types and shapes with the sizes: a kernel must not read beyond them.

    Args:
        path: The folder to name in an error.
        file: The file that lists the arrays.
        arrays: The arrays it lists.
        names: The arrays it should list.
        expected: Their types and shapes; of others: int64, with one dimension.
        optional: Those of `names` that may be missing.

    Raises:
        StoreError: At the first difference.
    """
    for name in sorted(arrays.keys() - set(names)):
        raise StoreError(path, f"{file} lists an unknown array {name!r}")
    for name in names:
        array = arrays.get(name)
        if array is not None:
            dtype, shape = expected.get(name, ("int64", array.shape[:1] or (0,)))
            if name == "gcn_norm" and len(array.shape) == 2:  # with the weights of self loops
                shape = (*shape, 2)
            if array.shape != shape or not re.fullmatch(dtype, array.dtype):
                found = f"{array.dtype} {list(array.shape)}"
                raise StoreError(path, f"{file} gives {name} as {found}")
        elif name not in optional:
            raise StoreError(path, f"{file} does not list {name}")
