"""What a model's layer computes on: the sampled edges of one hop, in CSC form."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from gnntrain.compute import ops


@dataclass(frozen=True, slots=True)
class Block:
    """The in-edges of some destination nodes in CSC form: one layer's message passing.

    In a mini-batch the destinations are the first `num_dst` of the `num_src` source nodes
    (`dst_offset` 0). In layer-wise inference the sources are all nodes of the graph and the
    destinations are the range that starts at `dst_offset`. Source `dst_offset + i` is therefore
    always the same node as destination `i`.

    On a GPU a block may be padded, so that its tensors keep their sizes from batch to batch:
    `indices` longer than `indptr[-1]` (and 0 there), the last destinations without in-edges, the
    last sources without out-edges.

    Attributes:
        indptr: int32 or int64 `[num_dst + 1]`.
        indices: same dtype, `[num_edges]`, source numbers.
        num_src: Number of source nodes.
        dst_offset: Source number of destination 0.
        weight: float32 `[num_edges]`, the graph's edge weights; None: all 1.
        degree: float32 `[num_dst]`, in-edges in the whole graph; None: no edge was left out.
        norm: float32 `[num_src]`, `Graph.gcn_norm` of the sources.
        edge_ids: int32 or int64 `[num_edges]`, the positions of the edges in the adjacency that
            they were taken from; None: not asked for.
        max_in_edges: The most in-edges that a destination has here, if known (the fan-out): a GPU
            then need not provide for hubs.
        derived: What a model has worked out of the edges, kept for the block's next use.

    `weight`, `degree` and `norm` are there only where the model asks for them (`BlockNeeds`).
    """

    indptr: Tensor
    indices: Tensor
    num_src: int
    dst_offset: int = 0
    weight: Tensor | None = None
    degree: Tensor | None = None
    norm: Tensor | None = None
    edge_ids: Tensor | None = None
    max_in_edges: int | None = None
    derived: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def num_dst(self) -> int:
        return self.indptr.numel() - 1

    @property
    def num_edges(self) -> int:
        return self.indices.numel()

    def transposed(self) -> Block:
        """The out-edges of every source as a block; found once.

        Its destinations are this block's sources; `edge_ids` says which in-edge of this block each
        edge is. Weights and the like are not carried over.
        """
        if "transposed" not in self.derived:
            indptr, indices, edge_ids = ops.transpose(self.indptr, self.indices, self.num_src)
            offset = -self.dst_offset
            self.derived["transposed"] = Block(
                indptr, indices, self.num_dst, offset, edge_ids=edge_ids
            )
        block: Block = self.derived["transposed"]
        return block

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Block:
        """The block with all its tensors on `device`: itself where they are there already."""
        tensors = {
            item.name: value
            for item in fields(self)
            if isinstance(value := getattr(self, item.name), Tensor)
        }
        moved: dict[str, Any] = {
            name: tensor.to(device, non_blocking=non_blocking) for name, tensor in tensors.items()
        }
        if all(moved[name] is tensors[name] for name in tensors):
            return self
        return replace(self, **moved, derived={})


@dataclass(frozen=True, slots=True)
class BlockNeeds:
    """What a model wants of a mini-batch.

    Attributes:
        norm, weight, degree: In its blocks beside the edges, see `Block`.
        rows: The features named only (`loading.batch.MiniBatch.rows`): it reads them itself.
        edge_index: The edges as PyG has them rather than blocks: a plain PyG model, which might
            also write to the features.
    """

    norm: bool = False
    weight: bool = False
    degree: bool = False
    rows: bool = False
    edge_index: bool = False


NO_NEEDS = BlockNeeds()
