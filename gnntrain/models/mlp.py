"""Multi-layer perceptron: it reads no edges. A baseline without the graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from gnntrain.data.graph import NODE, NodeType
from gnntrain.errors import UserError
from gnntrain.models.conv import GNN, BlockConv, HeteroGNN, PyGModel, Rows, first_rows
from gnntrain.sampling.block import Block, Hop


class BlockLinear(BlockConv, nn.Linear):
    """W x_v + b: it reads no edge."""

    def finish(self, node_type: NodeType, total: Tensor | None, h_dst: Tensor) -> Tensor:  # noqa: ARG002
        return nn.Linear.forward(self, h_dst)


class MLP(GNN):
    """h_v ← W h_v + b. It reads no edge."""

    uses_graph = False

    def __init__(self, in_channels: int, out_channels: int, **scaffold: Any) -> None:
        super().__init__(lambda *of: BlockLinear(*of[:2]), in_channels, out_channels, **scaffold)

    def forward(self, x: Rows, blocks: Sequence[Block] = ()) -> Tensor:  # type: ignore[override]
        """Compute the outputs of the seeds: the first rows of `x`, or, without blocks, all."""
        num_seeds = blocks[-1].num_dst if blocks else len(x)
        hop = Hop({}, {NODE: num_seeds}, {NODE: num_seeds})
        rows = {NODE: first_rows(x, num_seeds)}
        return HeteroGNN.forward(self, rows, {}, [hop] * self.num_layers)

    def pyg_model(self) -> PyGModel:
        if self.residuals or self.jk != "none":
            key = "residual=true" if self.residuals else f"jk={self.jk}"
            hint = "Train it without this key; `gnntrain predict` uses it as it is."
            raise UserError(f"PyG has no MLP with model.{key}.", hint)
        made = self.basic_gnn("MLP", inputs=("x",))
        weights = {name.replace("convs.", "lins."): rows for name, rows in made.weights.items()}
        return replace(made, weights=weights)
