"""A block: the bipartite adjacency of one layer, the sampled edges of one hop, in CSC form."""

from __future__ import annotations

from collections.abc import Mapping
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
        norm: float32 `[num_src]` or `[num_src, 2]`, `Graph.gcn_norm` of the sources.
        edge_ids: int32 or int64 `[num_edges]`, the positions of the edges in the adjacency that
            they were taken from; None: not requested.
        max_in_edges: The most in-edges of a destination in this block, if known (the fan-out): a
            GPU then needs no kernels for hubs.
        derived: Cache of a model's results that depend on the edges only.

    `weight`, `degree` and `norm` are set only if the model reads them (`BlockNeeds`).
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
        """The out-edges of every source as a block; cached.

        Its destinations are this block's sources; `edge_ids` is each edge's number in this block.
        Weights, degrees and norms are not copied.
        """
        if "transposed" not in self.derived:
            indptr, indices, edge_ids = ops.transpose(self.indptr, self.indices, self.num_src)
            offset = -self.dst_offset
            self.derived["transposed"] = Block(
                indptr, indices, self.num_dst, offset, edge_ids=edge_ids
            )
        block: Block = self.derived["transposed"]
        return block

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The block's tensors by the names of its fields."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def with_tensors(self, moved: Mapping[str, Any]) -> Block:
        """The block with copies of its `tensors`, by name."""
        return replace(self, **moved, derived={})

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Block:
        """The block with all its tensors on `device`; itself if they are there already."""
        tensors = self.tensors
        moved = {
            name: tensor.to(device, non_blocking=non_blocking) for name, tensor in tensors.items()
        }
        if all(moved[name] is tensors[name] for name in tensors):
            return self
        return self.with_tensors(moved)


@dataclass(frozen=True, slots=True)
class BlockNeeds:
    """The fields of a mini-batch that a model reads.

    Attributes:
        norm, weight, degree: In its blocks beside the edges, see `Block`.
        rows: Lazy features (`loading.batch.MiniBatch.rows`) instead of `x`.
        edge_index: PyG's `edge_index` instead of blocks: for a plain PyG model, which might also
            write to the features.
    """

    norm: bool = False
    weight: bool = False
    degree: bool = False
    rows: bool = False
    edge_index: bool = False


NO_NEEDS = BlockNeeds()
