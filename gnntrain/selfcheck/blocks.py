"""The blocks that kernels are tried on: small and awkward ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from gnntrain.sampling.block import Block

_HUB_EDGES = 1500  # more than two chunks of `compute.launching`


def awkward_blocks() -> Iterator[tuple[str, Block]]:
    """Blocks on the CPU, by name."""
    yield "no edge", _block([0, 0, 0], [], 3)
    yield "one row", _block([0, 3], [1, 0, 1], 2)
    yield "hubs", _hubs()
    yield "destinations from 5 on", replace(_random(9, 24), dst_offset=5)
    yield "padded", _padded(_random(14, 24))


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _block(indptr: list[int], indices: list[int], num_src: int) -> Block:
    kind = torch.int32
    return Block(torch.tensor(indptr, dtype=kind), torch.tensor(indices, dtype=kind), num_src)


def _hubs() -> Block:
    """A destination of many in-edges and a source of many out-edges, by int64 numbers."""
    degrees = torch.tensor([3, 0, _HUB_EDGES, 1, 5])
    num_edges = int(degrees.sum())
    indices = torch.randint(0, 9, (num_edges,), generator=_generator())
    indices[::4], indices[1::4], indices[2::4] = 2, 2, 2
    return Block(_starts(degrees), indices, 9)


def _random(num_dst: int, num_src: int, most: int = 9) -> Block:
    """Random degrees below `most`; with self loops and repeated edges."""
    draw = _generator()
    degrees = torch.randint(0, most, (num_dst,), generator=draw)
    indices = torch.randint(0, num_src, (int(degrees.sum()),), generator=draw)
    indptr = _starts(degrees)
    indices[indptr[:-1][degrees > 0]] = torch.arange(num_dst)[degrees > 0]
    return Block(indptr.int(), indices.int(), num_src, max_in_edges=most - 1)


def _starts(degrees: Tensor) -> Tensor:
    return torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])


def _padded(block: Block) -> Block:
    """Longer by five edges, three destinations and four sources, see `Block`."""
    indptr = torch.cat([block.indptr, block.indptr[-1:].expand(3)])
    indices = torch.cat([block.indices, block.indices.new_zeros(5)])
    return replace(block, indptr=indptr, indices=indices, num_src=block.num_src + 4)
