"""`meta.json` of a graph store: its schema and its checks."""

from __future__ import annotations

import json
import re
import stat
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gnntrain.data.graph import JSON, SPLITS
from gnntrain.data.preprocessing import Preprocessing
from gnntrain.data.summary import DataSummary
from gnntrain.errors import RunError
from gnntrain.metrics import LabelKind

FORMAT: Final = "gnntrain-store"
VERSION: Final = 1
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
        self.reason = reason


class _Meta(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ArrayMeta(_Meta):
    """One array: its file and what must be in it. `dtype` is logical; bfloat16 lies as uint16."""

    file: str = Field(pattern=r"^[a-z0-9_]+\.npy$")
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    checksum: str

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint16 if self.dtype == "bfloat16" else self.dtype)


class NodeTypeMeta(_Meta):
    """A type of nodes (one today)."""

    name: str
    num_nodes: int = Field(ge=1)
    num_features: int = Field(ge=0)


class EdgeTypeMeta(_Meta):
    """A type of edges (one today); `name` is source type, relation, destination type."""

    name: tuple[str, str, str]
    num_edges: int = Field(ge=0)


class StoreMeta(_Meta):
    """The content of `meta.json`; `digest` is taken over all the rest of it."""

    format: Literal["gnntrain-store"]
    version: int
    made_by: str
    dataset: str
    task: LabelKind
    metric: str
    ogb_name: str | None
    num_classes: int = Field(ge=1)
    node_types: tuple[NodeTypeMeta, ...] = Field(min_length=1, max_length=1)
    edge_types: tuple[EdgeTypeMeta, ...] = Field(min_length=1, max_length=1)
    identity: dict[str, JSON]
    options: dict[str, JSON]
    arrays: dict[str, ArrayMeta]
    feature_names: tuple[str, ...] | None = None
    summary: DataSummary | None = None
    preprocessing: Preprocessing | None = None
    digest: str = Field(exclude=True)


def canonical_json(value: object) -> str:
    """JSON of `value` with sorted keys and no blanks, from which digests are computed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest_of(value: object, num_bytes: int = 20) -> str:
    """Hexadecimal BLAKE2b digest of a JSON value's canonical spelling."""
    return blake2b(canonical_json(value).encode(), digest_size=num_bytes).hexdigest()


def read_meta(path: Path) -> StoreMeta:
    """Read and check `meta.json` of the store at `path`; raises `StoreError`."""
    try:
        if not stat.S_ISREG((path / META_FILE).lstat().st_mode):
            raise StoreError(path, f"{META_FILE} is no regular file")
        text = (path / META_FILE).read_bytes()
        raw = json.loads(text)
    except FileNotFoundError:
        what = f"it has no {META_FILE}" if path.is_dir() else "it does not exist"
        raise StoreError(path, what) from None
    except OSError as error:
        raise StoreError(path, f"{META_FILE} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError):
        raise StoreError(path, f"{META_FILE} is not valid JSON") from None
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise StoreError(path, f"{META_FILE} does not describe a {FORMAT}")
    if raw.get("version") != VERSION:
        raise StoreError(
            path, f"it has format version {raw.get('version')}, this gnntrain reads {VERSION}"
        )
    if raw.pop("digest", None) != digest_of(raw):
        raise StoreError(path, f"{META_FILE} was changed: its digest does not match")
    try:
        meta = StoreMeta.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise StoreError(path, f"{META_FILE}: {where}: {first['msg']}") from None
    _check_arrays(path, meta)
    return meta


def _check_arrays(path: Path, meta: StoreMeta) -> None:
    """Compare the arrays' types and shapes with the sizes: a kernel must not read beyond them."""
    num_nodes, num_edges = meta.node_types[0].num_nodes, meta.edge_types[0].num_edges
    names = r"int64|\|S[1-9][0-9]*"
    expected: dict[str, tuple[str, tuple[int, ...]]] = {
        "indptr": ("int64", (num_nodes + 1,)),
        "indices": ("int32|int64", (num_edges,)),
        "edge_weight": ("float32", (num_edges,)),
        "features": ("float32|float16|bfloat16", (num_nodes, meta.node_types[0].num_features)),
        "labels": ("int32", (num_nodes,)),
        "gcn_norm": ("float32", (num_nodes,)),
        "node_ids": (names, (num_nodes,)),
        "class_names": (names, (meta.num_classes,)),
    }
    if meta.task in ("multilabel", "continuous"):
        kind = "uint8" if meta.task == "multilabel" else "float32"
        expected["labels"] = (kind, (num_nodes, meta.num_classes))
    for name in sorted(meta.arrays.keys() - set(ARRAYS)):
        raise StoreError(path, f"{META_FILE} lists an unknown array {name!r}")
    for name in ARRAYS:
        array = meta.arrays.get(name)
        if array is not None:
            dtype, shape = expected.get(name, ("int64", array.shape[:1] or (0,)))
            if array.shape != shape or not re.fullmatch(dtype, array.dtype):
                found = f"{array.dtype} {list(array.shape)}"
                raise StoreError(path, f"{META_FILE} gives {name} as {found}")
        elif name not in OPTIONAL_ARRAYS:
            raise StoreError(path, f"{META_FILE} does not list {name}")
