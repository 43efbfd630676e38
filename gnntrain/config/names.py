"""The names of data sets and samplers; where a data set's own defaults differ.

Nothing heavy is imported here: a name can be listed without torch.
"""

from __future__ import annotations

from collections.abc import Mapping

from gnntrain.config.published import PUBLISHED

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

SAMPLER_CLASSES: Mapping[str, str] = {
    "numba": "gnntrain.sampling.cpu:CPUSampler",
    "triton": "gnntrain.sampling.gpu:GPUSampler",
    "pyg": "gnntrain.sampling.pyg:PyGSampler",
}
"""Where the class of each sampler is; it is imported when it is used."""

SAMPLER_NAMES = tuple(SAMPLER_CLASSES)

DATASET_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    # The exact shapes of the two graphs that papers measure speed on.
    "synthetic_reddit": {
        "num_nodes": 232_965,
        "avg_degree": 492.0,
        "num_edges": 114_615_892,
        "num_features": 602,
        "num_classes": 41,
        "num_train": 153_431,
        "num_val": 23_831,
        "num_test": 55_703,
        "isolated_fraction": 0.0,
    },
    "synthetic_products": {
        "num_nodes": 2_449_029,
        "avg_degree": 50.5,
        "num_edges": 123_718_280,
        "num_features": 100,
        "num_classes": 47,
        "num_train": 196_615,
        "num_val": 39_323,
        "num_test": 2_213_091,
        "isolated_fraction": 0.0,
    },
    **{name: published.defaults for name, published in PUBLISHED.items()},
}
"""Defaults of a data set by its name, where they differ from those of its class."""
