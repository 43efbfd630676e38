"""Building graph stores: checked, written under a temporary name, sealed, renamed."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gnntrain.atomic_io import fsync_folder
from gnntrain.data.array_folder import (
    HEADER_BYTES,
    ArrayMeta,
    ArrayWriter,
    StoreError,
    canonical_json,
    digest_of,
    stored_dtype,
    with_checksums,
    write_array,
)
from gnntrain.data.checks import bad_graph, check_graph, feature_problems, wrong_values
from gnntrain.data.csc import column_blocks
from gnntrain.data.graph import (
    JSON,
    SPLITS,
    AnyArray,
    EdgeData,
    EdgeType,
    FeatureDtype,
    Float32Array,
    GraphData,
    NodeData,
    PrepareOptions,
    index_dtype,
    reverse_type,
)
from gnntrain.data.preprocessing import loses_digits
from gnntrain.data.store import EdgeTypeMeta, NodeTypeMeta, StoredGraph, StoreMeta
from gnntrain.data.stores import disk_errors, locked, refuse_foreign, store_draft
from gnntrain.data.summary import summary_of
from gnntrain.errors import RunError, UserError

_MAX_TRIES = 3
_CHUNK_BYTES = 1 << 23  # of features

_logger = logging.getLogger("gnntrain")


@dataclass(frozen=True)
class OpenedStore:
    """An open store, and whether it was built."""

    store: StoredGraph
    built: bool  # just now
    reason: str  # "opened", "built: none was there", "rebuilt: …" with the error
    seconds: float  # to open or build it


def store_name(identity: Mapping[str, JSON], options: PrepareOptions) -> str:
    """Directory name of a store: `<dataset>-<12 hex digits>`, a digest of its identity."""
    readable = re.sub(r"[^A-Za-z0-9_-]", "_", str(identity.get("dataset", "graph")))
    version = StoreMeta.VERSION
    content = {"identity": dict(identity), "options": options.to_dict(), "version": version}
    return f"{readable}-{digest_of(content, num_bytes=6)}"


def open_or_build(
    cache_dir: Path,
    identity: Callable[[], Mapping[str, JSON]],
    options: PrepareOptions,
    builder: Callable[[], GraphData],
) -> OpenedStore:
    """Open the store of a graph and `options` under `cache_dir`, building it where needed, or
    damaged. If several processes need it, one builds and the others wait.

    `identity` gives everything that determines the graph, such as sizes, seed, or the contents of
    the raw files; "dataset" is its name. Where it is another one after building, files have changed
    while they were read, and all begins anew. `builder` loads or generates the graph. UserError as
    `write_store`, or where files change whenever they are read; RunError where the disk is full.
    """
    begin = time.perf_counter()
    for _ in range(_MAX_TRIES):
        now = identity()
        path = Path(cache_dir).absolute() / store_name(now, options)
        store, reason = _try_open(path, now, options)
        if store is not None:
            return OpenedStore(store, False, reason, time.perf_counter() - begin)
        with locked(path):
            store, reason = _try_open(path, now, options)  # another process may have built it
            if is_built := store is None:
                refuse_foreign(path)
                try:
                    store = write_store(path, builder(), options, now, identity)
                except Exception:
                    if identity() == now:
                        raise
                    continue  # half of one file and half of another are no table
        return OpenedStore(store, is_built, reason, time.perf_counter() - begin)
    raise UserError(
        f"the files of {now['dataset']} have changed {_MAX_TRIES} times while they were read.",
        "Start again when they are complete.",
    )


def _try_open(
    path: Path, identity: Mapping[str, JSON], options: PrepareOptions
) -> tuple[StoredGraph | None, str]:
    """The store; or None, and the reason to build it."""
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return None, "built: none was there"
    try:
        store = StoredGraph.open(path)
    except StoreError as error:
        return None, f"rebuilt: {error.reason}"
    wanted = [dict(identity), options.to_dict()]
    if canonical_json(wanted) != canonical_json([store.meta.identity, store.meta.options]):
        return None, "rebuilt: it was made from other data or with other options"
    return store, "opened"


def write_store(
    path: Path,
    data: GraphData,
    options: PrepareOptions,
    identity: Mapping[str, JSON],
    identity_now: Callable[[], Mapping[str, JSON]] | None = None,
) -> StoredGraph:
    """Build the store at `path` from `data`, replacing a store there. UserError where `data` is
    invalid, or another file or folder is at `path`; RunError where the disk is full, or the
    identity is another one after writing.

    Memory beside `data` itself stays at a few chunks of edges and features.
    """
    path = Path(path).absolute()
    refuse_foreign(path)
    check_graph(data)
    needed = needed_bytes(data, options)
    with disk_errors(path, needed), store_draft(path) as draft:
        _write_files(draft, data, options, identity)
        fsync_folder(draft)
        if identity_now is not None and identity_now() != identity:
            raise RunError(f"the files of {data.dataset} have changed while they were read")
        with store_draft(path) as replaced:
            if path.exists():
                path.rename(replaced)
            draft.rename(path)
        fsync_folder(path.parent)
    return StoredGraph.open(path, check=False)


def _write_files(
    folder: Path, data: GraphData, options: PrepareOptions, identity: Mapping[str, JSON]
) -> None:
    """Write all arrays, then their description."""
    arrays, num_edges = _write_edges(folder, data, options)

    lowest = options.lowest  # None: features stay as they are
    if lowest is None and options.normalize_features:
        lowest = {name: lowest_feature(nodes, data.dataset) for name, nodes in data.nodes.items()}
    small = {"labels": _stored_labels(data)}
    for number, (name, nodes) in enumerate(data.nodes.items()):
        where = "" if data.is_homogeneous else f"node type {name}: "
        subtracted = None if lowest is None else lowest.get(name, 0.0)  # of a further type: unread
        file = folder / f"features_{number}.npy"
        dtype = options.feature_dtype
        with ArrayWriter(file, stored_dtype(dtype), (nodes.num_features,)) as writer:
            for rows in prepared_features(nodes, dtype, subtracted, data.dataset, where):
                writer.append(rows)
            arrays[file.stem] = writer.close()
        if nodes.ids is not None:
            small[f"node_ids_{number}"] = _stored_names(nodes.ids)
    for split in SPLITS:
        small[f"split_{split}"] = np.unique(np.asarray(data.splits[split])).astype(np.int64)
    if data.class_names is not None:
        small["class_names"] = _stored_names(data.class_names)
    arrays |= {name: write_array(folder, name, array) for name, array in small.items()}

    StoreMeta(
        format=StoreMeta.FORMAT,
        version=StoreMeta.VERSION,
        dataset=data.dataset,
        task=data.task,
        metric=data.metric,
        ogb_name=data.ogb_name,
        num_classes=data.num_classes,
        node_types=tuple(
            NodeTypeMeta(
                name=name,
                num_nodes=nodes.num_nodes,
                num_features=nodes.num_features,
                feature_names=None if nodes.feature_names is None else tuple(nodes.feature_names),
                preprocessing=nodes.preprocessing,
            )
            for name, nodes in data.nodes.items()
        ),
        edge_types=tuple(EdgeTypeMeta(name=k, num_edges=n) for k, n in num_edges.items()),
        target=data.target,
        identity=json.loads(canonical_json(dict(identity))),
        options=options.to_dict(),
        arrays=with_checksums(folder, arrays),
        summary=summary_of(data, options),
        lowest=None if lowest is None else dict(lowest),
    ).write(folder)


def _edge_lists(data: GraphData, options: PrepareOptions) -> dict[EdgeType, EdgeData]:
    """The given edges of each edge type, the reverse ones included."""
    lists = {
        name: replace(edges, symmetric=name[0] == name[2]) if options.to_undirected else edges
        for name, edges in data.edges.items()
    }
    if data.reverse or options.to_undirected:
        originals = {reverse_type(name) for name in data.edges}
        for name in data.edges:
            has_reverse = name in originals or reverse_type(name) in data.edges
            if not (has_reverse or lists[name].symmetric):
                src, dst = lists[name]
                lists[reverse_type(name)] = replace(lists[name], src=dst, dst=src)
    return lists


def _write_edges(
    folder: Path, data: GraphData, options: PrepareOptions
) -> tuple[dict[str, ArrayMeta], dict[EdgeType, int]]:
    """Write the in-neighbour lists, block by block, and the arrays derived from them; returns these
    and the number of edges of each type."""
    lists = _edge_lists(data, options)
    sizes = {name: nodes.num_nodes for name, nodes in data.nodes.items()}
    indptr = np.zeros(sum(sizes[name[2]] + 1 for name in lists), np.int64)
    norm, loop = np.empty((2, max(sizes.values())), np.float32)
    arrays, num_edges, first = dict[str, ArrayMeta](), dict[EdgeType, int](), 0
    weighted = any(edges.weight is not None for edges in lists.values())
    with (
        ArrayWriter(folder / "indices.npy", index_dtype(max(sizes.values()))) as indices,
        ArrayWriter(folder / "edge_weight.npy", np.float32) as weight,
    ):
        for name, edges in lists.items():
            num_src, num_dst = sizes[name[0]], sizes[name[2]]
            merge, fill_loops = options.to_undirected, options.add_self_loops
            if name[0] != name[2]:
                merge = fill_loops = False
            offsets = indptr[first : first + num_dst + 1]
            node = num_merged = 0
            for block in column_blocks(edges, num_dst, num_src, merge=merge, fill_loops=fill_loops):
                last = node + len(block.counts)
                offsets[node + 1 : last + 1] = block.counts
                norm[node:last], loop[node:last] = block.norm, block.loop
                indices.append(block.indices.astype(indices.dtype, copy=False))
                if block.weight is not None:
                    weight.append(block.weight)
                node, num_merged = last, num_merged + block.num_merged
            np.cumsum(offsets, out=offsets)
            num_edges[name], first = int(offsets[-1]), first + len(offsets)
            if weighted and num_merged:
                _logger.warning(
                    "dataset.to_undirected: %s edges are given once more, in the other direction "
                    "or the same; their weights are added up",
                    f"{num_merged // 2:,}",
                )
        arrays["indices"] = indices.close()
        if weighted:
            arrays["edge_weight"] = weight.close()
    if not weighted:
        (folder / "edge_weight.npy").unlink()
    arrays["indptr"] = write_array(folder, "indptr", indptr)
    if len(lists) == len(sizes) == 1:
        with_loops = norm if (loop == 1).all() else np.stack([norm, loop], axis=1)
        arrays["gcn_norm"] = write_array(folder, "gcn_norm", with_loops)
    return arrays, num_edges


def lowest_feature(nodes: NodeData, dataset: str) -> float:
    """The smallest value of all features, which `normalize_features` subtracts; 0 without any."""
    lowest = []
    for _, rows in _chunks(nodes, dataset, ""):
        finite = rows[np.isfinite(rows)]  # others are refused when they are stored
        lowest += [float(finite.min())] if finite.size else []
    return min(lowest, default=0.0)


def prepared_features(
    nodes: NodeData, dtype: FeatureDtype, lowest: float | None, dataset: str, where: str = ""
) -> Iterator[AnyArray]:
    """The features as they are stored, some MiB at a time; UserError, whose problems begin with
    `where`, for a value that is no finite number or does not fit into the type. `lowest` is
    subtracted before each row is divided by its sum; None: neither is done."""

    def stored(rows: AnyArray) -> AnyArray:
        with np.errstate(over="ignore", invalid="ignore"):
            values = rows.astype(np.float32, copy=False)
            if lowest is not None:
                values = values - np.float32(lowest)
                values /= np.maximum(values.sum(axis=1, keepdims=True), 1)
            return encoded(values, dtype)

    for start, rows in _chunks(nodes, dataset, where):
        result = stored(rows)
        if not np.isfinite(decoded(result, dtype)).all():
            problems = [*feature_problems(rows, start)] or wrong_values(
                rows,
                lambda some: ~np.isfinite(decoded(stored(some), dtype)),
                f"features do not fit in {dtype}",
                "node",
                start,
            )
            raise bad_graph(dataset, [f"{where}{problem}" for problem in problems])
        yield result


def encoded(values: Float32Array, dtype: str) -> AnyArray:
    """Features as they are stored: NumPy has no bfloat16, its bits are those of a uint16."""
    if dtype != "bfloat16":
        return values.astype(dtype, copy=False)
    import torch  # rounds to nearest even

    bits: AnyArray = torch.tensor(values).bfloat16().view(torch.uint16).numpy()
    return bits


def decoded(stored: AnyArray, dtype: str) -> Float32Array:
    """Features as a model reads them."""
    if dtype == "bfloat16":  # the upper half of float32's bits
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32, copy=False)


def _chunks(nodes: NodeData, dataset: str, where: str) -> Iterator[tuple[int, AnyArray]]:
    num_features = nodes.num_features
    step = max(1, _CHUNK_BYTES // max(1, 4 * num_features))
    for start in range(0, nodes.num_nodes, step):
        stop = min(start + step, nodes.num_nodes)
        rows = nodes.rows(start, stop)
        if rows.shape != (stop - start, num_features):
            expected = [stop - start, num_features]
            problem = f"{where}features of nodes {start} … {stop - 1} have shape {list(rows.shape)}"
            raise bad_graph(dataset, [f"{problem}, expected {expected}"])
        yield start, rows


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
    is_float = data.labels.dtype.kind == "f"
    return (np.nan_to_num(data.labels, nan=-1.0) if is_float else data.labels).astype(np.int32)


def needed_bytes(data: GraphData, options: PrepareOptions) -> int:
    """Bytes on disk, with all edges counted, also those to be merged."""
    sizes = {name: nodes.num_nodes for name, nodes in data.nodes.items()}
    an_index, a_feature = index_dtype(max(sizes.values())), stored_dtype(options.feature_dtype)
    needed = (8 + 2 * len(sizes)) * HEADER_BYTES + (1 << 16)
    for (source, _, destination), edges in _edge_lists(data, options).items():
        a_weight = 0 if edges.weight is None else 4
        num_edges = len(edges.src) * (1 + edges.symmetric)
        num_edges += sizes[destination] * (options.add_self_loops and source == destination)
        needed += num_edges * (an_index.itemsize + a_weight) + sizes[destination] * (12 + a_weight)
    for nodes in data.nodes.values():
        an_id = 0 if nodes.ids is None else max(nodes.ids.dtype.itemsize, 8)
        needed += nodes.num_nodes * (nodes.num_features * a_feature.itemsize + an_id)
    a_label = {"multilabel": 1, "continuous": 8}.get(data.task, 0) * data.num_classes or 4
    return needed + len(data.labels) * a_label + 8 * sum(map(len, data.splits.values()))
