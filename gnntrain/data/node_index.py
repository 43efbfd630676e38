"""From the user's own node ids to 0 … num_nodes − 1."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa

from gnntrain.data.columns import TEXT, is_null, to_int64, to_plain
from gnntrain.data.graph import AnyArray, Int64Array


class NodeIndex:
    """Turns the user's node ids into node numbers.

    Ids are compared as whole numbers if all ids of the nodes are whole numbers (so that 7 and
    007 are one node), else as texts.

    Args:
        ids: The nodes' ids in order (see `to_plain`), none missing, none twice; None: they are
            0, 1, ….
        num_nodes: Number of nodes.
    """

    def __init__(self, ids: pa.Array | None, num_nodes: int) -> None:
        self.num_nodes = num_nodes
        own = None if ids is None else ids.to_numpy(zero_copy_only=False)
        if own is not None and own.dtype != object and (own == np.arange(num_nodes)).all():
            own = None
        self._own: AnyArray | None = own
        self._is_text = own is not None and own.dtype == object
        self._index = pd.RangeIndex(num_nodes) if own is None else pd.Index(own, dtype=own.dtype)

    def node_ids(self) -> AnyArray | None:
        """The ids as a store keeps them: int64 or UTF-8 bytes; None if they are 0, 1, …."""
        if self._own is None or not self._is_text:
            return self._own
        return utf8(self._own)

    def shown(self) -> str:
        """The first ids, for messages."""
        first = range(self.num_nodes)[:3] if self._own is None else self._own[:3]
        return ", ".join(map(str, first)) + (", …" if self.num_nodes > 3 else "")

    def find(self, ids: pa.Array) -> Int64Array:
        """Node numbers of ids of any type, −1 for those that are missing or unknown."""
        ids = to_plain(ids)
        if not self._is_text:
            numbers = to_int64(ids)
            whole = self._numbers(numbers.fill_null(0).to_numpy())
            whole[is_null(numbers)] = -1
            return whole
        # As Python objects, texts cost memory: only each one's first occurrence is made one.
        texts = ids.cast(TEXT).dictionary_encode()
        distinct = self._numbers(texts.dictionary.to_numpy(zero_copy_only=False))
        codes = texts.indices.fill_null(len(distinct)).to_numpy()
        found: Int64Array = np.append(distinct, -1)[codes]
        return found

    def _numbers(self, ids: AnyArray) -> Int64Array:
        return np.array(self._index.get_indexer(ids), np.int64)

    def knows(self, text: str) -> bool:
        """Whether an id, as written in a file, is a node's."""
        return bool(self.find(pa.array([text], TEXT))[0] >= 0)


def utf8(texts: AnyArray) -> AnyArray:
    """Texts as a store keeps them: bytes of one length, as long as the longest needs."""
    encoded: AnyArray = np.char.encode(texts.astype(str), "utf-8")
    return encoded
