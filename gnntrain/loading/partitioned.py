"""Mini-batches of a graph in parts: what a rank asks the owners, and what an owner answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from gnntrain.data.parts import Parts
from gnntrain.distributed.owners import AnyArray, Caller, NodeOwners, RowAnswers, ask_rows
from gnntrain.loading.features import as_tensor
from gnntrain.sampling.base import SampledSubgraph
from gnntrain.sampling.block import Block, BlockNeeds
from gnntrain.sampling.partitioned import DRAW, PartDraws, PartsDraws

TARGETS = "targets"
"""The name of the call that asks an owner for targets."""
NORM = "norm"
"""The name of the call that asks an owner for `Graph.gcn_norm`."""


class Server(Protocol):
    """Answers calls of other ranks; an `Exchange` is one."""

    def serve(self, name: str, answer: Callable[[list[AnyArray]], list[AnyArray]]) -> None:
        """Answer the calls of a name, in any thread."""
        ...


def serve_parts(server: Server, parts: Parts) -> None:
    """Serve what batches need of the open parts, but their features."""
    opened = parts.opened
    ranges = NodeOwners(parts.starts[opened[0].number : opened[-1].number + 2] - parts.nodes.start)
    draws = [
        PartDraws(part.indptr, part.indices, part.original, part.edge_weight) for part in opened
    ]
    server.serve(DRAW, PartsDraws(draws, ranges))
    server.serve(TARGETS, RowAnswers([part.labels for part in opened], ranges))
    server.serve(NORM, RowAnswers([part.gcn_norm for part in opened], ranges))


class PartValues:
    """The values of nodes of a graph in parts: asked of their owners, see `BatchValues`.

    Args:
        caller: Asks the owners.
        owners: Who holds which nodes.
    """

    device = torch.device("cpu")

    def __init__(self, caller: Caller, owners: NodeOwners) -> None:
        self._caller = caller
        self._owners = owners

    def targets_of(self, nodes: Tensor) -> Tensor:
        """See `BatchValues.targets_of`."""
        return self._ask(TARGETS, nodes)

    def filled(self, subgraph: SampledSubgraph, needs: BlockNeeds) -> tuple[Block, ...]:
        """See `BatchValues.filled`; the owners have given weights and degrees with the draws."""
        if not needs.norm:
            return subgraph.blocks
        norm = self._ask(NORM, subgraph.nodes)
        return tuple(replace(block, norm=norm[: block.num_src]) for block in subgraph.blocks)

    def _ask(self, name: str, nodes: Tensor) -> Tensor:
        return as_tensor(ask_rows(self._caller, self._owners, name, nodes.numpy()))
