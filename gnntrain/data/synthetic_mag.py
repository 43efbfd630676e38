"""A random typed graph with the types and sizes of ogbn-mag.

The sizes are those of Hu et al., "Open Graph Benchmark" (2020). Papers, authors, institutions and
fields of study are shared out among the classes; edges join nodes of a class more often than by
chance, and degrees follow a power law. So a paper's class shows in its features and in the papers
that share its authors, its fields or its citations.
"""

from __future__ import annotations

import math
import sys

import numpy as np

from gnntrain.config import SyntheticMAGConfig
from gnntrain.data.graph import (
    EdgeData,
    EdgeType,
    HeteroGraphData,
    Int64Array,
    IntArray,
    NodeData,
    NodeType,
)
from gnntrain.data.pair_draws import Int32Array, Partners, draw_edges
from gnntrain.data.synthetic import ClassFeatures, propensities, random_stream

PAPER = "paper"
NUM_TRAIN, NUM_VAL = 629_571, 64_879
_ALL_BEGIN = ("writes", "has_topic")
"""Relations of which every source has an edge: an author wrote a paper, a paper has a topic."""
_HUBS_END = ("affiliated_with", "has_topic")
"""Relations of which only destinations have a power law of degrees, with large hubs."""


def synthetic_mag(config: SyntheticMAGConfig) -> HeteroGraphData:
    """Generate the graph, each edge once.

    The numbers of nodes and edges are exact, see `SyntheticMAGConfig.num_nodes` and `num_edges`.
    """
    sizes = config.num_nodes
    areas = {
        name: (
            random_stream(config.seed, "areas", number).permutation(size) % config.num_classes
        ).astype(np.int32)
        for number, (name, size) in enumerate(sizes.items())
    }
    features = ClassFeatures(
        areas[PAPER], config.num_classes, config.num_features, config.feature_signal, config.seed
    )
    return HeteroGraphData(
        dataset=config.name,
        nodes={
            name: NodeData(size, features if name == PAPER else None)
            for name, size in sizes.items()
        },
        edges={
            name: EdgeData(*_edges(config, number, name, areas))
            for number, name in enumerate(config.num_edges)
        },
        target=PAPER,
        labels=areas[PAPER],
        num_classes=config.num_classes,
        task="multiclass",
        splits=_splits(sizes[PAPER], config),
        reverse=True,
    )


def _edges(
    config: SyntheticMAGConfig,
    number: int,
    edge_type: EdgeType,
    areas: dict[NodeType, Int32Array],
) -> tuple[IntArray, IntArray]:
    """Sources and destinations of one edge type, by source."""
    source, relation, destination = edge_type
    sizes, packed = config.num_nodes, np.empty(config.num_edges[edge_type], np.int64)

    has_hubs = relation in _HUBS_END
    # Nodes with more edges would often draw the same one again.
    total = max(len(packed), 1)
    ratio = total / (sizes[source] / 2) if has_hubs else math.sqrt(total)

    def partners(name: NodeType, end: int, is_even: bool) -> Partners:
        draws = random_stream(config.seed, "propensities", 2 * number + end)
        exponent = math.inf if is_even else config.degree_exponent
        weight = propensities(draws, sizes[name], exponent, ratio)
        return Partners.of(np.arange(sizes[name]), weight, areas[name], config.num_classes)

    sources = partners(source, 0, has_hubs)
    destinations = sources if source == destination else partners(destination, 1, False)
    sure = np.arange(sizes[source] if relation in _ALL_BEGIN else 0)
    seed = int(random_stream(config.seed, "edges", number).integers(2**63))
    draw_edges(sources, destinations, sure, packed, config.homophily, seed)
    halves = packed.view(np.int32).reshape(-1, 2)
    high = 1 if sys.byteorder == "little" else 0
    return halves[:, high], halves[:, 1 - high]


def _splits(num_papers: int, config: SyntheticMAGConfig) -> dict[str, Int64Array]:
    num_train = round(NUM_TRAIN * config.scale)
    cuts = [num_train, num_train + round(NUM_VAL * config.scale)]
    order = random_stream(config.seed, "splits").permutation(num_papers)
    return dict(zip(("train", "val", "test"), map(np.sort, np.split(order, cuts)), strict=True))
