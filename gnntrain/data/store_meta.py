"""A folder of arrays: the JSON file that describes it, its checks, checksums and mapped files.

A graph store is such a folder, described by `meta.json`; a graph in parts is several.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import stat
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gnntrain.data.graph import EDGE, JSON, NODE, SPLITS, AnyArray, GraphSchema
from gnntrain.data.npz_members import read_header
from gnntrain.data.preprocessing import Preprocessing
from gnntrain.data.summary import DataSummary
from gnntrain.errors import RunError
from gnntrain.limits import available_cores
from gnntrain.metrics import LabelKind

FORMAT: Final = "gnntrain-store"
VERSION: Final = 3
META_FILE = "meta.json"
SEAL_FILE = ".verified.json"
_ARRAY_FILE = re.compile(
    r"(indptr|indices|edge_weight|gcn_norm|labels|class_names|split_(train|val|test)"
    r"|(features|node_ids)(_[0-9]+)?)\.npy"  # without a number in formats before 3
)
_OPTIONAL_ARRAYS = ("edge_weight", "node_ids", "class_names")

_HASH_CHUNK = 1 << 26
_READ_SIZE = 1 << 20
# A file changed this short a time before the seal was written may change again with the same
# time stamp (the clock of file systems ticks in steps of some milliseconds).
_CLOCK_STEP_NS = 20_000_000


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
    feature_names: tuple[str, ...] | None = None
    preprocessing: Preprocessing | None = None


class EdgeTypeMeta(Meta):
    """A type of edges; `name` is source type, relation, destination type."""

    name: tuple[str, str, str]
    num_edges: int = Field(ge=0)


class GraphMeta(Meta):
    """A graph's metadata, of a store or of all parts; `digest` is taken over all other fields.

    `arrays` are the files beside the metadata. `lowest` is what `normalize_features` subtracted, by
    node type. `identity` is what the graph was made from.
    """

    version: int
    made_by: str
    dataset: str
    task: LabelKind
    metric: str
    ogb_name: str | None
    num_classes: int = Field(ge=1)
    node_types: tuple[NodeTypeMeta, ...] = Field(min_length=1)
    edge_types: tuple[EdgeTypeMeta, ...] = Field(min_length=1)
    target: str
    identity: dict[str, JSON]
    options: dict[str, JSON]
    arrays: dict[str, ArrayMeta]
    summary: DataSummary | None = None
    lowest: dict[str, float] | None = None
    digest: str = Field(exclude=True)

    @property
    def is_homogeneous(self) -> bool:
        """See `GraphData.is_homogeneous`."""
        names = [kind.name for kind in self.node_types], [kind.name for kind in self.edge_types]
        return names == ([NODE], [EDGE])

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
    def preprocessing(self) -> dict[str, Preprocessing]:
        """The preprocessing of the node types that have some."""
        made_by = {kind.name: kind.preprocessing for kind in self.node_types}
        return {name: done for name, done in made_by.items() if done is not None}


class StoreMeta(GraphMeta):
    """The content of `meta.json`.

    `indptr` and `indices` are those of a `FusedCSC`. Features and ids of the node type at position
    i are the arrays `features_<i>` and `node_ids_<i>`; labels and splits are the target type's.
    """

    format: Literal["gnntrain-store"]

    @property
    def content_digest(self) -> str:
        """Digest of the arrays' checksums and their meaning, not of their origin.

        Raw files may be moved or touched. Names of classes do not count: the model does not learn
        them. Runs are compared by it, so it never changes: of a homogeneous graph the arrays have
        the names that they had before stores knew types.
        """
        arrays = {name: array for name, array in self.arrays.items() if name != "class_names"}
        content: dict[str, object] = {
            "task": self.task,
            "metric": self.metric,
            "num_classes": self.num_classes,
        }
        if self.is_homogeneous:
            arrays = {name.removesuffix("_0"): array for name, array in arrays.items()}
        else:
            content["node_types"] = [kind.name for kind in self.node_types]
            content["edge_types"] = [list(kind.name) for kind in self.edge_types]
            content["target"] = self.target
        content["arrays"] = {name: array.checksum for name, array in arrays.items()}
        content["dtypes"] = {name: array.dtype for name, array in arrays.items()}
        return digest_of(content)


def canonical_json(value: object) -> str:
    """JSON of `value` with sorted keys and no blanks, from which digests are computed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest_of(value: object, num_bytes: int = 20) -> str:
    """Hexadecimal BLAKE2b digest of a JSON value's canonical spelling."""
    return blake2b(canonical_json(value).encode(), digest_size=num_bytes).hexdigest()


