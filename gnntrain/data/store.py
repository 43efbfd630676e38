"""The graph store: a directory of memory-mapped arrays, described and sealed by `meta.json`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from gnntrain.data.graph import AnyArray, Float32Array, Int64Array, IntArray, Task
from gnntrain.data.store_files import checksums, is_sealed, map_array, stamps_of, write_seal
from gnntrain.data.store_meta import StoreError, StoreMeta, read_meta

__all__ = ["GraphStore", "StoreError"]


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
        arrays = {name: map_array(path, array) for name, array in meta.arrays.items()}
        store = cls(path, meta, arrays)
        if check and not is_sealed(path, meta):
            store.verify()
        return store

    def verify(self) -> None:
        """Compare every byte with the checksums; raises `StoreError` at a difference."""
        before = stamps_of(self.path, self.meta)
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

    @property
    def class_names(self) -> list[str] | list[int] | None:
        """The classes (where a node has several: the labels) in the user's words; None: 0, 1, …."""
        names = self._arrays.get("class_names")
        if names is None:
            return None
        texts = np.char.decode(names, "utf-8") if names.dtype.kind == "S" else names
        return cast(list[str] | list[int], texts.tolist())

    def split(self, name: str) -> Int64Array:
        """Node ids of "train", "val" or "test", int64, ascending, each once."""
        return self._arrays[f"split_{name}"]


def _reopen(path: Path) -> GraphStore:
    return GraphStore.open(path, check=False)
