"""Mini-batches of a graph in parts: a rank asks the owners of the nodes, and an owner answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from gnntrain.compute.features import as_tensor
from gnntrain.config import Config
from gnntrain.config.types import AnyFanOuts, same_fan_outs
from gnntrain.data.graph import Graph, NodeType
from gnntrain.data.partitioned_graph import PartitionedGraph
from gnntrain.data.parts import Part
from gnntrain.distributed.context import DistributedContext, rank_range
from gnntrain.distributed.owners import (
    Caller,
    NodeOwners,
    RowAnswers,
    ask_rows,
    equal_ranges,
)
from gnntrain.loading.build import LoaderBuilder
from gnntrain.loading.loader import SeedPlan
from gnntrain.loading.sharded import MachineRows
from gnntrain.sampling.base import SampledSubgraph, Sampler
from gnntrain.sampling.block import Block, BlockNeeds
from gnntrain.sampling.partitioned import DRAW, DrawAnswers, PartDraws, PartitionedSampler

if TYPE_CHECKING:
    from gnntrain.distributed.exchange import Exchange

TARGETS = "targets"
"""The name of the call that asks an owner for targets."""
NORM = "norm"
"""The name of the call that asks an owner for `Graph.gcn_norm`."""


def serve_parts(exchange: Exchange, parts: Sequence[Part]) -> None:
    """Serve draws, targets and norms of consecutive parts."""
    graphs = [part.graph for part in parts]
    ranges = NodeOwners(np.cumsum([0, *(graph.num_nodes for graph in graphs)]))
    draws = [
        PartDraws(graph.indptr, graph.indices, part.originals[graph.target], graph.edge_weight)
        for part, graph in zip(parts, graphs, strict=True)
    ]
    exchange.serve(DRAW, DrawAnswers(draws, ranges))
    exchange.serve(TARGETS, RowAnswers([graph.labels for graph in graphs], ranges))
    exchange.serve(NORM, RowAnswers([graph.gcn_norm for graph in graphs], ranges))


def held_parts(
    graph: Graph, exchange: Exchange
) -> tuple[Sequence[Part], dict[NodeType, NodeOwners]]:
    """The parts that this rank holds, and who holds which nodes of each type.

    Args:
        graph: In parts, of which this rank's are open; or a whole graph, of which each owner
            answers for a range of nodes of each type.
        exchange: The owners.
    """
    num_owners = exchange.num_owners
    if isinstance(graph, PartitionedGraph):
        parts = graph.parts
        firsts = [rank_range(parts.num_parts, i, num_owners).start for i in range(num_owners)]
        cuts = [*firsts, parts.num_parts]
        by_type = parts.starts.items()
        return parts.opened, {name: NodeOwners(starts[cuts]) for name, starts in by_type}
    sizes, own = graph.schema.num_nodes, exchange.owner
    owners = {name: equal_ranges(size, num_owners) for name, size in sizes.items()}
    if own is None:
        return (), owners
    ranges = {name: range(*of.starts[own : own + 2].tolist()) for name, of in owners.items()}
    return (Part.of(graph, own, ranges),), owners


def rows_of_parts(
    graph: Graph, parts: Sequence[Part], owners: Mapping[NodeType, NodeOwners], exchange: Exchange
) -> MachineRows:
    """The feature rows of a machine that holds `parts`, see `held_parts`."""
    own = {
        name: [part.graph.nodes[name].features for part in parts]
        for name, width in graph.schema.num_features.items()
        if width
    }
    return MachineRows(graph, owners, own, exchange, in_parts=True)


class PartitionedLoaderBuilder(LoaderBuilder):
    """Makes one rank's loaders over a graph in parts, of which this rank holds some or none.

    Batches are made in host memory.

    Args:
        config, context, needs, plan, uses_graph: See `LoaderBuilder`.
        graph: See `held_parts`.
        exchange: Asks the owners of the parts; answers for this rank's.

    Attributes:
        owners: Who holds which nodes.
        exchange: See above.
    """

    backend = "numba"
    samples_on_gpu = False
    _placement = None

    def __init__(
        self,
        config: Config,
        graph: Graph,
        context: DistributedContext,
        needs: BlockNeeds,
        plan: SeedPlan,
        exchange: Exchange,
        *,
        uses_graph: bool = True,
    ) -> None:
        self.exchange = exchange
        self._parts, self._owners_by_type = held_parts(graph, exchange)
        (self.owners,) = self._owners_by_type.values()
        none = as_tensor(graph.labels)[:0]
        super().__init__(
            config,
            graph,
            context,
            needs,
            plan,
            none,
            uses_graph=uses_graph,
            exchange=exchange,
        )
        has_weight = graph.edge_weight is not None
        self._sampler_needs = replace(needs, weight=needs.weight and has_weight)
        if self._parts:
            serve_parts(exchange, self._parts)

    @property
    def values(self) -> PartValues:
        """See `LoaderBuilder.values`."""
        return PartValues(self.exchange, self.owners)

    def sampler(self, fan_outs: AnyFanOuts) -> Sampler:
        """See `LoaderBuilder.sampler`."""
        key = same_fan_outs(fan_outs) if self._uses_graph else ()
        if key not in self._samplers:
            self._samplers[key] = PartitionedSampler(
                self.exchange,
                self.owners,
                key,
                replace=self._config.sampler.replace,
                needs=self._sampler_needs,
            )
        return self._samplers[key]

    def _machine_rows(self, exchange: Exchange) -> MachineRows:
        return rows_of_parts(self._store, self._parts, self._owners_by_type, exchange)


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
