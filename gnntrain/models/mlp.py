"""Multi-layer perceptron: it reads no edges. A baseline without the graph."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gnntrain.data.graph import NODE, NodeType
from gnntrain.models import plain
from gnntrain.models.conv import GNN, HeteroConv, HeteroGNN, Rows, first_rows
from gnntrain.sampling.block import Block, BlockNeeds, Hop


class BlockLinear(HeteroConv, plain.LinearLayer):
    needs = BlockNeeds()

    def finish(self, node_type: NodeType, total: Tensor | None, h_dst: Tensor) -> Tensor:  # noqa: ARG002
        out: Tensor = self(h_dst)
        return out


class MLP(GNN):
    """h_v ← W h_v + b. It reads no edge."""

    conv_class = BlockLinear
    uses_graph = False

    def forward(self, x: Rows, blocks: Sequence[Block] = ()) -> Tensor:  # type: ignore[override]
        """Compute the outputs of the seeds: the first rows of `x`, or, without blocks, all."""
        num_seeds = blocks[-1].num_dst if blocks else len(x)
        hop = Hop({}, {NODE: num_seeds}, {NODE: num_seeds})
        rows = {NODE: first_rows(x, num_seeds)}
        return HeteroGNN.forward(self, rows, {}, [hop] * self.num_layers)
