"""Sizes of the published data sets, as PyG's documentation and OGB's web site give them.

A stored graph may have more edges: both directions where a source counts an edge once, or where
`dataset.to_undirected` adds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class GraphSize(NamedTuple):
    """Nodes, edges, features a node, classes (or labels, where a node has several)."""

    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int


PUBLISHED: Mapping[str, GraphSize] = {
    "cora": GraphSize(2_708, 10_556, 1_433, 7),
    "citeseer": GraphSize(3_327, 9_104, 3_703, 6),
    "pubmed": GraphSize(19_717, 88_648, 500, 3),
    "reddit": GraphSize(232_965, 114_615_892, 602, 41),
    "reddit2": GraphSize(232_965, 23_213_838, 602, 41),
    "flickr": GraphSize(89_250, 899_756, 500, 7),
    "yelp": GraphSize(716_847, 13_954_819, 300, 100),
    "amazon_products": GraphSize(1_569_960, 264_339_468, 200, 107),
    "ogbn-arxiv": GraphSize(169_343, 1_166_243, 128, 40),
    "ogbn-products": GraphSize(2_449_029, 61_859_140, 100, 47),
    "ogbn-papers100M": GraphSize(111_059_956, 1_615_685_872, 128, 172),
    "ogbn-proteins": GraphSize(132_534, 39_561_252, 8, 112),
    "tolokers": GraphSize(11_758, 519_000, 10, 2),
    "roman_empire": GraphSize(22_662, 32_927, 300, 18),
    "amazon_ratings": GraphSize(24_492, 93_050, 300, 5),
    "minesweeper": GraphSize(10_000, 39_402, 7, 2),
    "questions": GraphSize(48_921, 153_540, 301, 2),
    "amazon_computers": GraphSize(13_752, 491_722, 767, 10),
    "amazon_photo": GraphSize(7_650, 238_162, 745, 8),
    "coauthor_cs": GraphSize(18_333, 163_788, 6_805, 15),
    "coauthor_physics": GraphSize(34_493, 495_924, 8_415, 5),
}

BOTH_WAYS = frozenset(
    {
        *("ogbn-arxiv", "ogbn-products", "ogbn-papers100M", "ogbn-proteins"),
        *("tolokers", "roman_empire", "amazon_ratings", "minesweeper", "questions"),
    }
)
"""Where the source counts an edge once, and the store holds it in both directions."""
