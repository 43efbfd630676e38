"""A graph in parts as a `Graph`: what is known of all its nodes, without their rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gnntrain.data.graph import AnyArray, Edges, EdgeType, Graph, GraphSchema, Int64Array, Nodes
from gnntrain.data.parts import Parts
from gnntrain.data.parts_meta import HeteroPartitionMeta, PartitionMeta
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
        schema, arrays = meta.graph_schema, meta.parts[0].arrays

        def without_rows(name: str) -> AnyArray | None:
            if name not in arrays:
                return None
            return np.empty((0, *arrays[name].shape[1:]), arrays[name].stored_dtype)

        nodes = {}
        for number, name in enumerate(schema.num_nodes):
            suffix = f"_{number}" * isinstance(meta, HeteroPartitionMeta)
            features, is_target = without_rows(f"features{suffix}"), name == schema.target
            assert features is not None
            nodes[name] = Nodes(
                features=features,
                feature_dtype=parts.feature_dtype,
                labels=without_rows("labels") if is_target else None,
                splits=parts.splits if is_target else {},
                ids=without_rows(f"node_ids{suffix}"),
                feature_names=meta.feature_names_by_type[name],
            )
        indices = without_rows("indices")
        assert indices is not None
        weight, norm = without_rows("edge_weight"), without_rows("gcn_norm")
        edges = Edges(np.zeros(1, np.int64), indices, weight, norm)
        return cls(
            nodes=nodes,
            edges=dict.fromkeys(schema.edge_types, edges),
            target=schema.target,
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
        return self.parts.num_nodes

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
