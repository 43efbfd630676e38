"""Cutting a graph into parts on disk: mistakes told before anything is computed."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np

from gnntrain.data.array_folder import HEADER_BYTES
from gnntrain.data.graph import (
    EDGE,
    NODE,
    Edges,
    Graph,
    Int64Array,
    IntArray,
    Nodes,
    index_dtype,
)
from gnntrain.data.partitioned_graph import Method, PartitionedGraph
from gnntrain.data.partitioning.assign import assign, refuse_metis, refuse_number
from gnntrain.data.partitioning.writing import write_parts
from gnntrain.data.store import StoredGraph
from gnntrain.data.stores import free_bytes
from gnntrain.errors import UserError
from gnntrain.jit import jit


def partition(store: StoredGraph, num_parts: int, out: Path, method: Method) -> PartitionedGraph:
    """Cut a graph into parts, and write them to the folder `out`, as a whole or not at all.

    Args:
        store: The graph.
        num_parts: Number of parts, at most `gnntrain.data.partitioning.assign.MAX_PARTS`.
        out: The folder; missing or empty.
        method: How nodes are assigned to parts, see `gnntrain.data.partitioning.assign.assign`.

    Raises:
        UserError: The graph cannot be cut into so many parts, the folder is not empty or cannot be
            written, the disk is full, or METIS is not installed or needs too much memory.
    """
    refuse_mistakes(store, num_parts, out, method)
    with _as_user_errors(store, num_parts, out):
        with union_of(store, _nearest_folder(out)) as graph:
            part_of = assign(graph, num_parts, method)
        return write_parts(out, store, part_of, num_parts, method)


def refuse_mistakes(store: StoredGraph, num_parts: int, out: Path, method: Method) -> None:
    """Raise a UserError as `partition` does, as far as it is known before."""
    refuse_number(store, num_parts)
    if method == "metis":
        refuse_metis(store)
    with _as_user_errors(store, num_parts, out):
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise OSError(errno.ENOTEMPTY, "not empty")
        if free_bytes(_nearest_folder(out)) < _needed_bytes(store, num_parts):
            raise OSError(errno.ENOSPC, "too small")


@contextmanager
def _as_user_errors(store: StoredGraph, num_parts: int, out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            needed, free = _needed_bytes(store, num_parts), free_bytes(_nearest_folder(out))
            raise UserError(
                f"not enough disk space for the parts in {out}: "
                f"{needed:,} bytes are needed, {free:,} are free",
                "Free some space there, or give --out a folder on another disk.",
            ) from error
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):  # perhaps another process was faster
            raise UserError(
                f"{out} is there, and not an empty folder: nothing was written to it",
                "Give --out a folder that is not there yet, or remove it.",
            ) from error
        raise UserError(
            f"the parts cannot be written to {out} ({error.strerror or error})",
            "Give --out a folder that you may write to.",
        ) from error


def _nearest_folder(path: Path) -> Path:
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())


def _needed_bytes(store: StoredGraph, num_parts: int) -> int:
    """Bytes of all parts: those of the store, the original numbers, and more headers; of types
    without features, original numbers a second time."""
    num_arrays = 5 + 3 * len(store.nodes)
    headers = num_parts * num_arrays * (HEADER_BYTES + 512)  # and their lines in the JSON
    twice = sum(len(nodes) for nodes in store.nodes.values() if nodes.num_features == 0)
    return store.num_bytes + 8 * (store.num_nodes + twice) + headers


@contextmanager
def union_of(graph: Graph, folder: Path) -> Iterator[Graph]:
    """A typed graph as a graph of one type, which is cut into parts: the nodes of all types, type
    by type, and the edges of all types; without features.

    Args:
        graph: A graph. One of a single type is returned as it is.
        folder: Where the edges are written meanwhile: `index_dtype` an edge.
    """
    if not graph.is_hetero:
        yield graph
        return
    num_nodes, num_edges = graph.num_nodes, graph.num_edges
    firsts, first = {}, 0
    for name, nodes in graph.nodes.items():
        firsts[name] = first
        first += len(nodes)
    indptr = np.zeros(num_nodes + 1, np.int64)
    for (_, _, destination), edges in graph.edges.items():
        num_in_edges = indptr[1:][firsts[destination] :][: len(graph.nodes[destination])]
        num_in_edges += np.diff(edges.indptr)
    np.cumsum(indptr, out=indptr)
    with TemporaryFile(dir=folder) as file:
        dtype = index_dtype(num_nodes)
        file.truncate(max(1, num_edges * dtype.itemsize))
        joined: IntArray = np.memmap(file, dtype, "r+", shape=max(1, num_edges))[:num_edges]
        ends = indptr[:-1].copy()
        for (source, _, destination), edges in graph.edges.items():
            ends_of_type = ends[firsts[destination] :][: len(graph.nodes[destination])]
            _append_in_edges(edges.indptr, edges.indices, firsts[source], ends_of_type, joined)
        train = graph.split("train") + firsts[graph.target]
        all_nodes = Nodes(np.empty((num_nodes, 0), np.float32), splits={"train": train})
        yield Graph({NODE: all_nodes}, {EDGE: Edges(indptr, joined)}, dataset=graph.dataset)


@jit
def _append_in_edges(
    indptr: Int64Array, indices: IntArray, first_source: int, ends: Int64Array, joined: IntArray
) -> None:
    """Append the in-edges of one edge type to those of its destinations.

    Args:
        indptr: int64 `[num_dst + 1]`.
        indices: `[num_edges]`, sources.
        first_source: The number of the first source among the nodes of all types.
        ends: int64 `[num_dst]`, where the in-edges of each destination end so far; is updated.
        joined: Receives the sources.
    """
    for node in range(len(ends)):
        end = ends[node]
        for edge in range(indptr[node], indptr[node + 1]):
            joined[end] = first_source + indices[edge]
            end += 1
        ends[node] = end
