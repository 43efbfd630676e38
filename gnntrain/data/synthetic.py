"""Synthetic graphs: a degree-corrected stochastic block model with class-dependent features.

The model is that of Karrer & Newman, "Stochastic blockmodels and community structure in
networks" (2011), with the number of edges, and of those that stay within a class, fixed.
Every random number is a pure function of the seed and of what it is drawn for, so that a graph
does not depend on threads or on the order of work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gnntrain.config import SyntheticConfig
from gnntrain.data.graph import SPLITS, Float32Array, GraphData, Int64Array
from gnntrain.data.pair_draws import Partners, draw_pairs
from gnntrain.errors import UserError

Int32Array = npt.NDArray[np.int32]

DEFAULT_FRACTION = 0.2  # of train and of val nodes
MAX_NODES = 2**31 - 1
MAX_DENSITY = 0.5

_FEATURE_ROWS = 4096
_CAP_TURNS = 20


def synthetic_graph(config: SyntheticConfig) -> GraphData:
    """Generate an undirected graph without self loops or duplicate edges.

    Classes are equally large (± 1 node). The number of edges and the homophily are exact, up to
    rounding. Every node that is not isolated has an edge, unless there are fewer undirected edges
    than such nodes. Each undirected edge is given once (`symmetric`); features are generated when
    asked for.

    Raises:
        UserError: The sizes contradict each other.
    """
    num_nodes, num_classes, seed = config.num_nodes, config.num_classes, config.seed
    num_pairs = _num_pairs(config)
    splits = _splits(config)
    labels = (random_stream(seed, "labels").permutation(num_nodes) % num_classes).astype(np.int32)
    num_active = num_nodes - round(config.isolated_fraction * num_nodes)
    active = np.sort(random_stream(seed, "isolated").permutation(num_nodes)[:num_active])
    # Capped where the expected degree reaches the root of the number of edges: beyond, pairs of
    # hubs would be expected more than once (Chung & Lu, "Connected components in random graphs with
    # given expected degree sequences", 2002).
    ratio = math.sqrt(max(2 * num_pairs, 1))
    draws = random_stream(seed, "propensities")
    weight = propensities(draws, num_active, config.degree_exponent, ratio)
    pairs = _draw_edges(active, weight, labels, num_classes, num_pairs, config.homophily, seed)
    # A packed pair is two int32; which comes first makes no difference to an undirected edge.
    halves = pairs.view(np.int32).reshape(-1, 2)
    return GraphData(
        dataset=config.name,
        num_nodes=num_nodes,
        src=halves[:, 0],
        dst=halves[:, 1],
        labels=labels,
        num_classes=num_classes,
        task="multiclass",
        splits=splits,
        features=ClassFeatures(
            labels, num_classes, config.num_features, config.feature_signal, seed
        ),
        symmetric=True,
    )


@dataclass(frozen=True)
class ClassFeatures:
    """Features drawn around the mean of each node's class, generated when asked for.

    Attributes:
        labels: int32 `[num_nodes]`.
        num_classes: Classes.
        num_features: Features a node.
        signal: Expected distance between two class means.
        seed: Seed of means and noise.
    """

    labels: Int32Array
    num_classes: int
    num_features: int
    signal: float
    seed: int

    def rows(self, start: int, stop: int) -> Float32Array:
        """float32 `[stop - start, num_features]`, the same however the range is cut."""
        means = self._means()
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

    def _means(self) -> Float32Array:
        scale = self.signal / math.sqrt(2 * max(self.num_features, 1))
        shape = (self.num_classes, self.num_features)
        return random_stream(self.seed, "means").standard_normal(
            shape, dtype=np.float32
        ) * np.float32(scale)


_STREAMS = (
    "labels",
    "isolated",
    "propensities",
    "within",
    "between",
    "splits",
    "means",
    "features",
    "areas",
    "edges",
)


def random_stream(seed: int, stream: str, chunk: int = 0) -> np.random.Generator:
    """A counter-based generator (Philox) of its own for each purpose and chunk."""
    key = np.array([seed, (_STREAMS.index(stream) << 48) + chunk], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def _num_pairs(config: SyntheticConfig) -> int:
    num_nodes, num_edges = config.num_nodes, config.num_edges
    if num_nodes > MAX_NODES:
        raise UserError(
            f"dataset.num_nodes is {num_nodes:,}", f"A synthetic graph has at most {MAX_NODES:,}"
        )
    if num_edges is None:
        return round(num_nodes * config.avg_degree / 2)
    if num_edges % 2:
        raise UserError(
            f"dataset.num_edges is {num_edges}, which is odd",
            f"a synthetic graph holds both directions of each edge: say {num_edges + 1}",
        )
    return num_edges // 2


def _splits(config: SyntheticConfig) -> dict[str, Int64Array]:
    num_nodes = config.num_nodes
    a_fifth = round(num_nodes * DEFAULT_FRACTION)
    num_train = a_fifth if config.num_train is None else config.num_train
    num_val = a_fifth if config.num_val is None else config.num_val
    left = max(0, num_nodes - num_train - num_val)
    num_test = left if config.num_test is None else config.num_test
    total = num_train + num_val + num_test
    if total > num_nodes:
        raise UserError(
            f"dataset.num_train, num_val and num_test are {num_train}, {num_val} and {num_test}, "
            f"together {total}, but there are {num_nodes} nodes",
            "Lower them, or raise dataset.num_nodes",
        )
    order = random_stream(config.seed, "splits").permutation(num_nodes)[:total].astype(np.int64)
    parts = np.split(order, [num_train, num_train + num_val])
    return {name: np.sort(part) for name, part in zip(SPLITS, parts, strict=True)}


def propensities(
    draws: np.random.Generator, num_nodes: int, exponent: float, ratio: float
) -> npt.NDArray[np.float64]:
    """Pareto variates `[num_nodes]`: what a node's expected degree is proportional to.

    Args:
        draws: Random numbers.
        num_nodes: Number of nodes.
        exponent: Exponent of the power law of degrees.
        ratio: Least ratio of their sum to the largest.
    """
    uniform = 1.0 - draws.random(num_nodes)
    weight = np.power(uniform, -1.0 / (exponent - 1.0))
    for _ in range(_CAP_TURNS):
        np.minimum(weight, max(1.0, weight.sum() / ratio), out=weight)
    return weight


def _draw_edges(
    active: Int64Array,
    weight: npt.NDArray[np.float64],
    labels: Int32Array,
    num_classes: int,
    num_pairs: int,
    homophily: float,
    seed: int,
) -> Int64Array:
    """Distinct node pairs, packed into int64: first those within classes, then the others."""
    num_within = round(homophily * num_pairs)
    _check_room(labels[active], num_classes, num_within, num_pairs - num_within)
    partners = Partners.of(active, weight, labels[active], num_classes)
    backbone = random_stream(seed, "isolated", 1).permutation(len(active))
    cut = round(homophily * len(active))
    pairs = np.empty(num_pairs, dtype=np.int64)
    draw_pairs(partners, backbone[:cut], pairs[:num_within], True, seed)
    draw_pairs(partners, backbone[cut:], pairs[num_within:], False, seed)
    return pairs


def _check_room(labels: Int32Array, num_classes: int, num_within: int, num_between: int) -> None:
    """Refuse what no simple graph could hold, or only one too dense to be drawn at random."""
    num = len(labels)
    sizes = np.bincount(labels, minlength=num_classes).astype(object)
    room_within = int((sizes * (sizes - 1) // 2).sum())
    room_between = num * (num - 1) // 2 - room_within
    for what, asked, room in (
        ("within", num_within, room_within),
        ("between", num_between, room_between),
    ):
        if asked > MAX_DENSITY * room:
            raise UserError(
                f"the synthetic graph would need {asked:,} undirected edges {what} classes, "
                f"but its {num:,} nodes that are not isolated make {room:,} such pairs",
                "At most half of them can be used: raise dataset.num_nodes, lower "
                "dataset.avg_degree or dataset.num_edges, or change dataset.homophily",
            )