_Schema = TypeVar("_Schema", bound=GraphMeta)


def read_meta(path: Path) -> StoreMeta:
    """Read and check `meta.json` of the store at `path`; raises `StoreError`."""
    meta = read_description(path, META_FILE, FORMAT, VERSION, StoreMeta)
    num_nodes = [kind.num_nodes for kind in meta.node_types]
    num_edges = [kind.num_edges for kind in meta.edge_types]
    expected = expected_arrays(meta, num_nodes, num_edges) | shared_arrays(meta)
    check_arrays(path, META_FILE, meta.arrays, expected)
    return meta


def read_description(
    path: Path, file: str, file_format: str, version: int, schema: type[_Schema]
) -> _Schema:
    """Read a graph's metadata from `path / file`; check its format, version, digest and types.

    Args:
        path: The folder.
        file: The file.
        file_format: Its format.
        version: The version of the format that can be read.
        schema: Its schema.

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
    if (found := raw.get("version")) != version:
        raise StoreError(path, f"it has format version {found}, this gnntrain reads {version}")
    if raw.pop("digest", None) != digest_of(raw):
        raise StoreError(path, f"{file} was changed: its digest does not match")
    try:
        meta = schema.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise StoreError(path, f"{file}: {where}: {first['msg']}") from None
    node_types = [kind.name for kind in meta.node_types]
    edge_types = [kind.name for kind in meta.edge_types]
    ends = {end for source, _, destination in edge_types for end in (source, destination)}
    for name in sorted({meta.target, *ends} - set(node_types)):
        raise StoreError(path, f"{file} does not list the node type {name!r}")
    if len(set(node_types)) < len(node_types) or len(set(edge_types)) < len(edge_types):
        raise StoreError(path, f"{file} lists a type twice")
    return meta


def write_description(path: Path, meta: GraphMeta) -> None:
    """Write a graph's metadata with its digest, and flush it to disk."""
    content = meta.model_dump(mode="json")
    content["digest"] = digest_of(content)
    with path.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


Expected = dict[str, tuple[str, tuple[int, ...] | None]]
"""By array: a regular expression for its type, and its shape; None: one dimension of any length."""

_IDS = r"int64|\|S[1-9][0-9]*"


def expected_arrays(
    meta: GraphMeta, num_nodes: Sequence[int], num_edges: Sequence[int]
) -> Expected:
    """Types and shapes of the arrays of that many nodes and in-edges of each type."""
    sizes = {kind.name: size for kind, size in zip(meta.node_types, num_nodes, strict=True)}
    target, several = sizes[meta.target], (sizes[meta.target], meta.num_classes)
    labels = {"multilabel": ("uint8", several), "continuous": ("float32|float64", several)}
    expected: Expected = {
        "indptr": ("int64", (sum(sizes[kind.name[2]] + 1 for kind in meta.edge_types),)),
        "indices": ("int32|int64", (sum(num_edges),)),
        "labels": labels.get(meta.task, ("int32", (target,))),
    }
    if len(meta.node_types) == len(meta.edge_types) == 1:
        expected["edge_weight"] = ("float32", (sum(num_edges),))
        expected["gcn_norm"] = ("float32", (target,))
    for number, (kind, size) in enumerate(zip(meta.node_types, num_nodes, strict=True)):
        shape = (size, kind.num_features)
        expected[f"features_{number}"] = ("float32|float16|bfloat16", shape)
        expected[f"node_ids_{number}"] = (_IDS, (size,))
    return expected


