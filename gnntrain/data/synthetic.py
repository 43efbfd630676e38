"""Synthetic graphs whose nodes have classes, which show in their features and in their edges.

`synthetic_graph` is a degree-corrected stochastic block model (Karrer & Newman, "Stochastic
blockmodels and community structure in networks", 2011) of fixed numbers of edges within classes and
between them. Every random number is a pure function of the seed and of what it is drawn for, so
that a graph does not depend on threads or on the order of work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from gnntrain.config import SyntheticConfig, SyntheticMAGConfig
from gnntrain.data.graph import (
    EDGE,
    NODE,
    SPLITS,
    EdgeData,
    Float32Array,
    Float64Array,
    GraphData,
    Int32Array,
    Int64Array,
    NodeData,
    NodeType,
)
from gnntrain.data.pair_draws import Partners, draw_edges, draw_pairs
from gnntrain.errors import UserError

_DEFAULT_FRACTION = 0.2  # of train and of val nodes
_MAX_NODES = 2**31 - 1

_FEATURE_ROWS = 4096
_CAP_TURNS = 20

# Of all nodes and the splits of ogbn-mag (Hu et al., "Open Graph Benchmark", 2020).
_PAPER = "paper"
_NUM_TRAIN, _NUM_VAL = 629_571, 64_879
_ALL_BEGIN = ("writes", "has_topic")
"""Relations of which every source has an edge: an author wrote a paper, a paper has a topic."""
_HUBS_END = ("affiliated_with", "has_topic")
"""Relations of which only destinations have a power law of degrees, with large hubs."""


def synthetic_graph(config: SyntheticConfig) -> GraphData:
    """Generate an undirected graph without self loops or duplicate edges; UserError where the sizes
    contradict each other.

    Classes are equally large (± 1 node); the number of edges and the homophily are exact, up to
    rounding. Every node that is not isolated has an edge, as far as there are as many.
    """
    num_nodes, num_classes, seed = config.num_nodes, config.num_classes, config.seed
    if num_nodes > _MAX_NODES:
        raise UserError(
            f"dataset.num_nodes is {num_nodes:,}", f"A synthetic graph has at most {_MAX_NODES:,}"
        )
    if config.num_edges is None:
        num_pairs = round(num_nodes * config.avg_degree / 2)
    elif config.num_edges % 2 == 0:
        num_pairs = config.num_edges // 2
    else:
        raise UserError(
            f"dataset.num_edges is {config.num_edges}, which is odd",
            f"a synthetic graph holds both directions of each edge: say {config.num_edges + 1}",
        )
    a_fifth = round(num_nodes * _DEFAULT_FRACTION)
    num_train = a_fifth if config.num_train is None else config.num_train
    num_val = a_fifth if config.num_val is None else config.num_val
    left = max(0, num_nodes - num_train - num_val)
    num_test = left if config.num_test is None else config.num_test
    if (total := num_train + num_val + num_test) > num_nodes:
        raise UserError(
            f"dataset.num_train, num_val and num_test are together {total}, but there are "
            f"{num_nodes} nodes",
            "Lower them, or raise dataset.num_nodes",
        )
    labels = random_classes(seed, "labels", 0, num_nodes, num_classes)
    num_active = num_nodes - round(config.isolated_fraction * num_nodes)
    active = np.sort(random_stream(seed, "isolated").permutation(num_nodes)[:num_active])
    # Capped where the expected degree reaches the root of the number of edges: beyond, pairs of
    # hubs would be expected more than once (Chung & Lu, "Connected components in random graphs with
    # given expected degree sequences", 2002).
    ratio = math.sqrt(max(2 * num_pairs, 1))
    draws = random_stream(seed, "propensities")
    weight = propensities(draws, num_active, config.degree_exponent, ratio)

    # Pairs within classes first, then the others; every active node is in one that is sure.
    num_within = round(config.homophily * num_pairs)
    _check_capacity(labels[active], num_classes, num_within, num_pairs - num_within)
    partners = Partners.of(active, weight, labels[active], num_classes)
    backbone = random_stream(seed, "isolated", 1).permutation(num_active)
    cut = round(config.homophily * num_active)
    pairs = np.empty(num_pairs, dtype=np.int64)
    draw_pairs(partners, backbone[:cut], pairs[:num_within], True, seed)
    draw_pairs(partners, backbone[cut:], pairs[num_within:], False, seed)
    # A packed pair is two int32; which comes first makes no difference to an undirected edge.
    halves = pairs.view(np.int32).reshape(-1, 2)
    signal = config.feature_signal
    features = ClassFeatures(labels, num_classes, config.num_features, signal, seed)
    return GraphData(
        dataset=config.name,
        nodes={NODE: NodeData(num_nodes, features)},
        edges={EDGE: EdgeData(halves[:, 0], halves[:, 1], symmetric=True)},
        labels=labels,
        num_classes=num_classes,
        task="multiclass",
        splits=_drawn_splits(seed, num_nodes, num_train, num_val, total),
    )


def _drawn_splits(
    seed: int, num_nodes: int, num_train: int, num_val: int, total: int
) -> dict[str, Int64Array]:
    order = random_stream(seed, "splits").permutation(num_nodes)[:total].astype(np.int64)
    parts = np.split(order, [num_train, num_train + num_val])
    return {name: np.sort(part) for name, part in zip(SPLITS, parts, strict=True)}


def _check_capacity(
    labels: Int32Array, num_classes: int, num_within: int, num_between: int
) -> None:
    """Refuse what no simple graph could hold, or only one too dense to be drawn at random."""
    num = len(labels)
    sizes = np.bincount(labels, minlength=num_classes).astype(object)
    most_within = int((sizes * (sizes - 1) // 2).sum())
    most_between = num * (num - 1) // 2 - most_within
    pairs = {"within": (num_within, most_within), "between": (num_between, most_between)}
    for where, (wanted, most) in pairs.items():
        if wanted > most / 2:
            raise UserError(
                f"the synthetic graph would need {wanted:,} undirected edges {where} classes, "
                f"but its {num:,} nodes that are not isolated make {most:,} such pairs",
                "At most half of them can be used: raise dataset.num_nodes, lower "
                "dataset.avg_degree or dataset.num_edges, or change dataset.homophily",
            )


def synthetic_mag(config: SyntheticMAGConfig) -> GraphData:
    """Generate a random typed graph with the types and sizes of ogbn-mag, each edge once.

    All nodes are shared out among the classes; edges join nodes of a class more often than by
    chance, and degrees follow a power law. So a paper's class shows in its features and in the
    papers that share its authors, its fields or its citations.
    """
    sizes, num_classes, seed = config.num_nodes, config.num_classes, config.seed
    classes = {
        name: random_classes(seed, "areas", number, size, num_classes)
        for number, (name, size) in enumerate(sizes.items())
    }
    edges = {}
    for number, (edge_type, num_edges) in enumerate(config.num_edges.items()):
        source, relation, destination = edge_type
        has_hubs = relation in _HUBS_END
        # Nodes with more edges would often draw the same one again.
        total = max(num_edges, 1)
        ratio = total / (sizes[source] / 2) if has_hubs else math.sqrt(total)

        def partners(name: NodeType, stream: int, exponent: float, ratio: float) -> Partners:
            draws = random_stream(seed, "propensities", stream)
            weight = propensities(draws, sizes[name], exponent, ratio)
            return Partners.of(np.arange(sizes[name]), weight, classes[name], num_classes)

        even_or_not = math.inf if has_hubs else config.degree_exponent
        sources = destinations = partners(source, 2 * number, even_or_not, ratio)
        if destination != source:
            destinations = partners(destination, 2 * number + 1, config.degree_exponent, ratio)
        sure = np.arange(sizes[source] if relation in _ALL_BEGIN else 0)
        edge_seed = int(random_stream(seed, "edges", number).integers(2**63))
        packed = np.empty(num_edges, np.int64)
        draw_edges(sources, destinations, sure, packed, config.homophily, edge_seed)
        low_and_high = packed.view(np.int32).reshape(-1, 2)
        edges[edge_type] = EdgeData(low_and_high[:, 1], low_and_high[:, 0])

    signal = config.feature_signal
    features = ClassFeatures(classes[_PAPER], num_classes, config.num_features, signal, seed)
    nodes = {name: NodeData(size) for name, size in sizes.items()}
    nodes[_PAPER].features = features
    num_papers = sizes[_PAPER]
    num_train, num_val = round(_NUM_TRAIN * config.scale), round(_NUM_VAL * config.scale)
    return GraphData(
        dataset=config.name,
        nodes=nodes,
        edges=edges,
        target=_PAPER,
        labels=classes[_PAPER],
        num_classes=num_classes,
        task="multiclass",
        splits=_drawn_splits(seed, num_papers, num_train, num_val, num_papers),
        reverse=True,
    )


@dataclass(frozen=True)
class ClassFeatures:
    """Features drawn around the mean of each node's class, generated when asked for."""

    labels: Int32Array  # [num_nodes]
    num_classes: int
    num_features: int
    signal: float  # expected distance between two class means
    seed: int

    def rows(self, start: int, stop: int) -> Float32Array:
        """float32 `[stop - start, num_features]`, the same however the range is cut."""
        scale = np.float32(self.signal / math.sqrt(2 * max(self.num_features, 1)))
        shape = (self.num_classes, self.num_features)
        means = random_stream(self.seed, "means").standard_normal(shape, dtype=np.float32) * scale
        out = np.empty((stop - start, self.num_features), dtype=np.float32)
        for chunk in range(start // _FEATURE_ROWS, -(-stop // _FEATURE_ROWS)):
            first = chunk * _FEATURE_ROWS
            begin, end = max(start, first), min(stop, first + _FEATURE_ROWS)
            noise = random_stream(self.seed, "features", chunk).standard_normal(
                (end - first, self.num_features), dtype=np.float32
            )
            out[begin - start : end - start] = noise[begin - first :]
        out += means[self.labels[start:stop]]
        return out


# A stream's number is part of its key: new ones go to the end.
_Stream = IntEnum(
    "_Stream",
    "labels isolated propensities within between splits means features areas edges",
    start=0,
)


def random_stream(seed: int, stream: str, chunk: int = 0) -> np.random.Generator:
    """A counter-based generator (Philox) of its own for each purpose and chunk."""
    key = np.array([seed, (_Stream[stream] << 48) + chunk], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def random_classes(seed: int, stream: str, chunk: int, num: int, num_classes: int) -> Int32Array:
    """Classes of `num` nodes at random, equally many of each (± 1)."""
    order = random_stream(seed, stream, chunk).permutation(num)
    return (order % num_classes).astype(np.int32)


def propensities(
    draws: np.random.Generator, num_nodes: int, exponent: float, ratio: float
) -> Float64Array:
    """Pareto variates `[num_nodes]`: what a node's expected degree is proportional to. `exponent`
    is that of the power law of degrees, `ratio` the least of their sum to the largest."""
    uniform = 1.0 - draws.random(num_nodes)
    weight = np.power(uniform, -1.0 / (exponent - 1.0))
    for _ in range(_CAP_TURNS):
        np.minimum(weight, max(1.0, weight.sum() / ratio), out=weight)
    return weight
