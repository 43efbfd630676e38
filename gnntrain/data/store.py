"""The form of a graph on disk: a folder of memory-mapped arrays, described by `meta.json`."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np
from pydantic import Field

from gnntrain import __version__
from gnntrain.atomic_io import atomic_write
from gnntrain.data.array_folder import (
    ArrayMeta,
    Arrays,
    StoreError,
    digest_of,
    map_arrays,
    verify,
)
from gnntrain.data.graph import (
    EDGE,
    JSON,
    NODE,
    SPLITS,
    AnyArray,
    FeatureDtype,
    FusedCSC,
    FusedEdges,
    Graph,
    GraphSchema,
    Nodes,
)
from gnntrain.data.preprocessing import Preprocessing
from gnntrain.data.summary import DataSummary, Meta
from gnntrain.metrics import LabelKind

META_FILE = "meta.json"


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
    """A graph's metadata, of a store or of all parts; `arrays` are the files beside it, `identity`
    is what the graph was made from, `lowest` what `normalize_features` subtracted, by node type,
    and `digest` is taken over all other fields."""

    FILE: ClassVar[str]
    FORMAT: ClassVar[str]
    VERSION: ClassVar[int]

    format: str
    version: int
    made_by: str = f"gnntrain {__version__}"
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
    digest: str = Field(default="", exclude=True)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read it from its file in a folder; raises `StoreError`. Of a file with the right digest,
        which gnntrain wrote, the sizes are not compared with each other."""
        try:
            if not stat.S_ISREG((folder / cls.FILE).lstat().st_mode):  # a pipe would be waited for
                raise ValueError("it is no regular file")
            raw = json.loads(text := (folder / cls.FILE).read_bytes())
            if not isinstance(raw, dict) or raw.get("format") != cls.FORMAT:
                raise ValueError(f"it does not describe a {cls.FORMAT}")
            if (found := raw.get("version")) != cls.VERSION:
                raise ValueError(
                    f"it has format version {found}, this gnntrain reads {cls.VERSION}"
                )
            if raw.pop("digest", None) != digest_of(raw):
                raise ValueError("it was changed: its digest does not match")
            return cls.model_validate_json(text)
        except OSError as error:
            reason = f"it cannot be read ({error.strerror})"
        except (ValueError, RecursionError) as error:
            reason = str(error)
        raise StoreError(folder, f"{cls.FILE}: {reason}")

    def write(self, folder: Path) -> None:
        """Write it with its digest, and flush it to disk."""
        content = self.model_dump(mode="json")
        content["digest"] = digest_of(content)
        with atomic_write(folder / self.FILE) as file:
            file.write(json.dumps(content, indent=1).encode())

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
        return {of.name: of.preprocessing for of in self.node_types if of.preprocessing is not None}

    # Arrays of nodes and in-edges, of a store or a part. `indptr` and `indices` are those of a
    # `FusedCSC`. Features and ids of the node type at position i are `features_<i>` and
    # `node_ids_<i>`; labels are the target type's.

    def attributes_of(
        self,
        described: Arrays,
        arrays: Mapping[str, AnyArray],
        shared: Mapping[str, AnyArray],
    ) -> dict[str, Any]:
        """The attributes of a `Graph` of `arrays`, whose lengths are the sizes of each type;
        `shared` are splits and names of classes, where these are known."""
        edge_types, indptr = [kind.name for kind in self.edge_types], arrays["indptr"]
        sizes = {kind.name: len(arrays[f"features_{i}"]) for i, kind in enumerate(self.node_types)}
        num_edges = indptr[np.cumsum([sizes[name[2]] + 1 for name in edge_types]) - 1].tolist()
        csc = FusedCSC.cut(edge_types, sizes, num_edges, indptr, arrays["indices"])
        splits = {name: shared[f"split_{name}"] for name in SPLITS if shared}
        nodes = {
            kind.name: Nodes(
                features=arrays[f"features_{number}"],
                feature_dtype=cast(FeatureDtype, described[f"features_{number}"].dtype),
                labels=arrays["labels"] if kind.name == self.target else None,
                splits=splits if kind.name == self.target else {},
                ids=arrays.get(f"node_ids_{number}"),
                feature_names=kind.feature_names,
            )
            for number, kind in enumerate(self.node_types)
        }
        edges = FusedEdges(csc, arrays.get("edge_weight"), arrays.get("gcn_norm"))
        copied = ("dataset", "task", "metric", "num_classes", "ogb_name", "summary", "target")
        attributes = {name: getattr(self, name) for name in copied}
        if (names := shared.get("class_names")) is not None:
            names = np.char.decode(names, "utf-8") if names.dtype.kind == "S" else names
            attributes["class_names"] = names.tolist()
        return {"nodes": nodes, "edges": edges, **attributes}


class StoreMeta(GraphMeta):
    """The content of `meta.json`; labels and splits are the target type's."""

    FILE = META_FILE
    FORMAT = "gnntrain-store"
    VERSION = 3


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class StoredGraph(Graph):
    """A graph on disk, cheap to open: every array is a read-only view of mapped pages.

    Pickled, it is its path: the other process maps the same files.
    """

    path: Path
    meta: StoreMeta

    @classmethod
    def open(cls, path: Path, *, check: bool = True) -> StoredGraph:
        """Map the store at `path`, without reading its arrays; `StoreError` where something is
        missing, damaged, or of another format version. `check` verifies the checksums of files that
        were touched since this was done: not in worker processes, whose parent has done so."""
        path = Path(path).absolute()
        meta = StoreMeta.read(path)
        with contextlib.ExitStack() as in_use:
            # `gnntrain clean` keeps a store that is locked. A `clean` that has begun is waited for:
            # the store is gone then. Some file systems have no locks.
            with contextlib.suppress(OSError):
                file = in_use.enter_context((path / META_FILE).open("rb"))
                fcntl.flock(file, fcntl.LOCK_SH)
            arrays = map_arrays(path, meta.arrays, check=check)
            if check:
                with contextlib.suppress(OSError):  # a read-only folder
                    os.utime(path)  # the time of the folder is that of its last use
            graph = cls(path=path, meta=meta, **meta.attributes_of(meta.arrays, arrays, arrays))
            weakref.finalize(graph, in_use.pop_all().close)
        return graph

    def verify(self) -> None:
        """Compare every byte with the checksums; raises `StoreError` at a difference."""
        verify(self.path, self.meta.arrays, afresh=True)

    @property
    def content_digest(self) -> str:
        """Digest of the arrays' checksums and their meaning, by which runs are compared; not of
        their origin, nor of names of classes. It never changes: of a homogeneous graph the arrays
        have the names that they had before stores knew types."""
        meta = self.meta
        arrays = {name: array for name, array in meta.arrays.items() if name != "class_names"}
        content = {name: getattr(meta, name) for name in ("task", "metric", "num_classes")}
        node_types = [kind.name for kind in meta.node_types]
        edge_types = [list(kind.name) for kind in meta.edge_types]
        if (node_types, edge_types) == ([NODE], [[*EDGE]]):
            arrays = {name.removesuffix("_0"): array for name, array in arrays.items()}
        else:
            content |= {"node_types": node_types, "edge_types": edge_types, "target": meta.target}
        content["arrays"] = {name: array.checksum for name, array in arrays.items()}
        content["dtypes"] = {name: array.dtype for name, array in arrays.items()}
        return digest_of(content)

    @property
    def num_bytes(self) -> int:
        """Bytes of all arrays together."""
        return sum(array.bytes for array in self.meta.arrays.values())

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(StoredGraph.open, check=False), (self.path,)
