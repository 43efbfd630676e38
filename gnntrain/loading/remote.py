"""A graph in parts: a rank asks the owners of nodes for its mini-batches, and an owner answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from gnntrain.compute.features import as_tensor
from gnntrain.data.graph import EdgeType, Graph, GraphSchema, NodeType
from gnntrain.data.partitioned_graph import Part, PartitionedGraph
from gnntrain.distributed.context import rank_range
from gnntrain.distributed.owners import Caller, NodeOwners, RowAnswers, ask_rows, equal_ranges
from gnntrain.errors import UserError
from gnntrain.loading.graph import BatchValues
from gnntrain.sampling.block import Sample
from gnntrain.sampling.remote import DRAW, DrawAnswers, PartDraws

if TYPE_CHECKING:
    from gnntrain.distributed.exchange import Exchange

_HOST = torch.device("cpu")

TARGETS = "targets"
"""The name of the call that asks an owner for targets."""


def norm_call(edge_type: EdgeType) -> str:
    """The name of the call that asks an owner for `Graph.gcn_norm`."""
    return f"norm/{'/'.join(edge_type)}"


def serve_parts(exchange: Exchange, parts: Sequence[Part]) -> None:
    """Serve draws, targets and norms of consecutive parts."""
    graph = parts[0].graph
    ranges = {
        name: NodeOwners(np.cumsum([0, *(len(part.ranges[name]) for part in parts)]))
        for name in graph.nodes
    }
    draws = [
        PartDraws(
            part.graph.fused,
            part.originals,
            {name: edges.weight for name, edges in part.graph.edges.items()},
        )
        for part in parts
    ]
    exchange.serve(DRAW, DrawAnswers(draws, ranges, tuple(graph.edges)))
    labels = RowAnswers([part.graph.labels for part in parts], ranges[graph.target])
    exchange.serve(TARGETS, labels)
    for name in graph.edges:
        of_parts = [part.graph.edges[name].gcn_norm for part in parts]
        norms = [norm for norm in of_parts if norm is not None]
        if norms:
            exchange.serve(norm_call(name), RowAnswers(norms, ranges[name[2]]))


def held_parts(
    graph: Graph, exchange: Exchange
) -> tuple[Sequence[Part], dict[NodeType, NodeOwners]]:
    """The parts that this rank holds, and who holds which nodes of each type.

    Args:
        graph: In parts, of which this rank's are open; or a whole graph, of which each owner
            answers for a range of nodes of each type.
        exchange: The owners.
    """
    num_owners, owner = exchange.num_owners, exchange.owner
    if isinstance(graph, PartitionedGraph):
        firsts = [rank_range(graph.num_parts, i, num_owners).start for i in range(num_owners)]
        cuts = [*firsts, graph.num_parts]
        by_type = graph.starts.items()
        return graph.opened, {name: NodeOwners(starts[cuts]) for name, starts in by_type}
    sizes = graph.schema.num_nodes.items()
    owners = {name: equal_ranges(size, num_owners) for name, size in sizes}
    if owner is None:
        return (), owners
    ranges = {name: range(*of.starts[owner : owner + 2].tolist()) for name, of in owners.items()}
    return (Part.of(graph, owner, ranges),), owners


def originals_of(graph: Graph) -> Mapping[NodeType, Tensor]:
    """The original number of each node, by type, where a partition has numbered nodes anew whose
    rows a model learns; int64.

    Raises:
        UserError: The parts do not say it.
    """
    if not isinstance(graph, PartitionedGraph):
        return {}
    originals = graph.originals
    for name, width in graph.schema.num_features.items():
        if width == 0 and name not in originals:
            raise UserError(
                f"{graph.path} does not say in which order rows of {name} are learnt.",
                "Give the nodes features, such as a column of ones, or train on the whole graph: "
                "distributed.graph=replicated.",
            )
    return {name: as_tensor(numbers) for name, numbers in originals.items()}


@dataclass(frozen=True, slots=True)
class RemoteValues(BatchValues):
    """The values of nodes of a graph in parts: asked of their owners.

    Attributes:
        caller: Asks the owners.
        owners: Who holds which nodes of each type.
        schema: The types of the graph.
        originals: See `originals_of`.
    """

    caller: Caller
    owners: Mapping[NodeType, NodeOwners]
    schema: GraphSchema
    originals: Mapping[NodeType, Tensor]
    device: torch.device = _HOST

    def targets_of(self, seeds: Tensor) -> Tensor:
        """See `BatchValues.targets_of`."""
        return self._ask(TARGETS, self.schema.target, seeds)

    def norms_of(self, edge_type: EdgeType, nodes: Tensor) -> Tensor:
        """See `BatchValues.norms_of`."""
        return self._ask(norm_call(edge_type), edge_type[0], nodes)

    def degrees_of(self, edge_type: EdgeType, nodes: Tensor) -> Tensor:
        """Never: they come with the draws."""
        raise NotImplementedError

    def weights_of(self, edge_type: EdgeType, edge_ids: Tensor | None) -> None:
        """None: where there are some, they come with the draws."""

    def row_ids(self, sample: Sample) -> Mapping[NodeType, Tensor]:
        """See `BatchValues.row_ids`: the original numbers of nodes whose rows a model learns."""
        originals = self.originals
        return {
            name: originals[name][nodes] if name in originals else nodes
            for name, nodes in sample.nodes.items()
        }

    def _ask(self, name: str, node_type: NodeType, nodes: Tensor) -> Tensor:
        return as_tensor(ask_rows(self.caller, self.owners[node_type], name, nodes.numpy()))