def shared_arrays(meta: GraphMeta) -> Expected:
    """Types and shapes of the arrays that a graph in parts has once."""
    splits: Expected = {f"split_{name}": ("int64", None) for name in SPLITS}
    return splits | {"class_names": (_IDS, (meta.num_classes,))}


def check_arrays(
    path: Path, file: str, arrays: Mapping[str, ArrayMeta], expected: Expected
) -> None:
    """Compare the arrays' types and shapes with the sizes: a kernel must not read beyond them.

    Args:
        path: The folder to name in an error.
        file: The file that lists the arrays.
        arrays: The arrays it lists.
        expected: The arrays it should list.

    Raises:
        StoreError: At the first difference.
    """
    for name in sorted(arrays.keys() - expected.keys()):
        raise StoreError(path, f"{file} lists an unknown array {name!r}")
    for name, (dtype, shape) in expected.items():
        array = arrays.get(name)
        if array is None:
            if not name.startswith(_OPTIONAL_ARRAYS):
                raise StoreError(path, f"{file} does not list {name}")
            continue
        shapes = [array.shape[:1] or (0,)] if shape is None else [shape]
        if name == "gcn_norm":
            shapes.append((*shapes[0], 2))  # with the weights of self loops
        if array.shape not in shapes or not re.fullmatch(dtype, array.dtype):
            found = f"{array.dtype} {list(array.shape)}"
            raise StoreError(path, f"{file} gives {name} as {found}")


def is_array_file(name: str) -> bool:
    """Whether a file of a store, of any version of its format, may have this name."""
    return _ARRAY_FILE.fullmatch(name) is not None


class ArrayFolder(Protocol):
    """What is known of a folder of arrays."""

    @property
    def arrays(self) -> Mapping[str, ArrayMeta]: ...

    @property
    def digest(self) -> str:
        """Changes whenever the content of an array changes."""
        ...


class Folder(NamedTuple):
    """An `ArrayFolder` that one of several is, all of which have one description."""

    arrays: Mapping[str, ArrayMeta]
    digest: str


def map_array(path: Path, meta: ArrayMeta) -> AnyArray:
    """One array of the store at `path`, mapped read-only; raises `StoreError`."""
    try:
        if not stat.S_ISREG((path / meta.file).lstat().st_mode):
            raise StoreError(path, f"{meta.file} is no regular file")
        with (path / meta.file).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != meta.bytes:
                raise StoreError(path, f"{meta.file} has {size} bytes, expected {meta.bytes}")
            header = read_header(file, size)
            if header.fortran_order:
                raise ValueError(f"{header.dtype} in Fortran order")
            if (header.shape, header.dtype) != (meta.shape, meta.stored_dtype):
                raise StoreError(
                    path,
                    f"{meta.file} holds {header.dtype.name} {list(header.shape)}, "
                    f"expected {meta.dtype} {list(meta.shape)}",
                )
            array = np.memmap(file, header.dtype, "r", file.tell(), header.shape)
            return array.view(np.ndarray)
    except FileNotFoundError:
        raise StoreError(path, f"{meta.file} is missing") from None
    except ValueError as error:
        raise StoreError(path, f"{meta.file} is not a valid npy file ({error})") from None
    except OSError as error:
        raise StoreError(path, f"{meta.file} cannot be read ({error.strerror})") from error


def map_folder(folder: Path, content: ArrayFolder, *, check: bool) -> dict[str, AnyArray]:
    """All arrays of a folder, mapped read-only.

    Args:
        folder: The folder.
        content: Its arrays.
        check: Verify all checksums if a file was touched since they were last verified.

    Raises:
        StoreError: A file is missing or damaged.
    """
    arrays = {name: map_array(folder, array) for name, array in content.arrays.items()}
    if check and not is_sealed(folder, content):
        verify(folder, content)
    return arrays


