"""A graph in parts as a `Graph`: what is known of all its nodes, without their rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gnntrain.data.graph import Edges, EdgeType, Graph, GraphSchema, Int64Array
from gnntrain.data.parts import PartitionMeta, Parts
from gnntrain.data.store import nodes_of
from gnntrain.data.target_scale import TargetScale


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class PartitionedGraph(Graph):
    """A graph in parts, of which some are open on this machine.

    Its arrays have the types and widths of the whole graph's, but no rows: those of nodes and edges
    are in the parts, here and on other machines. Splits are whole; nodes have their new numbers.

    Attributes:
        parts: The parts, some of them open.
    """

    parts: Parts

    @classmethod
    def of(cls, parts: Parts) -> PartitionedGraph:
        """The graph of `parts`."""
        meta = parts.meta
        rows = {
            name: np.empty((0, *array.shape[1:]), array.stored_dtype)
            for name, array in meta.parts[0].arrays.items()
        }
        weight, norm = rows.get("edge_weight"), rows.get("gcn_norm")
        edges = Edges(np.zeros(1, np.int64), rows["indices"], weight, norm)
        return cls(
            nodes=nodes_of(meta, meta.parts[0].arrays, rows, parts.splits),
            edges=dict.fromkeys(meta.graph_schema.edge_types, edges),
            target=meta.target,
            dataset=meta.dataset,
            task=meta.task,
            metric=meta.metric,
            num_classes=meta.num_classes,
            class_names=parts.class_names,
            ogb_name=meta.ogb_name,
            summary=meta.summary,
            parts=parts,
        )

    @property
    def path(self) -> Path:
        """The folder of the parts."""
        return self.parts.path

    @property
    def meta(self) -> PartitionMeta:
        """The content of its `partition.json`."""
        return self.parts.meta

    @property
    def content_digest(self) -> str:
        """That of the store that was partitioned."""
        return self.meta.source

    @property
    def schema(self) -> GraphSchema:
        """The types of the whole graph."""
        return self.meta.graph_schema

    @property
    def num_nodes(self) -> int:
        """Nodes of the whole graph."""
        return self.meta.num_nodes

    @property
    def edge_counts(self) -> dict[EdgeType, int]:
        """Edges of each type in the whole graph."""
        return self.meta.edge_counts

    def names(self, nodes: Int64Array) -> list[str]:
        """See `Graph.names`; without the nodes of parts that are not open here."""
        names = []
        for part in self.parts.opened:
            first, stop = part.ranges[self.target].start, part.ranges[self.target].stop
            rows = nodes[(nodes >= first) & (nodes < stop)] - first
            by_number = part.graph.node_ids is None
            names += part.graph.names(part.originals[self.target][rows] if by_number else rows)
        return names

    def class_counts(self, split: str) -> Int64Array:
        """See `Graph.class_counts`."""
        counts = self.meta.class_counts
        assert counts is not None, "quantities have no classes"
        return np.array(counts[split], np.int64)

    def target_scale(self) -> TargetScale:
        """See `Graph.target_scale`."""
        scale = self.meta.target_scale
        assert scale is not None, "classes have no scale"
        return scale

    def target_ranges(self, split: str) -> list[tuple[float, float] | None]:
        """See `Graph.target_ranges`."""
        ranges = self.meta.target_ranges
        assert ranges is not None, "classes have no range"
        return ranges[split]
