"""Rows of a user's files that speak of nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from gnntrain.data.bad_rows import BadRows, Record
from gnntrain.data.columns import BoolArray, is_null, is_repeated
from gnntrain.data.file_columns import Columns, Role
from gnntrain.data.graph import AnyArray, Int64Array
from gnntrain.data.node_index import NodeIndex
from gnntrain.data.tables import Table
from gnntrain.errors import UserError


@dataclass(frozen=True)
class NodeRows:
    """Rows that speak of nodes.

    Attributes:
        table: Where they were read.
        places: Places of the roles' columns among the fields of a row.
        numbers: Names of the matrix's columns by their place among the fields of a row.
        columns: Ids, labels and split names: int64, float64 or text; null if missing.
        matrix: The columns of numbers: `[num_rows, n]`.
        rows: int64 `[num_rows]`: each row's number in the file.
        num_in_file: Number of rows in the file, those that were left out included.
        nodes: int64 `[num_rows]`: which node each row speaks of, once `located`.
    """

    table: Table
    places: Mapping[Role, int]
    numbers: Mapping[int, str]
    columns: Mapping[Role, pa.Array]
    matrix: AnyArray
    rows: Int64Array
    num_in_file: int
    nodes: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))

    @classmethod
    def read(cls, columns: Columns) -> NodeRows:
        """Read a table's columns.

        Raises:
            UserError: The file cannot be read.
        """
        table, places = columns.table, columns.places
        fractions = [place for role, place in places.items() if role == "label"]
        read = table.read(tuple(places.values()), columns.numbers, fractions)
        numbers = {place: table.names[place] for place in columns.numbers}
        by_role = dict(zip(places, read.columns, strict=True))
        return cls(table, places, numbers, by_role, read.matrix, read.rows, read.num_in_file)

    def __len__(self) -> int:
        return len(self.rows)

    def is_missing(self, role: Role) -> BoolArray:
        """Which rows have no value in a role's column."""
        return is_null(self.columns[role])

    def drop(
        self, mask: BoolArray, bad: BadRows, reason: Callable[[Record], str], hint: str = ""
    ) -> NodeRows:
        """The rows outside `mask`; those inside are bad, for this reason."""
        if not mask.any():
            return self
        bad.add(self.table, self.rows[mask], reason, hint)
        return replace(
            self,
            columns={role: column.filter(~mask) for role, column in self.columns.items()},
            matrix=self.matrix[~mask],
            rows=self.rows[~mask],
            nodes=self.nodes[~mask] if len(self.nodes) else self.nodes,
        )

    def drop_by_field(
        self, mask: BoolArray, bad: BadRows, role: Role, reason: str, hint: str = ""
    ) -> NodeRows:
        """As `drop`; `{}` in the reason stands for the row's field in a role."""
        place = self.places[role]
        return self.drop(mask, bad, lambda row: reason.format(repr(row[place])), hint)

    def drop_missing(self, role: Role, bad: BadRows, reason: str, hint: str = "") -> NodeRows:
        """The rows that have a value in a role's column."""
        return self.drop(self.is_missing(role), bad, lambda _: reason, hint)

    def drop_repeated_ids(self, bad: BadRows, hint: str = "") -> NodeRows:
        """The rows whose id was not there further up."""
        return self.drop_by_field(is_repeated(self.columns["id"]), bad, "id", _REPEATED, hint)

    def located(self, index: NodeIndex, bad: BadRows) -> NodeRows:
        """The rows that speak of a known node, each of another, with their `nodes`.

        Raises:
            UserError: The rows have no ids and are not one a node.
        """
        if "id" not in self.places:
            return self._located_by_order(index)
        known = self.drop_missing("id", bad, "the node id is missing")
        known = replace(known, nodes=index.find(known.columns["id"]))
        known = known.drop_by_field(known.nodes < 0, bad, "id", UNKNOWN_NODE, unknown_hint(index))
        return known.drop_by_field(is_repeated(pa.array(known.nodes)), bad, "id", _REPEATED)

    def _located_by_order(self, index: NodeIndex) -> NodeRows:
        if self.num_in_file != index.num_nodes:
            raise UserError(
                f"{self.table.path} has {self.num_in_file} rows and no node ids, but there are "
                f"{index.num_nodes} nodes.",
                "Give it one row a node, or node ids (dataset.id_column).",
            )
        return replace(self, nodes=self.rows)


UNKNOWN_NODE = "node {} is not in the features file"
_REPEATED = "node {} is there already"


def unknown_hint(index: NodeIndex) -> str:
    """What to say of a node that is not there."""
    return f"The features file defines the nodes ({index.shown()}); no other file may add any."
