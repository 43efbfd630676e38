"""A sample: nodes by type and, for each hop, a block of edges in CSC form by edge type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from gnntrain.compute.operator import Edges
from gnntrain.compute.rows import AddSelfLoops, Transpose
from gnntrain.data.graph import EdgeType, NodeType


@dataclass(frozen=True, slots=True)
class Block:
    """The in-edges of some destination nodes in CSC form: one layer's message passing.

    In a mini-batch the destinations are the first `num_dst` of the `num_src` source nodes
    (`dst_offset` 0). In layer-wise inference the sources are all nodes of the graph and the
    destinations are the range that starts at `dst_offset`. Source `dst_offset + i` is therefore
    always the same node as destination `i`.

    A block may be padded, on a GPU so that its tensors keep their sizes from batch to batch:
    `indices` longer than `indptr[-1]` (and 0 there), the last destinations without in-edges, the
    last sources without out-edges.

    Attributes:
        indptr: int32 or int64 `[num_dst + 1]`.
        indices: same dtype, `[num_edges]`, source numbers.
        num_src: Number of source nodes.
        dst_offset: Source number of destination 0.
        weight: float32 `[num_edges]`, the graph's edge weights; None: all 1.
        degree: float32 `[num_dst]`, in-edges in the whole graph; None: no edge was left out.
        norm: float32 `[num_src]` or `[num_src, 2]`, `Edges.gcn_norm` of the sources.
        edge_ids: int32 or int64 `[num_edges]`, the positions of the edges in the adjacency that
            they were taken from; None: not requested.
        max_in_edges: The most in-edges of a destination in this block, if known (the fan-out): a
            GPU then needs no kernels for hubs.
        derived: Cache of a model's results that depend on the edges only.
        aggregates: In full-graph training, where all steps have the same block: cache of each
            convolution's aggregates of the graph's features, which do not change either.

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
    aggregates: dict[Any, dict[torch.dtype, Tensor]] | None = field(
        default=None, repr=False, compare=False
    )

    @property
    def num_dst(self) -> int:
        return self.indptr.numel() - 1

    @property
    def num_edges(self) -> int:
        return self.indices.numel()

    @property
    def edges(self) -> Edges:
        """As operators take them."""
        return Edges(self.indptr, self.indices, None, self.dst_offset, self.max_in_edges)

    def cached(self, name: str, make: Callable[[], Any]) -> Any:
        """What depends on the block alone; `make` gives it at the first call."""
        value = self.derived.get(name)
        if value is None:
            value = make()
            # torch.compile traces backward passes, which must not change anything outside; it
            # merges equal calls by itself.
            if not torch.compiler.is_compiling():
                self.derived[name] = value
        return value

    def transposed(self) -> Edges:
        """The out-edges of every source, whose destinations are this block's sources; cached."""

        def make() -> Edges:
            return Edges(*Transpose(self.indptr, self.indices, self.num_src).run())

        back: Edges = self.cached("transposed", make)
        return back

    def with_self_loops(self, loop_weight: Tensor | None = None) -> Block:
        """The edges with exactly one self loop of each destination, the last of its edges; others
        in the data are left out, as by PyG's `remove_self_loops` and `add_self_loops`.

        With weights, the block's own or those of the loops (float32 `[num_dst]`), all edges have
        weights; those of the others are 1.
        """
        edges = AddSelfLoops(self.indptr, self.indices, self.dst_offset)
        indptr, indices, edge_ids = edges.run()
        weight, most = None, self.max_in_edges
        if self.weight is not None or loop_weight is not None:
            ones = torch.ones(len(indices), device=indices.device)
            of_edges = ones[: self.num_edges] if self.weight is None else self.weight
            of_loops = ones[self.num_edges :] if loop_weight is None else loop_weight
            weight = torch.cat([of_edges, of_loops]).index_select(0, edge_ids)
        return Block(
            indptr,
            indices,
            self.num_src,
            self.dst_offset,
            weight,
            max_in_edges=None if most is None else most + 1,
            aggregates=self.aggregates,
        )

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The block's tensors by the names of its fields."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Block:
        """The block with all its tensors on `device`; itself if they are there already."""
        tensors = self.tensors
        moved: dict[str, Any] = {
            name: tensor.to(device, non_blocking=non_blocking) for name, tensor in tensors.items()
        }
        if all(moved[name] is tensors[name] for name in tensors):
            return self
        return replace(self, **moved, derived={}, aggregates=None)


@dataclass(frozen=True, slots=True)
class BlockNeeds:
    """The fields of a mini-batch that a model reads.

    Attributes:
        norm, weight, degree: In its blocks beside the edges, see `Block`.
        rows: Lazy features (`loading.batch.Batch.rows`) instead of `x_dict`.
        edge_index: PyG's `edge_index_dict` instead of blocks: for a plain PyG model, which might
            also write to the features.
    """

    norm: bool = False
    weight: bool = False
    degree: bool = False
    rows: bool = False
    edge_index: bool = False


