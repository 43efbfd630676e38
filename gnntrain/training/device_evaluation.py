"""Exact evaluation on a GPU: the layers of `LayerwiseEvaluator`, where a GPU has or finds them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from gnntrain.compute.features import LazyFeatures
from gnntrain.data.graph import Graph
from gnntrain.distributed.context import DistributedContext
from gnntrain.loading.features import FeatureSource
from gnntrain.loading.loader import whole_graph_block
from gnntrain.loading.pinned import pinned_room
from gnntrain.models import GNN
from gnntrain.sampling.block import Block
from gnntrain.tasks import Task
from gnntrain.training.evaluation import (
    Inferred,
    LayerwiseEvaluator,
    Rows,
    balanced_range,
)
from gnntrain.training.forward import needs_of
from gnntrain.training.shared_buffers import SharedBuffers

if TYPE_CHECKING:
    from gnntrain.loading.graph import GraphTensors

# Numbers (rows × width, or edges × width where rows are gathered) of a chunk: 256 MiB of float32.
_MAX_CHUNK_NUMBERS = 1 << 26
_MAX_CHUNK_EDGES = 1 << 24
_INT32_MAX = 2**31 - 1


class DeviceLayerwiseEvaluator(LayerwiseEvaluator):
    """Exact evaluation on a GPU.

    Where all layers of all nodes fit into half of the GPU's free memory they stay there, and each
    rank is sent the rows of the others. Else they lie in host memory, pinned where one rank is
    alone, or, beyond the limit of `SharedBuffers`, on disk; a chunk's in-neighbours are then
    gathered, each once, and numbered anew.

    Args:
        store: The graph.
        features: Its rows in host memory.
        context: This rank.
        scratch: Gives matrices in host memory or on disk.
        task: Seeds, targets and metrics; None: classifying the nodes by the store's labels.
        all_ranks: Share the nodes out over all ranks, or let rank 0 compute alone.
        placed: The features where the GPU reads them.
        graph: The edges where the GPU reads them; None: the store's.
        room: Bytes of the GPU's memory for the layers; None: half of what is free.
    """

    def __init__(
        self,
        store: Graph,
        features: FeatureSource,
        context: DistributedContext,
        scratch: SharedBuffers,
        *,
        task: Task | None = None,
        all_ranks: bool = True,
        placed: FeatureSource,
        graph: GraphTensors | None = None,
        room: int | None = None,
    ) -> None:
        super().__init__(store, features, context, scratch, task=task, all_ranks=all_ranks)
        self._placed = placed
        self._graph = graph
        self._room = room
        self._all_ranks = all_ranks
        self._is_resident = False
        self._matrices: dict[str, Tensor] = {}
        self._numbers: Tensor | None = None

    def _inferred(self, model: GNN, *, embed: bool) -> Inferred:
        self._is_resident = self._needed(model, embed) <= self._free()
        return super()._inferred(model, embed=embed)

    def _needed(self, model: GNN, embed: bool) -> int:
        """Bytes of the matrices that are there at the same time."""
        widths = [model.hidden_channels] * (2 if model.num_layers > 1 else 0)
        widths += [max(model.hidden_channels, model.out_channels), model.out_channels]
        widths += [model.embedding_channels] * embed
        return 4 * self._store.num_nodes * (sum(widths) + model.state_channels)

    def _free(self) -> int:
        """Bytes of memory for the layers: what the rank with the least has."""
        if self._room is not None:
            return self._room
        device = self._context.device
        free, _ = torch.cuda.mem_get_info(device)
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return min(self._context.gather(free + unused)) // 2

    def _features_of_all(self) -> Rows:
        """See `LayerwiseEvaluator`: the table that the GPU reads, if the rows are in reach."""
        return self._placed.select()

    def _to_aggregate(self, model: GNN, source: Rows) -> Rows:  # noqa: ARG002
        return source

    def _view(self, model: GNN, i: int, given: Rows, a: int, b: int) -> tuple[Block, Rows]:
        block = replace(self._in_edges(model, a, b), norm=self._norm(model))
        if self._is_here(given) and (isinstance(given, Tensor) or model.reads_rows):
            return block, given
        nodes, block = self._renumbered(block)
        rows = self._gathered(given, nodes)
        return block, model.start(rows) if i == 0 and not model.has_transform(i) else rows

    def _is_here(self, rows: Rows) -> bool:
        # Not the devices as such: "cuda" and "cuda:0" are the same one, but not equal.
        return rows.device.type == self._context.device.type

    def _in_edges(self, model: GNN, a: int, b: int) -> Block:
        """The in-edges of the nodes `a … b − 1`, on the device."""
        needs, graph, device = needs_of(model), self._graph, self._context.device
        first, last = int(self._store.indptr[a]), int(self._store.indptr[b])
        if graph is None or last - first > _INT32_MAX:
            block = whole_graph_block(self._store, replace(needs, norm=False), a, b)
            return block.to(device)
        weight = graph.weight if needs.weight else None
        return Block(
            indptr=(graph.indptr[a : b + 1] - first).to(graph.indices.dtype),
            indices=graph.indices[first:last].to(device, non_blocking=True),
            num_src=self._store.num_nodes,
            dst_offset=a,
            weight=None if weight is None else weight[first:last],
        )

    def _renumbered(self, block: Block) -> tuple[Tensor, Block]:
        """The nodes that a block of the whole graph is about, its destinations first, and the block
        over them."""
        a, num_dst = block.dst_offset, block.num_dst
        if self._numbers is None:
            size, device = self._store.num_nodes, self._context.device
            self._numbers = torch.empty(size, dtype=block.indices.dtype, device=device)
        numbers, indices = self._numbers, block.indices
        others = torch.unique(indices[(indices < a) | (indices >= a + num_dst)]).long()
        nodes = torch.cat([torch.arange(a, a + num_dst, device=others.device), others])
        numbers[nodes] = torch.arange(len(nodes), dtype=numbers.dtype, device=nodes.device)
        return nodes, replace(
            block,
            indices=numbers[indices.long()].to(indices.dtype),
            num_src=len(nodes),
            dst_offset=0,
            norm=None if block.norm is None else block.norm[nodes],
            derived={},
        )

    def _gathered(self, given: Rows, nodes: Tensor) -> Tensor:
        """The rows of `nodes` as float32 on the device."""
        features = LazyFeatures(given) if isinstance(given, Tensor) else given
        return features.select(nodes).whole().to(self._context.device)

    def pieces(self, model: GNN) -> Iterator[tuple[int, int]]:
        widest = max(self._features.num_features, model.hidden_channels, model.out_channels, 1)
        most = max(1, _MAX_CHUNK_NUMBERS // widest)
        max_edges = _MAX_CHUNK_EDGES if self._is_resident else most
        return self._cuts(most, max_edges)

    def _matrix(self, name: str, num_columns: int) -> Tensor:
        size = self._store.num_nodes, num_columns
        if self._is_resident:
            if name not in self._matrices:
                self._matrices[name] = torch.empty(size, device=self._context.device)
            return self._matrices[name]
        alone = self._context.world_size == 1 and self._context.device.type == "cuda"
        if alone and 4 * size[0] * size[1] <= self._scratch.memory_limit:
            if name not in self._matrices:
                self._matrices[name] = pinned_room(size)
            return self._matrices[name]
        return super()._matrix(name, num_columns)

    def _share(self, matrix: Tensor) -> None:
        super()._share(matrix)
        if self._is_resident and self._context.world_size > 1 and self._all_ranks:
            for rank in range(self._context.world_size):
                a, b = balanced_range(self._store.indptr, rank, self._context.world_size)
                if b > a:
                    dist.broadcast(matrix[a:b], src=rank)

    def _release(self, name: str | None = None) -> None:
        for key in list(self._matrices):
            if name in (None, key):
                del self._matrices[key]
        if name is None:
            self._numbers = None
        super()._release(name)
