"""The data sets by name: the published ones, one line each, and the random ones.

To add one of PyG, add its line and a YAML `conf/dataset/NAME.yaml` that inherits `_published`:
names, choices in messages, `gnntrain ls datasets` and the estimates of `gnntrain plan`
follow. Neither PyG nor OGB is imported here. docs/extending.md says how another package offers one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple


class GraphSize(NamedTuple):
    """Of a typed graph: all nodes, all edges, features of the target type."""

    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int  # or labels, where a node has several


@dataclass(frozen=True)
class Published:
    """A published data set."""

    size: GraphSize  # as PyG's documentation or OGB's web site gives it
    class_name: str | None = None  # in `torch_geometric.datasets`: names and fetches the raw files
    name: str | None = None  # the class's second argument, if it has one
    defaults: Mapping[str, object] = field(default_factory=dict)  # of keys, where they differ
    splits: Sequence[int] = (0,)  # of `dataset.split`; empty: any, they are drawn at random
    edges_once: bool = False  # the source counts an edge once that is stored in both directions
    builder: str = "gnntrain.data.pyg_data:PyGBuilder"  # it is imported when it is used


# Bags of words, whose lengths say nothing (Kipf & Welling, 2017).
_WORDS = {"normalize_features": True}
_OGB = partial(Published, builder="gnntrain.data.ogb:OGBBuilder")
# Graphs with citations given one way: papers also learn from those that cite them.
_CITATIONS = partial(_OGB, defaults={"to_undirected": True})
_DRAWN = partial(Published, splits=())
_HETEROPHILOUS = partial(Published, splits=range(10), edges_once=True)
# RDF graphs (Ristoski et al., 2016). Split 0 is the published one, without validation nodes; splits
# 1 to 5 hold a fifth of its training nodes out, to choose settings by.
_ENTITIES = partial(
    Published, splits=range(6), edges_once=True, builder="gnntrain.data.entities:EntitiesBuilder"
)
_HET = "HeterophilousGraphDataset"

PUBLISHED: Mapping[str, Published] = {
    "cora": Published(GraphSize(2_708, 10_556, 1_433, 7), "Planetoid", "Cora", _WORDS),
    "citeseer": Published(GraphSize(3_327, 9_104, 3_703, 6), "Planetoid", "CiteSeer", _WORDS),
    "pubmed": Published(GraphSize(19_717, 88_648, 500, 3), "Planetoid", "PubMed", _WORDS),
    "reddit": Published(GraphSize(232_965, 114_615_892, 602, 41), "Reddit"),
    "reddit2": Published(GraphSize(232_965, 23_213_838, 602, 41), "Reddit2"),
    "flickr": Published(GraphSize(89_250, 899_756, 500, 7), "Flickr"),
    "yelp": Published(GraphSize(716_847, 13_954_819, 300, 100), "Yelp"),
    "amazon_products": Published(GraphSize(1_569_960, 264_339_468, 200, 107), "AmazonProducts"),
    "ogbn-arxiv": _CITATIONS(GraphSize(169_343, 1_166_243, 128, 40)),
    "ogbn-products": _OGB(GraphSize(2_449_029, 61_859_140, 100, 47), edges_once=True),
    "ogbn-papers100M": _CITATIONS(GraphSize(111_059_956, 1_615_685_872, 128, 172)),
    "ogbn-proteins": _OGB(GraphSize(132_534, 39_561_252, 8, 112), edges_once=True),
    "tolokers": _HETEROPHILOUS(GraphSize(11_758, 519_000, 10, 2), _HET, "tolokers"),
    "roman_empire": _HETEROPHILOUS(GraphSize(22_662, 32_927, 300, 18), _HET, "roman_empire"),
    "amazon_ratings": _HETEROPHILOUS(GraphSize(24_492, 93_050, 300, 5), _HET, "amazon_ratings"),
    "minesweeper": _HETEROPHILOUS(GraphSize(10_000, 39_402, 7, 2), _HET, "minesweeper"),
    "questions": _HETEROPHILOUS(GraphSize(48_921, 153_540, 301, 2), _HET, "questions"),
    "amazon_computers": _DRAWN(GraphSize(13_752, 491_722, 767, 10), "Amazon", "Computers"),
    "amazon_photo": _DRAWN(GraphSize(7_650, 238_162, 745, 8), "Amazon", "Photo"),
    "coauthor_cs": _DRAWN(GraphSize(18_333, 163_788, 6_805, 15), "Coauthor", "CS"),
    "coauthor_physics": _DRAWN(GraphSize(34_493, 495_924, 8_415, 5), "Coauthor", "Physics"),
    "dblp": Published(GraphSize(26_128, 239_566, 334, 4), "DBLP"),
    "imdb": Published(GraphSize(11_616, 34_212, 3_066, 3), "IMDB"),
    "aifb": _ENTITIES(GraphSize(8_285, 29_043, 0, 4), "Entities", "AIFB"),
    "mutag": _ENTITIES(GraphSize(23_644, 74_227, 0, 2), "Entities", "MUTAG"),
    "heco_dblp": Published(
        GraphSize(26_128, 119_783, 334, 4),
        defaults={"split": 60, **_WORDS},
        splits=(20, 40, 60),
        edges_once=True,
        builder="gnntrain.data.heco:HeCoBuilder",
    ),
    "ogbn-mag": _CITATIONS(GraphSize(1_939_743, 21_111_007, 128, 349)),
}

SYNTHETIC_NAMES = ("synthetic", "synthetic_reddit", "synthetic_products")
SYNTHETIC_MAG = "synthetic_mag"

MAG_NODES = {"paper": 736_389, "author": 1_134_649, "institution": 8_740, "field_of_study": 59_965}
"""Number of nodes of each type of ogbn-mag."""

MAG_EDGES: Mapping[tuple[str, str, str], int] = {
    ("author", "affiliated_with", "institution"): 1_043_998,
    ("author", "writes", "paper"): 7_145_660,
    ("paper", "cites", "paper"): 5_416_271,
    ("paper", "has_topic", "field_of_study"): 7_505_078,
}
"""Number of edges of each type of ogbn-mag."""

DATASET_NAMES = (*SYNTHETIC_NAMES, SYNTHETIC_MAG, *PUBLISHED, "files")

_SHAPE = (
    *("num_nodes", "avg_degree", "num_edges", "num_features", "num_classes"),
    *("num_train", "num_val", "num_test", "isolated_fraction"),
)
# The exact shapes of the two graphs that papers measure speed on.
_REDDIT = (232_965, 492.0, 114_615_892, 602, 41, 153_431, 23_831, 55_703, 0.0)
_PRODUCTS = (2_449_029, 50.5, 123_718_280, 100, 47, 196_615, 39_323, 2_213_091, 0.0)

DATASET_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "synthetic_reddit": dict(zip(_SHAPE, _REDDIT, strict=True)),
    "synthetic_products": dict(zip(_SHAPE, _PRODUCTS, strict=True)),
    **{name: published.defaults for name, published in PUBLISHED.items()},
}
"""Defaults of a data set by its name, where they differ from those of its class."""
