"""The data sets by name: the published ones, one line each, and the random ones.

To add a data set of PyG, add its line and a YAML `conf/dataset/NAME.yaml` that inherits
`_published`. Names, choices in messages, `gnntrain ls datasets` and the estimates of
`gnntrain plan` follow. Neither PyG nor OGB is imported here: names must be listed at once.

Another package offers a data set without a line here, by an entry point:

    [project.entry-points."gnntrain.datasets"]
    mine = "my_package:MyDataset"

`MyDataset` is called with a folder (`dataset.root`, or one in the user's cache folder). It returns
a PyG `Data`, a PyG data set whose first graph is taken, or a `gnntrain.data.graph.GraphData`; a
class derived from PyG's `InMemoryDataset` will do. `gnntrain dataset=mine` trains on it. A YAML
`dataset/mine.yaml` in a folder that `--config-dir` names may set keys of its own; it inherits
`_published`, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class GraphSize(NamedTuple):
    """Nodes, edges, features a node, classes (or labels, where a node has several).

    Of a typed graph: all nodes, all edges, features of the target type.
    """

    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int


@dataclass(frozen=True)
class Published:
    """A published data set.

    Attributes:
        size: As PyG's documentation or OGB's web site gives it.
        builder: Where the class of its builder is; it is imported when it is used.
        class_name: Class in `torch_geometric.datasets` that names and fetches the raw files.
        arguments: Further arguments of the class, beside the folder.
        splits: What `dataset.split` may be; empty: any number, the splits are drawn at random.
        edges_once: Whether the source counts an edge once that is stored in both directions.
        defaults: Keys of `dataset` that have other defaults here.
    """

    size: GraphSize
    builder: str
    class_name: str | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)
    splits: Sequence[int] = (0,)
    edges_once: bool = False
    defaults: Mapping[str, object] = field(default_factory=dict)


_PYG = "gnntrain.data.pyg_data:PyGBuilder"
_OGB = "gnntrain.data.ogb:OGBBuilder"
_ENTITIES = "gnntrain.data.entities:EntitiesBuilder"
_HECO = "gnntrain.data.heco:HeCoBuilder"

_NO_DEFAULTS: Mapping[str, object] = {}
# Bags of words, whose lengths say nothing (Kipf & Welling, 2017).
_WORDS = {"normalize_features": True}
# Graphs with citations given one way: papers also learn from those that cite them.
_CITATIONS = {"to_undirected": True}


def _pyg(
    class_name: str,
    *size: int,
    name: str | None = None,
    splits: Sequence[int] = (0,),
    edges_once: bool = False,
    defaults: Mapping[str, object] = _NO_DEFAULTS,
    builder: str = _PYG,
) -> Published:
    arguments = {} if name is None else {"name": name}
    return Published(GraphSize(*size), builder, class_name, arguments, splits, edges_once, defaults)


def _heterophilous(name: str, *size: int) -> Published:
    kind = "HeterophilousGraphDataset"
    return _pyg(kind, *size, name=name, splits=range(10), edges_once=True)


def _entities(name: str, *size: int) -> Published:
    """RDF graphs (Ristoski et al., 2016) in the files of PyG's class `Entities`.

    Split 0 is the published one, without validation nodes; splits 1 to 5 hold a fifth of its
    training nodes out, to choose settings by.
    """
    return _pyg("Entities", *size, name=name, splits=range(6), edges_once=True, builder=_ENTITIES)


def _ogb(
    *size: int, edges_once: bool = False, defaults: Mapping[str, object] = _NO_DEFAULTS
) -> Published:
    return Published(GraphSize(*size), _OGB, edges_once=edges_once, defaults=defaults)


PUBLISHED: Mapping[str, Published] = {
    "cora": _pyg("Planetoid", 2_708, 10_556, 1_433, 7, name="Cora", defaults=_WORDS),
    "citeseer": _pyg("Planetoid", 3_327, 9_104, 3_703, 6, name="CiteSeer", defaults=_WORDS),
    "pubmed": _pyg("Planetoid", 19_717, 88_648, 500, 3, name="PubMed", defaults=_WORDS),
    "reddit": _pyg("Reddit", 232_965, 114_615_892, 602, 41),
    "reddit2": _pyg("Reddit2", 232_965, 23_213_838, 602, 41),
    "flickr": _pyg("Flickr", 89_250, 899_756, 500, 7),
    "yelp": _pyg("Yelp", 716_847, 13_954_819, 300, 100),
    "amazon_products": _pyg("AmazonProducts", 1_569_960, 264_339_468, 200, 107),
    "ogbn-arxiv": _ogb(169_343, 1_166_243, 128, 40, defaults=_CITATIONS),
    "ogbn-products": _ogb(2_449_029, 61_859_140, 100, 47, edges_once=True),
    "ogbn-papers100M": _ogb(111_059_956, 1_615_685_872, 128, 172, defaults=_CITATIONS),
    "ogbn-proteins": _ogb(132_534, 39_561_252, 8, 112, edges_once=True),
    "tolokers": _heterophilous("tolokers", 11_758, 519_000, 10, 2),
    "roman_empire": _heterophilous("roman_empire", 22_662, 32_927, 300, 18),
    "amazon_ratings": _heterophilous("amazon_ratings", 24_492, 93_050, 300, 5),
    "minesweeper": _heterophilous("minesweeper", 10_000, 39_402, 7, 2),
    "questions": _heterophilous("questions", 48_921, 153_540, 301, 2),
    "amazon_computers": _pyg("Amazon", 13_752, 491_722, 767, 10, name="Computers", splits=()),
    "amazon_photo": _pyg("Amazon", 7_650, 238_162, 745, 8, name="Photo", splits=()),
    "coauthor_cs": _pyg("Coauthor", 18_333, 163_788, 6_805, 15, name="CS", splits=()),
    "coauthor_physics": _pyg("Coauthor", 34_493, 495_924, 8_415, 5, name="Physics", splits=()),
    "dblp": _pyg("DBLP", 26_128, 239_566, 334, 4),
    "imdb": _pyg("IMDB", 11_616, 34_212, 3_066, 3),
    "aifb": _entities("AIFB", 8_285, 29_043, 0, 4),
    "mutag": _entities("MUTAG", 23_644, 74_227, 0, 2),
    "heco_dblp": Published(
        GraphSize(26_128, 119_783, 334, 4),
        _HECO,
        splits=(20, 40, 60),
        edges_once=True,
        defaults={"split": 60, **_WORDS},
    ),
    "ogbn-mag": _ogb(1_939_743, 21_111_007, 128, 349, defaults=_CITATIONS),
}

SYNTHETIC_NAMES = ("synthetic", "synthetic_reddit", "synthetic_products")
SYNTHETIC_MAG = "synthetic_mag"

MAG_NODES: Mapping[str, int] = {
    "paper": 736_389,
    "author": 1_134_649,
    "institution": 8_740,
    "field_of_study": 59_965,
}
"""Number of nodes of each type of ogbn-mag."""

MAG_EDGES: Mapping[tuple[str, str, str], int] = {
    ("author", "affiliated_with", "institution"): 1_043_998,
    ("author", "writes", "paper"): 7_145_660,
    ("paper", "cites", "paper"): 5_416_271,
    ("paper", "has_topic", "field_of_study"): 7_505_078,
}
"""Number of edges of each type of ogbn-mag."""

BUILTIN_NAMES = tuple(PUBLISHED)
DATASET_NAMES = (*SYNTHETIC_NAMES, SYNTHETIC_MAG, *BUILTIN_NAMES, "files")

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
