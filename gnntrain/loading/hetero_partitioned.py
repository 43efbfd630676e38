"""Mini-batches of a typed graph in parts; see `gnntrain.loading.partitioned`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from gnntrain.compute.features import as_tensor
from gnntrain.config import Config
from gnntrain.config.types import AnyFanOuts
from gnntrain.data.graph import EdgeType, Graph, NodeType
from gnntrain.data.partitioned_graph import PartitionedGraph
from gnntrain.data.parts import Part
from gnntrain.distributed.context import DistributedContext
from gnntrain.distributed.owners import Caller, NodeOwners, RowAnswers, ask_rows
from gnntrain.errors import UserError
from gnntrain.loading.hetero import HeteroLoaderBuilder
from gnntrain.loading.hetero_batch import HeteroValues
from gnntrain.loading.loader import SeedPlan
from gnntrain.loading.partitioned import TARGETS, held_parts, rows_of_parts
from gnntrain.loading.sharded import MachineRows
from gnntrain.sampling.block import BlockNeeds
from gnntrain.sampling.hetero import HeteroSampler, HeteroSubgraph
from gnntrain.sampling.hetero_partitioned import (
    HeteroDrawAnswers,
    HeteroPartDraws,
    PartitionedHeteroSampler,
)
from gnntrain.sampling.partitioned import DRAW

if TYPE_CHECKING:
    from gnntrain.distributed.exchange import Exchange


def serve_typed_parts(exchange: Exchange, parts: Sequence[Part]) -> None:
    """Serve draws and targets of consecutive parts of a typed graph."""
    graph = parts[0].graph
    ranges = {
        name: NodeOwners(np.cumsum([0, *(len(part.ranges[name]) for part in parts)]))
        for name in graph.nodes
    }
    draws = [HeteroPartDraws(part.graph.fused, part.originals) for part in parts]
    exchange.serve(DRAW, HeteroDrawAnswers(draws, ranges, tuple(graph.edges)))
    labels = RowAnswers([part.graph.labels for part in parts], ranges[graph.target])
    exchange.serve(TARGETS, labels)


class HeteroPartitionedLoaderBuilder(HeteroLoaderBuilder):
    """Makes one rank's loaders over a typed graph in parts, of which this rank holds some or none.

    Args:
        config, context, needs, plan: See `HeteroLoaderBuilder`.
        graph: See `held_parts`.
        exchange: Asks the owners of the parts; answers for this rank's.

    Attributes:
        owners: Who holds which nodes of each type.
        exchange: See above.

    Raises:
        UserError: Nodes have no features, and the parts are of a version that does not say in
            which order a model learns their rows.
    """

    backend = "numba"

    def __init__(
        self,
        config: Config,
        graph: Graph,
        context: DistributedContext,
        needs: BlockNeeds,
        plan: SeedPlan,
        exchange: Exchange,
    ) -> None:
        self.exchange = exchange
        self._parts, self.owners = held_parts(graph, exchange)
        self._originals = originals_of(graph)
        none = as_tensor(graph.labels)[:0]
        super().__init__(config, graph, context, needs, plan, none, exchange)
        if self._parts:
            serve_typed_parts(exchange, self._parts)

    @property
    def values(self) -> HeteroPartValues:
        """See `HeteroLoaderBuilder.values`."""
        targets = self._targets
        return HeteroPartValues(self._graph, targets, self.exchange, self.owners, self._originals)

    def sampler(self, fan_outs: AnyFanOuts) -> HeteroSampler:
        """See `HeteroLoaderBuilder.sampler`."""
        schema, by_type = self._graph.schema, self._fan_outs_by_type(fan_outs)
        key = tuple(by_type.values())
        if key not in self._samplers:
            self._samplers[key] = PartitionedHeteroSampler(
                self.exchange,
                self.owners,
                schema.edge_types,
                schema.target,
                by_type,
                scope=self._config.sampler.fan_out_scope,
                replace=self._config.sampler.replace,
                degrees=self._needs.degree,
            )
        return self._samplers[key]

    def _machine_rows(self, exchange: Exchange) -> MachineRows:
        return rows_of_parts(self._graph, self._parts, self.owners, exchange)


def originals_of(graph: Graph) -> Mapping[NodeType, Tensor]:
    """The original number of each node, by type, where a partition has numbered nodes anew whose
    rows a model learns; int64.

    Raises:
        UserError: The parts do not say it.
    """
    if not isinstance(graph, PartitionedGraph):
        return {}
    originals = graph.parts.originals
    for name, width in graph.schema.num_features.items():
        if width == 0 and name not in originals:
            raise UserError(
                f"{graph.path} does not say in which order rows of {name} are learnt.",
                "Give the nodes features, such as a column of ones, or train on the whole graph: "
                "distributed.graph=replicated.",
            )
    return {name: as_tensor(given) for name, given in originals.items()}


@dataclass(frozen=True, slots=True)
class HeteroPartValues(HeteroValues):
    """The values of nodes of a typed graph in parts: asked of their owners.

    Attributes:
        caller: Asks the owners.
        owners: Who holds which nodes of each type.
        originals: See `originals_of`.
    """

    caller: Caller
    owners: Mapping[NodeType, NodeOwners]
    originals: Mapping[NodeType, Tensor]

    def targets_of(self, seeds: Tensor) -> Tensor:
        """See `HeteroValues.targets_of`."""
        target = self.owners[self.graph.target]
        return as_tensor(ask_rows(self.caller, target, TARGETS, seeds.numpy()))

    def n_id(self, subgraph: HeteroSubgraph) -> Mapping[NodeType, Tensor]:
        """See `HeteroValues.n_id`: the original numbers of nodes whose rows a model learns."""
        originals = self.originals
        return {
            name: originals[name][nodes] if name in originals else nodes
            for name, nodes in subgraph.nodes.items()
        }

    def _degrees(self, subgraph: HeteroSubgraph) -> dict[EdgeType, Tensor]:
        """See `HeteroValues`; the owners have given them with the draws of the last hop."""
        edges = subgraph.blocks[0].edges if subgraph.blocks else {}
        return {name: block.degree for name, block in edges.items() if block.degree is not None}
