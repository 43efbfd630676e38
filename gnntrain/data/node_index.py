"""From the user's own node ids to 0 … num_nodes − 1."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnntrain.data.columns import TEXT, to_int64, to_plain
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
        is_text = ids is not None and ids.type == TEXT
        if ids is not None and not is_text and (ids.to_numpy() == np.arange(num_nodes)).all():
            ids = None
        self._ids = ids
        self._is_text = is_text

    @property
    def num_hashed(self) -> int:
        """Number of ids that each call of `find` hashes first: many at once are faster."""
        return 0 if self._ids is None else self.num_nodes

    def node_ids(self) -> AnyArray | None:
        """The ids as a store keeps them: int64 or UTF-8 bytes; None if they are 0, 1, …."""
        if self._ids is None:
            return None
        ids: AnyArray = self._ids.to_numpy(zero_copy_only=False)
        return utf8(ids) if self._is_text else ids

    def shown(self) -> str:
        """The first ids, for messages."""
        first = range(self.num_nodes)[:3] if self._ids is None else self._ids[:3].to_pylist()
        return ", ".join(map(str, first)) + (", …" if self.num_nodes > 3 else "")

    def find(self, ids: pa.Array) -> Int64Array:
        """Node numbers of ids of any type, −1 for those that are missing or unknown."""
        ids = self._comparable(ids)
        if self._ids is None:
            is_known = pc.and_(pc.greater_equal(ids, 0), pc.less(ids, self.num_nodes))
            found = pc.if_else(is_known, ids, None)
        else:
            found = pc.index_in(ids, self._ids, skip_nulls=True)
        return np.asarray(found.fill_null(-1).to_numpy(), np.int64)

    def knows(self, text: str) -> bool:
        """Whether an id, as written in a file, is a node's."""
        node = self._comparable(pa.array([text], TEXT))[0]
        if self._ids is None or not node.is_valid:
            return bool(node.is_valid and 0 <= node.as_py() < self.num_nodes)
        return bool(pc.index(self._ids, node).as_py() >= 0)

    def _comparable(self, ids: pa.Array) -> pa.Array:
        ids = to_plain(ids)
        return ids.cast(TEXT) if self._is_text else to_int64(ids)


def utf8(texts: AnyArray) -> AnyArray:
    """Texts as a store keeps them: bytes of one length, as long as the longest needs."""
    encoded: AnyArray = np.char.encode(texts.astype(str), "utf-8")
    return encoded
