"""Names by which the columns and arrays of a user's graph are recognised, in lower case."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import chain
from typing import Literal

Role = Literal["id", "source", "target", "label", "split", "train", "val", "test"]

COLUMN_NAMES: Mapping[Role, tuple[str, ...]] = {
    "id": ("id", "node_id", "node", "nid"),
    "label": ("label", "labels", "class", "y"),
    "split": ("split",),
    "source": ("source", "src", "from"),
    "target": ("target", "dst", "to"),
}
MASK_NAMES: Mapping[Role, tuple[str, ...]] = {
    "train": ("train_mask",),
    "val": ("val_mask", "valid_mask"),
    "test": ("test_mask",),
}
PLAIN_MASK_NAMES: Mapping[Role, tuple[str, ...]] = {
    "train": ("train", "is_train"),
    "val": ("val", "valid", "is_val", "is_valid"),
    "test": ("test", "is_test"),
}
"""One such name may be an ordinary feature; two or three of them are masks."""

ID_ARRAYS = ("ids", "id", "node_id")
FEATURE_ARRAYS = ("x", "features", "feat", "attr", "attr_matrix", "node_feat")
LABEL_ARRAYS = ("y", "labels", "label")
MASK_ARRAYS = tuple(chain(*MASK_NAMES.values()))
SPLIT_ARRAYS: Mapping[str, tuple[str, ...]] = {
    "train": ("train_mask", "train", "train_idx"),
    "val": ("val_mask", "valid_mask", "val", "valid", "val_idx", "valid_idx"),
    "test": ("test_mask", "test", "test_idx"),
}
"""Names of the masks, or lists of nodes, of a split; the first that is there counts."""
NODE_ARRAYS = (*ID_ARRAYS, *FEATURE_ARRAYS, *LABEL_ARRAYS, *MASK_ARRAYS)
PAIR_ARRAYS = ("edge_index", "edges")
WEIGHT_ARRAYS = ("edge_weight", "weight", "weights")
EDGE_ARRAYS = (*PAIR_ARRAYS, *WEIGHT_ARRAYS, "edge_attr")
ADJACENCIES = ("adj", "adj_matrix", "adjacency")

USUAL_NAMES = frozenset(chain(*COLUMN_NAMES.values(), MASK_ARRAYS))
"""Names that mark the first line of a text as a header."""

# An empty name, pandas' name for it, its index in Parquet, a reset index.
_PANDAS_INDEX = re.compile(r"|Unnamed: \d+(\.\d+)?|__index_level_\d+__|index|level_0")


def is_pandas_index(name: str) -> bool:
    """Whether a column is called as pandas calls an index that it writes or resets."""
    return _PANDAS_INDEX.fullmatch(name) is not None
