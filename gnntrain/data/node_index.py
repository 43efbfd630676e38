"""From the user's own node ids to 0 … num_nodes − 1."""

from __future__ import annotations

import numpy as np

from gnntrain.data.columns import Column
from gnntrain.data.graph import AnyArray, Int64Array


class NodeIndex:
    """Turns the user's node ids into node numbers.

    Ids are compared as whole numbers if all ids of the nodes are whole numbers (so that 7 and
    007 are one node), else as texts.

    Args:
        ids: The nodes' ids in order, none missing, none twice; None: they are 0, 1, ….
        num_nodes: Number of nodes.
    """

    def __init__(self, ids: Column | None, num_nodes: int) -> None:
        import pandas as pd

        self.num_nodes = num_nodes
        self._is_text = ids is not None and ids.is_text
        own = None if ids is None else ids.texts() if ids.is_text else ids.values
        if own is not None and not self._is_text and (own == np.arange(num_nodes)).all():
            own = None
        self._own = own
        self._index = pd.RangeIndex(num_nodes) if own is None else pd.Index(own)

    def node_ids(self) -> AnyArray | None:
        """The ids as a store keeps them: int64 or UTF-8 bytes; None if they are 0, 1, …."""
        if self._own is None or not self._is_text:
            return self._own
        return utf8(self._own)

    def shown(self) -> str:
        """The first ids, for messages."""
        first = range(self.num_nodes)[:3] if self._own is None else self._own[:3]
        return ", ".join(map(str, first)) + (", …" if self.num_nodes > 3 else "")

    def find(self, column: Column) -> Int64Array:
        """Node numbers of ids, −1 for those that are missing or unknown."""
        distinct = self._find_values(column.values)
        found = distinct if column.codes is None else distinct[column.codes]
        found[column.missing] = -1
        return found

    def knows(self, text: str) -> bool:
        """Whether an id, as written in a file, is a node's."""
        return bool(self._find_values(np.array([text.strip()], object))[0] >= 0)

    def _find_values(self, values: AnyArray) -> Int64Array:
        if self._is_text:
            texts = values if values.dtype == object else values.astype(str).astype(object)
            return self._numbers(texts)
        if values.dtype.kind != "O":
            return self._numbers(values)
        whole, usable = _whole_numbers(values)
        return np.where(usable, self._numbers(whole), -1)

    def _numbers(self, values: AnyArray) -> Int64Array:
        return np.array(self._index.get_indexer(values), np.int64)


def utf8(texts: AnyArray) -> AnyArray:
    """Texts as a store keeps them: bytes of one length, as long as the longest needs."""
    encoded: AnyArray = np.char.encode(texts.astype(str), "utf-8")
    return encoded


def _whole_numbers(texts: AnyArray) -> tuple[Int64Array, AnyArray]:
    """Texts as int64, and which of them are whole numbers at all."""
    import pandas as pd

    written = pd.Series(texts, dtype=object)
    numbers = pd.to_numeric(written, errors="coerce").to_numpy(np.float64)
    plain = written.str.fullmatch(r"[+-]?\d+").to_numpy(bool)
    usable = plain & (np.abs(numbers) < 2.0**63)  # false for NaN
    return written.where(usable, "0").to_numpy().astype(np.int64), usable
