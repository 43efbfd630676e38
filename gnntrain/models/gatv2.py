"""GATv2 (Brody et al., 2022): attention that depends on both ends of an edge."""

from __future__ import annotations

from torch import Tensor

from gnntrain.compute.reference import by_head
from gnntrain.models import plain
from gnntrain.models.attention import attend, pair_score
from gnntrain.models.conv import Blocks, HeteroConv, SourceKey, Sources
from gnntrain.models.gat import GAT
from gnntrain.sampling.block import BlockNeeds


class BlockGATv2Conv(HeteroConv, plain.GATv2Layer):
    """Σ α_uv W_l x_u + b over the in-neighbours u and v itself."""

    needs = BlockNeeds()

    def transform(self, x: Tensor, key: SourceKey) -> Tensor:  # noqa: ARG002
        z: Tensor = self.lin_l(x)
        return z

    def on_blocks(self, blocks: Blocks, sources: Sources, h_dst: Tensor) -> Tensor:
        (block,), (z,) = blocks.values(), sources.values()
        assert isinstance(z, Tensor)  # of `transform`
        block = block.cached("self_loops", block.with_self_loops)
        right, att = self.lin_r(h_dst), self.att.squeeze(0)
        score = pair_score(block, z, right, self.heads, self.negative_slope, att)
        dropout = self.dropout if self.training else 0.0
        out, _ = attend(block, z, score=score, slope=1.0, dropout=dropout)
        bias: Tensor = self.bias
        return (out if self.concat else by_head(out, self.heads).mean(1)) + bias


class GATv2(GAT):
    """h_v ← Σ α_uv W_l h_u + b over the in-neighbours u and v itself.

    α is the softmax of a · leaky_relu(W_l h_u + W_r h_v) over these.
    The hidden vector of an edge is not stored: the backward pass computes it again. All else is as
    in `GAT`.
    """

    conv_class = BlockGATv2Conv