NO_NEEDS = BlockNeeds()


@dataclass(frozen=True, slots=True)
class Hop:
    """The in-edges of some destination nodes of each type: one layer's message passing.

    The destinations of a type are the first `num_dst` of its `num_src` source nodes.

    Attributes:
        edges: A bipartite block for each edge type of the graph: its sources number the nodes of
            the source type, its destinations are those of the destination type.
        num_dst: Number of destinations of each node type.
        num_src: Number of sources of each node type.
    """

    edges: Mapping[EdgeType, Block]
    num_dst: Mapping[NodeType, int]
    num_src: Mapping[NodeType, int]

    @property
    def num_edges(self) -> int:
        return sum(block.num_edges for block in self.edges.values())

    def into(self, node_type: NodeType) -> dict[EdgeType, Block]:
        """The blocks whose destinations are of `node_type`."""
        return {edge: block for edge, block in self.edges.items() if edge[2] == node_type}


@dataclass(frozen=True, slots=True)
class Sample:
    """A sampled multi-hop neighbourhood, in host or device memory.

    The models of gnntrain compute on `hops`, one a layer. For PyG's models the sample is also one
    directed graph, in which every node has the in-edges of its first draw: `edge_index`,
    `num_sampled_nodes` and `num_sampled_edges` mean what they mean in PyG's mini-batches, and
    `torch_geometric.utils.trim_to_layer` works on them. With fan-outs of −1 this view is complete:
    all draws of a node are equal.

    On a GPU the tensors may be views of larger buffers, filled on the current stream; another
    stream must wait for it.

    Attributes:
        nodes: By node type, int64 `[num_nodes]`: ids within the type, in order of discovery, the
            seeds first, as given.
        num_seeds: Number of seeds of each node type that has some.
        hops: In the order of a model's layers: the hop farthest from the seeds first. Every hop
            draws again for *all* nodes found so far, so that a layer's output for a node does not
            depend on the rest of the batch. (Exception: PyG's way, see `pyg.PyGSampler`.)
        size: If `nodes` is padded: the number of sampled nodes, int64 on the device.
        new_edges: `num_sampled_edges`, if known without reading blocks; else None.
    """

    nodes: Mapping[NodeType, Tensor]
    num_seeds: Mapping[NodeType, int]
    hops: tuple[Hop, ...]
    size: Tensor | None = None
    new_edges: Mapping[EdgeType, list[int]] | None = None

    @property
    def num_sampled_nodes(self) -> dict[NodeType, list[int]]:
        """By node type: the number of seeds, then of the nodes that each hop found."""
        none = dict.fromkeys(self.nodes, 0)
        known = [none, none | dict(self.num_seeds), *(hop.num_src for hop in reversed(self.hops))]
        return {
            name: [after[name] - before[name] for before, after in pairwise(known)]
            for name in self.nodes
        }

    @property
    def num_sampled_edges(self) -> dict[EdgeType, list[int]]:
        """By edge type, for each hop, the one next to the seeds first: the edges to the nodes that
        the hop before found (or to the seeds)."""
        if self.new_edges is not None:
            return dict(self.new_edges)
        numbers: dict[EdgeType, list[int]] = {}
        oldest: Mapping[NodeType, int] = dict.fromkeys(self.nodes, 0)
        for hop in reversed(self.hops):
            for name, block in hop.edges.items():
                num_new = block.num_edges - int(block.indptr[oldest[name[2]]])
                numbers.setdefault(name, []).append(num_new)
            oldest = hop.num_dst
        return numbers

    def edge_index(self) -> dict[EdgeType, Tensor]:
        """By edge type, int64 `[2, sum(num_sampled_edges)]`: local sources, local destinations."""
        found: dict[EdgeType, Tensor] = {}
        for name, numbers in self.num_sampled_edges.items():
            parts, oldest = [], 0
            for hop, num_new in zip(reversed(self.hops), numbers, strict=True):
                block = hop.edges[name]
                parts.append(edge_index_of(block, oldest, num_new))
                oldest = block.num_dst
            found[name] = torch.cat(parts, 1)
        return found


def edge_index_of(block: Block, oldest: int, num_edges: int) -> Tensor:
    """The last edges of a block, all those to its destinations from `oldest` on, as PyG has them:
    int64 `[2, num_edges]`."""
    numbers = torch.arange(oldest, block.num_dst, device=block.indptr.device)
    dst = numbers.repeat_interleave(block.indptr[oldest:].diff(), output_size=num_edges)
    return torch.stack([block.indices[block.num_edges - num_edges :].long(), dst])
