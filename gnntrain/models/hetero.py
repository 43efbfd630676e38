"""What all models of typed graphs share: the order of their layers, and the stages of a layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor, nn

from gnntrain.compute.features import LazyFeatures
from gnntrain.data.graph import EdgeType, GraphSchema, NodeType
from gnntrain.models.pyg_model import PyGModel
from gnntrain.sampling.block import Block, BlockNeeds
from gnntrain.sampling.hetero import HeteroBlock

Rows = Tensor | LazyFeatures
"""Rows of nodes, in memory or read in place."""


class HeteroConv(nn.Module):
    """One layer's convolution: the rows of each node type from those of its in-neighbours.

    Destinations of one type are computed in *stages*. A stage is a group of edge types whose
    messages are computed together: all of them where a softmax covers all in-neighbours (HGT), one
    edge type at a time where the messages need source rows of its own (R-GAT). The rows of the
    stages are added.
    """

    def stages(self, node_type: NodeType) -> Sequence[Sequence[EdgeType]]:
        """The edge types into `node_type` by stage; none without edges into it."""
        raise NotImplementedError

    def source(self, edge_type: EdgeType) -> NodeType | EdgeType | None:
        """Which transformed rows the edge type aggregates: those of its source type (shared with
        others), its own, or None: the layer's input."""
        raise NotImplementedError

    def transform(self, key: NodeType | EdgeType, rows: Tensor) -> Tensor:
        """Transformed rows of source nodes: `[n, F]` → `[n, …]`; `key` is from `source`."""
        raise NotImplementedError

    def message(
        self, blocks: Mapping[EdgeType, Block], sources: Mapping[EdgeType, Rows], h_dst: Tensor
    ) -> Tensor:
        """The rows of one stage for some destinations.

        Args:
            blocks: The in-edges, by the edge types of the stage.
            sources: The rows that each edge type aggregates, see `source`.
            h_dst: `[num_dst, …]`, the layer's input for the destinations.

        Returns:
            `[num_dst, …]`, to be added to those of other stages.
        """
        raise NotImplementedError

    def finish(self, node_type: NodeType, total: Tensor | None, h_dst: Tensor) -> Tensor:
        """The convolution's output for destinations of one type.

        Args:
            node_type: Their type.
            total: The sum of the stages; None: no edge leads to this type.
            h_dst: See `message`.
        """
        raise NotImplementedError


class HeteroGNN(nn.Module):
    """A stack of convolutions of typed graphs, computed block by block or layer by layer.

    Layer i computes the rows of the node types that reach the target type in the layers after it
    (`node_types_after(i)`). Exact inference for all nodes of all types is

        for each node type t: h[t] = start(t, features of t)       # by chunks of rows
        for each layer i and its convolution:
            for each node type t in node_types_after(i):
                for each stage and its edge types, each with a source z[e]:   # `HeteroConv.source`
                    for each range [a, b) of destinations:
                        total[a:b] += message(blocks, z, h[t][a:b])
                new[t] = update(i, t, finish(t, total, h[t]), h[t])
            h = new
        outputs = h[target]

    Args:
        schema: The types of the graph.
    """

    uses_graph: ClassVar[bool] = True
    is_hetero: ClassVar[bool] = True
    needs = BlockNeeds(rows=True)

    schema: GraphSchema

    def forward(
        self,
        x: Mapping[NodeType, Rows],
        n_id: Mapping[NodeType, Tensor],
        blocks: Sequence[HeteroBlock],
    ) -> Tensor:
        """Compute the outputs of the seeds, the destinations of the target type in the last block.

        Args:
            x: Features of each node type that has some, `[blocks[0].num_src[t], num_features[t]]`.
            n_id: int64 by node type, ids within the type: which rows of the embedding tables.
            blocks: One a layer, the innermost first.

        Returns:
            float `[num_seeds, out_channels]`.
        """
        raise NotImplementedError

    @property
    def output_layer(self) -> tuple[str, ...]:
        """Beginnings of the names of the weights whose shapes depend on `out_channels`."""
        raise NotImplementedError

    def pyg_model(self) -> PyGModel | None:
        """See `GNN.pyg_model`."""
        return None
