"""Heterogeneous graph transformer (Hu et al., 2020), for typed graphs."""

from __future__ import annotations

from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import HGTConv
from torch_geometric.nn.module_dict import ModuleDict
from torch_geometric.nn.parameter_dict import ParameterDict

from gnntrain.compute.reference import by_head
from gnntrain.config.types import Divides, OneOrMore
from gnntrain.data.graph import EdgeType, GraphSchema, NodeType
from gnntrain.errors import UserError
from gnntrain.models import conv
from gnntrain.models.attention import attend, pair_score, relation_shares
from gnntrain.models.conv import Blocks, SourceKey, Sources
from gnntrain.models.plain import LayerTypes


class BlockHGTConv(conv.HeteroConv, nn.Module):
    """PyG's `HGTConv` on blocks; in the output layer a linear map `lin` to the outputs follows.

    By head, for an edge of relation r from u to v, with keys k_u, values v_u and queries q_v:
    α is the softmax over all in-edges of v of p_r · (k_u K_r) · q_v / √D, and the aggregate is
    Σ α · (v_u V_r). As (k_u K_r) · q_v = k_u · (q_v K_rᵀ), both matrices of a relation multiply a
    row for each destination, and sources have one row of keys and values for all relations.

    By node type, `kv_lin` gives keys and values side by side, `q_lin` queries, `out_lin` maps the
    aggregate after gelu; where no edge leads to, `own_lin` maps the rows themselves. `skip`, of
    types whose input is `hidden_channels` wide, gates it: σ(skip) · out + (1 − σ(skip)) · input.
    By edge type, `k_rel` and `v_rel` are K_r and V_r, `[H, D, D]`, and `p_rel` is p_r, `[H]`.
    """

    is_joint = True

    def __init__(self, types: LayerTypes, hidden_channels: int, heads: int) -> None:
        super().__init__()
        self.types, self.hidden_channels, self.heads = types, hidden_channels, heads
        width, before = hidden_channels // heads, types.in_channels
        sources = {edge_type[0] for edge_type in types.edge_types}
        kv_lin = {t: nn.Linear(w, 2 * hidden_channels) for t, w in before.items() if t in sources}
        self.kv_lin, self.q_lin, self.out_lin = ModuleDict(kv_lin), ModuleDict(), ModuleDict()
        self.own_lin, self.skip = ModuleDict(), ParameterDict()
        for t in types.node_types:
            if types.into(t):
                self.q_lin[t] = nn.Linear(before[t], hidden_channels)
                self.out_lin[t] = nn.Linear(hidden_channels, hidden_channels)
            else:
                self.own_lin[t] = nn.Linear(before[t], hidden_channels)
            if before[t] == hidden_channels:
                self.skip[t] = nn.Parameter(torch.ones(1))
        self.k_rel, self.v_rel, self.p_rel = ParameterDict(), ParameterDict(), ParameterDict()
        for edge_type in types.edge_types:
            for matrices in (self.k_rel, self.v_rel):  # as PyG draws them
                drawn = torch.empty(heads, width, width).uniform_(-(width**-0.5), width**-0.5)
                matrices[edge_type] = nn.Parameter(drawn)
            self.p_rel[edge_type] = nn.Parameter(torch.ones(heads))
        is_output = types.is_output
        self.lin = nn.Linear(hidden_channels, types.out_channels) if is_output else nn.Identity()

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
        rows, sums = [], []
        for own, (edge_type, block) in zip(queries, blocks.items(), strict=True):
            keys, values = sources[edge_type].chunk(2, dim=1)  # type: ignore[union-attr]  # rows of `transform`
            score = pair_score(block, keys, own, self.heads)
            part, log_sum = attend(block, values, score=score)
            rows.append(by_head(part, self.heads))
            sums.append(log_sum)
        weighted = torch.stack(rows) * relation_shares(sums)
        return torch.einsum("rnhd,rhde->nhe", weighted, v_rel).flatten(1)

    def finish(self, node_type: NodeType, total: Tensor | None, h_dst: Tensor) -> Tensor:
        out: Tensor
        if total is None:
            out = self.own_lin[node_type](h_dst)
        else:
            out = self.out_lin[node_type](F.gelu(total))
        if node_type in self.skip:
            share = self.skip[node_type].sigmoid()
            out = share * out + (1 - share) * h_dst
        return self.lin(out)  # type: ignore[no-any-return]

    def pyg_layer(self) -> conv.PyGLayer:
        types, hidden, own = self.types, self.hidden_channels, {}
        if "." in "".join(types.in_channels):
            raise UserError(
                f"PyG's HGTConv takes no node type with a dot: {', '.join(types.in_channels)}.",
                "Rename the type before training; `gnntrain predict` uses the model as it is.",
            )
        for t, lin in self.own_lin.items():
            own[t] = lin.weight, lin.bias
            if t in self.skip:
                share = self.skip[t].sigmoid()
                kept = (1 - share) * torch.eye(hidden).to(share)
                own[t] = share * lin.weight + kept, share * lin.bias
        options = {
            "in_channels": dict(types.in_channels),
            "out_channels": hidden,
            "metadata": ([*types.in_channels], [*types.edge_types]),
            "heads": self.heads,
        }
        state = HGTConv(**options).to(next(self.parameters())).state_dict()
        weights = {name: torch.zeros_like(weight) for name, weight in state.items()}
        for name in ("weight", "bias"):  # weights that `HGTConv` does not need stay 0
            for t, lin in self.kv_lin.items():
                keys, values = getattr(lin, name).chunk(2)
                weights[f"kqv_lin.lins.{t}.{name}"][:hidden] = keys
                weights[f"kqv_lin.lins.{t}.{name}"][2 * hidden :] = values
            for t, lin in self.q_lin.items():
                weights[f"kqv_lin.lins.{t}.{name}"][hidden : 2 * hidden] = getattr(lin, name)
                weights[f"out_lin.lins.{t}.{name}"] = getattr(self.out_lin[t], name)
        weights |= self.skip.state_dict(prefix="skip.", keep_vars=True)
        for edge in types.edge_types:
            key = ParameterDict.to_internal_key("__".join(edge))
            weights[f"p_rel.{key}"] = self.p_rel[edge].unsqueeze(0)
        for name, matrices in (("k_rel", self.k_rel), ("v_rel", self.v_rel)):
            stacked = torch.stack([matrices[edge] for edge in types.edge_types], dim=1)
            weights[f"{name}.weight"] = stacked.flatten(0, 1)
        lin = {"lin": (hidden, types.out_channels)} if types.is_output else {}
        arguments, named = conv.pyg_layer("HGTConv", options, weights, own, **lin)
        return arguments, {**named, **self.lin.state_dict(prefix="lin.", keep_vars=True)}


class HGT(conv.HeteroGNN):
    """h_v ← σ(s) · A gelu(Σ α_uv V_r v_u) + (1 − σ(s)) · h_v over the in-neighbours u.

    α is, by head, the softmax of p_r · (k_u K_r) · q_v / √D over the in-neighbours of all relations
    r together. Keys k, values v, queries q, A and s are by node type; K, V and p by relation. A
    linear map of the target's rows gives the outputs. Edge weights are not used.

    Args:
        heads: Attention heads; must divide hidden_channels.
    """

    is_hetero = True

    def __init__(
        self,
        schema: GraphSchema,
        out_channels: int,
        *,
        heads: Annotated[OneOrMore, Divides("hidden_channels")] = 4,
        **scaffold: Any,
    ) -> None:
        def make_conv(types: LayerTypes) -> BlockHGTConv:
            return BlockHGTConv(types, self.hidden_channels, heads)

        super().__init__(make_conv, schema, out_channels, **scaffold)
