"""The in-edges of a typed graph, as the kernels of `gnntrain.sampling.kernels` take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gnntrain.data.fused import FusedCSC
from gnntrain.data.graph import EdgeType, NodeType
from gnntrain.errors import UserError
from gnntrain.sampling.base import Int64Array
from gnntrain.sampling.cpu import HopBuffers, checked_fan_outs, read_only, read_only_csc
from gnntrain.sampling.hetero import FanOuts, FanOutScope
from gnntrain.sampling.kernels import IndexArray, count_hetero_edges, draw_by_node


@dataclass(frozen=True)
class Hop:
    """The destinations of one hop, see `kernels.draw_hetero_hop`.

    Attributes:
        nodes, room: The destinations of each type.
        rows, starts, degrees, offsets: Of the destinations of each edge type.
    """

    nodes: Int64Array
    room: Int64Array
    rows: Int64Array
    starts: Int64Array
    degrees: Int64Array
    offsets: Int64Array

    @property
    def num_edges(self) -> Int64Array:
        """Drawn edges of each edge type, int64 `[R]`."""
        return self.offsets[self.rows[1:] - 1]


class TypedEdges:
    """The in-edges of all types, for the kernels.

    Args:
        edges: The edges; not copied.

    Attributes:
        node_types, edge_types: The types, numbered by their places here.
        indptr, first_offset, indices, first_edge: See `FusedCSC`; read-only.
        ends: int64 `[2, R]`, see `kernels.draw_hetero_hop`.

    Raises:
        UserError: What an edge type has is no CSC, see `read_only_csc`.
    """

    def __init__(self, edges: FusedCSC) -> None:
        for number in range(len(edges.edge_types)):
            read_only_csc(*edges.part(number))
        self.node_types: tuple[NodeType, ...] = tuple(edges.num_nodes)
        self.edge_types = edges.edge_types
        self.indptr: Int64Array = read_only(edges.indptr, np.int64)
        self.indices: IndexArray = read_only(edges.indices)
        self.first_offset = edges.first_offset
        self.first_edge = edges.first_edge
        self.ends = ends_of(self.node_types, edges.edge_types)
        self._into: Int64Array = np.argsort(self.ends[1], kind="stable")
        types = np.arange(len(self.node_types) + 1)
        self._first_into: Int64Array = np.searchsorted(self.ends[1][self._into], types)

    def hop(
        self, nodes: Int64Array, room: Int64Array, num_dst: Int64Array, buffers: HopBuffers
    ) -> Hop:
        """The destinations of a hop, nothing of them known yet.

        Args:
            nodes, room: See `Hop`.
            num_dst: Number of destinations of each node type.
            buffers: Has the arrays that only this hop needs.
        """
        rows = starts_of(num_dst[self.ends[1]] + 1)
        starts, degrees = buffers.destination_buffers(int(rows[-1]))
        return Hop(nodes, room, rows, starts, degrees, np.zeros(rows[-1], np.int64))

    def count(self, hop: Hop, fan_outs: Int64Array, replace: bool) -> int:
        """Fill the hop's arrays; the most edges of a type that one destination takes.

        Args:
            hop: The destinations.
            fan_outs: int64 `[R]`.
            replace: Draw with replacement.
        """
        return count_hetero_edges(
            self.indptr,
            self.first_offset,
            self.ends,
            hop.nodes,
            hop.room,
            fan_outs,
            replace,
            hop.rows,
            hop.starts,
            hop.degrees,
            hop.offsets,
        )

    def draw_by_node(
        self,
        hop: Hop,
        ids: Int64Array,
        fan_outs: Int64Array,
        key: np.uint64,
        replace: bool,
        buffers: HopBuffers,
    ) -> Int64Array:
        """Draw in-edges where all edge types into a node share a fan-out; fill the hop's arrays.

        Args:
            hop: The destinations.
            ids: Their ids for the keys, at the places of `hop.nodes`.
            fan_outs: int64 `[R]`.
            key: Of the hop.
            replace: Draw with replacement.
            buffers: See `hop`.

        Returns:
            int64: the positions of the drawn edges among those of their type, type by type; there
            may be room for more.
        """
        self.count(hop, np.full_like(fan_outs, -1), False)
        degrees = np.zeros(len(self.node_types), np.int64)
        np.add.at(degrees, self.ends[1], hop.num_edges)
        of_types = np.full_like(degrees, -1)
        of_types[self.ends[1]] = fan_outs
        num_dst = np.zeros_like(degrees)
        num_dst[self.ends[1]] = np.diff(hop.rows) - 1
        draws = np.where(of_types < 0, degrees, num_dst * of_types)
        if not replace:
            draws = np.minimum(draws, degrees)
        most = int(min(of_types.max(), draws.max()))
        buffers.reserve_edges(most, most)
        drawn: Int64Array = np.empty(draws.sum(), np.int64)
        positions = np.empty_like(drawn)
        hop.offsets[:] = 0
        draw_by_node(
            self._first_into,
            self._into,
            key,
            of_types,
            replace,
            ids,
            hop.room,
            hop.rows,
            hop.starts,
            hop.degrees,
            buffers.table,
            hop.offsets,
            drawn,
            positions,
        )
        return positions


def ends_of(node_types: Sequence[NodeType], edge_types: Sequence[EdgeType]) -> Int64Array:
    """The numbers of each edge type's source and destination type, int64 `[2, R]`."""
    return np.array(
        [[node_types.index(edge[end]) for edge in edge_types] for end in (0, 2)], np.int64
    )


def starts_of(lengths: npt.NDArray[np.integer]) -> Int64Array:
    """Where segments of these lengths begin that lie one after the other, and the end."""
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def fan_outs_by_hop(
    edge_types: Sequence[EdgeType], fan_outs: FanOuts, scope: FanOutScope
) -> list[Int64Array]:
    """For each hop the fan-outs of the edge types, int64 `[R]`.

    Raises:
        UserError: A fan-out is neither −1 nor at least 1; or edge types that share one have
            different ones.
    """
    checked = {edge_type: checked_fan_outs(fan_outs[edge_type]) for edge_type in edge_types}
    shared: dict[NodeType, tuple[int, ...]] = {}
    for edge_type, own in checked.items():
        of_type = shared.setdefault(edge_type[2], own)
        if scope == "node" and own != of_type:
            raise UserError(
                f"{'/'.join(edge_type)} has fan-outs {list(own)}, and another edge type into "
                f"{edge_type[2]} has {list(of_type)}",
                "With scope 'node' all edge types into a node type share their fan-outs.",
            )
    return [np.array(hop, np.int64) for hop in zip(*checked.values(), strict=True)]
