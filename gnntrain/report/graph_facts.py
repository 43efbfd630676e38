"""The sizes and the degrees of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gnntrain.data.graph import SPLITS, Graph
from gnntrain.data.summary import DataSummary
from gnntrain.report.projection import Floats, Ints

_BINS_PER_DECADE = 12
_OUTPUTS = {"multilabel": "labels", "continuous": "targets"}


@dataclass(frozen=True)
class Degrees:
    """The in-degrees of nodes.

    Attributes:
        degree: float64 `[num_bins]`, the middle of each bin of degrees, from 1.
        nodes_per_degree: float64 `[num_bins]`, nodes for each degree of the bin.
        num_isolated: Nodes without an in-neighbour.
        median, mean, largest: Of all nodes.
    """

    degree: Floats
    nodes_per_degree: Floats
    num_isolated: int
    median: float
    mean: float
    largest: int


@dataclass(frozen=True)
class GraphFacts:
    """The sizes of a run's graph.

    Attributes:
        num_nodes, num_edges, num_features: Its sizes.
        num_outputs, outputs: The number of classes, labels or targets, and which of the three.
        split_sizes: Nodes of train, val and test.
        degrees: Its in-degrees.
        data: How the graph was made; None where its store does not say.
    """

    num_nodes: int
    num_edges: int
    num_features: int
    num_outputs: int
    outputs: str
    split_sizes: Mapping[str, int]
    degrees: Degrees
    data: DataSummary | None

    @classmethod
    def of(cls, graph: Graph) -> GraphFacts:
        """The facts of a graph."""
        return cls(
            num_nodes=graph.num_nodes,
            num_edges=graph.num_edges,
            num_features=graph.num_features,
            num_outputs=graph.num_classes,
            outputs=_OUTPUTS.get(graph.task, "classes"),
            split_sizes={name: len(graph.split(name)) for name in SPLITS},
            degrees=degrees_of(graph.indptr),
            data=graph.summary,
        )


def degrees_of(indptr: Ints) -> Degrees:
    """The in-degrees of a CSC graph with offsets `[num_nodes + 1]`, in bins of growing width.

    Each low degree has a bin of its own, so that both ends of a power law are visible.
    """
    degree = np.diff(indptr)
    largest = int(degree.max(initial=0))
    counts = np.bincount(degree)
    steps = np.geomspace(1, largest + 1, 2 + int(_BINS_PER_DECADE * np.log10(largest + 1)))
    edges = np.unique(steps.round().astype(np.int64))
    totals = np.add.reduceat(counts, edges[:-1]) if largest else np.zeros(0, np.int64)
    widths = np.diff(edges)[: len(totals)]
    middles = np.sqrt(edges[:-1] * (edges[1:] - 1.0))[: len(totals)]
    is_used = totals > 0
    return Degrees(
        degree=middles[is_used],
        nodes_per_degree=(totals / widths)[is_used],
        num_isolated=int(counts[0]),
        median=float(np.median(degree)),
        mean=float(degree.mean()),
        largest=largest,
    )
