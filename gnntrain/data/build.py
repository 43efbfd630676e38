"""Building graph stores: checked, written under a temporary name, sealed, renamed."""

from __future__ import annotations

import json
import logging
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gnntrain import __version__
from gnntrain.atomic_io import fsync_folder
from gnntrain.data.arrays import (
    HEADER_BYTES,
    ArrayWriter,
    lowest_feature,
    prepared_features,
    stored_feature_dtype,
    write_array,
)
from gnntrain.data.checks import check_graph
from gnntrain.data.csc import ColumnBlock, EdgeList, column_blocks, gcn_norm, with_loops
from gnntrain.data.graph import (
    JSON,
    SPLITS,
    AnyArray,
    EdgeType,
    Float32Array,
    GraphData,
    Int64Array,
    NodeType,
    PrepareOptions,
    index_dtype,
    reverse_type,
    without_reverse,
)
from gnntrain.data.preprocessing import loses_digits
from gnntrain.data.store import StoredGraph
from gnntrain.data.store_meta import (
    FORMAT,
    META_FILE,
    VERSION,
    ArrayMeta,
    EdgeTypeMeta,
    NodeTypeMeta,
    StoreError,
    StoreMeta,
    canonical_json,
    digest_of,
    read_meta,
    with_checksums,
    write_description,
    write_seal,
)
from gnntrain.data.store_place import (
    clear_place,
    disk_errors,
    disk_full,
    free_bytes,
    locked,
    move_into_place,
    temporary_sibling,
)
from gnntrain.data.summary import summary_of
from gnntrain.errors import UserError

_MAX_TRIES = 3

_logger = logging.getLogger("gnntrain")


@dataclass(frozen=True)
class OpenedStore:
    """An open store, and whether it was built.

    Attributes:
        store: The store.
        built: Whether it was built just now.
        reason: "opened", "built: none was there", "rebuilt: …" with the error.
        seconds: Time it took.
    """

    store: StoredGraph
    built: bool
    reason: str
    seconds: float


def store_name(identity: Mapping[str, JSON], options: PrepareOptions) -> str:
    """Directory name of a store: `<dataset>-<12 hex digits>`, a digest of its identity.

    `identity["dataset"]` gives the readable part.
    """
    readable = re.sub(r"[^A-Za-z0-9_-]", "_", str(identity.get("dataset", "graph")))
    content = {"identity": dict(identity), "options": options.to_dict(), "version": VERSION}
    return f"{readable}-{digest_of(content, num_bytes=6)}"


def open_or_build(
    cache_dir: Path,
    identity: Callable[[], Mapping[str, JSON]],
    options: PrepareOptions,
    builder: Callable[[], GraphData],
) -> OpenedStore:
    """Open the store of a graph and `options` under `cache_dir`, building it where needed.

    A damaged store is built again; if several processes need it, one builds and the others wait.
    Where the identity is another one after building, files have changed while they were read, and
    all begins anew.

    Args:
        cache_dir: Directory of stores; made if need be.
        identity: Gives everything that determines the graph, such as name, sizes, seed, or the
            paths and contents of the raw files; "dataset" is its name.
        options: Preparation.
        builder: Loads or generates the graph; called only if the store must be built.

    Raises:
        UserError: The graph is invalid, its files change whenever they are read, or another file
            or folder is at the store's path.
        RunError: The disk is full.
    """
    begin = time.perf_counter()
    for _ in range(_MAX_TRIES):
        now = identity()
        path = Path(cache_dir).absolute() / store_name(now, options)
        store, problem = _try_open(path, now, options)
        if store is not None:
            return OpenedStore(store, False, "opened", time.perf_counter() - begin)
        with locked(path):
            store, problem = _try_open(path, now, options)
            if store is not None:
                reason = "opened: another process has just built it"
                return OpenedStore(store, False, reason, time.perf_counter() - begin)
            clear_place(path)
            try:
                store = _write(path, builder(), options, now, identity)
            except _OtherFiles:
                continue
            except Exception:
                if identity() == now:
                    raise
                continue  # half of one file and half of another are no table
        return OpenedStore(store, True, problem, time.perf_counter() - begin)
    raise UserError(
        f"the files of {now['dataset']} have changed {_MAX_TRIES} times while they were read.",
        "Start again when they are complete.",
    )


class _OtherFiles(Exception):
    """Files have changed while a graph was read from them."""


def write_store(
    path: Path, data: GraphData, options: PrepareOptions, identity: Mapping[str, JSON]
) -> StoredGraph:
    """Build the store at `path` from `data`, replacing a store there.

    Memory beside `data` itself stays at a few chunks of edges and features.

    Raises:
        UserError: `data` is invalid, or another file or folder is at `path`.
        RunError: The disk is full.
    """
    path = Path(path).absolute()
    with locked(path):
        clear_place(path)
        return _write(path, data, options, identity, lambda: identity)


