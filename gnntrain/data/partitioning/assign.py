"""Which node goes to which part."""

from __future__ import annotations

import numpy as np

from gnntrain.data.graph import Graph
from gnntrain.data.partitioning.kernels import PartIndex, deal_nodes
from gnntrain.data.partitioning.metis import metis
from gnntrain.data.partitioning.streaming import stream, train_flags
from gnntrain.data.parts import Method
from gnntrain.errors import UserError

MAX_PARTS = 256
"""A node's part fits in a byte, and a file of each part is open at once."""


def assign(graph: Graph, num_parts: int, method: Method) -> PartIndex:
    """The part of each node: uint8 `[num_nodes]`; every part has a node.

    Args:
        graph: The graph.
        num_parts: Number of parts.
        method: "metis" cuts few edges, and needs the graph several times over in memory;
            "streaming" cuts more of them, in bounded memory; "random" deals the nodes out like
            cards, by a hash.

    Raises:
        UserError: There are more parts than nodes, or than `MAX_PARTS`, or none.
    """
    refuse_number(graph, num_parts)
    find = {"metis": metis, "streaming": stream, "random": _random}[method]
    part_of = find(graph, num_parts) if num_parts > 1 else np.zeros(graph.num_nodes, np.uint8)
    _fill_empty(part_of, num_parts)
    return part_of


def refuse_number(graph: Graph, num_parts: int) -> None:
    """Raise a UserError unless the graph can be cut into so many parts."""
    most = min(MAX_PARTS, graph.num_nodes)
    if not 1 <= num_parts <= most:
        nodes = f", which has {graph.num_nodes:,} nodes" if most < MAX_PARTS else ""
        raise UserError(
            f"{graph.dataset}{nodes} cannot be cut into {num_parts:,} parts",
            f"Give --parts a number from 1 to {most}.",
        )


def _random(graph: Graph, num_parts: int) -> PartIndex:
    part_of = np.empty(graph.num_nodes, np.uint8)
    deal_nodes(train_flags(graph), len(graph.split("train")), num_parts, part_of)
    return part_of


def _fill_empty(part_of: PartIndex, num_parts: int) -> None:
    """Give each part without a node the last node of the largest one."""
    sizes = np.bincount(part_of, minlength=num_parts)
    for part in np.flatnonzero(sizes == 0):
        largest = sizes.argmax()
        part_of[np.flatnonzero(part_of == largest)[-1]] = part
        sizes[largest] -= 1
        sizes[part] += 1
