"""Relational graph convolutional network (Schlichtkrull et al., 2018), for typed graphs."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch_geometric.nn.inits import glorot
from torch_geometric.nn.module_dict import ModuleDict
from torch_geometric.nn.parameter_dict import ParameterDict

from gnntrain.compute.reference import by_head
from gnntrain.config.types import Divides, OneOrMore
from gnntrain.data.graph import EdgeType, GraphSchema, NodeType
from gnntrain.errors import UserError
from gnntrain.models.conv import HeteroGNN, LinearConv, SourceKey, glorot_linear
from gnntrain.models.plain import LayerTypes


class BlockRGCNConv(LinearConv, nn.Module):
    """Σ_r W_r · (mean of x_u over the in-neighbours u of relation r) + W_0 x_v + b.

    W_0 and b are those of the node type of v (`roots`; of one-hot input `biases`). A layer's W_r
    are matrices of their own (`weight`, `[out, in]`), or Σ_b comp[r, b] · bases[b], or
    block-diagonal (`blocks`, `[num_blocks, out / num_blocks, in / num_blocks]`): the latter for the
    relations whose two widths `num_blocks` divides; the others have a matrix. `comp` has its rows
    in the order of the edge types' names: the weights fit a graph that has the same types in
    another order. The products of one-hot inputs are rows of tables, see `LayerTypes.one_hot`: such
    a row has one block of columns for each basis, or else for each edge type out of the node type,
    and one for W_0.
    """

    def __init__(
        self, types: LayerTypes, num_bases: int | None = None, num_blocks: int | None = None
    ) -> None:
        super().__init__()
        self.types, self.reduce = types, "mean"
        widths, after, self._names = types.in_channels, types.out_channels, sorted(types.edge_types)
        self.weight, self.blocks = ParameterDict(), ParameterDict()
        self.roots, self.biases = ModuleDict(), ParameterDict()
        self.comp: nn.Parameter | None = None
        dense = [edge for edge in types.edge_types if edge[0] not in types.one_hot]
        if num_bases is not None and types.edge_types:
            by_type = {edge[0]: widths[edge[0]] for edge in dense}
            if len({*by_type.values()}) > 1:
                raise UserError(
                    "model.num_bases shares matrices among all relations, but the widths "
                    f"differ: {', '.join(f'{t}: {width}' for t, width in by_type.items())}.",
                    "Set model.project_inputs=true: it maps all types to hidden_channels.",
                )
            if dense:
                self.bases = nn.Parameter(torch.empty(num_bases, after, widths[dense[0][0]]))
            self.comp, dense = nn.Parameter(torch.empty(len(self._names), num_bases)), []
        for edge in dense:
            before = widths[edge[0]]
            if num_blocks is not None and before % num_blocks == after % num_blocks == 0:
                shape = num_blocks, after // num_blocks, before // num_blocks
                self.blocks[edge] = nn.Parameter(torch.empty(shape))
            else:
                self.weight[edge] = nn.Parameter(torch.empty(after, before))
        for weight in self.parameters():
            glorot(weight)  # as in PyG's `RGCNConv`
        self._columns: dict[SourceKey, slice] = {}
        for t in types.one_hot:  # the columns of its rows by who reads them
            for i, edge in enumerate(edge for edge in self._names if edge[0] == t):
                first, number = (i, 1) if self.comp is None else (0, self.comp.shape[1])
                self._columns[edge] = slice(first * after, (first + number) * after)
            self._columns[t] = slice(widths[t] - after, None)
        self.one: Tensor
        self.register_buffer("one", torch.eye(after if types.one_hot else 0), persistent=False)
        for t in types.node_types:
            if t in types.one_hot:
                self.biases[t] = nn.Parameter(torch.zeros(after))
            else:
                self.roots[t] = glorot_linear(widths[t], after)

    def columns(self, key: SourceKey) -> slice:
        return self._columns.get(key, slice(None))

    def relation_weight(self, edge_type: EdgeType) -> Tensor:
        """See `LinearConv`; of a one-hot input, what combines the blocks of columns."""
        comp = None if self.comp is None else self.comp[self._names.index(edge_type)]
        if edge_type[0] in self.types.one_hot:
            return self.one if comp is None else torch.kron(comp[None], self.one)
        if comp is not None:
            return torch.einsum("b,boi->oi", comp, self.bases)
        if edge_type in self.blocks:
            return torch.block_diag(*self.blocks[edge_type])  # type: ignore[no-any-return, no-untyped-call]
        weight: Tensor = self.weight[edge_type]
        return weight

    def transform(self, x: Tensor, key: SourceKey) -> Tensor:
        if key not in self.blocks:
            return super().transform(x, key)
        blocks: Tensor = self.blocks[key]
        return torch.einsum("nbi,boi->nbo", by_head(x, len(blocks)), blocks).flatten(1)

    def root(self, node_type: NodeType) -> tuple[Any, Tensor]:
        if node_type in self.biases:
            return self.one, self.biases[node_type]
        linear: Any = self.roots[node_type]
        return linear.weight, linear.bias


class RGCN(HeteroGNN):
    """h_v ← Σ_r W_r · (mean of h_u over the in-neighbours u of relation r) + W_0 h_v + b.

    W_0 and b are by node type, as in OGB's example; with one node type it is the paper's model.
    Edge weights are not used.

    Args:
        num_bases: Basis decomposition: every W_r is a combination of this many shared matrices;
            null: none.
        num_blocks: Block-diagonal decomposition: W_r has this many blocks on its diagonal, in the
            layers both of whose widths the number divides; it must divide hidden_channels;
            null: none.
        featureless: First layer of node types without features: with one_hot input, as in the
            paper, each W_r and W_0 has a learnt row for each node; or of embeddings, which matrices
            then multiply.
    """

    is_hetero = True
    saved_defaults = {"featureless": "embedding"}  # noqa: RUF012

    def __init__(
        self,
        schema: GraphSchema,
        out_channels: int,
        *,
        num_bases: OneOrMore | None = None,
        num_blocks: Annotated[OneOrMore | None, Divides("hidden_channels")] = None,
        featureless: Literal["one_hot", "embedding"] = "one_hot",
        **scaffold: Any,
    ) -> None:
        if num_bases is not None and num_blocks is not None:
            raise UserError(
                f"model.num_bases={num_bases} excludes model.num_blocks={num_blocks}.",
                "Set one of them to null.",
            )

        scaffold["one_hot"] = (num_bases or 0) if featureless == "one_hot" else None
        make = partial(BlockRGCNConv, num_bases=num_bases, num_blocks=num_blocks)
        super().__init__(make, schema, out_channels, **scaffold)