def _try_open(
    path: Path, identity: Mapping[str, JSON], options: PrepareOptions
) -> tuple[StoredGraph | None, str]:
    """The store; or None and the reason to build it."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return None, "built: none was there"
    try:
        store = StoredGraph.open(path)
    except StoreError as error:
        return None, f"rebuilt: {error.reason}"
    asked = {"identity": dict(identity), "options": options.to_dict()}
    found = {"identity": store.meta.identity, "options": store.meta.options}
    if canonical_json(asked) != canonical_json(found):
        return None, "rebuilt: it was made from other data or with other options"
    return store, ""


def _write(
    path: Path,
    data: GraphData,
    options: PrepareOptions,
    identity: Mapping[str, JSON],
    identity_now: Callable[[], Mapping[str, JSON]],
) -> StoredGraph:
    check_graph(data)
    needed = _needed_bytes(data, options)
    if free_bytes(path.parent) < needed:
        raise disk_full(path, needed)
    building = temporary_sibling(path)
    try:
        with disk_errors(path, needed):
            building.mkdir()
            lowest = options.lowest  # None: features stay as they are
            if lowest is None and options.normalize_features:
                lowest = {
                    name: lowest_feature(nodes, data.dataset) for name, nodes in data.nodes.items()
                }
            arrays, num_edges = _write_arrays(building, data, options, lowest)
            meta = _write_meta(building, data, options, identity, arrays, num_edges, lowest)
            write_seal(building, meta)
            fsync_folder(building)
            if identity_now() != identity:
                raise _OtherFiles
            move_into_place(building, path)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return StoredGraph.open(path, check=False)


def _write_arrays(
    directory: Path,
    data: GraphData,
    options: PrepareOptions,
    lowest: Mapping[NodeType, float] | None,
) -> tuple[dict[str, ArrayMeta], dict[EdgeType, int]]:
    """Write all arrays; returns them and the number of edges of each type."""
    sizes = {name: nodes.num_nodes for name, nodes in data.nodes.items()}
    arrays, num_edges = _write_columns(directory, _edge_lists(data, options), sizes)
    small = {"labels": _stored_labels(data)}
    for name in SPLITS:
        small[f"split_{name}"] = np.unique(np.asarray(data.splits[name])).astype(np.int64)
    for number, (name, of_type) in enumerate(data.nodes.items()):
        where = "" if data.is_homogeneous else f"node type {name}: "
        file = directory / f"features_{number}.npy"
        least = None if lowest is None else lowest.get(name, 0.0)  # of a further type: unread
        shape, dtype = (of_type.num_features,), stored_feature_dtype(options)
        with ArrayWriter(file, dtype, shape, options.feature_dtype) as writer:
            kept_as, dataset = options.feature_dtype, data.dataset
            for rows in prepared_features(of_type, kept_as, least, dataset, where):
                writer.append(rows)
            arrays[file.stem] = writer.close()
        if of_type.ids is not None:
            small[f"node_ids_{number}"] = _stored_names(of_type.ids)
    if data.class_names is not None:
        small["class_names"] = _stored_names(data.class_names)
    for name, array in small.items():
        arrays[name] = write_array(directory, name, array)
    return arrays, num_edges


def _write_columns(
    directory: Path, edges: Mapping[EdgeType, EdgeList], sizes: Mapping[NodeType, int]
) -> tuple[dict[str, ArrayMeta], dict[EdgeType, int]]:
    """Write the in-neighbour lists, block by block, then the arrays derived from them."""
    indptr = np.zeros(sum(sizes[name[2]] + 1 for name in edges), np.int64)
    norm, num_edges, first = np.empty(0, np.float32), dict[EdgeType, int](), 0
    weighted = any(of_type.weight is not None for of_type in edges.values())
    arrays: dict[str, ArrayMeta] = {}
    dtype = index_dtype(max(sizes.values()))
    with (
        ArrayWriter(directory / "indices.npy", dtype) as indices,
        ArrayWriter(directory / "edge_weight.npy", np.float32) as weight,
    ):
        for name, of_type in edges.items():
            num_src, num_dst = sizes[name[0]], sizes[name[2]]
            last = first + num_dst + 1
            blocks = column_blocks(of_type, num_dst, num_src)
            if of_type.merge and of_type.weight is not None:
                blocks = _telling_sums(of_type, blocks)
            norm = _append_columns(blocks, indptr[first:last], indices, weight)
            num_edges[name], first = int(indptr[last - 1]), last
        arrays["indices"] = indices.close()
        if weighted:
            arrays["edge_weight"] = weight.close()
    if not weighted:
        (directory / "edge_weight.npy").unlink()
    arrays["indptr"] = write_array(directory, "indptr", indptr)
    if len(edges) == len(sizes) == 1:
        arrays["gcn_norm"] = write_array(directory, "gcn_norm", norm)
    return arrays, num_edges


def _telling_sums(edges: EdgeList, blocks: Iterable[ColumnBlock]) -> Iterator[ColumnBlock]:
    """The blocks of edges in both directions; at the end it is told how many weights were added to
    another edge's."""
    first = num_stored = 0
    for block in blocks:
        last = first + len(block.counts)
        num_stored += int((block.indices != np.repeat(np.arange(first, last), block.counts)).sum())
        first = last
        yield block
    num_given = sum(int((src != dst).sum()) for src, dst, _ in edges.chunks())
    if num_more := num_given - num_stored // 2:
        _logger.warning(
            "dataset.to_undirected: %s edges are given once more, in the other direction or the "
            "same; their weights are added up",
            f"{num_more:,}",
        )


