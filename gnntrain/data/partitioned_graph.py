"""A graph in parts on disk: a machine maps its own parts, and knows where all nodes are.

Nodes are numbered anew, so that each part is a contiguous range of nodes; a part holds the in-edges
of its nodes. Within a part, nodes are in their original order, and a node's in-edges too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from pydantic import Field

from gnntrain.data.array_folder import ArrayMeta, StoreError, map_arrays, stored_dtype
from gnntrain.data.graph import (
    Edges,
    EdgeType,
    Graph,
    GraphSchema,
    Int64Array,
    NodeType,
)
from gnntrain.data.store import GraphMeta
from gnntrain.data.summary import Meta
from gnntrain.data.targets import TargetScale
from gnntrain.errors import UserError

Method = Literal["streaming", "metis", "random"]
METHODS: tuple[Method, ...] = get_args(Method)


class PartMeta(Meta):
    """One part, its nodes and edges of each type; its files are in the folder `part<number>`. Its
    `arrays` are those of a store, and `original_<i>` of the node type at position i."""

    node_counts: tuple[int, ...]
    edge_counts: tuple[int, ...]
    num_train: int = Field(ge=0)
    arrays: dict[str, ArrayMeta]

    @property
    def num_nodes(self) -> int:
        return sum(self.node_counts)

    @property
    def num_edges(self) -> int:
        return sum(self.edge_counts)

    @property
    def num_bytes(self) -> int:
        return sum(array.bytes for array in self.arrays.values())


class PartitionMeta(GraphMeta):
    """The content of `partition.json`.

    `arrays` are those of the whole graph, beside it: splits, names of classes, and `original_<i>`
    of each type without features: a model's rows for them have the original order. `source` is the
    content digest of the store. Class counts and target ranges are by split.
    """

    FILE = "partition.json"
    FORMAT = "gnntrain-partition"
    VERSION = 3

    source: str
    method: Method
    cut_edges: int = Field(ge=0)
    class_counts: dict[str, list[int]] | None
    target_scale: TargetScale | None
    target_ranges: dict[str, list[tuple[float, float] | None]] | None
    parts: tuple[PartMeta, ...] = Field(min_length=1)


@dataclass(frozen=True, eq=False)
class Part:
    """One part's nodes and their in-edges: read-only views of mapped pages.

    The i-th row of a type is that of the i-th node of its range. Sources are new numbers of any
    part's nodes, in the order of the original graph, not ascending.
    """

    ranges: Mapping[NodeType, range]  # of new numbers
    graph: Graph
    originals: Mapping[NodeType, Int64Array]  # ascending: each node's number in the original graph

    @classmethod
    def of(cls, graph: Graph, ranges: Mapping[NodeType, range]) -> Part:
        """Consecutive nodes of a whole graph as a part of it: views, but for numbers a node."""
        originals = {name: np.arange(own.start, own.stop) for name, own in ranges.items()}
        if all(len(own) == len(graph.nodes[name]) for name, own in ranges.items()):
            return cls(ranges, graph, originals)

        def cut(array: Any, first: int, last: int) -> Any:
            return None if array is None else array[first:last]

        nodes, edges = {}, {}
        for name, own in ranges.items():
            whole, ends = graph.nodes[name], (own.start, own.stop)
            rows = {key: cut(getattr(whole, key), *ends) for key in ("features", "labels", "ids")}
            nodes[name] = replace(whole, **rows)
        for edge_type, of_type in graph.edges.items():
            ends = ranges[edge_type[2]].start, ranges[edge_type[2]].stop
            first, last = of_type.indptr[[*ends]].tolist()
            edges[edge_type] = Edges(
                of_type.indptr[ends[0] : ends[1] + 1] - first,
                of_type.indices[first:last],
                cut(of_type.weight, first, last),
                cut(of_type.gcn_norm, *ends),
            )
        rows_alone = Graph(
            nodes, edges, task=graph.task, num_classes=graph.num_classes, target=graph.target
        )
        return cls(ranges, rows_alone, originals)


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class PartitionedGraph(Graph):
    """A graph in parts, of which some are open here.

    Its arrays have the types and widths of the whole graph's, but no rows: these are in the parts,
    here and on other machines. Nodes have their new numbers; `splits` are whole, each in its
    original order. Pickled, it is its path: the other process maps the same files.
    """

    path: Path
    meta: PartitionMeta
    parts: range  # that are open, consecutive
    opened: tuple[Part, ...]
    starts: Mapping[NodeType, Int64Array]  # part p has the nodes starts[p] … starts[p + 1] − 1
    originals: Mapping[NodeType, Int64Array]  # see `PartitionMeta.arrays`

    @classmethod
    def open(
        cls, path: Path, parts: range | None = None, *, check: bool = True
    ) -> PartitionedGraph:
        """Map some consecutive parts, perhaps none, or all, without reading their arrays; others
        need not be there. UserError where something is missing, damaged, of another format version,
        or there are not that many parts; for `check` see `StoredGraph.open`."""
        path = Path(path).absolute()
        opened = []
        try:
            meta = PartitionMeta.read(path)
            parts = range(len(meta.parts)) if parts is None else parts
            if len(parts) and not 0 <= parts[0] <= parts[-1] < len(meta.parts):
                raise StoreError(path, f"it has {len(meta.parts)} parts, not part {parts[-1]}")
            shared = map_arrays(path, meta.arrays, check=check)
            starts = {
                kind.name: np.cumsum([0, *(p.node_counts[i] for p in meta.parts)], dtype=np.int64)
                for i, kind in enumerate(meta.node_types)
            }
            for number in parts:
                part, folder = meta.parts[number], path / f"part{number}"
                arrays = map_arrays(folder, part.arrays, check=check)
                graph = Graph(**meta.attributes_of(part.arrays, arrays, {}))
                ranges = {t: range(*s[number : number + 2].tolist()) for t, s in starts.items()}
                originals = {name: arrays[f"original_{i}"] for i, name in enumerate(starts)}
                opened.append(Part(ranges, graph, originals))
        except StoreError as error:
            where = "" if error.path == path else f"{error.path.name}: "
            raise UserError(
                f"the partition {path} cannot be used: {where}{error.reason}",
                "Make it with `gnntrain partition --parts N --out DIR` and the data set's keys.",
            ) from error
        described = meta.parts[0].arrays
        no_rows = {
            name: np.empty((0, *array.shape[1:]), stored_dtype(array.dtype))
            for name, array in described.items()
        }
        no_rows["indptr"] = np.zeros(len(meta.edge_types), np.int64)
        return cls(
            **meta.attributes_of(described, no_rows, shared),
            path=path,
            meta=meta,
            parts=parts,
            opened=tuple(opened),
            starts=starts,
            originals={
                name: shared[f"original_{i}"]
                for i, name in enumerate(starts)
                if f"original_{i}" in shared
            },
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(PartitionedGraph.open, check=False), (self.path, self.parts)

    @property
    def num_parts(self) -> int:
        return len(self.meta.parts)

    @property
    def ranges(self) -> dict[NodeType, range]:
        """The nodes of the open parts of each type, ranges of new numbers."""
        ends = [self.parts.start, self.parts.stop]
        return {name: range(*starts[ends].tolist()) for name, starts in self.starts.items()}

    @property
    def content_digest(self) -> str:
        """That of the store that was partitioned."""
        return self.meta.source

    @property
    def schema(self) -> GraphSchema:
        """The types of the whole graph."""
        return self.meta.graph_schema

    @property
    def edge_counts(self) -> dict[EdgeType, int]:
        """Edges of each type in the whole graph."""
        return {kind.name: kind.num_edges for kind in self.meta.edge_types}

    def names(self, nodes: Int64Array) -> list[str]:
        """See `Graph.names`; without the nodes of parts that are not open here."""
        names = []
        for part in self.opened:
            nodes_of_part = part.ranges[self.target]
            is_here = (nodes >= nodes_of_part.start) & (nodes < nodes_of_part.stop)
            rows = nodes[is_here] - nodes_of_part.start
            by_number = part.graph.node_ids is None
            names += part.graph.names(part.originals[self.target][rows] if by_number else rows)
        return names

    def class_counts(self, split: str) -> Int64Array:
        """See `Graph.class_counts`."""
        return np.array((self.meta.class_counts or {})[split], np.int64)

    def target_scale(self) -> TargetScale:
        """See `Graph.target_scale`."""
        assert self.meta.target_scale is not None, "classes have no scale"
        return self.meta.target_scale

    def target_ranges(self, split: str) -> list[tuple[float, float] | None]:
        """See `Graph.target_ranges`."""
        return (self.meta.target_ranges or {})[split]
