"""Padded blocks, as batches of one size have."""

from __future__ import annotations

import torch
from torch import Tensor

from gnntrain.sampling.block import Block


def padded(block: Block, edges: int = 5, destinations: int = 3, sources: int = 4) -> Block:
    """The same block with so many more of each, as batches of one size have."""

    def longer(values: Tensor | None, by: int, fill: float = 1.0) -> Tensor | None:
        return (
            None
            if values is None
            else torch.cat([values, values.new_full((by, *values.shape[1:]), fill)])
        )

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
