"""Relational graph convolutional network (Schlichtkrull et al., 2018), for typed graphs."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from gnntrain.config.types import OneOrMore
from gnntrain.errors import UserError
from gnntrain.models import plain
from gnntrain.models.conv import HeteroGNN, LinearConv


class BlockRGCNConv(plain.RGCNLayer, LinearConv):
    reduce = "mean"

    def __init__(
        self, types: plain.LayerTypes, num_bases: int | None, num_blocks: int | None
    ) -> None:
        sources = {edge[0] for edge in types.edge_types if edge[0] not in types.one_hot}
        widths = {t: width for t, width in types.in_channels.items() if t in sources}
        if num_bases is not None and len({*widths.values()}) > 1:
            raise UserError(
                "model.num_bases shares matrices among all relations, but the widths differ: "
                f"{', '.join(f'{t}: {width}' for t, width in widths.items())}.",
                "Set model.project_inputs=true: it maps all types to hidden_channels.",
            )
        super().__init__(types, num_bases, num_blocks)  # type: ignore[no-untyped-call]


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

    conv_class = BlockRGCNConv
    saved_defaults: ClassVar[dict[str, Any]] = {"featureless": "embedding"}

    num_bases: OneOrMore | None = None
    num_blocks: OneOrMore | None = None
    featureless: Literal["one_hot", "embedding"] = "one_hot"
