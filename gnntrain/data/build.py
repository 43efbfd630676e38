"""Building graph stores: checked, written under a temporary name, sealed, renamed."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from gnntrain import __version__
from gnntrain.atomic_io import fsync_folder
from gnntrain.data.arrays import (
    HEADER_BYTES,
    ArrayWriter,
    prepared_features,
    stored_feature_dtype,
    write_array,
)
from gnntrain.data.checks import check_graph
from gnntrain.data.csc import EdgeList, column_blocks, gcn_norm
from gnntrain.data.graph import JSON, SPLITS, AnyArray, GraphData, PrepareOptions, index_dtype
from gnntrain.data.store import StoredGraph
from gnntrain.data.store_files import with_checksums, write_seal
from gnntrain.data.store_meta import (
    ARRAYS,
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
    write_description,
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
    content = {"identity": dict(identity), "options": asdict(options), "version": VERSION}
    return f"{readable}-{digest_of(content, num_bytes=6)}"


def open_or_build(
    cache_dir: Path,
    identity: Mapping[str, JSON],
    options: PrepareOptions,
    builder: Callable[[], GraphData],
) -> OpenedStore:
    """Open the store of `identity` and `options` under `cache_dir`, building it where needed.

    A damaged store is built again; if several processes need it, one builds and the others wait.

    Args:
        cache_dir: Directory of stores; made if need be.
        identity: Everything that determines the graph, such as name, sizes, seed, or the paths,
            sizes and times of the raw files; "dataset" is its name.
        options: Preparation.
        builder: Loads or generates the graph; called only if the store must be built.

    Raises:
        UserError: The graph is invalid, or another file or folder is at the store's path.
        RunError: The disk is full.
    """
    begin = time.perf_counter()
    path = Path(cache_dir).absolute() / store_name(identity, options)
    store, problem = _try_open(path, identity, options)
    if store is not None:
        return OpenedStore(store, False, "opened", time.perf_counter() - begin)
    with locked(path):
        store, problem = _try_open(path, identity, options)
        if store is not None:
            reason = "opened: another process has just built it"
            return OpenedStore(store, False, reason, time.perf_counter() - begin)
        clear_place(path)
        store = _write(path, builder(), options, identity)
    return OpenedStore(store, True, problem, time.perf_counter() - begin)


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
        return _write(path, data, options, identity)


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
    asked = {"identity": dict(identity), "options": asdict(options)}
    found = {"identity": store.meta.identity, "options": store.meta.options}
    if canonical_json(asked) != canonical_json(found):
        return None, "rebuilt: it was made from other data or with other options"
    return store, ""


def _write(
    path: Path, data: GraphData, options: PrepareOptions, identity: Mapping[str, JSON]
) -> StoredGraph:
    check_graph(data)
    needed = _needed_bytes(data, options)
    if free_bytes(path.parent) < needed:
        raise disk_full(path, needed)
    building = temporary_sibling(path)
    try:
        with disk_errors(path, needed):
            building.mkdir()
            arrays = _write_arrays(building, data, options)
            write_seal(building, _write_meta(building, data, options, identity, arrays))
            fsync_folder(building)
            move_into_place(building, path)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return StoredGraph.open(path, check=False)


def _write_arrays(
    directory: Path, data: GraphData, options: PrepareOptions
) -> dict[str, ArrayMeta]:
    arrays = _write_columns(directory, data, options)
    feature_dtype = stored_feature_dtype(options)
    with ArrayWriter(
        directory / "features.npy", feature_dtype, (data.num_features,), options.feature_dtype
    ) as writer:
        for rows in prepared_features(data, options):
            writer.append(rows)
        arrays["features"] = writer.close()
    small = {"labels": _stored_labels(data)}
    for name in SPLITS:
        small[f"split_{name}"] = np.unique(np.asarray(data.splits[name])).astype(np.int64)
    for name, values in (("node_ids", data.node_ids), ("class_names", data.class_names)):
        if values is not None:
            kind = values.dtype if values.dtype.kind == "S" else np.dtype(np.int64)
            small[name] = values.astype(kind, copy=False)
    for name, array in small.items():
        arrays[name] = write_array(directory, name, array)
    return arrays


def _write_columns(
    directory: Path, data: GraphData, options: PrepareOptions
) -> dict[str, ArrayMeta]:
    """Write the in-neighbour lists, block by block, then the arrays derived from them."""
    indptr = np.zeros(data.num_nodes + 1, dtype=np.int64)
    norm = np.empty(data.num_nodes, dtype=np.float32)
    weighted = data.edge_weight is not None
    first = 0
    arrays: dict[str, ArrayMeta] = {}
    with (
        ArrayWriter(directory / "indices.npy", index_dtype(data.num_nodes)) as indices,
        ArrayWriter(directory / "edge_weight.npy", np.float32) as weight,
    ):
        for block in column_blocks(_edge_list(data, options), data.num_nodes):
            last = first + len(block.counts)
            indptr[first + 1 : last + 1] = block.counts
            norm[first:last] = gcn_norm(block.inflow)
            indices.append(block.indices)
            if block.weight is not None:
                weight.append(block.weight)
            first = last
        arrays["indices"] = indices.close()
        if weighted:
            arrays["edge_weight"] = weight.close()
    if not weighted:
        (directory / "edge_weight.npy").unlink()
    np.cumsum(indptr, out=indptr)
    arrays["indptr"] = write_array(directory, "indptr", indptr)
    arrays["gcn_norm"] = write_array(directory, "gcn_norm", norm)
    return arrays


def _edge_list(data: GraphData, options: PrepareOptions) -> EdgeList:
    return EdgeList(
        data.src,
        data.dst,
        data.edge_weight,
        mirror=data.symmetric or options.to_undirected,
        merge=options.to_undirected,
        fill_loops=options.add_self_loops,
    )


def _stored_labels(data: GraphData) -> AnyArray:
    if data.task == "multilabel":
        return data.labels.astype(np.uint8)
    if data.task == "continuous":
        return data.labels.astype(np.float32)
    if data.labels.dtype.kind == "f":
        return np.nan_to_num(data.labels, nan=-1.0).astype(np.int32)
    return data.labels.astype(np.int32)


def _write_meta(
    directory: Path,
    data: GraphData,
    options: PrepareOptions,
    identity: Mapping[str, JSON],
    arrays: Mapping[str, ArrayMeta],
) -> StoreMeta:
    meta = StoreMeta(
        format=FORMAT,
        version=VERSION,
        made_by=f"gnntrain {__version__}",
        dataset=data.dataset,
        task=data.task,
        metric=data.metric,
        ogb_name=data.ogb_name,
        num_classes=data.num_classes,
        node_types=(
            NodeTypeMeta(name="node", num_nodes=data.num_nodes, num_features=data.num_features),
        ),
        edge_types=(
            EdgeTypeMeta(name=("node", "to", "node"), num_edges=arrays["indices"].shape[0]),
        ),
        identity=json.loads(canonical_json(dict(identity))),
        options=asdict(options),
        arrays=with_checksums(directory, arrays),
        feature_names=None if data.feature_names is None else tuple(data.feature_names),
        summary=summary_of(data, options),
        preprocessing=data.preprocessing,
        digest="",
    )
    write_description(directory / META_FILE, meta)
    return read_meta(directory)


def _needed_bytes(data: GraphData, options: PrepareOptions) -> int:
    """Bytes on disk, with all edges counted, also those to be merged."""
    edges = _edge_list(data, options)
    num_edges = len(data.src) * (1 + edges.mirror) + data.num_nodes * edges.fill_loops
    an_edge = index_dtype(data.num_nodes).itemsize + 4 * (data.edge_weight is not None)
    a_node = 8 + 4 + data.num_features * stored_feature_dtype(options).itemsize
    a_node += {"multilabel": 1, "continuous": 4}.get(data.task, 0) * data.num_classes or 4
    if data.node_ids is not None:
        a_node += max(data.node_ids.dtype.itemsize, 8)
    names = 0 if data.class_names is None else data.class_names.nbytes
    in_splits = sum(len(ids) for ids in data.splits.values())
    headers = len(ARRAYS) * HEADER_BYTES + (1 << 16) + names
    return num_edges * an_edge + data.num_nodes * a_node + 8 * in_splits + headers