def _append_columns(
    blocks: Iterable[ColumnBlock], indptr: Int64Array, indices: ArrayWriter, weight: ArrayWriter
) -> Float32Array:
    """Write the in-neighbours of one edge type and fill its `indptr`; returns its `gcn_norm`."""
    (norm, loop), first = np.empty((2, len(indptr) - 1), np.float32), 0
    for block in blocks:
        last = first + len(block.counts)
        indptr[first + 1 : last + 1] = block.counts
        norm[first:last], loop[first:last] = gcn_norm(block), block.loop
        indices.append(block.indices.astype(indices.dtype, copy=False))
        if block.weight is not None:
            weight.append(block.weight)
        first = last
    np.cumsum(indptr, out=indptr)
    return with_loops(norm, loop)


def _edge_lists(data: GraphData, options: PrepareOptions) -> dict[EdgeType, EdgeList]:
    """The given edges of each edge type, the reverse ones included."""
    both_ways, loops = options.to_undirected, options.add_self_loops
    lists = {}
    for name, edges in data.edges.items():
        lists[name] = EdgeList(edges.src, edges.dst, edges.weight)
        if name[0] == name[2]:
            mirror = edges.symmetric or both_ways
            lists[name] = replace(lists[name], mirror=mirror, merge=both_ways, fill_loops=loops)
    if data.reverse or both_ways:
        for name in without_reverse(data.edges):
            if not lists[name].mirror:
                lists[reverse_type(name)] = lists[name].reversed()
    return lists


def _stored_names(names: AnyArray) -> AnyArray:
    return names.astype(names.dtype if names.dtype.kind == "S" else np.int64, copy=False)


def _stored_labels(data: GraphData) -> AnyArray:
    if data.task == "multilabel":
        return data.labels.astype(np.uint8)
    if data.task == "continuous":
        labels = data.labels.astype(np.float64, copy=False)
        rounded = labels.astype(np.float32)
        is_exact = ((rounded == labels) | np.isnan(labels)).all(axis=0)
        return labels if (loses_digits(labels) & ~is_exact).any() else rounded
    if data.labels.dtype.kind == "f":
        return np.nan_to_num(data.labels, nan=-1.0).astype(np.int32)
    return data.labels.astype(np.int32)


def _write_meta(
    directory: Path,
    data: GraphData,
    options: PrepareOptions,
    identity: Mapping[str, JSON],
    arrays: Mapping[str, ArrayMeta],
    num_edges: Mapping[EdgeType, int],
    lowest: Mapping[NodeType, float] | None,
) -> StoreMeta:
    node_types = tuple(
        NodeTypeMeta(
            name=name,
            num_nodes=nodes.num_nodes,
            num_features=nodes.num_features,
            feature_names=None if nodes.feature_names is None else tuple(nodes.feature_names),
            preprocessing=nodes.preprocessing,
        )
        for name, nodes in data.nodes.items()
    )
    meta = StoreMeta(
        format=FORMAT,
        version=VERSION,
        made_by=f"gnntrain {__version__}",
        dataset=data.dataset,
        task=data.task,
        metric=data.metric,
        ogb_name=data.ogb_name,
        num_classes=data.num_classes,
        node_types=node_types,
        edge_types=tuple(
            EdgeTypeMeta(name=name, num_edges=number) for name, number in num_edges.items()
        ),
        target=data.target,
        identity=json.loads(canonical_json(dict(identity))),
        options=options.to_dict(),
        arrays=with_checksums(directory, arrays),
        summary=summary_of(data, options),
        lowest=None if lowest is None else dict(lowest),
        digest="",
    )
    write_description(directory / META_FILE, meta)
    return read_meta(directory)


def _needed_bytes(data: GraphData, options: PrepareOptions) -> int:
    """Bytes on disk, with all edges counted, also those to be merged."""
    sizes = {name: nodes.num_nodes for name, nodes in data.nodes.items()}
    an_index, a_feature = index_dtype(max(sizes.values())), stored_feature_dtype(options)
    needed = (8 + 2 * len(sizes)) * HEADER_BYTES + (1 << 16)
    for (_, _, destination), edges in _edge_lists(data, options).items():
        num_edges = len(edges.src) * (1 + edges.mirror) + sizes[destination] * edges.fill_loops
        needed += num_edges * (an_index.itemsize + 4 * (edges.weight is not None))
        needed += sizes[destination] * (8 + 4 + 4 * (edges.weight is not None))
    for of_type in data.nodes.values():
        a_node = of_type.num_features * a_feature.itemsize
        if of_type.ids is not None:
            a_node += max(of_type.ids.dtype.itemsize, 8)
        needed += of_type.num_nodes * a_node
    a_label = {"multilabel": 1, "continuous": 8}.get(data.task, 0) * data.num_classes or 4
    needed += len(data.labels) * a_label + 8 * sum(len(ids) for ids in data.splits.values())
    return needed + (0 if data.class_names is None else data.class_names.nbytes)
