"""Writing a graph's parts: each array of the store is read once, from its first row to its last.

Memory: a number or two a node, and a chunk. No array of all edges, or of all features, is held.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from gnntrain import __version__
from gnntrain.atomic_io import atomic_folder, fsync_folder
from gnntrain.data.arrays import ArrayWriter, write_array
from gnntrain.data.graph import SPLITS, AnyArray, Int64Array, index_dtype
from gnntrain.data.partitioning.kernels import PartIndex, number_nodes, route_edges
from gnntrain.data.parts import Folder, Parts
from gnntrain.data.parts_meta import (
    PARTITION_FILE,
    PARTITION_FORMAT,
    PARTITION_VERSION,
    Method,
    PartitionMeta,
    PartMeta,
    part_folder,
    read_partition,
)
from gnntrain.data.store import StoredGraph
from gnntrain.data.store_files import map_array, with_checksums, write_seal
from gnntrain.data.store_meta import ArrayMeta, write_description
from gnntrain.data.target_scale import TargetScale

_CHUNK_BYTES = 1 << 24
_CHUNK_EDGES = 1 << 20


def write_parts(
    path: Path, store: StoredGraph, part_of: PartIndex, num_parts: int, method: Method
) -> Parts:
    """Write a graph's parts to the folder `path`, which appears when all of it is written.

    Args:
        path: The folder; missing or empty.
        store: The graph.
        part_of: uint8 `[num_nodes]`, the part of each node; every part has a node.
        num_parts: Number of parts.
        method: How the nodes were assigned, for the record.

    Raises:
        OSError: The disk refuses; nothing is left.
    """
    path = Path(path).absolute()
    with atomic_folder(path) as folder:
        _write(folder, store, part_of, num_parts, method)
    return Parts.open(path, check=False)


def _write(
    folder: Path, store: StoredGraph, part_of: PartIndex, num_parts: int, method: Method
) -> None:
    folders = [part_folder(folder, number) for number in range(num_parts)]
    for part in folders:
        part.mkdir()
    sizes = np.bincount(part_of, minlength=num_parts)
    new = np.empty(store.num_nodes, index_dtype(store.num_nodes))
    number_nodes(part_of, np.cumsum(sizes) - sizes, new)
    arrays = {"indptr": _write_indptr(folders, store, part_of)}
    edges, cut_edges = _write_edges(folders, store, part_of, new)
    arrays |= edges | _write_node_arrays(folders, store, part_of)
    shared = with_checksums(folder, _write_shared(folder, store, new))
    num_train = np.bincount(part_of[store.split("train")], minlength=num_parts)
    parts = [
        _part_meta(part, {name: metas[number] for name, metas in arrays.items()}, num_train[number])
        for number, part in enumerate(folders)
    ]
    meta = _partition_meta(store, method, shared, parts, cut_edges)
    write_description(folder / PARTITION_FILE, meta)
    _seal(folder, read_partition(folder))


def _part_meta(folder: Path, arrays: Mapping[str, ArrayMeta], num_train: int) -> PartMeta:
    return PartMeta(
        num_nodes=arrays["original"].shape[0],
        num_edges=arrays["indices"].shape[0],
        num_train=int(num_train),
        arrays=with_checksums(folder, arrays),
    )


def _partition_meta(
    store: StoredGraph,
    method: Method,
    shared: dict[str, ArrayMeta],
    parts: Sequence[PartMeta],
    cut_edges: int,
) -> PartitionMeta:
    is_regression = store.task == "continuous"
    return PartitionMeta(
        format=PARTITION_FORMAT,
        version=PARTITION_VERSION,
        made_by=f"gnntrain {__version__}",
        dataset=store.dataset,
        task=store.task,
        metric=store.metric,
        ogb_name=store.ogb_name,
        num_classes=store.num_classes,
        options=store.meta.options,
        arrays=shared,
        feature_names=store.meta.feature_names,
        summary=store.summary,
        preprocessing=store.meta.preprocessing,
        source=store.meta.content_digest,
        identity=store.meta.identity,
        method=method,
        num_features=store.num_features,
        cut_edges=cut_edges,
        class_counts=None if is_regression else {n: store.class_counts(n).tolist() for n in SPLITS},
        target_scale=TargetScale.of(store) if is_regression else None,
        target_ranges={n: store.target_ranges(n) for n in SPLITS} if is_regression else None,
        parts=tuple(parts),
        digest="",
    )


def _seal(folder: Path, meta: PartitionMeta) -> None:
    write_seal(folder, meta)
    for number, part in enumerate(meta.parts):
        place = part_folder(folder, number)
        write_seal(place, Folder(part.arrays, meta.digest))
        fsync_folder(place)
    fsync_folder(folder)


class _PartFiles:
    """One array's files, a file a part."""

    def __init__(
        self, folders: Sequence[Path], name: str, dtype: np.dtype[Any], *more: Any
    ) -> None:
        self._writers = [ArrayWriter(f / f"{name}.npy", dtype, *more) for f in folders]

    def append(self, rows: AnyArray, ends: Int64Array) -> None:
        """Add rows that are sorted by part; part p's end at `ends[p]`."""
        for writer, (first, last) in zip(self._writers, pairwise([0, *ends.tolist()]), strict=True):
            writer.append(rows[first:last])

    def close(self) -> list[ArrayMeta]:
        return [writer.close() for writer in self._writers]

    def __enter__(self) -> _PartFiles:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.__exit__()


