"""Writing a graph's parts: each large array of the store is read once, from first to last row.

Memory: two numbers a node, and a chunk. No array of all edges, or of all features, is held.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from gnntrain import __version__
from gnntrain.atomic_io import atomic_folder, fsync_folder
from gnntrain.data.array_folder import (
    ArrayMeta,
    ArrayWriter,
    map_array,
    with_checksums,
    write_array,
    write_seal,
)
from gnntrain.data.graph import (
    SPLITS,
    AnyArray,
    Edges,
    IntArray,
    NodeType,
    index_dtype,
)
from gnntrain.data.partitioned_graph import (
    Method,
    PartitionedGraph,
    PartitionMeta,
    PartMeta,
    part_folder,
)
from gnntrain.data.partitioning.assign import PartIndex
from gnntrain.data.store import StoredGraph
from gnntrain.data.targets import TargetScale

_CHUNK_BYTES = 1 << 24
_CHUNK_EDGES = 1 << 18


def write_parts(
    path: Path, store: StoredGraph, part_of: PartIndex, num_parts: int, method: Method
) -> PartitionedGraph:
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
    return PartitionedGraph.open(path, check=False)


def _write(
    folder: Path, store: StoredGraph, part_of: PartIndex, num_parts: int, method: Method
) -> None:
    folders = [part_folder(folder, number) for number in range(num_parts)]
    for part in folders:
        part.mkdir()
    last_nodes = np.cumsum([len(nodes) for nodes in store.nodes.values()])[:-1]
    parts_of = dict(zip(store.nodes, np.split(part_of, last_nodes), strict=True))
    node_counts = {name: np.bincount(p, minlength=num_parts) for name, p in parts_of.items()}

    # Original numbers, in the order of the new ones; new numbers, in the order of the original.
    original_arrays: dict[str, list[ArrayMeta]] = {}
    shared: dict[str, AnyArray] = {}
    new: dict[NodeType, IntArray] = {}
    index = index_dtype(max(map(len, store.nodes.values())))
    for i, (name, parts) in enumerate(parts_of.items()):
        original = np.argsort(parts, kind="stable")
        new[name] = np.empty(len(parts), index)
        new[name][original] = np.arange(len(parts), dtype=index)
        pieces = np.split(original, np.cumsum(node_counts[name])[:-1])
        original_arrays[f"original_{i}"] = [
            write_array(part, f"original_{i}", piece)
            for part, piece in zip(folders, pieces, strict=True)
        ]
        if store.nodes[name].num_features == 0:
            shared[f"original_{i}"] = original
    for split in SPLITS:
        shared[f"split_{split}"] = new[store.target][store.split(split)].astype(np.int64)
    if "class_names" in store.meta.arrays:
        shared["class_names"] = map_array(store.path, store.meta.arrays["class_names"])

    edge_arrays, edge_counts, cut_edges = _write_edges(folders, store, parts_of, new)
    arrays = edge_arrays | original_arrays | _write_node_arrays(folders, store, parts_of)
    in_folder = {name: write_array(folder, name, array) for name, array in shared.items()}
    num_train = np.bincount(parts_of[store.target][store.split("train")], minlength=num_parts)
    has_classes = store.task != "continuous"
    meta = PartitionMeta(
        format=PartitionMeta.FORMAT,
        version=PartitionMeta.VERSION,
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
        arrays=with_checksums(folder, in_folder),
        summary=store.summary,
        lowest=store.meta.lowest,
        source=store.content_digest,
        method=method,
        cut_edges=cut_edges,
        class_counts={name: store.class_counts(name).tolist() for name in SPLITS}
        if has_classes
        else None,
        target_scale=None if has_classes else TargetScale.of(store),
        target_ranges=None if has_classes else {name: store.target_ranges(name) for name in SPLITS},
        parts=tuple(
            PartMeta(
                node_counts=tuple(int(counts[number]) for counts in node_counts.values()),
                edge_counts=tuple(counts[number] for counts in edge_counts),
                num_train=int(num_train[number]),
                arrays=with_checksums(part, {name: of[number] for name, of in arrays.items()}),
            )
            for number, part in enumerate(folders)
        ),
    ).write(folder)
    write_seal(folder, meta.arrays, meta.digest)
    for part, described in zip(folders, meta.parts, strict=True):
        write_seal(part, described.arrays, meta.digest)
        fsync_folder(part)
    fsync_folder(folder)


def _write_edges(
    folders: Sequence[Path],
    store: StoredGraph,
    parts_of: Mapping[NodeType, PartIndex],
    new: Mapping[NodeType, IntArray],
) -> tuple[dict[str, list[ArrayMeta]], list[list[int]], int]:
    """Write indptr, the sources by their new numbers, and the weights.

    Returns:
        The arrays; for each edge type its edges in each part; the number of cut edges.
    """
    edge_counts: list[list[int]] = []
    with ExitStack() as stack:
        writers = [
            stack.enter_context(ArrayWriter(f / "indptr.npy", np.dtype(np.int64))) for f in folders
        ]
        for (_, _, destination), edges in store.edges.items():
            edge_counts.append([])
            for number, writer in enumerate(writers):
                nodes = np.flatnonzero(parts_of[destination] == number)
                indptr = np.zeros(len(nodes) + 1, np.int64)
                np.cumsum(edges.indptr[nodes + 1] - edges.indptr[nodes], out=indptr[1:])
                writer.append(indptr)
                edge_counts[-1].append(int(indptr[-1]))
        arrays = {"indptr": [writer.close() for writer in writers]}

    cut_edges = 0

    def sources() -> Iterator[tuple[AnyArray, PartIndex]]:
        nonlocal cut_edges
        for (source, _, destination), edges in store.edges.items():
            for chunk, parts in _edge_chunks(edges, parts_of[destination]):
                nodes = edges.indices[chunk]
                cut_edges += int(np.count_nonzero(parts != parts_of[source][nodes]))
                yield new[source][nodes], parts

    arrays["indices"] = _write_rows(folders, "indices", new[store.target].dtype, sources())
    for (_, _, destination), edges in store.edges.items():
        if edges.weight is not None:  # of a graph of one type alone
            weight = edges.weight
            chunks = _edge_chunks(edges, parts_of[destination])
            rows = ((weight[chunk], parts) for chunk, parts in chunks)
            arrays["edge_weight"] = _write_rows(folders, "edge_weight", weight.dtype, rows)
    return arrays, edge_counts, cut_edges


def _edge_chunks(edges: Edges, part_of: PartIndex) -> Iterator[tuple[slice, PartIndex]]:
    """Ranges of edges, and the part of each edge: that of its destination."""
    for start in range(0, len(edges), _CHUNK_EDGES):
        stop = min(start + _CHUNK_EDGES, len(edges))
        first = int(np.searchsorted(edges.indptr, start, side="right")) - 1
        last = int(np.searchsorted(edges.indptr, stop))
        num_edges = np.diff(edges.indptr[first : last + 1].clip(start, stop))
        yield slice(start, stop), np.repeat(part_of[first:last], num_edges)


def _write_node_arrays(
    folders: Sequence[Path], store: StoredGraph, parts_of: Mapping[NodeType, PartIndex]
) -> dict[str, list[ArrayMeta]]:
    """Write features, labels, norms and ids."""
    written = {}
    norm = next(iter(store.edges.values())).gcn_norm  # of a graph of one type alone
    for number, (name, nodes) in enumerate(store.nodes.items()):
        of_type = {
            f"features_{number}": nodes.features,
            "labels": nodes.labels,
            "gcn_norm": norm,
            f"node_ids_{number}": nodes.ids,
        }
        for file, array in of_type.items():
            if array is None:
                continue
            step = max(1, _CHUNK_BYTES // max(16, array.strides[0]))
            starts = range(0, len(array), step)
            rows = ((array[i : i + step], parts_of[name][i : i + step]) for i in starts)
            logical = nodes.feature_dtype if array is nodes.features else None
            shape = array.shape[1:]
            written[file] = _write_rows(folders, file, array.dtype, rows, shape, logical)
    return written


def _write_rows(
    folders: Sequence[Path],
    name: str,
    dtype: np.dtype[Any],
    chunks: Iterable[tuple[AnyArray, PartIndex]],
    *row_type: Any,
) -> list[ArrayMeta]:
    """Write an array, in each folder the rows of its part.

    Args:
        folders: The folders of the parts.
        name: Name of the array.
        dtype: As stored.
        chunks: Rows, and the part of each.
        row_type: Shape of a row and logical type, see `ArrayWriter`.
    """
    with ExitStack() as stack:
        writers = [
            stack.enter_context(ArrayWriter(folder / f"{name}.npy", dtype, *row_type))
            for folder in folders
        ]
        for rows, parts in chunks:
            ends = np.cumsum(np.bincount(parts, minlength=len(folders)))
            by_part = rows[np.argsort(parts, kind="stable")]
            for writer, of_part in zip(writers, np.split(by_part, ends[:-1]), strict=True):
                writer.append(of_part)
        return [writer.close() for writer in writers]
