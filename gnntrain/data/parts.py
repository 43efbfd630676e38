"""A graph in parts on disk: a machine maps its own parts, and knows where all nodes are.

`gnntrain partition` numbers the nodes anew, so that each part is a contiguous range of nodes; a
part holds the in-edges of its nodes. Within a part, nodes are in their original order, and a node's
in-edges too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gnntrain.data.graph import (
    EDGE,
    NODE,
    SPLITS,
    AnyArray,
    Edges,
    FeatureDtype,
    Float32Array,
    Graph,
    Int64Array,
    IntArray,
    Nodes,
    NodeType,
)
from gnntrain.data.parts_meta import (
    HeteroPartitionMeta,
    PartitionError,
    PartitionMeta,
    feature_dtype_of,
    part_folder,
    read_partition,
)
from gnntrain.data.store import names_of, typed_edges, typed_nodes
from gnntrain.data.store_files import ArrayFolder, is_sealed, map_array, verify
from gnntrain.data.store_meta import ArrayMeta, StoreError


@dataclass(frozen=True, eq=False)
class Part:
    """One part's nodes and their in-edges: read-only views of mapped pages.

    Of a graph of one type, `nodes`, `indptr`, … below are those of the type.

    Attributes:
        number: Which part.
        ranges: Its nodes of each type, a range of new numbers.
        graph: Its nodes, and their in-edges: the i-th row of a type is that of the i-th node of its
            range. Sources are new numbers of any part's nodes, in the order of the original graph:
            int32, or int64 for more than 2³¹ nodes; not ascending.
        originals: By node type, int64, ascending: each node's number in the original graph.
    """

    number: int
    ranges: Mapping[NodeType, range]
    graph: Graph
    originals: Mapping[NodeType, Int64Array]

    @classmethod
    def of(cls, graph: Graph, number: int, ranges: Mapping[NodeType, range]) -> Part:
        """Consecutive nodes of a whole graph as a part of it: views, but for numbers a node."""
        rows = graph
        if any(len(nodes) < len(graph.nodes[name]) for name, nodes in ranges.items()):
            rows = Graph(
                nodes={name: _nodes_of(graph, name, nodes) for name, nodes in ranges.items()},
                edges={name: _edges_to(e, ranges[name[2]]) for name, e in graph.edges.items()},
                task=graph.task,
                num_classes=graph.num_classes,
                target=graph.target,
            )
        originals = {name: np.arange(nodes.start, nodes.stop) for name, nodes in ranges.items()}
        return cls(number, ranges, rows, originals)

    @property
    def nodes(self) -> range:
        """Its nodes of the only type."""
        (nodes,) = self.ranges.values()
        return nodes

    @property
    def original(self) -> Int64Array:
        """The original numbers of the nodes of the only type."""
        (original,) = self.originals.values()
        return original

    @property
    def indptr(self) -> Int64Array:
        return self.graph.indptr

    @property
    def indices(self) -> IntArray:
        return self.graph.indices

    @property
    def edge_weight(self) -> Float32Array | None:
        return self.graph.edge_weight

    @property
    def features(self) -> AnyArray:
        return self.graph.features

    @property
    def labels(self) -> AnyArray:
        return self.graph.labels

    @property
    def gcn_norm(self) -> Float32Array:
        return self.graph.gcn_norm

    @property
    def node_ids(self) -> AnyArray | None:
        return self.graph.node_ids


def _nodes_of(graph: Graph, node_type: NodeType, numbers: range) -> Nodes:
    nodes, rows = graph.nodes[node_type], slice(numbers.start, numbers.stop)
    return replace(
        nodes,
        features=nodes.features[rows],
        labels=None if nodes.labels is None else nodes.labels[rows],
        ids=None if nodes.ids is None else nodes.ids[rows],
    )


def _edges_to(edges: Edges, numbers: range) -> Edges:
    """The in-edges of some nodes."""
    first, last = int(edges.indptr[numbers.start]), int(edges.indptr[numbers.stop])
    weight, norm = edges.weight, edges.gcn_norm
    return Edges(
        edges.indptr[numbers.start : numbers.stop + 1] - first,
        edges.indices[first:last],
        None if weight is None else weight[first:last],
        None if norm is None else norm[numbers.start : numbers.stop],
    )


@dataclass(frozen=True, eq=False)
class Parts:
    """A graph in parts, of which some are open here.

    Pickled, it is its path: the other process maps the same files.

    Attributes:
        path: The folder that `gnntrain partition` has written.
        meta: The content of its `partition.json`.
        opened: The parts that are open, consecutive.
        starts_by_type: By node type, int64 `[num_parts + 1]`: part p has the nodes
            `starts[p] … starts[p + 1] − 1`.
        originals: The original numbers of all nodes of each type that has no features, int64: a
            model's rows for them have the original order. Of a graph of one type: empty.
        splits: New numbers of the nodes of "train", "val" and "test", int64, each split in its
            original order (ascending original numbers).
        class_names: See `gnntrain.data.graph.Graph`.
    """

    path: Path
    meta: PartitionMeta
    opened: tuple[Part, ...]
    starts_by_type: Mapping[NodeType, Int64Array]
    originals: Mapping[NodeType, Int64Array]
    splits: Mapping[str, Int64Array]
    class_names: list[str] | list[int] | None

    @classmethod
    def open(cls, path: Path, parts: range | None = None, *, check: bool = True) -> Parts:
        """Map the given parts without reading their arrays; other parts need not be there.

        Args:
            path: The folder that `gnntrain partition` has written.
            parts: Consecutive parts to open; None: all. None at all opens what is known of the
                whole graph alone: `range(0)`.
            check: Verify all checksums if a file was touched since they were last verified.
                False in worker processes, whose parent has just done so.

        Raises:
            PartitionError: Something is missing, damaged, of another format version, or there are
                not that many parts.
        """
        path = Path(path).absolute()
        with _as_partition_error(path):
            meta = read_partition(path)
            parts = range(len(meta.parts)) if parts is None else parts
            if len(parts) and not 0 <= parts[0] <= parts[-1] < len(meta.parts):
                raise StoreError(path, f"it has {len(meta.parts)} parts, not part {parts[-1]}")
            shared = _open_folder(path, Folder(meta.arrays, meta.digest), check=check)
            opened = tuple(_open_part(path, meta, number, check=check) for number in parts)
        return cls(
            path=path,
            meta=meta,
            opened=opened,
            starts_by_type=meta.starts,
            originals={
                name: shared[f"original_{number}"]
                for number, name in enumerate(meta.graph_schema.num_nodes)
                if f"original_{number}" in shared
            },
            splits={name: shared[f"split_{name}"] for name in SPLITS},
            class_names=names_of(shared.get("class_names")),
        )

    @property
    def num_parts(self) -> int:
        return len(self.meta.parts)

    @property
    def num_nodes(self) -> int:
        """Nodes of the whole graph."""
        return self.meta.num_nodes

    @property
    def num_edges(self) -> int:
        """Edges of the whole graph."""
        return self.meta.num_edges

    @property
    def ranges(self) -> dict[NodeType, range]:
        """The nodes of the open parts of each type, ranges of new numbers."""
        if not self.opened:
            return dict.fromkeys(self.starts_by_type, range(0))
        first, last = self.opened[0].ranges, self.opened[-1].ranges
        return {name: range(nodes.start, last[name].stop) for name, nodes in first.items()}

    @property
    def nodes(self) -> range:
        """The nodes of the open parts, of the only type."""
        (nodes,) = self.ranges.values()
        return nodes

    @property
    def starts(self) -> Int64Array:
        """See `starts_by_type`, of the only type."""
        (starts,) = self.starts_by_type.values()
        return starts

    @property
    def feature_dtype(self) -> FeatureDtype:
        """See `gnntrain.data.graph.Nodes`."""
        return feature_dtype_of(self.meta.parts[0])

    @property
    def has_edge_weight(self) -> bool:
        return "edge_weight" in self.meta.parts[0].arrays

    def split(self, name: str) -> Int64Array:
        """See `splits`."""
        return self.splits[name]

    def part_of(self, nodes: IntArray) -> Int64Array:
        """The part of each node of the only type: int64 `[n]` for new numbers `[n]`."""
        return np.searchsorted(self.starts, nodes, side="right") - 1

    def __reduce__(self) -> tuple[Any, ...]:
        numbers = [part.number for part in self.opened]
        parts = range(numbers[0], numbers[-1] + 1) if numbers else range(0)
        return _reopen, (self.path, parts)


class Folder(NamedTuple):
    """A folder of arrays, see `gnntrain.data.store_files.ArrayFolder`."""

    arrays: Mapping[str, ArrayMeta]
    digest: str


def _reopen(path: Path, parts: range) -> Parts:
    return Parts.open(path, parts, check=False)


def _open_folder(folder: Path, content: ArrayFolder, *, check: bool) -> dict[str, AnyArray]:
    arrays = {name: map_array(folder, array) for name, array in content.arrays.items()}
    if check and not is_sealed(folder, content):
        verify(folder, content)
    return arrays


def _open_part(path: Path, meta: PartitionMeta, number: int, *, check: bool) -> Part:
    content, target = Folder(meta.parts[number].arrays, meta.digest), meta.graph_schema.target
    arrays = _open_folder(part_folder(path, number), content, check=check)
    ranges = {}
    for name, starts in meta.starts.items():
        first, stop = starts[number : number + 2].tolist()
        ranges[name] = range(first, stop)
    if isinstance(meta, HeteroPartitionMeta):
        typed, counts = meta.parts[number], range(len(meta.node_types))
        nodes = typed_nodes(meta, arrays, feature_dtype_of(typed))
        edges = typed_edges(meta, arrays, typed.node_counts, typed.edge_counts)
        originals = {name: arrays[f"original_{i}"] for i, name in zip(counts, ranges, strict=True)}
    else:
        of_nodes = Nodes(
            features=arrays["features"],
            feature_dtype=feature_dtype_of(meta.parts[number]),
            labels=arrays["labels"],
            ids=arrays.get("node_ids"),
            feature_names=meta.feature_names,
        )
        weight = arrays.get("edge_weight")
        of_edges = Edges(arrays["indptr"], arrays["indices"], weight, arrays["gcn_norm"])
        nodes, edges, originals = {NODE: of_nodes}, {EDGE: of_edges}, {NODE: arrays["original"]}
    graph = Graph(nodes, edges, task=meta.task, num_classes=meta.num_classes, target=target)
    return Part(number, ranges, graph, originals)


@contextmanager
def _as_partition_error(path: Path) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        where = "" if error.path == path else f"{error.path.name}: "
        raise PartitionError(path, f"{where}{error.reason}") from error