def _chunks(part_of: PartIndex, row_bytes: int) -> Iterator[tuple[slice, Int64Array, Int64Array]]:
    """Ranges of nodes; their order by part; the end of each part's nodes in that order."""
    num_parts = int(part_of.max()) + 1
    step = max(1, _CHUNK_BYTES // max(16, row_bytes))
    for start in range(0, len(part_of), step):
        parts = part_of[start : start + step]
        ends = np.cumsum(np.bincount(parts, minlength=num_parts))
        yield slice(start, start + len(parts)), np.argsort(parts, kind="stable"), ends


def _write_indptr(
    folders: Sequence[Path], store: StoredGraph, part_of: PartIndex
) -> list[ArrayMeta]:
    totals = np.zeros(len(folders), np.int64)
    with _PartFiles(folders, "indptr", np.dtype(np.int64)) as files:
        files.append(totals, np.arange(1, len(folders) + 1))
        for nodes, order, ends in _chunks(part_of, 8):
            degrees = np.diff(store.indptr[nodes.start : nodes.stop + 1])[order]
            sums = np.concatenate([[0], np.cumsum(degrees)])
            before = sums[np.concatenate([[0], ends[:-1]])]
            sizes = np.diff(ends, prepend=0)
            files.append(sums[1:] + np.repeat(totals - before, sizes), ends)
            totals += sums[ends] - before
        return files.close()


def _write_edges(
    folders: Sequence[Path], store: StoredGraph, part_of: PartIndex, new: AnyArray
) -> tuple[dict[str, list[ArrayMeta]], int]:
    """Write the sources, by their new numbers, and the weights; count the cut edges."""
    weighted = store.edge_weight is not None
    weight = np.empty(0, np.float32) if store.edge_weight is None else store.edge_weight
    routed = np.empty(_CHUNK_EDGES, new.dtype), np.empty(_CHUNK_EDGES * weighted, np.float32)
    ends = np.empty(len(folders), np.int64)
    cut_edges = 0
    weight_folders = folders if weighted else []
    with (
        _PartFiles(folders, "indices", new.dtype) as sources,
        _PartFiles(weight_folders, "edge_weight", np.dtype(np.float32)) as weights,
    ):
        for first in range(0, store.num_edges, _CHUNK_EDGES):
            edges = slice(first, first + _CHUNK_EDGES)
            node = int(np.searchsorted(store.indptr, first, side="right")) - 1
            chunk = (store.indices[edges], weight[edges])
            cut_edges += route_edges(chunk, (store.indptr, first, node), part_of, new, ends, routed)
            sources.append(routed[0], ends)
            if weighted:
                weights.append(routed[1], ends)
        arrays = {"indices": sources.close()}
        if weighted:
            arrays["edge_weight"] = weights.close()
        return arrays, cut_edges


def _write_node_arrays(
    folders: Sequence[Path], store: StoredGraph, part_of: PartIndex
) -> dict[str, list[ArrayMeta]]:
    given = {
        "features": store.features,
        "labels": store.labels,
        "gcn_norm": store.gcn_norm,
        "node_ids": store.node_ids,
    }
    found = {"original": _write_original(folders, part_of)}
    for name, array in given.items():
        if array is not None:
            logical = store.feature_dtype if name == "features" else None
            shape = array.shape[1:]
            with _PartFiles(folders, name, array.dtype, shape, logical) as files:
                for nodes, order, ends in _chunks(part_of, array.strides[0]):
                    files.append(array[nodes][order], ends)
                found[name] = files.close()
    return found


def _write_original(folders: Sequence[Path], part_of: PartIndex) -> list[ArrayMeta]:
    with _PartFiles(folders, "original", np.dtype(np.int64)) as files:
        for nodes, order, ends in _chunks(part_of, 8):
            files.append(nodes.start + order, ends)
        return files.close()


def _write_shared(folder: Path, store: StoredGraph, new: AnyArray) -> dict[str, ArrayMeta]:
    shared = {f"split_{name}": new[store.split(name)].astype(np.int64) for name in SPLITS}
    if "class_names" in store.meta.arrays:
        shared["class_names"] = map_array(store.path, store.meta.arrays["class_names"])
    return {name: write_array(folder, name, array) for name, array in shared.items()}
