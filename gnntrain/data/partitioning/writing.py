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
from gnntrain.data.graph import (
    SPLITS,
    AnyArray,
    Edges,
    Int64Array,
    IntArray,
    NodeType,
    index_dtype,
)
from gnntrain.data.partitioning.kernels import PartIndex, number_nodes, route_edges
from gnntrain.data.partitioning.union import by_type
from gnntrain.data.parts import (
    PARTITION_FILE,
    PARTITION_FORMAT,
    PARTITION_VERSION,
    Method,
    PartitionMeta,
    PartMeta,
    Parts,
    part_folder,
    read_partition,
)
from gnntrain.data.store import StoredGraph
from gnntrain.data.store_meta import (
    ArrayMeta,
    Folder,
    map_array,
    with_checksums,
    write_description,
    write_seal,
)
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
        part_of: uint8 `[num_nodes]`, the part of each node, type by type; every part has a node.
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
    parts_of = by_type(store, part_of)
    new = {name: _new_numbers(parts, num_parts) for name, parts in parts_of.items()}
    arrays = {"indptr": _write_indptr(folders, store, parts_of)}
    edges, edge_counts, cut_edges = _write_edges(folders, store, parts_of, new)
    arrays |= edges | _write_node_arrays(folders, store, parts_of)
    shared = with_checksums(folder, _write_shared(folder, store, parts_of, new))
    num_train = np.bincount(parts_of[store.target][store.split("train")], minlength=num_parts)
    node_counts = [np.bincount(parts, minlength=num_parts) for parts in parts_of.values()]
    is_regression = store.task == "continuous"
    meta = PartitionMeta(
        format=PARTITION_FORMAT,
        version=PARTITION_VERSION,
        made_by=f"gnntrain {__version__}",
        dataset=store.dataset,
        task=store.task,
        metric=store.metric,
        ogb_name=store.ogb_name,
        num_classes=store.num_classes,
        node_types=store.meta.node_types,
        edge_types=store.meta.edge_types,
        target=store.target,
        identity=store.meta.identity,
        options=store.meta.options,
        arrays=shared,
        summary=store.summary,
        lowest=store.meta.lowest,
        source=store.content_digest,
        method=method,
        cut_edges=cut_edges,
        class_counts=None
        if is_regression
        else {name: store.class_counts(name).tolist() for name in SPLITS},
        target_scale=TargetScale.of(store) if is_regression else None,
        target_ranges={name: store.target_ranges(name) for name in SPLITS}
        if is_regression
        else None,
        parts=tuple(
            PartMeta(
                node_counts=tuple(int(counts[number]) for counts in node_counts),
                edge_counts=tuple(int(counts[number]) for counts in edge_counts),
                num_train=int(num_train[number]),
                arrays=with_checksums(part, {name: of[number] for name, of in arrays.items()}),
            )
            for number, part in enumerate(folders)
        ),
        digest="",
    )
    write_description(folder / PARTITION_FILE, meta)
    meta = read_partition(folder)  # with its digest
    write_seal(folder, meta)
    for part, described in zip(folders, meta.parts, strict=True):
        write_seal(part, Folder(described.arrays, meta.digest))
        fsync_folder(part)
    fsync_folder(folder)


def _new_numbers(part_of: PartIndex, num_parts: int) -> IntArray:
    """The new number of each node of a type."""
    sizes = np.bincount(part_of, minlength=num_parts)
    new = np.empty(len(part_of), index_dtype(len(part_of)))
    number_nodes(part_of, np.cumsum(sizes) - sizes, new)
    return new


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


