"""Who holds which nodes of a graph in parts, and how an array's rows are asked of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gnntrain.compute.buffers import BUFFERS
from gnntrain.distributed.context import rank_range

AnyArray = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]


class Caller(Protocol):
    """Asks the owners of a graph's parts; an `Exchange` is one."""

    def call(
        self, name: str, arguments: Mapping[int, Sequence[AnyArray]]
    ) -> dict[int, list[AnyArray]]:
        """Ask several owners at once; their answers by owner. See `Exchange.call`."""


@dataclass(frozen=True)
class NodeOwners:
    """Contiguous ranges of nodes: owner i holds the nodes `starts[i] … starts[i + 1] - 1`."""

    starts: Int64Array  # [num_owners + 1], ascending from 0

    @property
    def num_nodes(self) -> int:
        return int(self.starts[-1])

    @property
    def num_owners(self) -> int:
        return len(self.starts) - 1

    def group(self, nodes: Int64Array) -> GroupedNodes:
        """`nodes` by owner, each owner's in the order given."""
        # Of a small type, whose stable sort is a counting sort.
        owner = (np.searchsorted(self.starts, nodes, side="right") - 1).astype(np.uint16)
        ends = np.cumsum(np.bincount(owner, minlength=self.num_owners))
        # Of no nodes the first owner is asked: its answer has the right types.
        numbers = np.flatnonzero(np.diff(ends, prepend=0)).tolist() or [0]
        order = np.argsort(owner, kind="stable") if len(numbers) > 1 else None
        rows = {}
        for number in numbers:
            begin = ends[number - 1] if number else 0
            own = nodes if order is None else nodes[order[begin : ends[number]]]
            rows[number] = (own - self.starts[number]).astype(self._row_dtype)
        return GroupedNodes(order, rows)

    @cached_property
    def _row_dtype(self) -> np.dtype[Any]:
        """The smallest type that holds every row of an owner."""
        return np.dtype(np.int32 if np.diff(self.starts).max() <= 2**31 else np.int64)


def equal_ranges(num_nodes: int, num_owners: int) -> NodeOwners:
    """Owners of equally many nodes each, but for one."""
    ends = [rank_range(num_nodes, owner, num_owners).stop for owner in range(num_owners)]
    return NodeOwners(np.array([0, *ends]))


@dataclass(frozen=True)
class GroupedNodes:
    """Nodes grouped by owner."""

    order: Int64Array | None
    """`[n]`, the places of the grouped nodes before; None: all are of one owner."""
    rows: dict[int, AnyArray]
    """By owner that has some, ascending: the nodes' rows in its range, int32 or int64. At least one
    owner: of no nodes the first, with no row."""

    def scattered(self, values: AnyArray) -> AnyArray:
        """`values` `[n, …]` of the grouped nodes, in the order before."""
        if self.order is None:
            return values
        out = np.empty_like(values)
        out[self.order] = values
        return out


def joined(arrays: Sequence[AnyArray]) -> AnyArray:
    """The arrays one after the other; of one alone not a copy."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def ask_rows(caller: Caller, owners: NodeOwners, name: str, nodes: Int64Array) -> AnyArray:
    """The rows `[n, …]` of `nodes` of an array whose ranges the owners serve as `name`, by
    `answers_of`. Raises RunError where an owner does not answer."""
    grouped = owners.group(nodes)
    answers = caller.call(name, {owner: [rows] for owner, rows in grouped.rows.items()})
    return grouped.scattered(joined([answers[owner][0] for owner in grouped.rows]))


def answers_of(parts: Sequence[AnyArray]) -> Callable[[Sequence[AnyArray]], list[AnyArray]]:
    """Answers a call with rows of an array, of which the owner holds these parts in order, `[n, …]`
    each: the owner's side of `ask_rows`."""
    ranges = NodeOwners(np.cumsum([0, *map(len, parts)]))

    def answer(arguments: Sequence[AnyArray]) -> list[AnyArray]:
        (wanted,) = arguments
        grouped = ranges.group(wanted)
        taken = []
        for number, rows in grouped.rows.items():
            part = parts[number]
            out = BUFFERS.array((len(rows), *part.shape[1:]), part.dtype)
            # There is no row to clip; with another mode NumPy fills a copy of `out` first.
            taken.append(np.take(part, rows, axis=0, out=out, mode="clip"))
        return [grouped.scattered(joined(taken))]

    return answer
