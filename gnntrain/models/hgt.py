"""Heterogeneous graph transformer (Hu et al., 2020), for typed graphs."""

from __future__ import annotations

import torch
from torch import Tensor

from gnntrain.compute.reference import by_head
from gnntrain.config.types import OneOrMore
from gnntrain.data.graph import EdgeType
from gnntrain.models import conv, plain
from gnntrain.models.attention import attend, by_relation, pair_score
from gnntrain.models.conv import Blocks, SourceKey, Sources


class BlockHGTConv(plain.HGTLayer, conv.HeteroConv):
    """As (k_u K_r) · q_v = k_u · (q_v K_rᵀ), both matrices of a relation multiply a row for each
    destination, and sources have one row of keys and values for all relations."""

    is_joint = True

    def source(self, edge_type: EdgeType) -> SourceKey | None:
        return edge_type[0]

    def transform(self, x: Tensor, key: SourceKey) -> Tensor:
        """Keys and values side by side, `[n, 2·H·D]`."""
        out: Tensor = self.kv_lin[key](x)
        return out

    def on_blocks(self, blocks: Blocks, sources: Sources, h_dst: Tensor) -> Tensor:
        k_rel, v_rel, priors = (
            torch.stack([matrices[edge_type] for edge_type in blocks])
            for matrices in (self.k_rel, self.v_rel, self.p_rel)
        )
        # p_r / √D · q_v K_rᵀ for each relation, `[R, num_dst, H·D]`.
        query = by_head(self.q_lin[next(iter(blocks))[2]](h_dst), self.heads)
        k_rel = k_rel * (priors[:, :, None, None] / query.shape[-1] ** 0.5)
        queries = torch.einsum("nhe,rhde->rnhd", query, k_rel).flatten(2)
        attended = []
        for own, (edge_type, block) in zip(queries, blocks.items(), strict=True):
            keys, values = sources[edge_type].chunk(2, dim=1)  # type: ignore[union-attr]  # rows of `transform`
            score = pair_score(block, keys, own, self.heads, 1.0, None)
            attended.append(attend(block, values, score=score, slope=1.0, dropout=0.0))
        return torch.einsum("rnhd,rhde->nhe", by_relation(attended, self.heads), v_rel).flatten(1)


class HGT(conv.HeteroGNN):
    """h_v ← σ(s) · A gelu(Σ α_uv V_r v_u) + (1 − σ(s)) · h_v over the in-neighbours u.

    α is, by head, the softmax of p_r · (k_u K_r) · q_v / √D over the in-neighbours of all relations
    r together. Keys k, values v, queries q, A and s are by node type; K, V and p by relation. A
    linear map of the target's rows gives the outputs. Edge weights are not used.

    Args:
        heads: Attention heads; must divide hidden_channels.
    """

    conv_class = BlockHGTConv

    heads: OneOrMore = 4
