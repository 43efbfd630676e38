"""The graph store: a directory of memory-mapped arrays, described and sealed by `meta.json`."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gnntrain.data.csc import num_threads
from gnntrain.data.graph import (
    JSON,
    SPLITS,
    AnyArray,
    Float32Array,
    Int64Array,
    IntArray,
    Task,
)
from gnntrain.errors import RunError

FORMAT: Final = "gnntrain-store"
VERSION: Final = 1
META_FILE = "meta.json"
SEAL_FILE = ".verified.json"
OPTIONAL_ARRAYS = ("edge_weight", "node_ids")
ARRAYS = (
    *("indptr", "indices", "features", "labels", "gcn_norm"),
    *(f"split_{name}" for name in SPLITS),
    *OPTIONAL_ARRAYS,
)

_HASH_PIECE = 1 << 26
_READ_SIZE = 1 << 20
# A file changed this short a time before the seal was written may change again with the same
# time stamp (the clock of file systems ticks in steps of some milliseconds).
_CLOCK_STEP_NS = 20_000_000


class StoreError(RunError):
    """A store that cannot be used; `reason` names the file and what is wrong with it."""

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
    task: Task
    metric: str
    ogb_name: str | None
    num_classes: int = Field(ge=1)
    node_types: tuple[NodeTypeMeta, ...] = Field(min_length=1, max_length=1)
    edge_types: tuple[EdgeTypeMeta, ...] = Field(min_length=1, max_length=1)
    identity: dict[str, JSON]
    options: dict[str, JSON]
    arrays: dict[str, ArrayMeta]
    digest: str = Field(exclude=True)


class GraphStore:
    """A graph on disk, cheap to open: every array is a read-only view of mapped pages.

    Attributes:
        path: The store's directory.
        meta: The content of its `meta.json`.
    """

    def __init__(self, path: Path, meta: StoreMeta, arrays: Mapping[str, AnyArray]) -> None:
        self.path = path
        self.meta = meta
        self._arrays = arrays

    @classmethod
    def open(cls, path: Path, *, check: bool = True) -> GraphStore:
        """Map the store at `path`, without reading its arrays.

        Args:
            path: The store's directory.
            check: Verify all checksums if a file was touched since they were last verified.
                False spares worker processes what their parent has just done.

        Raises:
            StoreError: Something is missing, damaged, or of another format version.
        """
        path = Path(path).absolute()
        meta = read_meta(path)
        arrays = {name: _map_array(path, array) for name, array in meta.arrays.items()}
        store = cls(path, meta, arrays)
        if check and not _is_sealed(path, meta):
            store.verify()
        return store

    def verify(self) -> None:
        """Compare every byte with the checksums; raises `StoreError` at a difference."""
        before = _stamps(self.path, self.meta)
        arrays = self.meta.arrays.values()
        found = checksums([self.path / array.file for array in arrays])
        for array, checksum in zip(arrays, found, strict=True):
            if checksum != array.checksum:
                raise StoreError(
                    self.path,
                    f"{array.file} has checksum {checksum}, expected {array.checksum}",
                )
        write_seal(self.path, self.meta, before)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.path,)

    def __repr__(self) -> str:
        return (
            f"GraphStore({self.dataset!r}, num_nodes={self.num_nodes}, "
            f"num_edges={self.num_edges}, num_features={self.num_features}, "
            f"path={str(self.path)!r})"
        )

    @property
    def dataset(self) -> str:
        return self.meta.dataset

    @property
    def task(self) -> Task:
        return self.meta.task

    @property
    def metric(self) -> str:
        return self.meta.metric

    @property
    def ogb_name(self) -> str | None:
        return self.meta.ogb_name

    @property
    def num_nodes(self) -> int:
        return self.meta.node_types[0].num_nodes

    @property
    def num_features(self) -> int:
        return self.meta.node_types[0].num_features

    @property
    def num_edges(self) -> int:
        return self.meta.edge_types[0].num_edges

    @property
    def num_classes(self) -> int:
        return self.meta.num_classes

    @property
    def num_outputs(self) -> int:
        """Numbers a model predicts for a node: 1 for a binary task, else one a class."""
        return 1 if self.task == "binary" else self.num_classes

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays together."""
        return sum(array.bytes for array in self.meta.arrays.values())

    @property
    def indptr(self) -> Int64Array:
        """int64 `[num_nodes + 1]`: node v's in-neighbours are `indices[indptr[v]:indptr[v+1]]`."""
        return self._arrays["indptr"]

    @property
    def indices(self) -> IntArray:
        """int32, or int64 for more than 2³¹ nodes, `[num_edges]`: ascending in each column."""
        return self._arrays["indices"]

    @property
    def edge_weight(self) -> Float32Array | None:
        """float32 `[num_edges]`, in the order of `indices`, or None."""
        return self._arrays.get("edge_weight")

    @property
    def features(self) -> AnyArray:
        """`[num_nodes, num_features]` float32, float16, or uint16 that holds bfloat16's bits."""
        return self._arrays["features"]

    @property
    def feature_dtype(self) -> str:
        """ "float32", "float16" or "bfloat16"."""
        return self.meta.arrays["features"].dtype

    @property
    def labels(self) -> AnyArray:
        """int32 `[num_nodes]`, −1 for "no label"; multi-label: uint8 `[num_nodes, num_classes]`."""
        return self._arrays["labels"]

    @property
    def gcn_norm(self) -> Float32Array:
        """float32 `[num_nodes]`: 1/√(1 + total weight of in-edges that are not self loops).

        0 where negative weights leave nothing to divide by.
        """
        return self._arrays["gcn_norm"]

    @property
    def node_ids(self) -> AnyArray | None:
        """The user's own ids, int64 or bytes (UTF-8) `[num_nodes]`, or None."""
        return self._arrays.get("node_ids")

    def split(self, name: str) -> Int64Array:
        """Node ids of "train", "val" or "test", int64, ascending, each once."""
        return self._arrays[f"split_{name}"]


