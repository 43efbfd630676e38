"""Models computed by the GPU's kernels wherever their tensors are: in Triton's interpreter too."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gnntrain.models import attention, gat, gatv2, gcn, gin, sage
from gnntrain.models.aggregate import aggregate_on_device, weighted_sum_on_device
from gnntrain.models.fused import AggregatedLinear
from gnntrain.sampling.block import Block


def use_device_kernels(patch: pytest.MonkeyPatch) -> None:
    """Have every function that chooses by where its tensors are choose the GPU's kernels."""
    for module in (sage, gcn, gin):
        patch.setattr(module, "aggregate", aggregate_on_device)
    patch.setattr(AggregatedLinear, "__call__", AggregatedLinear.on_device)
    patch.setattr(attention, "weighted_sum", weighted_sum_on_device)
    patch.setattr(gat, "sum_softmax", attention.sum_softmax_on_device)
    patch.setattr(gatv2, "edge_softmax", attention.edge_softmax_on_device)
    patch.setattr(gatv2, "pair_score", attention.pair_score_on_device)


def padded(block: Block, edges: int = 5, destinations: int = 3, sources: int = 4) -> Block:
    """The same block with so many more of each, as batches of one size have."""

    def longer(values: Tensor | None, by: int, fill: float = 1.0) -> Tensor | None:
        return None if values is None else torch.cat([values, values.new_full((by,), fill)])

    indices = longer(block.indices, edges, 0)
    assert indices is not None
    return Block(
        indptr=torch.cat([block.indptr, block.indptr[-1:].expand(destinations)]),
        indices=indices,
        num_src=block.num_src + sources,
        dst_offset=block.dst_offset,
        weight=longer(block.weight, edges),
        degree=longer(block.degree, destinations, 0.0),
        norm=longer(block.norm, sources),
    )
