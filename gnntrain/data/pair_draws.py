"""Drawing distinct node pairs, within or between classes, in proportion to node weights."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from gnntrain.data.graph import Float32Array, Float64Array, Int32Array, Int64Array, IntArray
from gnntrain.jit import jit
from gnntrain.limits import available_cores

_SLICE = 1 << 20
# Weighted draws hit saturated hubs repeatedly. The pairs that are still missing after this number
# of rounds, very few unless the graph is dense, are drawn with equal weights.
_WEIGHTED_ROUNDS = 8
_MAX_TRIES = 1000


class Partners(NamedTuple):
    """Who may be drawn, sorted by class; "positions" are places in this order.

    Alias tables (Walker 1977, Vose 1991) give a weighted draw in constant time: at a uniformly
    drawn place, stay with probability `stay`, else go to `alias`.
    """

    nodes: Int32Array  # [num_active], ids
    labels: Int32Array  # [num_active], their classes, ascending
    bounds: Int64Array  # [num_classes + 1], where each class begins
    stay: Float32Array  # [num_active], of the table over all positions
    alias: Int32Array
    class_stay: Float32Array  # the same, a table for each class
    class_alias: Int32Array

    @classmethod
    def of(
        cls, nodes: IntArray, weight: Float64Array, labels: Int32Array, num_classes: int
    ) -> Partners:
        """Tables for `nodes` (ids) of the given weights and classes, each `[num_active]`."""
        order = np.argsort(labels, kind="stable")
        weight, labels = weight[order], labels[order]
        bounds = np.searchsorted(labels, np.arange(num_classes + 1)).astype(np.int64)
        everyone = np.array([0, len(nodes)], dtype=np.int64)
        tables = (*_alias_tables(weight, everyone), *_alias_tables(weight, bounds))
        return cls(nodes[order].astype(np.int32), labels, bounds, *tables)


def _alias_tables(weight: Float64Array, bounds: Int64Array) -> tuple[Float32Array, Int32Array]:
    """One alias table for each range of `weight` between consecutive `bounds`."""
    stay = np.ones(len(weight), dtype=np.float32)
    alias = np.arange(len(weight), dtype=np.int32)
    for first, last in pairwise(bounds.tolist()):
        if last > first:
            share = weight[first:last] * ((last - first) / weight[first:last].sum())
            _fill_alias(share, first, stay[first:last], alias[first:last])
    return stay, alias


def draw_pairs(
    partners: Partners, sure: Int64Array, out: Int64Array, within: bool, seed: int
) -> None:
    """Fill `out` with distinct unordered pairs within a class, or between two classes: smaller id
    << 32 | larger id, ascending; at most about half of all pairs that exist. Each of the `sure`
    positions gets a pair, as far as `out` has space."""

    def draw(turn: int, sure: Int64Array, start: np.uint64, fresh: Int64Array) -> None:
        key = np.uint64(splitmix64(np.uint64(seed), np.uint64(2 * turn + within)))
        _draw_pairs(partners, sure, fresh, within, turn >= _WEIGHTED_ROUNDS, key, start)

    _fill_distinct(sure, out, draw)


def draw_edges(
    sources: Partners,
    destinations: Partners,
    sure: Int64Array,
    out: Int64Array,
    homophily: float,
    seed: int,
) -> None:
    """Fill `out` with distinct edges: source << 32 | destination, ascending; at most about half of
    all edges that could be. Edges within one set (the same object) join no node to itself. Each of
    the `sure` positions of sources gets an edge, as far as `out` has space. A share of `homophily`
    ends in the source's class, a smaller one where that has not as many destinations."""
    no_loops = sources is destinations

    def draw(turn: int, sure: Int64Array, start: np.uint64, fresh: Int64Array) -> None:
        key = np.uint64(splitmix64(np.uint64(seed), np.uint64(turn)))
        flat = turn >= _WEIGHTED_ROUNDS
        share = 0.0 if flat else homophily
        _draw_edges(sources, destinations, sure, fresh, share, no_loops, flat, key, start)

    _fill_distinct(sure, out, draw)


def _fill_distinct(
    sure: Int64Array,
    out: Int64Array,
    draw: Callable[[int, Int64Array, np.uint64, Int64Array], None],
) -> None:
    """Fill `out` with distinct numbers, ascending, in rounds. `draw` is called with a round, the
    sure positions of the places, the number of the first place and the places to fill; −1 is no
    number."""
    num_found = turn = 0

    def fill(start: int) -> None:
        places = fresh[start : start + _SLICE]
        draw(turn, sure[start : start + len(places)], np.uint64(start), places)

    with ThreadPoolExecutor(available_cores()) as pool:
        while num_found < len(out):
            fresh = out[num_found:]
            list(pool.map(fill, range(0, len(fresh), _SLICE)))
            fresh.sort()
            num_found += _keep_new(out[:num_found], fresh)
            out[:num_found].sort(kind="stable")  # Timsort: merges two sorted runs in linear time
            turn += 1
            sure = sure[:0]