def checksums(files: list[Path]) -> list[str]:
    """Checksum of each file: BLAKE2b over the BLAKE2b digests of its 64 MiB chunks.

    Chunks are hashed in parallel, so that one huge file does not occupy one core only.
    """
    chunks = [
        [(file, start) for start in range(0, max(file.stat().st_size, 1), _HASH_CHUNK)]
        for file in files
    ]
    with ThreadPoolExecutor(available_cores()) as pool:
        digests = [[pool.submit(_hash_chunk, *chunk) for chunk in of_file] for of_file in chunks]
        return [
            blake2b(b"".join(digest.result() for digest in of_file), digest_size=20).hexdigest()
            for of_file in digests
        ]


def with_checksums(folder: Path, arrays: Mapping[str, ArrayMeta]) -> dict[str, ArrayMeta]:
    """The arrays' metadata with the checksums of their files in `folder`."""
    found = checksums([folder / array.file for array in arrays.values()])
    return {
        name: array.model_copy(update={"checksum": checksum})
        for (name, array), checksum in zip(arrays.items(), found, strict=True)
    }


def verify(path: Path, meta: ArrayFolder) -> None:
    """Compare the bytes of all arrays with their checksums, and seal the folder.

    Raises:
        StoreError: A file differs.
    """
    before = stamps_of(path, meta)
    for name, found in with_checksums(path, meta.arrays).items():
        if found.checksum != meta.arrays[name].checksum:
            raise StoreError(
                path,
                f"{found.file} has checksum {found.checksum}, "
                f"expected {meta.arrays[name].checksum}",
            )
    write_seal(path, meta, before)


def _hash_chunk(path: Path, start: int) -> bytes:
    digest = blake2b()
    left = _HASH_CHUNK
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while left and (data := file.read(min(left, _READ_SIZE))):
            digest.update(data)
            left -= len(data)
    return digest.digest()


Stamps = dict[str, list[int]]


def stamps_of(path: Path, meta: ArrayFolder) -> Stamps:
    """Size and times of each array's file: what changes whenever the file is written."""
    stamps: Stamps = {}
    for array in meta.arrays.values():
        status = (path / array.file).stat()
        stamps[array.file] = [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    return stamps


def write_seal(path: Path, meta: ArrayFolder, stamps: Stamps | None = None) -> None:
    """Note that the files as stamped passed a full verification, where `path` is writable."""
    content = {"digest": meta.digest, "files": stamps or stamps_of(path, meta)}
    try:
        unfinished = path / f"{SEAL_FILE}.{secrets.token_hex(8)}"
        unfinished.write_text(canonical_json(content))
        unfinished.replace(path / SEAL_FILE)
    except OSError:
        return


def is_sealed(path: Path, meta: ArrayFolder) -> bool:
    """Whether no file was touched since the last full verification."""
    stamps = stamps_of(path, meta)
    try:
        seal = json.loads((path / SEAL_FILE).read_bytes())
        sealed_ns = (path / SEAL_FILE).stat().st_mtime_ns
    except (OSError, ValueError, RecursionError):
        return False
    newest = max(max(times) for _, *times in stamps.values())
    return bool(
        seal == {"digest": meta.digest, "files": stamps} and newest < sealed_ns - _CLOCK_STEP_NS
    )


def note_use(path: Path) -> None:
    """Keep when the store was last opened, as the time of its folder, where `path` is writable."""
    with contextlib.suppress(OSError):
        os.utime(path)


def hold(path: Path) -> contextlib.ExitStack:
    """Mark the store as in use, so that `gnntrain clean` keeps it until what is returned is closed.

    A shared lock on `meta.json`, after that of a `clean` that has begun: the store is gone then. On
    file systems without locks there is none.
    """
    stack = contextlib.ExitStack()
    with contextlib.suppress(OSError):
        file = stack.enter_context((path / META_FILE).open("rb"))
        fcntl.flock(file, fcntl.LOCK_SH)
    return stack
