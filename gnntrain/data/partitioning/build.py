"""Cutting a graph into parts on disk: mistakes told before anything is computed, then the files.

Each large array of the store is read once, from first to last row. Memory: two numbers a node, and
a chunk. No array of all edges, or of all features, is held.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from gnntrain.atomic_io import atomic_folder, fsync_folder
from gnntrain.data.array_folder import (
    HEADER_BYTES,
    ArrayMeta,
    ArrayWriter,
    map_array,
    with_checksums,
    write_array,
)
from gnntrain.data.graph import (
    EDGE,
    NODE,
    SPLITS,
    AnyArray,
    Edges,
    Graph,
    Int64Array,
    IntArray,
    Nodes,
    NodeType,
    index_dtype,
)
from gnntrain.data.partitioned_graph import (
    Method,
    PartitionedGraph,
    PartitionMeta,
    PartMeta,
)
from gnntrain.data.partitioning.assign import MAX_PARTS, PartIndex, assign
from gnntrain.data.store import GraphMeta, StoredGraph
from gnntrain.data.stores import disk_errors
from gnntrain.errors import UserError
from gnntrain.limits import available_memory
from gnntrain.paths import nearest_folder

_METIS_BYTES_AN_EDGE = 130  # measured on graphs with edges both ways
_METIS_BYTES_A_NODE = 200

_CHUNK_BYTES = 1 << 24
_CHUNK_EDGES = 1 << 18


def partition(store: StoredGraph, num_parts: int, out: Path, method: Method) -> PartitionedGraph:
    """Cut a graph into parts, and write them to the folder `out`, as a whole or not at all; errors
    are those of `refuse_mistakes`, and RunError where the disk fills, or METIS fails."""
    refuse_mistakes(store, num_parts, out, method)
    with disk_errors(out, _needed_bytes(store, num_parts), "the parts", "--out"):
        with union_of(store, nearest_folder(out)) as graph:
            part_of = assign(graph, num_parts, method)
        return write_parts(out, store, part_of, num_parts, method)


def refuse_mistakes(store: StoredGraph, num_parts: int, out: Path, method: Method) -> None:
    """Raise UserError where the graph cannot be cut into so many parts, the folder is not empty or
    cannot be written, or METIS is not installed or needs too much memory; RunError where the disk
    has too little room."""
    most = min(MAX_PARTS, store.num_nodes)
    if not 1 <= num_parts <= most:
        raise UserError(
            f"{store.dataset} ({store.num_nodes:,} nodes) cannot be cut into {num_parts:,} parts",
            f"Give --parts a number from 1 to {most}.",
        )
    if method == "metis":
        if find_spec("pymetis") is None:
            raise UserError(
                "--method metis needs the package pymetis, which is not installed",
                "Run `pip install 'gnntrain[partition]'`, or leave --method out.",
            )
        needed = store.num_edges * _METIS_BYTES_AN_EDGE + store.num_nodes * _METIS_BYTES_A_NODE
        if needed > (available := available_memory()):
            raise UserError(
                f"METIS needs about {needed / 2**30:,.1f} GiB of memory for {store.dataset}; "
                f"{available / 2**30:,.1f} GiB are free",
                "Leave --method out: the streaming partitioner needs little memory.",
            )
    with disk_errors(out, _needed_bytes(store, num_parts), "the parts", "--out"):
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UserError(
                f"{out} is there, and not an empty folder: nothing was written to it",
                "Give --out a folder that is not there yet, or remove it.",
            )


def _needed_bytes(store: StoredGraph, num_parts: int) -> int:
    """Bytes of all parts: those of the store, original numbers (of types without features twice),
    and headers with their lines in the JSON."""
    headers = num_parts * (5 + 3 * len(store.nodes)) * (HEADER_BYTES + 512)
    return store.num_bytes + 16 * store.num_nodes + headers


@contextmanager
def union_of(graph: Graph, folder: Path) -> Iterator[Graph]:
    """A typed graph as a graph of one type, which is cut into parts: the nodes of all types, type
    by type, and the edges of all types; without features. One of a single type is returned as it
    is. The edges are written to a temporary file in `folder` meanwhile.
    """
    if not graph.is_hetero:
        yield graph
        return
    num_nodes, num_edges = graph.num_nodes, graph.num_edges
    sizes = [len(nodes) for nodes in graph.nodes.values()]
    firsts = dict(zip(graph.nodes, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))
    indptr = np.zeros(num_nodes + 1, np.int64)
    for (_, _, destination), edges in graph.edges.items():
        num_in_edges = np.diff(edges.indptr)
        indptr[1:][firsts[destination] :][: len(num_in_edges)] += num_in_edges
    np.cumsum(indptr, out=indptr)
    with TemporaryFile(dir=folder) as file:
        dtype = index_dtype(num_nodes)
        file.truncate(max(1, num_edges * dtype.itemsize))
        joined: IntArray = np.memmap(file, dtype, "r+", shape=max(1, num_edges))[:num_edges]
        ends = indptr[:-1].copy()  # where the in-edges of each node end so far
        for (source, _, destination), edges in graph.edges.items():
            ends_of_type = ends[firsts[destination] :][: len(edges.indptr) - 1]
            shift = ends_of_type - edges.indptr[:-1]
            for chunk, nodes in _edge_chunks(edges):
                place = np.arange(chunk.start, chunk.stop) + shift[nodes]
                joined[place] = np.add(edges.indices[chunk], firsts[source], dtype=dtype)
            ends_of_type += np.diff(edges.indptr)
        train = graph.split("train") + firsts[graph.target]
        all_nodes = Nodes(np.empty((num_nodes, 0), np.float32), splits={"train": train})
        yield Graph({NODE: all_nodes}, {EDGE: Edges(indptr, joined)}, dataset=graph.dataset)


def _edge_chunks(edges: Edges) -> Iterator[tuple[slice, Int64Array]]:
    """Ranges of edges, and the destination of each edge."""
    for start in range(0, len(edges), _CHUNK_EDGES):
        stop = min(start + _CHUNK_EDGES, len(edges))
        first = int(np.searchsorted(edges.indptr, start, side="right")) - 1
        last = int(np.searchsorted(edges.indptr, stop))
        num_edges = np.diff(edges.indptr[first : last + 1].clip(start, stop))
        yield slice(start, stop), np.repeat(np.arange(first, last), num_edges)


def write_parts(
    path: Path, store: StoredGraph, part_of: PartIndex, num_parts: int, method: Method
) -> PartitionedGraph:
    """Write a graph's parts to the folder `path`, missing or empty, as a whole or not at all;
    `part_of` is the part of each node, type by type, and every part has one."""
    path = Path(path).absolute()
    with atomic_folder(path) as folder:
        _write(folder, store, part_of, num_parts, method)
    return PartitionedGraph.open(path, check=False)


def _write(
    folder: Path, store: StoredGraph, part_of: PartIndex, num_parts: int, method: Method
) -> None:
    folders = [folder / f"part{number}" for number in range(num_parts)]
    arrays: list[dict[str, ArrayMeta]] = [{} for _ in folders]
    last_nodes = np.cumsum([len(nodes) for nodes in store.nodes.values()])[:-1]
    parts_of = dict(zip(store.nodes, np.split(part_of, last_nodes), strict=True))
    node_counts = {name: np.bincount(p, minlength=num_parts) for name, p in parts_of.items()}

    def write_rows(
        name: str,
        dtype: np.dtype[Any],
        chunks: Iterable[tuple[AnyArray, PartIndex]],
        row_shape: tuple[int, ...] = (),
    ) -> None:
        """Write chunks of rows, each with the part of its rows: a file in the folder of each
        part."""
        with ExitStack() as stack:
            writers = [
                stack.enter_context(ArrayWriter(part / f"{name}.npy", dtype, row_shape))
                for part in folders
            ]
            for rows, parts in chunks:
                ends = np.cumsum(np.bincount(parts, minlength=num_parts))
                by_part = rows[np.argsort(parts, kind="stable")]
                for writer, of_part in zip(writers, np.split(by_part, ends[:-1]), strict=True):
                    writer.append(of_part)
            for arrays_of_part, writer in zip(arrays, writers, strict=True):
                arrays_of_part[name] = writer.close()

    # The offsets of the edges, by part.
    edge_counts: list[list[int]] = []
    for number, part in enumerate(folders):
        part.mkdir()
        edge_counts.append([])
        with ArrayWriter(part / "indptr.npy", np.int64) as writer:
            for (_, _, destination), edges in store.edges.items():
                nodes = np.flatnonzero(parts_of[destination] == number)
                indptr = np.zeros(len(nodes) + 1, np.int64)
                np.cumsum(edges.indptr[nodes + 1] - edges.indptr[nodes], out=indptr[1:])
                writer.append(indptr)
                edge_counts[number].append(int(indptr[-1]))
            arrays[number]["indptr"] = writer.close()

    # New numbers, in the order of the original ones.
    shared: dict[str, AnyArray] = {}
    new: dict[NodeType, IntArray] = {}
    index = index_dtype(max(map(len, store.nodes.values())))
    for i, (name, parts) in enumerate(parts_of.items()):
        original = np.argsort(parts, kind="stable")
        new[name] = np.empty(len(parts), index)
        new[name][original] = np.arange(len(parts), dtype=index)
        if store.nodes[name].num_features == 0:
            shared[f"original_{i}"] = original
        del original

    # The sources by their new numbers, and weights.
    cut_edges = 0

    def sources() -> Iterator[tuple[AnyArray, PartIndex]]:
        nonlocal cut_edges
        for (source, _, destination), edges in store.edges.items():
            for chunk, destinations in _edge_chunks(edges):
                nodes, parts = edges.indices[chunk], parts_of[destination][destinations]
                cut_edges += int(np.count_nonzero(parts != parts_of[source][nodes]))
                yield new[source][nodes], parts

    write_rows("indices", index, sources())
    for (_, _, destination), edges in store.edges.items():
        if (weight := edges.weight) is not None:  # of a graph of one type alone
            chunks = _edge_chunks(edges)
            rows = ((weight[chunk], parts_of[destination][nodes]) for chunk, nodes in chunks)
            write_rows("edge_weight", weight.dtype, rows)

    # Original numbers, features, labels, norms and ids.
    for i, (name, of_type) in enumerate(store.nodes.items()):
        matrices: dict[str, AnyArray | None] = {
            f"original_{i}": np.arange(len(of_type)),
            f"features_{i}": of_type.features,
            "labels": of_type.labels,
            "gcn_norm": None if store.is_hetero else store.only_edges.gcn_norm,
            f"node_ids_{i}": of_type.ids,
        }
        for file, array in matrices.items():
            if array is not None:
                step = max(1, _CHUNK_BYTES // max(16, array.strides[0]))
                starts = range(0, len(array), step)
                rows = ((array[a : a + step], parts_of[name][a : a + step]) for a in starts)
                write_rows(file, array.dtype, rows, array.shape[1:])

    # What is known of the whole graph.
    for split in SPLITS:
        shared[f"split_{split}"] = new[store.target][store.split(split)].astype(np.int64)
    if "class_names" in store.meta.arrays:
        shared["class_names"] = map_array(store.path, store.meta.arrays["class_names"])
    in_folder = {name: write_array(folder, name, array) for name, array in shared.items()}
    num_train = np.bincount(parts_of[store.target][store.split("train")], minlength=num_parts)
    of_store = GraphMeta.model_fields.keys() - {"format", "version", "made_by", "arrays", "digest"}
    has_classes = store.task != "continuous"
    PartitionMeta(
        format=PartitionMeta.FORMAT,
        version=PartitionMeta.VERSION,
        arrays=with_checksums(folder, in_folder),
        source=store.content_digest,
        method=method,
        cut_edges=cut_edges,
        class_counts={s: store.class_counts(s).tolist() for s in SPLITS} if has_classes else None,
        target_scale=None if has_classes else store.target_scale(),
        target_ranges=None if has_classes else {s: store.target_ranges(s) for s in SPLITS},
        parts=tuple(
            PartMeta(
                node_counts=tuple(int(counts[number]) for counts in node_counts.values()),
                edge_counts=tuple(edge_counts[number]),
                num_train=int(num_train[number]),
                arrays=with_checksums(part, arrays[number]),
            )
            for number, part in enumerate(folders)
        ),
        **{name: getattr(store.meta, name) for name in of_store},
    ).write(folder)
    for written in (*folders, folder):
        fsync_folder(written)
