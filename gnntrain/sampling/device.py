"""A sampled neighbourhood in device memory."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from gnntrain.sampling.base import SampledHop, SampledSubgraph


@dataclass(frozen=True, slots=True)
class DeviceHop:
    """A `SampledHop` in device memory.

    Attributes:
        indptr: int64 `[num_dst + 1]`.
        indices: int32 `[num_edges]`.
        edge_ids: int64 `[num_edges]`, or None.
        num_src: Nodes known after this hop.
        num_new_edges: Edges to the destinations that the hop before found (or the seeds).
    """

    indptr: Tensor
    indices: Tensor
    edge_ids: Tensor | None
    num_src: int
    num_new_edges: int

    @property
    def num_dst(self) -> int:
        return self.indptr.numel() - 1

    @property
    def num_edges(self) -> int:
        return self.indices.numel()


@dataclass(frozen=True, slots=True)
class DeviceSubgraph:
    """A `SampledSubgraph` in device memory.

    The tensors are the beginnings of larger buffers, which live as long as they do. They were
    filled on the stream that was current; another stream must wait for that one.

    Attributes:
        nodes: int64 `[num_nodes]`, the seeds first and as given.
        num_seeds: How many of `nodes` are seeds.
        hops: The hop next to the seeds first.
        size: How many of `nodes` were drawn, int64 on the device, where padding follows them.
    """

    nodes: Tensor
    num_seeds: int
    hops: tuple[DeviceHop, ...]
    size: Tensor | None = None

    @property
    def num_sampled_nodes(self) -> list[int]:
        """See `SampledSubgraph`."""
        known = [self.num_seeds, *(hop.num_src for hop in self.hops)]
        return [known[0], *(after - before for before, after in pairwise(known))]

    @property
    def num_sampled_edges(self) -> list[int]:
        """See `SampledSubgraph`."""
        return [hop.num_new_edges for hop in self.hops]

    @property
    def edge_index(self) -> Tensor:
        """See `SampledSubgraph`; made anew, without a wait for the device."""
        parts = [self.nodes.new_empty(2, 0)]
        oldest = 0
        for hop in self.hops:
            numbers = torch.arange(oldest, hop.num_dst, device=self.nodes.device)
            destinations = numbers.repeat_interleave(
                hop.indptr[oldest:].diff(), output_size=hop.num_new_edges
            )
            sources = hop.indices[hop.num_edges - hop.num_new_edges :].long()
            parts.append(torch.stack([sources, destinations]))
            oldest = hop.num_dst
        return torch.cat(parts, 1)

    def to_host(self) -> SampledSubgraph:
        """The same in host memory."""
        hops = [
            SampledHop(
                hop.indptr.cpu().numpy(),
                hop.indices.cpu().numpy(),
                None if hop.edge_ids is None else hop.edge_ids.cpu().numpy(),
                hop.num_src,
            )
            for hop in self.hops
        ]
        return SampledSubgraph(self.nodes.cpu().numpy(), self.num_seeds, tuple(hops))