def canonical_json(value: object) -> str:
    """The one spelling of `value` that digests and names are taken over."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest_of(value: object, num_bytes: int = 20) -> str:
    """Hexadecimal BLAKE2b digest of a JSON value's canonical spelling."""
    return blake2b(canonical_json(value).encode(), digest_size=num_bytes).hexdigest()


def read_meta(path: Path) -> StoreMeta:
    """Read and check `meta.json` of the store at `path`; raises `StoreError`."""
    try:
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
    """What the arrays are said to be must fit the sizes, or a kernel would read beyond them."""
    num_nodes, num_edges = meta.node_types[0].num_nodes, meta.edge_types[0].num_edges
    multilabel = meta.task == "multilabel"
    shapes: dict[str, tuple[int, ...]] = {
        "indptr": (num_nodes + 1,),
        "indices": (num_edges,),
        "edge_weight": (num_edges,),
        "features": (num_nodes, meta.node_types[0].num_features),
        "labels": (num_nodes, meta.num_classes) if multilabel else (num_nodes,),
        "gcn_norm": (num_nodes,),
        "node_ids": (num_nodes,),
    }
    dtypes = {
        "indptr": "int64",
        "indices": "int32|int64",
        "edge_weight": "float32",
        "features": "float32|float16|bfloat16",
        "labels": "uint8" if multilabel else "int32",
        "gcn_norm": "float32",
        "node_ids": r"int64|\|S[1-9][0-9]*",
    }
    for name in ARRAYS:
        if name not in meta.arrays and name not in OPTIONAL_ARRAYS:
            raise StoreError(path, f"{META_FILE} does not list {name}")
    for name, array in meta.arrays.items():
        if name not in ARRAYS:
            raise StoreError(path, f"{META_FILE} lists an unknown array {name!r}")
        shape = shapes.get(name, array.shape[:1] or (0,))
        if array.shape != shape or not re.fullmatch(dtypes.get(name, "int64"), array.dtype):
            raise StoreError(path, f"{META_FILE} gives {name} as {array.dtype} {list(array.shape)}")