@jit
def _fill_alias(share: Float64Array, first: int, stay: Float32Array, alias: Int32Array) -> None:
    """Vose's construction for one range; `share` averages 1 and is used up."""
    poor, rich = np.flatnonzero(share < 1.0), np.flatnonzero(~(share < 1.0))
    num_poor, num_rich = len(poor), len(rich)
    while num_poor > 0 and num_rich > 0:
        num_poor -= 1
        low = poor[num_poor]
        high = rich[num_rich - 1]
        stay[low] = share[low]
        alias[low] = first + high
        share[high] -= 1.0 - share[low]
        if share[high] < 1.0:
            num_rich -= 1
            poor[num_poor] = high
            num_poor += 1


@jit
def splitmix64(state: np.uint64, step: np.uint64) -> np.uint64:
    """SplitMix64 (Steele, Lea & Flood 2014): the `step`-th number of the stream `state`."""
    mixed = state + (step + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@jit
def _pick(
    random: np.uint64, first: int, num: int, stay: Float32Array, alias: Int32Array, flat: bool
) -> int:
    """A position of `first … first + num - 1`: the upper half of `random` says where to look,
    the lower half whether to stay."""
    place = first + int(((random >> np.uint64(32)) * np.uint64(num)) >> np.uint64(32))
    chance = np.float64(random & np.uint64(0xFFFFFFFF)) * 2.0**-32
    if flat or chance < stay[place]:
        return place
    return int(alias[place])


@jit
def _draw_pairs(
    partners: Partners,
    sure: Int64Array,
    out: Int64Array,
    within: bool,
    flat: bool,
    key: np.uint64,
    start: np.uint64,
) -> None:
    """Draw a pair for each place of `out`, or −1 where no partner was found in many tries."""
    nodes, labels, bounds = partners.nodes, partners.labels, partners.bounds
    stay, alias = partners.stay, partners.alias
    first, num = 0, len(nodes)
    for place in range(len(out)):
        stream = splitmix64(key, start + np.uint64(place))
        if place < len(sure):
            one = sure[place]
        else:
            random = splitmix64(stream, np.uint64(0))
            one = _pick(random, 0, len(nodes), partners.stay, partners.alias, flat)
        if within:
            stay, alias = partners.class_stay, partners.class_alias
            first = bounds[labels[one]]
            num = bounds[labels[one] + 1] - first
        out[place] = -1
        for attempt in range(1, _MAX_TRIES):
            other = _pick(splitmix64(stream, np.uint64(attempt)), first, num, stay, alias, flat)
            if other != one and (within or labels[other] != labels[one]):
                low = np.int64(min(nodes[one], nodes[other]))
                high = np.int64(max(nodes[one], nodes[other]))
                out[place] = (low << 32) | high
                break


@jit
def _draw_edges(
    sources: Partners,
    destinations: Partners,
    sure: Int64Array,
    out: Int64Array,
    homophily: float,
    no_loops: bool,
    flat: bool,
    key: np.uint64,
    start: np.uint64,
) -> None:
    """Draw an edge for each place of `out`, or −1 for a self loop that may not be."""
    for place in range(len(out)):
        stream = splitmix64(key, start + np.uint64(place))
        if place < len(sure):
            one = sure[place]
        else:
            random = splitmix64(stream, np.uint64(0))
            one = _pick(random, 0, len(sources.nodes), sources.stay, sources.alias, flat)
        label = sources.labels[one]
        first, last = destinations.bounds[label], destinations.bounds[label + 1]
        chance = np.float64(splitmix64(stream, np.uint64(1)) >> np.uint64(32)) * 2.0**-32
        random = splitmix64(stream, np.uint64(2))
        if chance < homophily and last > first:
            stay, alias = destinations.class_stay, destinations.class_alias
            other = _pick(random, first, last - first, stay, alias, flat)
        else:
            stay, alias = destinations.stay, destinations.alias
            other = _pick(random, 0, len(destinations.nodes), stay, alias, flat)
        out[place] = -1
        if not (no_loops and one == other):
            out[place] = (np.int64(sources.nodes[one]) << 32) | np.int64(destinations.nodes[other])


@jit
def _keep_new(known: Int64Array, fresh: Int64Array) -> int:
    """Move the distinct pairs of `fresh` that are not `known` to its front; returns how many. Both
    are ascending."""
    num = at = 0
    for place in range(len(fresh)):
        pair = fresh[place]
        while at < len(known) and known[at] < pair:
            at += 1
        is_known = at < len(known) and known[at] == pair
        if pair >= 0 and not is_known and (num == 0 or fresh[num - 1] != pair):
            fresh[num] = pair
            num += 1
    return num
