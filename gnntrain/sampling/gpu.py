"""Neighbour sampling on the GPU, compiled by Triton."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor

from gnntrain.data.graph import FusedCSC
from gnntrain.errors import RunError, UserError
from gnntrain.sampling import triton_kernels as kernels
from gnntrain.sampling.base import FanOuts, FanOutScope, SampleKey, Sampler, Seeds
from gnntrain.sampling.block import Block, Hop, Sample
from gnntrain.sampling.cpu import checked_seeds, numba_hop_key
from gnntrain.sampling.triton_kernels import BLOCK, UNKNOWN

MAX_ROW_DRAWS = 64
"""Up to this fan-out one destination's distinct draws are compared with each other in registers."""

MAX_PADDED_EDGES = 2**24
"""Buffers for a hop's edges are made of the largest size possible up to this one, half a GiB."""

MAX_LOCAL = 2**31 - 2 * BLOCK
"""Known nodes and edges of one hop, together: with a program more they stay below `UNKNOWN`."""

_ROW_TILE = 256
"""Draws a program of `draw_by_row`: with more, its registers leave room for few programs."""


class GPUSampler(Sampler):
    """Draws on a GPU what `CPUSampler` draws on the CPU: for one key, equal tensors.

    A batch costs one host synchronisation, at its end, to read the sampled sizes; until then
    buffers have the largest size that seeds and fan-outs allow. A hop that takes all in-neighbours,
    or whose largest size is beyond `MAX_PADDED_EDGES`, synchronises once more, to read its number
    of edges.

    `sample` may be called from several threads at once, on any streams; each call in flight holds
    one int32 for every node of the graph on the device, kept for the next call.

    Args:
        edges: Of one type, in tensors: contiguous, `indptr` on the device to sample on (the CPU
            works in Triton's interpreter alone, very slowly), `indices` there or in pinned host
            memory, which the GPU then reads over the bus. They are not copied.
        fan_outs, replace, edge_ids: See `Sampler`.
        scope: Of one edge type both are the same.

    Raises:
        UserError: The graph has several edge types, or there is no GPU.
    """

    on_gpu = True

    def __init__(
        self,
        edges: FusedCSC,
        fan_outs: FanOuts,
        *,
        scope: FanOutScope = "relation",  # noqa: ARG002
        replace: bool = False,
        edge_ids: bool = False,
    ) -> None:
        if len(edges.edge_types) > 1:
            raise UserError(
                f"sampler.backend=triton cannot draw from {len(edges.edge_types)} edge types",
                "Leave it out: the CPU draws then.",
            )
        (self._edge_type,) = edges.edge_types
        self._node_type = self._edge_type[2]
        indptr, indices = edges.indptr, edges.indices
        self._device = indptr.device
        if self._device.type == "cpu" and isinstance(kernels.claim, triton.JITFunction):
            raise UserError(
                "the Triton sampler needs a GPU, and the graph lies in host memory",
                "Leave out sampler.backend=triton: the CPU draws then.",
            )
        self._indptr, self._indices = indptr.contiguous(), indices.contiguous()
        self._max_degree = int(indptr.diff().max()) if len(indptr) > 1 else 0
        self._fan_outs = fan_outs[self._edge_type]
        self._replace = replace
        self._edge_ids = edge_ids
        self._idle: deque[Tensor] = deque()
        self._padded_local: Tensor | None = None

    @property
    def num_nodes(self) -> int:
        return len(self._indptr) - 1

    def sample(self, seeds: Seeds, key: SampleKey) -> Sample:
        """Draw the neighbourhood of `seeds`, on the current stream.

        Args:
            seeds: In host or device memory. A repeated seed keeps its positions, each with its own
                (equal) in-edges; edges from it start at its first position.
            key: Key of the draw. Equal keys give equal in-neighbours for any seeds.

        Raises:
            UserError: A seed is not a node of the graph.
            RunError: A hop may grow beyond 2^31 nodes and edges.
        """
        num_nodes, num_hops = {self._node_type: self.num_nodes}, len(self._fan_outs)
        with _current(self._device):
            nodes = seeds.nodes[self._node_type]
            if nodes.device == self._device and self.num_nodes > 0:
                nodes = nodes.long().contiguous()  # whether they are nodes is known at the end
            else:
                checked = torch.from_numpy(checked_seeds(seeds, num_nodes)[self._node_type])
                nodes = checked.to(self._device, non_blocking=True)
            try:
                local = self._idle.pop()
            except IndexError:
                local = self._new_local()
            batch = _Batch(nodes, local, num_hops, self.num_nodes)
            keys = self.hop_keys(key).to(self._device, non_blocking=True)
            hops = [self._draw_hop(batch, hop, keys) for hop in range(num_hops)]
            batch.forget()
            sizes = _read(batch.sizes)
        # The device has finished. Not reached after an error, when `local` may hold half a batch.
        self._idle.append(batch.local)
        if sizes[-1] > 0:
            checked_seeds(seeds, num_nodes)
        known = sizes[: num_hops + 1]
        num_edges, num_old = sizes[num_hops + 1 : -1 : 2], sizes[num_hops + 2 : -1 : 2]
        blocks = [_trimmed(hop, known[i], known[i + 1], num_edges[i]) for i, hop in enumerate(hops)]
        num_new = [every - old for every, old in zip(num_edges, num_old, strict=True)]
        return self._sample(batch.nodes[: known[-1]], known[0], blocks, num_new)

    def hop_keys(self, key: SampleKey) -> Tensor:
        """The key in the kernels' form, int32 `[2 · hops]` in host memory."""
        hops = range(len(self._fan_outs))
        keys = np.array([numba_hop_key(key, hop) for hop in hops], np.uint64)
        return torch.from_numpy(keys.view(np.int32))

    def sample_padded(self, seeds: Tensor, keys: Tensor) -> Sample:
        """Sample without synchronisation, so that a CUDA graph can capture it.

        All tensors have the largest size that the number of seeds and the fan-outs allow. They
        begin with the result of `sample`; in the padding nodes, indices and edge ids are 0, and
        destinations have no edges. One call at a time.

        Args:
            seeds: int64 `[num_seeds]` on the device, each a node of the graph.
            keys: int32 `[2 · hops]` on the device, `hop_keys` of the draw's key.

        Raises:
            UserError: A fan-out is −1, or the sizes are too large.
        """
        with _current(self._device):
            if self._padded_local is None:
                self._padded_local = self._new_local()
            num_hops = len(self._fan_outs)
            batch = _Batch(seeds, self._padded_local, num_hops, self.num_nodes, is_padded=True)
            hops = [self._draw_hop(batch, hop, keys) for hop in range(num_hops)]
            batch.forget()
        # The largest case: every hop takes its full fan-out and finds new nodes only.
        most = [hop.num_edges for hop in hops]
        blocks = [_trimmed(hop, hop.num_dst, hop.num_src, hop.num_edges) for hop in hops]
        return self._sample(batch.nodes, len(seeds), blocks, most, batch.sizes[num_hops])

    def padded_edges(self, num_seeds: int) -> int:
        """The edges of all hops of `sample_padded`, with the padding."""
        num_known, total = num_seeds, 0
        for fan_out in self._fan_outs:
            num_edges = self._most_edges(num_known, fan_out)
            num_known = min(num_known + num_edges, self.num_nodes + num_seeds)
            total += num_edges
        return total

    def _most_edges(self, num_dst: int, fan_out: int) -> int:
        return num_dst * (fan_out if self._replace else min(fan_out, self._max_degree))

    def _new_local(self) -> Tensor:
        return torch.full((self.num_nodes,), UNKNOWN, dtype=torch.int32, device=self._device)

    def _draw_hop(self, batch: _Batch, hop: int, keys: Tensor) -> Block:
        """A hop of the largest size possible, whose own the host does not know yet."""
        fan_out, num_dst = self._fan_outs[hop], batch.num_known
        counts = batch.empty(num_dst + 1, torch.int64)
        graph = self._indptr, batch.nodes, batch.sizes
        sizes = {"REPLACE": self._replace, "BLOCK": BLOCK}
        _launch(kernels.count_edges, num_dst, *graph, hop, num_dst, fan_out, counts, **sizes)
        offsets = counts.cumsum(0)
        # An upper bound, where it is not too large to be the size of buffers.
        num_edges = self._most_edges(num_dst, fan_out)
        if fan_out < 0 or num_edges > MAX_PADDED_EDGES:
            if batch.is_padded:
                raise UserError(
                    f"a hop of fan-out {fan_out} from up to {num_dst:,} nodes is too large to be "
                    "drawn without learning its size",
                    "Lower trainer.batch_size or sampler.fan_outs (no -1), or leave out "
                    "trainer.cuda_graph.",
                )
            batch.num_known, num_edges = _read(torch.stack([batch.sizes[hop], offsets[-1]]))
            offsets = offsets[: batch.num_known + 1]
        num_edges = max(1, num_edges)
        if batch.num_known + num_edges > MAX_LOCAL:
            raise RunError(
                f"one hop of a mini-batch may take {num_edges:,} edges, beyond the limit of 2^31",
                "Lower the batch size or the fan-outs.",
            )
        positions = self._positions(batch, hop, offsets, num_edges, keys)
        indices = batch.number(hop, self._indices, positions, offsets)
        return Block(
            offsets,
            indices,
            batch.num_known,
            edge_ids=positions if self._edge_ids else None,
            max_in_edges=fan_out if fan_out >= 0 else None,
        )

    def _positions(
        self, batch: _Batch, hop: int, offsets: Tensor, num_edges: int, keys: Tensor
    ) -> Tensor:
        """The positions in `indices` of the drawn edges, int64 `[num_edges]`."""
        fan_out, num_dst = self._fan_outs[hop], offsets.numel() - 1
        positions = batch.empty(num_edges, torch.int64)
        graph = self._indptr, batch.nodes, offsets
        args: tuple[Any, ...]
        # The steps of the binary search, rounded up to eights: each number is compiled separately.
        steps = max(8, -(-num_dst.bit_length() // 8) * 8)
        if fan_out < 0 or self._replace:
            sizes = {"TAKE_ALL": fan_out < 0, "STEPS": steps, "BLOCK": BLOCK}
            args = *graph, num_dst, hop, keys, positions
            _launch(kernels.draw_by_edge, num_edges, *args, **sizes)
        elif fan_out <= MAX_ROW_DRAWS:
            width = triton.next_power_of_2(fan_out)
            sizes = {"FAN_OUT": fan_out, "WIDTH": width, "ROWS": _ROW_TILE // width}
            rest = batch.sizes, hop, keys, positions
            _launch(kernels.draw_by_row, num_dst * width, *graph, *rest, **sizes, tile=_ROW_TILE)
        else:
            values, twins, fallbacks = (torch.empty_like(positions) for _ in range(3))
            draws = values, twins, positions, fallbacks
            args = *graph, num_dst, num_edges, fan_out, hop, keys, *draws
            _launch(kernels.draw_with_twins, num_edges, *args, STEPS=steps, BLOCK=BLOCK)
            positions = resolve_draws(*draws, fan_out)
            if batch.is_padded:
                number = torch.arange(num_edges, device=self._device)
                positions = positions * (number < offsets[-1])
        return positions

    def _sample(
        self,
        nodes: Tensor,
        num_seeds: int,
        blocks: Sequence[Block],
        num_new: list[int],
        size: Tensor | None = None,
    ) -> Sample:
        """The sample of these blocks, the hop next to the seeds first."""
        node_type, edge_type = self._node_type, self._edge_type
        hops = [
            Hop({edge_type: block}, {node_type: block.num_dst}, {node_type: block.num_src})
            for block in reversed(blocks)
        ]
        return Sample(
            {node_type: nodes}, {node_type: num_seeds}, tuple(hops), size, {edge_type: num_new}
        )


def _trimmed(hop: Block, num_dst: int, num_src: int, num_edges: int) -> Block:
    """A hop of the largest size possible, to these sizes."""
    return replace(
        hop,
        # Of the indices' type, as torch's CSR tensors require.
        indptr=hop.indptr[: num_dst + 1].to(torch.int32),
        indices=hop.indices[:num_edges],
        num_src=num_src,
        edge_ids=None if hop.edge_ids is None else hop.edge_ids[:num_edges],
    )


class _Batch:
    """The nodes of one call in flight and their numbers.

    Attributes:
        nodes: int64, room for `num_known` nodes at least.
        local: int32 `[num_nodes]`, see `triton_kernels`.
        sizes: int64, see `triton_kernels`.
        num_known: An upper bound of the number of known nodes.
        is_padded: Whether the padding is kept, which must then be 0.
    """

    def __init__(
        self,
        seeds: Tensor,
        local: Tensor,
        num_hops: int,
        num_nodes: int,
        *,
        is_padded: bool = False,
    ) -> None:
        self.local = local
        self.is_padded = is_padded
        self.num_known = num_seeds = seeds.numel()
        self._num_hops = num_hops
        self._most = num_nodes + num_seeds
        self.nodes = torch.empty_like(seeds)
        self.sizes = seeds.new_zeros(3 * num_hops + 2)
        args = seeds, num_seeds, num_nodes, self.nodes, local, self.sizes, 3 * num_hops + 1
        _launch(kernels.register_seeds, num_seeds, *args, BLOCK=BLOCK)

    def empty(self, length: int, dtype: torch.dtype) -> Tensor:
        new = torch.zeros if self.is_padded else torch.empty
        return new(length, dtype=dtype, device=self.nodes.device)

    def number(self, hop: int, graph: Tensor, positions: Tensor, offsets: Tensor) -> Tensor:
        """Number the sources of a hop's edges: int32, the local numbers; new nodes are appended."""
        num_edges, base = positions.numel(), self.num_known
        hop_edges = offsets, offsets.numel() - 1
        sources = torch.empty_like(positions)
        codes, is_first, indices = (self.empty(num_edges, torch.int32) for _ in range(3))
        args: tuple[Any, ...] = graph, positions, *hop_edges, base, sources, self.local
        _launch(kernels.claim, num_edges, *args, BLOCK=BLOCK)
        args = sources, self.local, *hop_edges, num_edges, base, codes, is_first
        _launch(kernels.mark, num_edges, *args, BLOCK=BLOCK)
        # Room for new nodes; repeated seeds count as often as they are given.
        self.num_known = min(base + num_edges, self._most)
        nodes = self.empty(self.num_known, torch.int64)
        nodes[:base] = self.nodes[:base]
        self.nodes = nodes
        ranks, sizes = is_first.cumsum(0, dtype=torch.int32), self.sizes
        args = sources, codes, ranks, *hop_edges, num_edges, base, hop, self._num_hops, sizes
        args = *args, self.nodes, self.local, indices
        _launch(kernels.number, num_edges, *args, BLOCK=BLOCK)
        return indices

    def forget(self) -> None:
        """Restore `local` to its state before the batch."""
        args = self.nodes, self.sizes, self._num_hops, self.local
        _launch(kernels.forget, self.num_known, *args, BLOCK=BLOCK)


def resolve_draws(
    values: Tensor, twins: Tensor, positions: Tensor, fallbacks: Tensor, fan_out: int
) -> Tensor:
    """Floyd's algorithm for all draws of a destination at once; see `draw_with_twins`.

    Draw i takes the number t unless an earlier draw took it: a draw of the same t, or the draw
    whose fallback is t, if that one fell back. This again depends on an earlier draw: the chains
    are resolved by pointer doubling, in log2(fan_out) steps.

    Returns:
        int64 `[num_edges]`, the positions of the edges.
    """
    in_order, order = torch.sort(values, stable=True)
    falls_back = torch.zeros_like(values, dtype=torch.bool)
    falls_back[order[1:]] = in_order[1:] == in_order[:-1]
    for _ in range(fan_out.bit_length()):
        falls_back = falls_back | falls_back[twins]
        twins = twins[twins]
    return torch.where(falls_back, fallbacks, positions)


def _read(sizes: Tensor) -> list[int]:
    """Read numbers from the device, which synchronises it."""
    numbers: list[int] = sizes.tolist()
    return numbers


def _launch(kernel: Any, length: int, *args: Any, tile: int = BLOCK, **constants: int) -> None:
    """Run a kernel for `length` places, `tile` a program, on the current stream."""
    # There is nothing to fuse, but Triton 3.9 warns where this is left open.
    kernel[(max(1, -(-length // tile)),)](*args, **constants, enable_fp_fusion=True)


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Triton launches on the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