def _chunks(
    part_of: PartIndex, num_parts: int, row_bytes: int
) -> Iterator[tuple[slice, Int64Array, Int64Array]]:
    """Ranges of nodes; their order by part; the end of each part's nodes in that order."""
    step = max(1, _CHUNK_BYTES // max(16, row_bytes))
    for start in range(0, len(part_of), step):
        parts = part_of[start : start + step]
        ends = np.cumsum(np.bincount(parts, minlength=num_parts))
        yield slice(start, start + len(parts)), np.argsort(parts, kind="stable"), ends


def _write_indptr(
    folders: Sequence[Path], store: StoredGraph, parts_of: Mapping[NodeType, PartIndex]
) -> list[ArrayMeta]:
    with _PartFiles(folders, "indptr", np.dtype(np.int64)) as files:
        for edge_type, edges in store.edges.items():
            _append_indptr(files, len(folders), edges.indptr, parts_of[edge_type[2]])
        return files.close()


def _append_indptr(
    files: _PartFiles, num_parts: int, indptr: Int64Array, part_of: PartIndex
) -> None:
    totals = np.zeros(num_parts, np.int64)
    files.append(totals, np.arange(1, num_parts + 1))
    for nodes, order, ends in _chunks(part_of, num_parts, 8):
        degrees = np.diff(indptr[nodes.start : nodes.stop + 1])[order]
        sums = np.concatenate([[0], np.cumsum(degrees)])
        before = sums[np.concatenate([[0], ends[:-1]])]
        sizes = np.diff(ends, prepend=0)
        files.append(sums[1:] + np.repeat(totals - before, sizes), ends)
        totals += sums[ends] - before


def _write_edges(
    folders: Sequence[Path],
    store: StoredGraph,
    parts_of: Mapping[NodeType, PartIndex],
    new: Mapping[NodeType, IntArray],
) -> tuple[dict[str, list[ArrayMeta]], list[Int64Array], int]:
    """Write the sources, by their new numbers, and the weights.

    Returns:
        The arrays; the edges of each type in each part; the number of cut edges.
    """
    weighted = any(edges.weight is not None for edges in store.edges.values())
    dtype = max((numbers.dtype for numbers in new.values()), key=lambda found: found.itemsize)
    counts, cut_edges = [], 0
    with (
        _PartFiles(folders, "indices", dtype) as sources,
        _PartFiles(folders if weighted else [], "edge_weight", np.dtype(np.float32)) as weights,
    ):
        for edge_type, edges in store.edges.items():
            parts = parts_of[edge_type[2]], parts_of[edge_type[0]]
            numbers = new[edge_type[0]].astype(dtype, copy=False)
            found, cut = _append_edges(sources, weights, len(folders), edges, parts, numbers)
            counts.append(found)
            cut_edges += cut
        arrays = {"indices": sources.close()}
        if weighted:
            arrays["edge_weight"] = weights.close()
        return arrays, counts, cut_edges


def _append_edges(
    sources: _PartFiles,
    weights: _PartFiles,
    num_parts: int,
    edges: Edges,
    parts: tuple[PartIndex, PartIndex],
    new: IntArray,
) -> tuple[Int64Array, int]:
    """Write the edges of one type; their number in each part, and the number of cut ones."""
    weighted = edges.weight is not None
    weight = np.empty(0, np.float32) if edges.weight is None else edges.weight
    routed = np.empty(_CHUNK_EDGES, new.dtype), np.empty(_CHUNK_EDGES * weighted, np.float32)
    ends, counts, cut_edges = np.empty(num_parts, np.int64), np.zeros(num_parts, np.int64), 0
    for first in range(0, len(edges), _CHUNK_EDGES):
        chunk = slice(first, first + _CHUNK_EDGES)
        node = int(np.searchsorted(edges.indptr, first, side="right")) - 1
        given = (edges.indices[chunk], weight[chunk])
        cut_edges += route_edges(given, (edges.indptr, first, node), parts, new, ends, routed)
        sources.append(routed[0], ends)
        if weighted:
            weights.append(routed[1], ends)
        counts += np.diff(ends, prepend=0)
    return counts, cut_edges


def _write_node_arrays(
    folders: Sequence[Path], store: StoredGraph, parts_of: Mapping[NodeType, PartIndex]
) -> dict[str, list[ArrayMeta]]:
    found = {}
    norm = next(iter(store.edges.values())).gcn_norm
    for number, (name, nodes) in enumerate(store.nodes.items()):
        given = {
            f"features_{number}": nodes.features,
            "labels": nodes.labels,
            "gcn_norm": norm,  # of a graph of one type alone
            f"node_ids_{number}": nodes.ids,
        }
        part_of = parts_of[name]
        with _PartFiles(folders, f"original_{number}", np.dtype(np.int64)) as files:
            for rows, order, ends in _chunks(part_of, len(folders), 8):
                files.append(rows.start + order, ends)
            found[f"original_{number}"] = files.close()
        for file, array in given.items():
            if array is not None:
                more = array.shape[1:], nodes.feature_dtype if array is nodes.features else None
                with _PartFiles(folders, file, array.dtype, *more) as files:
                    for rows, order, ends in _chunks(part_of, len(folders), array.strides[0]):
                        files.append(array[rows][order], ends)
                    found[file] = files.close()
    return found


def _write_shared(
    folder: Path,
    store: StoredGraph,
    parts_of: Mapping[NodeType, PartIndex],
    new: Mapping[NodeType, IntArray],
) -> dict[str, ArrayMeta]:
    splits = {name: new[store.target][store.split(name)] for name in SPLITS}
    shared: dict[str, AnyArray] = {
        f"split_{name}": ids.astype(np.int64) for name, ids in splits.items()
    }
    if "class_names" in store.meta.arrays:
        shared["class_names"] = map_array(store.path, store.meta.arrays["class_names"])
    for number, (name, nodes) in enumerate(store.nodes.items()):
        if nodes.num_features == 0:
            order = np.argsort(parts_of[name], kind="stable")
            shared[f"original_{number}"] = order.astype(np.int64)
    return {name: write_array(folder, name, array) for name, array in shared.items()}