def _map_array(path: Path, meta: ArrayMeta) -> AnyArray:
    try:
        with (path / meta.file).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != meta.bytes:
                raise StoreError(path, f"{meta.file} has {size} bytes, expected {meta.bytes}")
            shape, dtype = _read_header(file)
            if (shape, dtype) != (meta.shape, meta.stored_dtype):
                raise StoreError(
                    path,
                    f"{meta.file} holds {dtype.name} {list(shape)}, "
                    f"expected {meta.dtype} {list(meta.shape)}",
                )
            offset = file.tell()
            if size - offset != dtype.itemsize * int(np.prod(shape, dtype=object)):
                raise StoreError(path, f"{meta.file} does not hold what its header says")
            if size == offset:
                empty: AnyArray = np.empty(shape, dtype)
                empty.flags.writeable = False
                return empty
            mapped = np.memmap(file, dtype, "r", offset, shape)
            return mapped.view(np.ndarray)
    except FileNotFoundError:
        raise StoreError(path, f"{meta.file} is missing") from None
    except ValueError as error:
        raise StoreError(path, f"{meta.file} is not a valid npy file ({error})") from None
    except OSError as error:
        raise StoreError(path, f"{meta.file} cannot be read ({error.strerror})") from error


def _read_header(file: BinaryIO) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("not of npy version 1.0")
    shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
    if fortran_order or dtype.hasobject:
        raise ValueError(f"{dtype} in {'Fortran' if fortran_order else 'C'} order")
    return shape, dtype


def _reopen(path: Path) -> GraphStore:
    return GraphStore.open(path, check=False)


def checksums(files: list[Path]) -> list[str]:
    """Checksum of each file: BLAKE2b over the BLAKE2b digests of its 64 MiB pieces.

    Pieces are hashed in parallel, so that one huge file does not occupy one core only.
    """
    pieces = [
        [(file, start) for start in range(0, max(file.stat().st_size, 1), _HASH_PIECE)]
        for file in files
    ]
    with ThreadPoolExecutor(num_threads()) as pool:
        digests = [[pool.submit(_hash_piece, *piece) for piece in of_file] for of_file in pieces]
        return [
            blake2b(b"".join(digest.result() for digest in of_file), digest_size=20).hexdigest()
            for of_file in digests
        ]


def _hash_piece(path: Path, start: int) -> bytes:
    digest = blake2b()
    left = _HASH_PIECE
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while left and (data := file.read(min(left, _READ_SIZE))):
            digest.update(data)
            left -= len(data)
    return digest.digest()


Stamps = dict[str, list[int]]


def _stamps(path: Path, meta: StoreMeta) -> Stamps:
    """Size and times of each array's file: what changes whenever the file is written."""
    stamps: Stamps = {}
    for array in meta.arrays.values():
        status = (path / array.file).stat()
        stamps[array.file] = [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    return stamps


def write_seal(path: Path, meta: StoreMeta, stamps: Stamps | None = None) -> None:
    """Note that the files as stamped passed a full verification, where `path` is writable."""
    content = {"digest": meta.digest, "files": stamps or _stamps(path, meta)}
    try:
        unfinished = path / f"{SEAL_FILE}.{os.getpid()}-{threading.get_ident()}"
        unfinished.write_text(canonical_json(content))
        unfinished.replace(path / SEAL_FILE)
    except OSError:
        return


def _is_sealed(path: Path, meta: StoreMeta) -> bool:
    """Whether no file was touched since the last full verification."""
    stamps = _stamps(path, meta)
    try:
        seal = json.loads((path / SEAL_FILE).read_bytes())
        sealed_ns = (path / SEAL_FILE).stat().st_mtime_ns
    except (OSError, ValueError, RecursionError):
        return False
    newest = max(max(times) for _, *times in stamps.values())
    return bool(
        seal == {"digest": meta.digest, "files": stamps} and newest < sealed_ns - _CLOCK_STEP_NS
    )
